"""Torn tails and damage are told apart: every byte prefix of a small log, lost pages, half batches.

Above the last durable mark of an earlier boot, what does not verify is a torn tail: copied aside and cut to an exact prefix
of records, batches whole or absent. Below it, and below the published end of this boot, it is damage: left alone, reported,
and stepped over only when asked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import CorruptRecord, Queue, Roll, kernel
from penstock.storage import files
from penstock.testing.state import Boot, settle_page
from tests.queue.crash import (
    HEADER,
    NATIVE,
    PAGE,
    Image,
    Yard,
    beyond,
    durable_mark,
    frames,
    never_seal,
    numbered,
    payload,
    records,
)
from tests.support import until


@dataclass
class Small:
    """Records of different sizes, the third to fifth of them one batch, and a cursor at both ends."""

    payloads: list[bytes]
    crashed: Image  # nothing of it synced
    synced: Image  # all of it synced, then a crash
    closed: Image


BATCH = range(2, 5)


@pytest.fixture(scope="module")
def small(yard: Yard) -> Small:
    payloads = [payload(i, n) for i, n in enumerate([1, 30, 5, 60, 17, 100, 200, 7])]
    path = yard.keep()
    with Queue(path, file_size=8192, index_interval=3) as q:
        for p in payloads[: BATCH.start]:
            q.append(p)
        q.append_batch(payloads[BATCH.start : BATCH.stop])
        for p in payloads[BATCH.stop :]:
            q.append(p)
        for name, at in (("ahead", len(payloads)), ("behind", 1)):
            q.tailer(name, at=at)
        crashed = Image.take(path)
        q.sync()
        synced = Image.take(path)
    return Small(payloads, crashed, synced, Image.take(path))


def cuts(log: Small) -> list[int]:
    """Every byte of the frames; a sample where the kernel is slow."""
    end = frames(log.payloads)[-1][1]
    return list(range(HEADER, end + 1)) if NATIVE else sorted({*range(HEADER, end + 1, 11), end - 1, end})


def torn_at(image: Image, cut: int, how: str) -> Image:
    """The data file as if only its bytes before `cut` had reached the disk."""
    data = image[image.data]
    if how == "zeros":
        return image.changed(image.data, data[:cut].ljust(len(data), b"\0"))
    if how == "short":
        return image.changed(image.data, data[:cut])
    noise = random.Random(cut)
    return image.changed(image.data, data[:cut] + noise.randbytes(300).ljust(len(data) - cut, b"\0"))


def whole_before(log: Small, image: Image) -> int:
    """How many records come back: the frames that are as they were, without a part of a batch."""
    was, now = log.crashed[log.crashed.data], image[image.data]
    count = 0
    for start, end in frames(log.payloads):
        if now[start:end] != was[start:end]:
            break
        count += 1
    return BATCH.start if count in BATCH[1:] else count


@pytest.mark.parametrize("how", ["zeros", "short", "noise"])
def test_torn_tail_is_cut_to_the_last_whole_record_or_batch(small: Small, yard: Yard, how: str) -> None:
    places = [HEADER, *(end for _, end in frames(small.payloads))]
    for cut in cuts(small)[:: 1 if how == "zeros" else 2]:
        torn = torn_at(small.crashed, cut, how)
        keep = whole_before(small, torn)
        path = torn.lay(yard.new(), "new")
        with Queue(path) as q:
            assert records(q) == numbered(small.payloads[:keep]), cut
            assert q.recovery.how == "new boot"
            assert not q.recovery.damage
            assert not any(beyond(q)), cut
            tail = torn[torn.data][places[keep] :].rstrip(b"\0")
            saved = [p.read_bytes() for p in path.rglob("*.torn")]
            assert saved == ([tail] if tail else []), cut
            assert len(q.recovery.torn) == len(saved)
            back = {name: at for name, at in (("ahead", len(small.payloads)), ("behind", 1)) if at > keep}
            assert q.recovery.cursors_set_back == back
            assert q.cursors() == {"ahead": keep, "behind": min(keep, 1)}
            assert q.append(b"next") == keep
            assert records(q) == numbered([*small.payloads[:keep], b"next"])


def test_recovering_twice_gives_the_same(small: Small, yard: Yard) -> None:
    for cut in cuts(small)[::7]:
        torn = torn_at(small.crashed, cut, "noise")
        path = torn.lay(yard.keep(), "new")
        with Queue(path) as q:
            first = records(q)
            again = Image.take(path)
        with Queue(again.lay(yard.new(), "new")) as q:
            assert records(q) == first
            assert not q.recovery.torn
            assert not q.recovery.cursors_set_back
            assert q.append(b"next") == len(first)


@pytest.mark.parametrize("boot", ["new", "same"])
def test_what_was_reported_durable_or_published_is_never_cut_but_reported(small: Small, yard: Yard, boot: Boot) -> None:
    image = small.synced if boot == "new" else small.crashed
    assert durable_mark(image[".lock"]).next == (len(small.payloads) if boot == "new" else 0)
    places = [start for start, _ in frames(small.payloads)]
    end, count = frames(small.payloads)[-1][1], len(small.payloads)
    for cut in cuts(small)[: -1 : 1 if boot == "new" else 2]:
        lost = image.put(image.data, cut, bytes(end - cut))
        bad = next(
            (i for i, (s, e) in enumerate(frames(small.payloads)) if lost[image.data][s:e] != image[image.data][s:e]),
            None,
        )
        path = lost.lay(yard.new(), boot)
        with Queue(path) as q:
            assert q.next_sequence == count
            assert not q.recovery.torn
            assert (path / image.data).read_bytes()[:end] == lost[image.data][:end]
            if bad is None:  # a checksum that ends in zeros
                assert not q.recovery.damage
                continue
            (found,) = q.recovery.damage
            assert f"{image.data}: byte {places[bad]}: sequences {bad} to {count - 1} are lost" in found
            with q.tailer() as t, pytest.raises(CorruptRecord) as info:
                assert [m.payload for m in t.read_batch(bad)] == small.payloads[:bad]
                t.read()
            assert (info.value.sequence, info.value.position) == (bad, places[bad])
            assert info.value.path == str(path / image.data)
            assert 'on_corrupt="skip"' in str(info.value)
            assert q.append(b"next") == count
            with q.tailer(on_corrupt="skip") as t:
                got = [(m.sequence, m.payload) for m in t]
                assert got == [*numbered(small.payloads[:bad]), (count, b"next")], cut
                assert [(first, last) for first, last, _ in t.losses] == [(bad, count - 1)]


@pytest.mark.parametrize("boot", ["new", "same"])
@pytest.mark.parametrize("how", ["zeros", "short"])
def test_a_clean_close_is_exact_so_what_is_missing_below_it_is_damage(
    small: Small, yard: Yard, boot: Boot, how: str
) -> None:
    count = len(small.payloads)
    for cut in cuts(small)[:-1:7]:
        image = torn_at(small.closed, cut, how)
        keep = next(i for i, (_, end) in enumerate(frames(small.payloads)) if end > cut)
        with Queue(image.lay(yard.new(), boot), verify_on_startup=True) as q:
            assert q.recovery.damage
            assert not q.recovery.torn
            assert q.next_sequence == count
            with q.tailer(on_corrupt="skip") as t:
                assert [(m.sequence, m.payload) for m in t] == numbered(small.payloads[:keep])
                assert [(first, last) for first, last, _ in t.losses] == [(keep, count - 1)]
            assert q.append(b"next") == count
            with pytest.raises(CorruptRecord):
                records(q)


def test_a_file_cut_short_under_a_clean_close_is_reported_without_a_scan(small: Small, yard: Yard) -> None:
    path = torn_at(small.closed, frames(small.payloads)[3][0] + 5, "short").lay(yard.new(), "new")
    with Queue(path) as q:
        (found,) = q.recovery.damage
        assert "sequences 3 to 7 are lost" in found
        assert q.recovery.bytes_scanned == 0


def test_bytes_beyond_a_power_cut_never_come_back_to_life(small: Small, yard: Yard) -> None:
    """The record that is torn away is followed by a whole one: it must not reappear behind an append of the same size."""
    starts = [start for start, _ in frames(small.payloads)]
    lost = small.crashed.put(small.crashed.data, starts[5], bytes(1 + 4))  # the head of 5 is lost, 6 and 7 are whole
    path = lost.lay(yard.keep(), "new")
    with Queue(path) as q:
        assert q.append(payload(99, len(small.payloads[5]))) == 5
        again = Image.take(path)
    with Queue(again.lay(yard.new(), "new")) as q:
        assert q.next_sequence == 6


# ---- several segments ----


@pytest.fixture(scope="module")
def rolled(yard: Yard) -> Small:
    """Three unsealed segments of three records each, nothing synced."""
    payloads = [payload(i, 10 + 3 * i) for i in range(9)]
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        with Queue(path, file_size=8192, roll=Roll.count(3)) as q:
            for p in payloads:
                q.append(p)
            q.tailer("ahead", at=9)
            crashed = Image.take(path)
            q.sync()
            synced = Image.take(path)
        return Small(payloads, crashed, synced, Image.take(path))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_cut_in_an_unsealed_segment_takes_the_later_ones_out_of_the_log(rolled: Small, yard: Yard, which: int) -> None:
    names = rolled.crashed.names(".data")
    mine = rolled.payloads[3 * which : 3 * which + 3]
    for cut in range(HEADER, frames(mine)[-1][1], 1 if NATIVE else 9):
        data = rolled.crashed[names[which]]
        keep = 3 * which + sum(data[cut:end].count(0) == end - cut or end <= cut for _, end in frames(mine))
        torn = rolled.crashed.changed(names[which], data[:cut].ljust(len(data), b"\0"))
        path = torn.lay(yard.new(), "new")
        with Queue(path) as q:
            assert records(q) == numbered(rolled.payloads[:keep]), cut
            if keep == 3 * which + 3:
                continue  # what was cut off were zeros
            assert q.recovery.cursors_set_back == {"ahead": 9}
            left = [f for f in files.walk(path) if f.endswith((".data", ".index", ".time"))]
            assert not [f for f in left if f[:-5] in [n[:-4] for n in names[which + 1 :]]]
            for name in names[which + 1 :]:
                assert (path / f"{name}.torn").read_bytes() == rolled.crashed[name]
            assert q.append(b"next") == keep
            assert records(q) == numbered([*rolled.payloads[:keep], b"next"])


@pytest.mark.parametrize("which", [0, 1])
def test_damage_in_an_unsealed_segment_below_the_durable_mark_costs_only_what_it_hit(
    rolled: Small, yard: Yard, which: int
) -> None:
    name = rolled.synced.names(".data")[which]
    for victim in range(3):
        start = frames(rolled.payloads[3 * which : 3 * which + 3])[victim][0]
        with Queue(rolled.synced.flipped(name, 8 * (start + 7)).lay(yard.new(), "new")) as q:
            lost = 3 * which + victim
            assert len(q.recovery.damage) == 1
            assert not q.recovery.torn
            with q.tailer(on_corrupt="skip") as t:
                assert [(m.sequence, m.payload) for m in t] == [r for r in numbered(rolled.payloads) if r[0] != lost]
                assert [(first, last) for first, last, _ in t.losses] == [(lost, lost)]
            assert q.append(b"next") == 9


def test_rolled_but_unsynced_segments_are_not_believed_after_a_power_cut(rolled: Small, yard: Yard) -> None:
    """The manifest lists them, but says that they were never synced: what they hold is found by looking."""
    names = rolled.crashed.names(".data")
    empty = rolled.crashed[names[1]][:HEADER].ljust(8192, b"\0")
    with Queue(rolled.crashed.changed(names[1], empty).lay(yard.new(), "new")) as q:
        assert records(q) == numbered(rolled.payloads[:3])
        assert q.append(b"next") == 3


def test_a_new_segment_whose_header_never_reached_the_disk_is_set_aside(rolled: Small, yard: Yard) -> None:
    name = rolled.crashed.names(".data")[1]
    for content in (bytes(8192), b"", bytes(100)):
        with Queue(rolled.crashed.changed(name, content).lay(yard.new(), "new")) as q:
            assert records(q) == numbered(rolled.payloads[:3])


# ---- lost pages ----


@pytest.fixture(scope="module")
def paged(yard: Yard) -> Small:
    """Single records over several pages; the first ten are synced."""
    payloads = [payload(i, 300 + 37 * i % 400) for i in range(50)]
    path = yard.keep()
    with Queue(path, file_size=1 << 16) as q:
        for p in payloads[:10]:
            q.append(p)
        q.sync()
        for p in payloads[10:]:
            q.append(p)
        crashed = Image.take(path)
    return Small(payloads, crashed, crashed, crashed)


def without_pages(image: Image, name: str, pages: list[int]) -> Image:
    for page in pages:
        image = image.put(name, PAGE * page, bytes(min(PAGE, len(image[name]) - PAGE * page)))
    return image


def test_pages_lost_above_the_durable_mark_leave_a_prefix(paged: Small, yard: Yard) -> None:
    ends = [end for _, end in frames(paged.payloads)]
    mark = durable_mark(paged.crashed[".lock"])
    assert mark.next == 10
    first = -(-mark.end // PAGE)
    pages = range(first, ends[-1] // PAGE + 1)
    rng = random.Random(1)
    losses = [[p] for p in pages] + [sorted(rng.sample(pages, rng.randint(2, len(pages)))) for _ in range(20)]
    for lost in losses:
        keep = sum(end <= lost[0] * PAGE for end in ends)
        with Queue(without_pages(paged.crashed, paged.crashed.data, lost).lay(yard.new(), "new")) as q:
            assert records(q) == numbered(paged.payloads[:keep]), lost
            assert keep >= 10
            assert not q.recovery.damage
            assert not any(beyond(q))
            assert q.append(b"next") == keep


def test_a_page_lost_below_the_durable_mark_is_damage(paged: Small, yard: Yard) -> None:
    with Queue(without_pages(paged.crashed, paged.crashed.data, [1]).lay(yard.new(), "new")) as q:
        assert q.recovery.damage
        assert q.next_sequence == 50


# ---- batches ----


@dataclass
class Batch:
    payloads: list[bytes]
    before: int
    image: Image


@pytest.fixture(scope="module", params=["one file", "several files"])
def batch(request: pytest.FixtureRequest, yard: Yard) -> Batch:
    """Two single records, then a batch that takes several pages, or several files; nothing of it synced."""
    payloads = [payload(i, n) for i, n in enumerate([40, 50] + [900] * 20)]
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        with Queue(path, file_size=8192 if request.param == "several files" else 1 << 16) as q:
            for p in payloads[:2]:
                q.append(p)
            q.append_batch(payloads[2:])
            image = Image.take(path)
    assert len(image.names(".data")) == (6 if request.param == "several files" else 1)
    return Batch(payloads, 2, image)


def lost_parts(image: Image) -> list[tuple[str, int]]:
    """Every page of frames that a power cut can take from the batch."""
    parts = []
    for name in image.names(".data"):
        used = len(image[name].rstrip(b"\0"))
        parts += [(name, page) for page in range(1, -(-used // PAGE))]
    return parts[1:] if len(image.names(".data")) == 1 else parts


@pytest.mark.parametrize("times", ["known", "zero", "zero page", "short"])
def test_a_batch_of_which_a_page_is_lost_is_absent_as_a_whole(batch: Batch, yard: Yard, times: str) -> None:
    parts = lost_parts(batch.image)
    assert len(parts) > 3
    for name, page in parts:
        image = without_pages(batch.image, name, [page])
        several = len(image.names(".data")) > 1
        for i, beside in enumerate(image.names(".time")):
            known = 64 if i else 64 + 8 * batch.before  # the header, and the times of the single records
            size = len(image[beside])
            if times == "zero":
                image = image.changed(beside, image[beside][:known].ljust(size, b"\0"))
            elif times != "known":
                image = image.changed(beside, b"" if times == "short" else bytes(size))
        singles = batch.before if times in ("known", "zero") else 0
        if several and name == image.names(".data")[0]:
            singles = 0  # its only page
        with Queue(image.lay(yard.new(), "new")) as q:
            assert records(q) == numbered(batch.payloads[:singles]), (name, page)
            assert q.append(b"next") == singles


def test_a_batch_that_came_back_whole_is_kept(batch: Batch, yard: Yard) -> None:
    with Queue(batch.image.lay(yard.new(), "new")) as q:
        assert records(q) == numbered(batch.payloads)


def test_a_batch_in_several_files_is_absent_when_its_last_file_is(yard: Yard, batch: Batch) -> None:
    names = batch.image.names(".data")
    if len(names) == 1:
        pytest.skip("it lies in one file")
    for name in names[1:]:
        with Queue(batch.image.without(name).lay(yard.new(), "new")) as q:
            assert records(q) == numbered(batch.payloads[:2])


def test_synced_records_are_kept_though_neither_their_times_nor_the_mark_reached_the_disk(yard: Yard) -> None:
    """A sync writes the data file only: the companion is not synced, and the control page only once a second."""
    path = yard.keep()
    payloads = [payload(i, 50) for i in range(9)]
    with Queue(path, file_size=8192) as q:
        q.append(payloads[0])
        q.sync()
        page = Image.take(path)[".lock"]
        q.append_batch(payloads[1:4])
        q.sync()
        q.append(payloads[4])
        q.sync()
        q.append_batch(payloads[5:9])
        image = Image.take(path).changed(".lock", page)
    lost = frames(payloads)[7][0]
    torn = image.put(image.data, lost, bytes(8192 - lost))
    for times in (b"", torn[torn.times][:64], bytes(len(torn[torn.times]))):
        with Queue(torn.changed(torn.times, times).lay(yard.new(), "new")) as q:
            assert records(q) == numbered(payloads[:5])


def test_a_sync_that_was_cut_off_promises_nothing(yard: Yard) -> None:
    """The note of a sync may reach the disk before the frames it speaks of: then half a batch is still cut."""
    path = yard.keep()
    payloads = [payload(i, 50) for i in range(7)]
    with Queue(path, file_size=8192) as q:
        q.append(payloads[0])
        q.sync()
        page = Image.take(path)[".lock"]
        q.append_batch(payloads[1:7])
        q.sync()
        image = Image.take(path).changed(".lock", page)
    lost = frames(payloads)[5][0]
    torn = image.put(image.data, lost, bytes(8192 - lost))
    for times in (torn[torn.times], bytes(len(torn[torn.times]))):
        path = torn.changed(torn.times, times).lay(yard.keep(), "new")
        with Queue(path) as q:
            assert records(q) == numbered(payloads[:1])
            # and a batch in its place is not taken to end where that sync said
            q.append_batch([payload(9 + i, 50) for i in range(8)])
            again = Image.take(path)
        lost = frames([*payloads, payload(9, 50)])[7][0]
        again = again.put(again.data, lost, bytes(8192 - lost)).put(again.times, 64, bytes(8 * 20))
        with Queue(again.lay(yard.new(), "new")) as q:
            assert records(q) == numbered(payloads[:1])


def test_times_of_torn_records_do_not_vouch_for_half_a_batch_later(yard: Yard) -> None:
    """Two power cuts: the first leaves times of records it took, the second half a batch whose own times never came."""
    path = yard.keep()
    payloads = [payload(i, 50) for i in range(8)]
    with Queue(path, file_size=8192) as q:
        for p in payloads:
            q.append(p)
        image = Image.take(path)
    lost = frames(payloads)[2][0]
    path = image.put(image.data, lost, bytes(8192 - lost)).lay(yard.keep(), "new")
    with Queue(path) as q:
        assert records(q) == numbered(payloads[:2])
        after = Image.take(path)
        q.append_batch(payloads[2:8])
        image = Image.take(path)
    old = after[after.times].ljust(len(image[image.times]), b"\0")  # the companion's page as the first recovery left it
    lost = frames(payloads)[5][0]
    torn = image.put(image.data, lost, bytes(8192 - lost)).changed(image.times, old)
    with Queue(torn.lay(yard.new(), "new")) as q:
        assert records(q) == numbered(payloads[:2])


def test_every_prefix_of_a_batch_is_no_batch(yard: Yard) -> None:
    payloads = [payload(i, n) for i, n in enumerate([9, 20, 33, 1, 47])]
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append_batch(payloads)
        image = Image.take(path)
    end = frames(payloads)[-1][1]
    for cut in range(HEADER, end - 8, 1 if NATIVE else 13):
        with Queue(torn_at(image, cut, "zeros").lay(yard.new(), "new")) as q:
            assert records(q) == []
            assert q.append_batch([b"a", b"b"]) == range(2)


def test_prefixes_in_order_never_grow_backwards(small: Small) -> None:
    """The oracle of this file: more bytes never give fewer records."""
    counts = [whole_before(small, torn_at(small.crashed, cut, "zeros")) for cut in cuts(small)]
    assert all(a <= b for a, b in pairwise(counts))
    assert (counts[0], counts[-1]) == (0, len(small.payloads))


# ---- a file that is mostly holes ----

LARGE = 64 << 20  # far more than is looked through for two records


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A large queue with little in it, of an earlier boot, that was not closed."""
    path = tmp_path / "q"
    with Queue(path, file_size=LARGE) as q:
        q.append(b"first")
    (data,) = path.rglob("*.data")
    page = (path / ".lock").read_bytes()
    with Queue(path) as q:
        q.append(b"second")
    (path / ".lock").write_bytes(page)  # as if that had not reached the disk
    settle_page(path / ".lock", "new")
    return data


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each look at what lies behind the records took."""
    some: list[int] = []
    real = kernel.release
    monkeypatch.setattr(kernel, "release", lambda data, lo, hi: (some.append(hi - lo), real(data, lo, hi)))
    return some


def test_holes_behind_the_records_are_not_looked_through(sparse: Path, looked: list[int]) -> None:
    with Queue(sparse.parents[3]) as q:
        assert q.recovery.how == "new boot"
        assert [m.payload for m in q.tailer()] == [b"first", b"second"]
    assert sum(looked) < LARGE // 16


def test_what_lies_behind_a_hole_is_found(sparse: Path, looked: list[int]) -> None:
    far = LARGE - 5000
    with sparse.open("r+b") as file:
        file.seek(far)
        file.write(b"torn")
    with Queue(sparse.parents[3]) as q:
        assert len(q.recovery.torn) == 1
        assert [m.payload for m in q.tailer()] == [b"first", b"second"]
    (saved,) = sparse.parent.glob("*.torn")
    assert saved.read_bytes().endswith(b"torn")
    with sparse.open("rb") as file:
        file.seek(far)
        assert not any(file.read(4))
    assert looked


@pytest.mark.parametrize("read_only", [False, True])
def test_a_new_file_of_which_only_the_records_reached_the_disk(yard: Yard, read_only: bool) -> None:
    """Not its header, nor its companion: it came after all that was promised, and is not another implementation's."""
    path, before = yard.keep(), [payload(i, 50) for i in range(3)]
    q = Queue(path, file_size=8192)
    q.append_batch(before)
    q.sync()
    q._open_log().roll_now()
    until(lambda: all(s.sealed for s in q._open_log().finished().values()), "the first one is sealed")
    q.append(b"never promised")
    image = Image.take(path)
    q.close()
    lost = image.put(image.data, 0, bytes(HEADER)).changed(image.times, b"")
    laid = lost.lay(yard.new(), "new")
    with Queue(laid, read_only=read_only) as q:
        assert q.recovery.how == "new boot"
        assert records(q) == numbered(before)
        if not read_only:
            assert [p.name for p in laid.rglob("*.torn")] == [Path(image.data).name + ".torn"]
            assert q.append(b"and on") == 3
