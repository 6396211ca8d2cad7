"""Opening a log that was closed, crashed, or lost some of its files; and a crash while it is being opened."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import CorruptRecord, NotALog, Queue, Roll, SyncFailed, UnknownVersion, kernel
from penstock.formats import queue as fmt
from penstock.storage import control, files, span
from penstock.storage.companion import pack_header
from tests.queue.crash import (
    HEADER,
    NATIVE,
    Child,
    Disk,
    Image,
    Yard,
    beyond,
    frames,
    half_append,
    never_seal,
    numbered,
    payload,
    records,
)
from tests.queue.dying import Countdown, Zygote, open_zygote

PAYLOADS = [payload(i, 10 + 3 * i) for i in range(11)]


@pytest.fixture(scope="module")
def closed(yard: Yard) -> Image:
    """Three sealed segments and a last one, closed."""
    path = yard.keep()
    with Queue(path, file_size=8192, roll=Roll.count(3), index_interval=2) as q:
        for p in PAYLOADS:
            q.append(p)
    return Image.take(path)


@pytest.fixture(scope="module")
def crashed(yard: Yard) -> Image:
    """The same, nothing sealed or synced, and left open."""
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        with Queue(path, file_size=8192, roll=Roll.count(3), index_interval=2) as q:
            for p in PAYLOADS:
                q.append(p)
            q.tailer("ahead", at=11)
            return Image.take(path)


# ---- nothing to do ----


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_clean_reopen_scans_nothing(closed: Image, yard: Yard, boot: str) -> None:
    with Queue(closed.lay(yard.new(), boot)) as q:
        assert q.recovery.how == "clean"
        assert q.recovery.bytes_scanned == 0
        assert q.recovery.clean
        assert records(q) == numbered(PAYLOADS)
        assert q.append(b"next") == len(PAYLOADS)


def test_a_crash_in_this_boot_is_checked_and_loses_nothing(crashed: Image, yard: Yard) -> None:
    with Queue(crashed.lay(yard.new(), "same")) as q:
        assert q.recovery.how == "same boot"
        assert q.recovery.clean
        assert q.recovery.bytes_scanned > 0
        assert records(q) == numbered(PAYLOADS)


def test_a_killed_process_leaves_this_boot_and_a_reboot_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, which the images of these tests stand for."""
    with Child(path, "dict(file_size=8192)") as child:
        assert child.ask("[q.append(b'x%d' % i) for i in range(5)][-1]") == "4"
        child.kill()
    with Child(path) as child:
        assert child.ask("(q.recovery.how, q.next_sequence)") == "('same boot', 5)"
        child.kill()
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path) as q:
        assert (q.recovery.how, q.next_sequence) == ("new boot", 5)


def test_a_copied_directory_is_not_taken_for_the_one_in_use(crashed: Image, yard: Yard) -> None:
    path = crashed.lay(yard.keep(), "same")
    copy = Image.take(path)
    other = yard.new()
    for name, data in copy.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes(data)
    with Queue(path) as first, Queue(other) as second:
        assert second.recovery.how == "new boot"
        second.append(b"only here")
        assert (first.next_sequence, second.next_sequence) == (11, 12)


# ---- files that are lost ----


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
@pytest.mark.parametrize("suffix", ["manifest", ".index", ".time", ".lock", "metadata.json"])
def test_a_lost_helper_file_costs_no_record(
    closed: Image, crashed: Image, yard: Yard, suffix: str, state: str, boot: str
) -> None:
    image = closed if state == "closed" else crashed
    lost = [name for name in image if name.endswith(suffix)]
    assert lost
    with Queue(image.without(*lost).lay(yard.new(), boot), file_size=8192, index_interval=2) as q:
        assert records(q) == numbered(PAYLOADS)
        assert not q.recovery.damage
        assert not q.recovery.torn
        assert q.recovery.rebuilt == (["manifest"] if suffix == "manifest" else [])
        assert q.append(b"next") == len(PAYLOADS)
        for to in range(len(PAYLOADS)):
            with q.tailer(at=to) as t:
                message = t.read()
                assert message is not None
                assert (message.sequence, message.payload) == (to, PAYLOADS[to])
                assert (message.timestamp_us is None) == (suffix == ".time")


def test_a_lost_manifest_is_written_anew_as_it_was(closed: Image, yard: Yard) -> None:
    path = closed.without("manifest").lay(yard.new(), "new")
    with Queue(path):
        pass
    with Queue(path) as q:
        assert q.recovery.clean
        assert q.recovery.bytes_scanned == 0
        assert records(q) == numbered(PAYLOADS)


@pytest.mark.parametrize("listed", [True, False])
def test_a_data_file_missing_in_the_middle_is_reported_and_told_to_readers(
    closed: Image, yard: Yard, listed: bool
) -> None:
    image = closed if listed else closed.without("manifest")
    name = closed.names(".data")[1]
    with Queue(image.without(name).lay(yard.new(), "new")) as q:
        assert any("sequences 3 to 5" in found for found in q.recovery.damage)
        assert q.next_sequence == len(PAYLOADS)
        with q.tailer(on_corrupt="skip") as t:
            assert [(m.sequence, m.payload) for m in t] == [r for r in numbered(PAYLOADS) if r[0] not in (3, 4, 5)]
            assert [loss[:2] for loss in t.losses] == [(3, 5)]
        if not listed:
            return
        with q.tailer() as t, pytest.raises(CorruptRecord) as info:
            assert [m.sequence for m in t.read_batch(3)] == [0, 1, 2]
            t.read()
        assert info.value.sequence == 3
        assert name in info.value.path
        with q.tailer(on_corrupt="skip", direction="backward") as t:
            assert [m.sequence for m in t] == [10, 9, 8, 7, 6, 2, 1, 0]


def test_verifying_on_startup_reports_a_missing_file_and_goes_on(closed: Image, yard: Yard) -> None:
    lost = closed.without(closed.names(".data")[1])
    with Queue(lost.lay(yard.new(), "new"), verify_on_startup=True) as q:
        assert q.recovery.damage
        assert q.append(b"next") == len(PAYLOADS)


def test_finished_files_alone_are_gone_on_with_and_to_read_only_say_what_is_missing(yard: Yard) -> None:
    """As in a copy whose manifest is newer than its data files."""
    with Queue(yard.keep(), file_size=8192) as q:
        for payload in PAYLOADS:
            q.append(payload)
        q.sync()
        q._log.roll_now()
        q._log.seal_finished()
        image = Image.take(q.path)
    path = image.without(image.data).lay(yard.new(), "new")
    with pytest.raises(NotALog, match="the file behind the finished ones is missing; restore it"):
        Queue(path, read_only=True)
    with Queue(path) as q:
        assert records(q) == numbered(PAYLOADS)
        assert q.append(b"next") == len(PAYLOADS)


def test_the_last_data_file_missing_under_a_clean_close_is_refused(closed: Image, yard: Yard) -> None:
    with pytest.raises(NotALog, match="the last file of the log is missing"):
        Queue(closed.without(closed.data).lay(yard.new(), "new"))


# ---- leftovers ----


def test_temporary_and_prepared_files_are_removed(closed: Image, yard: Yard) -> None:
    day, file = closed.data.rsplit("/", 1)
    name = file.partition("-")[0]
    left = [
        f"{day}/{name}-0009.data.next",
        f"{day}/{name}-0009.time.next",
        f"{day}/{name}-0009.index.next",
        f"{day}/{name}-0009.data.17-4.tmp",
        "manifest.17.tmp",
        "cursors/reader.17.tmp",
    ]
    image = Image({**closed, **dict.fromkeys(left, b"half")})
    for boot in ("same", "new"):
        path = image.lay(yard.new(), boot)
        with Queue(path):
            assert not [name for name in left if (path / name).exists()]


def test_a_cursor_may_be_named_like_a_prepared_file(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(b"x")
        q.tailer("up.next", at=1)
    with Queue(path) as q:
        assert q.cursors() == {"up.next": 1}
    with Queue(path) as q:
        assert q.cursors() == {"up.next": 1}


def after_roll(image: Image, base: int, content: bytes = b"") -> Image:
    """With the files of a next segment, as a roll that was never committed leaves them."""
    last = fmt.parse(image.data)
    assert last is not None
    name = fmt.name(last + 1)
    data = (fmt.pack_header(0, base, 0, 1) + content).ljust(8192, b"\0")
    return Image({**image, name: data, name[:-4] + "time": pack_header(base), name[:-4] + "index": b""})


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_an_empty_file_of_an_uncommitted_roll_is_harmless(
    closed: Image, crashed: Image, yard: Yard, state: str, boot: str
) -> None:
    image = after_roll(closed if state == "closed" else crashed, len(PAYLOADS))
    path = image.lay(yard.new(), boot)
    with Queue(path, roll=Roll.count(3)) as q:
        assert records(q) == numbered(PAYLOADS)
        assert not q.recovery.damage
        assert not q.recovery.torn
        for i in range(5):
            assert q.append(b"next") == len(PAYLOADS) + i
        assert len(records(q)) == len(PAYLOADS) + 5


def test_a_file_beyond_the_end_that_holds_something_is_kept_aside(crashed: Image, yard: Yard) -> None:
    image = after_roll(crashed, len(PAYLOADS), b"what is this")
    path = image.lay(yard.new(), "same")
    with Queue(path) as q:
        assert records(q) == numbered(PAYLOADS)
        assert (path / f"{image.data}.torn").read_bytes() == image[image.data]
        assert not (path / image.data).exists()
        assert len(q.recovery.torn) == 1


def test_a_retired_file_that_was_not_deleted_yet_does_not_come_back(yard: Yard) -> None:
    path = yard.keep()
    with Queue(path, file_size=8192, roll=Roll.count(3)) as q:
        for p in PAYLOADS:
            q.append(p)
        assert q._log is not None
        q._log.seal_finished()
        before = Image.take(path)
        first = before.names(".data")[0]
        q._log.retire(q._log.finished()[fmt.parse(first)])  # type: ignore[index]
        after = Image.take(path)
    assert first not in after
    for boot in ("same", "new"):
        path = Image({**before, **after}).lay(yard.new(), boot)
        with Queue(path) as q:
            assert q.first_sequence == 3
            assert records(q) == numbered(PAYLOADS)[3:]
            assert q.recovery.clean
            assert not (path / first).exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_retired_file_goes_once_it_is_on_the_disk_that_it_is_retired(
    yard: Yard, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who said so may have died before he had synced that, or his sync may have failed. The manifest is written anew; unless some of it
    cannot be read, which must not be forgotten."""
    path = yard.keep()
    with Queue(path, file_size=8192, roll=Roll.count(3)) as q:
        for p in PAYLOADS:
            q.append(p)
        assert q._log is not None
        q._log.seal_finished()
        q._log.manifest.retired(q._log.manifest.ordered()[0])
        image = Image.take(path)
    first, calls = image.names(".data")[0], list[str]()
    image = Image({**image, "manifest": image["manifest"] + b"?"}) if damaged else image
    path = image.lay(yard.new(), "same")

    def noting(name: str) -> Callable[..., object]:
        real = getattr(files, name)

        def call(what: int | Path, *args: object) -> object:
            file = what if isinstance(what, Path) else Path(f"/proc/self/fd/{what}").readlink()
            calls.append(f"{name} {file.name}")
            return real(what, *args)

        return call

    for name in ("replace", "sync", "remove"):
        monkeypatch.setattr(files, name, noting(name))
    with Queue(path) as q:
        assert q.first_sequence == 3
        assert records(q) == numbered(PAYLOADS)[3:]
    said = "sync manifest" if damaged else "replace manifest"
    assert calls.index(said) < calls.index(f"remove {Path(first).name}")


# ---- headers ----


def test_a_file_of_a_later_version_is_refused(closed: Image, yard: Yard) -> None:
    head = bytearray(closed[closed.data][:32])
    struct.pack_into("<I", head, 8, 2)
    later = closed.put(closed.data, 0, bytes(head) + struct.pack("<I", zlib.crc32(head)))
    for boot in ("same", "new"):
        with pytest.raises(UnknownVersion, match="version 2 of the queue format"):
            Queue(later.lay(yard.new(), boot))


def test_a_header_with_a_wrong_checksum_is_damage_also_after_a_power_cut(crashed: Image, yard: Yard) -> None:
    """Where the durable mark stands the header was synced."""
    with Queue(crashed.lay(yard.new(), "new")) as q:
        whole = records(q)
    with Queue(crashed.flipped(crashed.names(".data")[0], 8 * 33).lay(yard.new(), "new")) as q:
        assert records(q) == whole
        assert any("the file header fails its checksum" in found for found in q.recovery.damage)


# ---- clocks ----


def test_a_file_is_never_named_before_the_one_it_follows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = files.now_us()
    monkeypatch.setattr(files, "now_us", lambda: now + 400 * 86400 * 1_000_000)
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        q.append(b"0")
    monkeypatch.setattr(files, "now_us", lambda: now)
    with Queue(path, roll=Roll.count(1)) as q:
        for i in range(1, 4):
            q.append(b"%d" % i)
        assert records(q) == numbered([b"0", b"1", b"2", b"3"])
    names = Image.take(path).names(".data")
    assert len({name[:10] for name in names}) == 1
    with Queue(path) as q:
        assert records(q) == numbered([b"0", b"1", b"2", b"3"])


# ---- stale bytes, stale marks ----


def test_half_a_frame_is_zeroed_and_synced_before_the_next_append(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(b"first")
        name = Image.take(path).data
        disk = Disk(monkeypatch, path)
        clean: list[bool] = []
        disk.watch = lambda synced: clean.append(not any(beyond(q))) if synced == name else None
        half_append(q, 60)
        assert q.append(b"second") == 1
        assert clean[:1] == [True]
        assert name in disk.synced
        assert records(q) == numbered([b"first", b"second"])


def test_half_a_frame_found_at_opening_is_zeroed_and_synced_before_the_next_append(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"first")
        image = half_append(q, 60)
    for boot in ("same", "new"):
        path = image.lay(yard.new(), boot)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, path)
            with Queue(path) as q:
                assert image.data in disk.synced
                assert not any(beyond(q))
                times = (path / image.times).read_bytes()[64:]
                assert any(times[:8])
                assert not any(times[8:])
                assert q.append(b"second") == 1
                assert records(q) == numbered([b"first", b"second"])


def test_a_torn_tail_is_zeroed_and_synced_before_the_log_opens(crashed: Image, yard: Yard) -> None:
    last = crashed.data
    torn = crashed.put(last, frames(PAYLOADS[9:])[1][0], b"\x99")
    path = torn.lay(yard.new(), "new")
    end = frames(PAYLOADS[9:])[1][0]
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, path)
        clean: list[bool] = []
        disk.watch = lambda name: clean.append(not any((path / last).read_bytes()[end:])) if name == last else None
        with Queue(path) as q:
            assert q.next_sequence == 10
            assert True in clean
            assert last in disk.synced


@pytest.mark.parametrize("rolls", [False, True])
def test_a_clean_mark_older_than_the_data_does_not_hide_it(yard: Yard, rolls: bool) -> None:
    """As if the page that said so had come back from the disk, though records were synced since."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"0")
    page = Image.take(path)[".lock"]
    with Queue(path, roll=Roll.count(1) if rolls else None) as q:
        for i in range(1, 3):
            q.append(b"%d" % i)
        q.sync()
        later = Image.take(path)
    assert len(later.names(".data")) == (3 if rolls else 1)
    with Queue(later.changed(".lock", page).lay(yard.new(), "new")) as q:
        assert records(q) == numbered([b"0", b"1", b"2"])
        assert q.append(b"3") == 3
    path = later.changed(".lock", page).lay(yard.new(), "new")
    with Queue(path, read_only=True) as q:
        assert records(q) == numbered([b"0", b"1", b"2"])


def test_the_clean_mark_is_gone_from_the_disk_before_a_writer_can_append(closed: Image, yard: Yard) -> None:
    def clean_mark() -> bool:
        page = (path / ".lock").read_bytes()
        return any(page[control._CLEAN_AT : control._CLEAN_AT + 28])

    for beside_a_reader in (False, True):
        path = closed.lay(yard.new(), "same")
        assert clean_mark()
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, path)
            marked: list[bool] = []
            disk.watch = lambda name, marked=marked: marked.append(clean_mark()) if name == ".lock" else None  # type: ignore[misc]
            reader = Queue(path, read_only=True) if beside_a_reader else None
            with Queue(path) as q:
                assert q.recovery.how == ("joined" if beside_a_reader else "clean")
                assert marked[-1:] == [False]
                assert disk.synced[-1] == ".lock"
            if reader is not None:
                reader.close()


# ---- reading only ----


@pytest.mark.parametrize("boot", ["same", "new"])
def test_reading_only_finds_the_same_end_and_changes_nothing(crashed: Image, yard: Yard, boot: str) -> None:
    torn = crashed
    if boot == "new":
        torn = crashed.put(crashed.data, frames(PAYLOADS[9:])[1][0] + 6, b"\0\0")
    path = torn.lay(yard.new(), boot)
    before = Image.take(path)
    with Queue(path, read_only=True) as q:
        assert records(q) == numbered(PAYLOADS[: 10 if boot == "new" else 11])
    assert Image.take(path) == before


# ---- a crash while recovering ----


def torn_image(crashed: Image, yard: Yard, patch: pytest.MonkeyPatch) -> tuple[Image, str]:
    """A torn record in the second of four segments, a cursor beyond it, no manifest."""
    name = crashed.names(".data")[1]
    return crashed.put(name, frames(PAYLOADS[3:6])[2][0] + 5, b"\0\0").without("manifest"), "new"


def half_image(crashed: Image, yard: Yard, patch: pytest.MonkeyPatch) -> tuple[Image, str]:
    """This boot's log with half an append, and a leftover of a roll."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        for p in PAYLOADS:
            q.append(p)
        return after_roll(half_append(q, 100), len(PAYLOADS)), "same"


def batch_image(crashed: Image, yard: Yard, patch: pytest.MonkeyPatch) -> tuple[Image, str]:
    """Half a batch over several files."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"first")
        q.append_batch([payload(i, 900) for i in range(12)])
        image = Image.take(path)
    return image.put(image.data, HEADER, bytes(2000)), "new"


def poisoned_image(crashed: Image, yard: Yard, patch: pytest.MonkeyPatch) -> tuple[Image, str]:
    """A sync failed when three of four segments had records that were not durable."""
    path = yard.keep()
    with Queue(path, file_size=8192, roll=Roll.count(3)) as q:
        for p in PAYLOADS[:4]:
            q.append(p)
        q.sync()
        for p in PAYLOADS[4:]:
            q.append(p)
        disk = Disk(patch, path)
        disk.fail = lambda name: True
        with pytest.raises(SyncFailed):
            q.sync()
        return Image.take(path), "same"


def span_image(crashed: Image, yard: Yard, patch: pytest.MonkeyPatch) -> tuple[Image, str]:
    """This boot's log, killed when a batch over several files was announced, but its first frame not yet written."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"first")
        assert q._log is not None
        whole = Image.take(path)
        taken: list[Image] = []
        real = span.commit

        def commit(*args: object) -> None:
            taken.append(Image.take(path))
            real(*args)  # type: ignore[arg-type]

        patch.setattr(span, "commit", commit)
        q.append_batch([payload(i, 900) for i in range(12)])
    first = taken[0].names(".data")[1]
    assert first not in whole
    return taken[0].put(first, HEADER, bytes(4)), "same"


IMAGES = [torn_image, half_image, batch_image, poisoned_image, span_image]
Make = Callable[[Image, Yard, pytest.MonkeyPatch], tuple[Image, str]]


def made(make: Make, crashed: Image, yard: Yard) -> tuple[Image, str]:
    """An image, and the boot it is of."""
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        return make(crashed, yard, patch)


def die_opening(path: str, after: int, halves: bool) -> None:
    """In a child: open it, and die at the n-th call that changes a file."""
    countdown = Countdown(after, halves=halves)
    countdown.lay()
    countdown.begin()
    q = Queue(path)  # named: dropping it would close it
    os._exit(7 if not q.closed else 1)


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(die_opening) as zygote:
        yield zygote


def each_death(
    image: Image, boot: str, yard: Yard, dies: Zygote, step: int = 1, *, halves: bool = False
) -> Iterator[tuple[int, Path]]:
    """What is left by a process that was killed at each call of opening an image; `halves`: and in the midst of each write."""
    for n in itertools.count(1, step):
        path = image.lay(yard.keep(), boot)
        ended = dies(path, n, halves)
        if ended == 7:
            break
        assert ended == -signal.SIGKILL
        yield n, path
        shutil.rmtree(path)
    assert n > 10, "there was hardly anything to do"


def state_of(path: Path) -> tuple[object, ...]:
    with Queue(path) as q:
        found = records(q)
        assert not q.recovery.damage
        assert not any(beyond(q))
        return found, q.next_sequence, q.cursors(), q.append(b"next"), len(records(q))


@pytest.mark.parametrize("make", IMAGES, ids=lambda make: make.__name__.removesuffix("_image"))
def test_a_kill_at_any_step_of_recovery_changes_nothing_of_its_outcome(
    crashed: Image, yard: Yard, dies: Zygote, make: Make
) -> None:
    image, boot = made(make, crashed, yard)
    want = state_of(image.lay(yard.new(), boot))
    few = make is not poisoned_image  # whose records are written again one by one
    for n, path in each_death(image, boot, yard, dies, 1 if NATIVE else 3, halves=few):
        assert state_of(path) == want, n


@pytest.mark.parametrize("make", IMAGES[2:4], ids=lambda make: make.__name__.removesuffix("_image"))
def test_a_power_cut_after_a_kill_in_recovery_still_leaves_a_prefix(
    crashed: Image, yard: Yard, dies: Zygote, make: Make
) -> None:
    image, boot = made(make, crashed, yard)
    with Queue(image.lay(yard.new(), boot)) as q:
        want = records(q)
    for n, path in each_death(image, boot, yard, dies, 2 if NATIVE else 5):
        with Queue(Image.take(path).lay(yard.new(), "new")) as q:
            assert records(q) == want, n


# ---- what else opening, or the next append, owes ----


def test_time_does_not_run_backwards_over_an_append_that_was_finished_for_its_dead_writer(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"one")
        log = q._log
        assert log is not None
        assert log.mapped.segment is not None
        now, later = log.active(), files.now_us() + 3_600_000_000
        frame = kernel.encode(fmt.SPEC, b"two")
        with log.locked() as page:
            page.announce(now.end + len(frame), now.next + 1)
            log.mapped.segment.data[now.end : now.end + len(frame)] = frame
            log.mapped.segment.times[64 + 8 : 64 + 16] = struct.pack("<q", later)
        q.append(b"three")
        stamps = [m.timestamp_us for m in q.tailer()]
        assert stamps[1] == later
        assert stamps[2] == later


def test_verifying_tells_how_far_it_is(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Queue(path, file_size=1 << 16) as q:
        for _ in range(20):
            q.append_batch([bytes(1000)] * 50)
    told: list[tuple[int, int]] = []
    with Queue(path, verify_on_startup=lambda done, total: told.append((done, total))) as q:
        assert told == sorted(told)
        assert len(told) >= 15
        assert told[-1][0] == q.recovery.bytes_scanned == 20 * 50 * 1012
        assert all(done <= total for done, total in told)
        assert told[0][1] <= 1.5 * told[-1][0]
        read_only: list[tuple[int, int]] = []
        with Queue(path, read_only=True, verify_on_startup=lambda *at: read_only.append(at)):
            assert read_only[-1][0] == told[-1][0]


def test_verifying_without_a_function_tells_the_logger(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=1 << 16) as q:
        q.append_batch([bytes(1000)] * 500)
    monkeypatch.setattr("penstock.queue._TELL_EVERY_S", 0.0)
    with caplog.at_level("INFO", logger="penstock"), Queue(path, verify_on_startup=True):
        pass
    assert "checked 506000 of" in caplog.messages[-1]


def times_of(path: Path) -> tuple[Path, list[int]]:
    """The companion of a queue's only file, and what it says."""
    (companion,) = path.rglob("*.time")
    return companion, list(struct.unpack(f"<{(companion.stat().st_size - 64) // 8}q", companion.read_bytes()[64:]))


def say_times(companion: Path, times: list[int]) -> None:
    companion.write_bytes(companion.read_bytes()[:64] + struct.pack(f"<{len(times)}q", *times))


def appended_after(
    path: Path, patch: pytest.MonkeyPatch, change: Callable[[list[int]], list[int]]
) -> tuple[list[int], int]:
    """The times that a queue of three records is left with, and that of the next one, after a power cut."""
    with Queue(path) as q:
        q.append_batch([b"a", b"b", b"c"])
    companion, times = times_of(path)
    say_times(companion, changed := change(list(map(abs, times))))
    patch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path) as q:
        q.append(b"d")
        return changed, [m.timestamp_us for m in q.tailer()][3]


def test_times_go_on_from_the_last_that_a_power_cut_has_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was ahead by an hour."""
    ahead = 3_600_000_000
    times, new = appended_after(path, monkeypatch, lambda us: [us[0], us[1] + ahead, 0])
    assert new >= times[1]


def test_a_time_that_cannot_be_is_not_the_next_ones_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns() // 1000
    _, new = appended_after(path, monkeypatch, lambda us: [us[0], us[1], us[2] | 1 << 54])
    assert before <= new <= time.time_ns() // 1000


def test_times_go_on_though_the_clock_went_back_by_years(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    years = 3 * 365 * 86_400_000_000
    times, new = appended_after(path, monkeypatch, lambda us: [t + years for t in us])
    assert new >= times[2]


def test_times_go_on_from_an_earlier_file_where_the_last_one_has_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time_ns() // 1000 + 3_600_000_000
    with Queue(path, roll=Roll.count(2)) as q:
        for one in (b"a", b"b", b"c"):
            q.append(one)
    first, last = sorted(path.rglob("*.time"))
    say_times(first, [ahead, 0])
    say_times(last, [0])
    (path / "manifest").unlink()
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path) as q:
        q.append(b"d")
        assert [m.timestamp_us for m in q.tailer()][3] >= ahead
