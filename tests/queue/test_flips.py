"""Single flipped bits, one at a time, in every file of a log: found, told exactly, and never at the cost of other records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import CorruptRecord, Loss, NotALog, PenstockError, Queue, Roll, UnknownVersion
from penstock.kernel import layout
from penstock.storage import companion, index
from tests.queue.crash import HEADER, NATIVE, Image, Yard, frames, numbered, payload, records

# Frames of 16, 32, 64 bytes: a flipped length then swallows exactly the next one, or ends where another begins.
SIZES = [4, 4, 20, 20, 52, 1, 60, 4]
INTERVAL = 3


@dataclass
class Flat:
    payloads: list[bytes]
    image: Image
    start: int = 0

    @property
    def bits(self) -> range:
        """Every bit of the frames; a sample where the kernel is slow."""
        places = frames(self.payloads)
        return range(8 * places[0][0], 8 * places[-1][1], 1 if NATIVE else 29)

    def hit(self, bit: int) -> int:
        """The record that a bit belongs to."""
        return next(i for i, (_, end) in enumerate(frames(self.payloads)) if bit // 8 < end)


@pytest.fixture(scope="module")
def flat(yard: Yard) -> Flat:
    payloads = [payload(i, n) for i, n in enumerate(SIZES)]
    path = yard.keep()
    with Queue(path, file_size=8192, index_interval=INTERVAL) as q:
        for p in payloads:
            q.append(p)
    return Flat(payloads, Image.take(path))


@pytest.fixture(scope="module")
def sealed(yard: Yard) -> Flat:
    """The same records in a finished segment, between two others."""
    payloads = [payload(i, n) for i, n in enumerate(SIZES)]
    path = yard.keep()
    with Queue(path, file_size=8192, index_interval=INTERVAL, roll=Roll.count(len(SIZES))) as q:
        for p in payloads * 3:
            q.append(p)
    return Flat(payloads, Image.take(path))


@pytest.fixture
def opened(flat: Flat, yard: Yard) -> Iterator[tuple[Queue, Flat]]:
    with Queue(flat.image.lay(yard.new(), "same")) as q:
        yield q, flat


class Flipper:
    """Flips bits of a file under a log, and back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def flip(self, *bits: int) -> None:
        with self._path.open("r+b") as f:
            for bit in bits:
                f.seek(bit // 8)
                (old,) = f.read(1)
                f.seek(bit // 8)
                f.write(bytes([old ^ 1 << bit % 8]))

    def each(self, bits: Iterable[int]) -> Iterator[int]:
        """One bit after the other is flipped, and right again before the next."""
        for bit in bits:
            self.flip(bit)
            yield bit
            self.flip(bit)


def test_every_flip_in_a_frame_costs_exactly_that_record_however_it_is_read(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    everything = numbered(flat.payloads)
    for bit in flipper.each(flat.bits):
        hit = flat.hit(bit)
        rest = [r for r in everything if r[0] != hit]
        position = frames(flat.payloads)[hit][0]
        lost = [(hit, hit)]

        with q.tailer() as t, pytest.raises(CorruptRecord) as info:
            assert [(m.sequence, m.payload) for m in t.read_batch(hit)] == everything[:hit]
            t.read()
        assert (info.value.sequence, info.value.position) == (hit, position), bit
        assert info.value.path.endswith(flat.image.data)

        with q.tailer(on_corrupt="skip") as t:
            assert [(m.sequence, m.payload) for m in t] == rest, bit
            assert [loss[:2] for loss in t.losses] == lost
        with q.tailer(on_corrupt="skip") as t:
            assert [(m.sequence, m.payload) for m in t.read_batch(99)] == rest, bit
            assert [loss[:2] for loss in t.losses] == lost
        with q.tailer(on_corrupt="skip", direction="backward") as t:
            assert [(m.sequence, m.payload) for m in t] == rest[::-1], bit
            assert [loss[:2] for loss in t.losses] == lost
        with q.tailer(direction="backward") as t, pytest.raises(CorruptRecord) as info:
            assert [(m.sequence, m.payload) for m in t.read_batch(7 - hit)] == everything[:hit:-1]
            t.read()
        assert (info.value.sequence, info.value.position) == (hit, position), bit
    assert records(q) == everything


def test_every_flip_in_a_frame_is_told_by_read_arrow(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    everything = numbered(flat.payloads)
    for bit in flipper.each(flat.bits[::3]):
        hit = flat.hit(bit)
        with q.tailer(on_corrupt="skip") as t:
            table = pa.Table.from_batches([t.read_arrow(99)])
            while (more := t.read_arrow(99)).num_rows:
                table = pa.concat_tables([table, pa.Table.from_batches([more])])
            rows = list(zip(table["sequence"].to_pylist(), table["payload"].to_pylist(), strict=True))
            assert rows == [r for r in everything if r[0] != hit], bit
            assert [loss[:2] for loss in t.losses] == [(hit, hit)]
        with q.tailer() as t:
            got = 0
            with pytest.raises(CorruptRecord) as info:
                while True:
                    got += t.read_arrow(99).num_rows
            assert got == hit
            assert info.value.sequence == hit


def test_what_a_batch_read_has_before_a_damaged_record_is_given(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    Flipper(q.path / flat.image.data).flip(8 * (frames(flat.payloads)[5][0] + 4))
    with q.tailer(at=1) as t:
        assert [m.sequence for m in t.read_batch(99)] == [1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                t.read_batch(99)
    with q.tailer(at=1) as t:
        assert t.read_arrow(99)["sequence"].to_pylist() == [1, 2, 3, 4]
        with pytest.raises(CorruptRecord):
            t.read_arrow(99)
    with q.tailer(direction="backward") as t:
        assert [m.sequence for m in t.read_batch(99)] == [7, 6]
        with pytest.raises(CorruptRecord):
            t.read_batch(99)


def test_seeking_past_a_flip_lands_on_the_right_record(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    everything = numbered(flat.payloads)
    for bit in flipper.each(flat.bits[::5]):
        hit = flat.hit(bit)
        for to in range(len(everything)):
            with q.tailer(at=to, on_corrupt="skip") as t:
                assert t.position == to or to == hit
                assert [(m.sequence, m.payload) for m in t] == [r for r in everything[to:] if r[0] != hit], (bit, to)
            with q.tailer(at=to) as t:
                if to == hit:
                    with pytest.raises(CorruptRecord) as info:
                        t.read()
                    assert info.value.sequence == hit
                else:
                    message = t.read()
                    assert message is not None
                    assert (message.sequence, message.payload) == everything[to], (bit, to)


def test_flips_in_a_finished_segment_cost_exactly_one_record(sealed: Flat, yard: Yard) -> None:
    name = sealed.image.names(".data")[1]
    count = len(SIZES)
    everything = numbered(sealed.payloads * 3)
    with Queue(sealed.image.lay(yard.new(), "same")) as q:
        flipper = Flipper(q.path / name)
        for bit in flipper.each(sealed.bits[::3]):
            hit = count + sealed.hit(bit)
            rest = [r for r in everything if r[0] != hit]
            with q.tailer(on_corrupt="skip") as t:
                assert [(m.sequence, m.payload) for m in t] == rest, bit
                assert [loss[:2] for loss in t.losses] == [(hit, hit)]
            with q.tailer(on_corrupt="skip", direction="backward") as t:
                assert [(m.sequence, m.payload) for m in t] == rest[::-1], bit
            for to in (hit - 1, hit + 1, 2 * count - 1, 2 * count):
                with q.tailer(at=to, on_corrupt="skip") as t:
                    assert [(m.sequence, m.payload) for m in t] == [r for r in rest if r[0] >= to], (bit, to)


def test_verifying_on_startup_names_every_flip(sealed: Flat, yard: Yard) -> None:
    for which, name in enumerate(sealed.image.names(".data")):
        for bit in sealed.bits[:: 17 if NATIVE else 5]:
            hit = which * len(SIZES) + sealed.hit(bit)
            with Queue(sealed.image.flipped(name, bit).lay(yard.new(), "new"), verify_on_startup=True) as q:
                (found,) = q.recovery.damage
                assert f"sequences {hit} to {hit} are lost" in found, bit
                assert q.next_sequence == 3 * len(SIZES)


def test_two_flips_in_one_stretch_never_shift_a_sequence(opened: tuple[Queue, Flat]) -> None:
    """Both records are lost, and where lengths are broken perhaps those between them, but nothing has a wrong number."""
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    everything = numbered(flat.payloads)
    places = frames(flat.payloads)
    first_bits = [8 * (start + byte) + bit for start, _ in places for byte, bit in ((0, 4), (0, 5), (1, 0), (5, 3))]
    for one in first_bits[:: 1 if NATIVE else 5]:
        for two in first_bits[:: 1 if NATIVE else 7]:
            hits = {flat.hit(one), flat.hit(two)}
            if len(hits) == 1:
                continue
            flipper.flip(one, two)
            with q.tailer(on_corrupt="skip") as t:
                got = [(m.sequence, m.payload) for m in t]
                lost = {s for first, last, _ in t.losses for s in range(first, last + 1)}
            flipper.flip(one, two)
            assert set(got) <= set(everything), (one, two)
            assert got == sorted(got)
            assert lost == {r[0] for r in everything} - {r[0] for r in got}, (one, two)
            assert hits <= lost
            assert lost <= set(range(min(hits), max(hits) + 1))


def test_payload_flips_in_one_stretch_cost_only_those_records(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    for one in range(len(SIZES)):
        for two in range(one + 1, len(SIZES)):
            bits = [8 * (frames(flat.payloads)[i][0] + 4) for i in (one, two)]
            flipper.flip(*bits)
            with q.tailer(on_corrupt="skip") as t:
                assert [m.sequence for m in t] == [i for i in range(len(SIZES)) if i not in (one, two)]
                assert [loss[:2] for loss in t.losses] == [(one, one), (two, two)]
            flipper.flip(*bits)


# ---- the other files ----


def test_a_flip_in_the_file_header_of_the_last_segment_costs_no_record_and_is_reported(flat: Flat, yard: Yard) -> None:
    for bit in range(0, 8 * 36, 5 if NATIVE else 23):
        for boot in ("same", "new"):
            path = flat.image.flipped(flat.image.data, bit).lay(yard.new(), boot)
            for read_only in (True, False):
                with Queue(path, read_only=read_only, verify_on_startup=True) as q:
                    assert all(flat.image.data in found for found in q.recovery.damage)
                    assert q.recovery.damage
                    assert records(q) == numbered(flat.payloads)
            with Queue(path) as q:  # its records are whole, and what is appended goes to a file with a header
                assert q.append(b"more") == len(flat.payloads)
                assert records(q) == numbered([*flat.payloads, b"more"])


def test_a_broken_file_header_without_a_companion_is_refused_with_the_reason(flat: Flat, yard: Yard) -> None:
    path = flat.image.flipped(flat.image.data, 8 * 12).lay(yard.new(), "same")
    (path / flat.image.times).unlink()
    with pytest.raises(NotALog, match=f"{flat.image.data}: byte 0: the file header fails its checksum"):
        Queue(path)


def test_a_flip_in_the_unused_part_of_the_file_header_costs_nothing(flat: Flat, yard: Yard) -> None:
    for byte in (36, 127, 128, 135, 136, 200, 2200, 4095):
        for boot in ("same", "new"):
            with Queue(flat.image.flipped(flat.image.data, 8 * byte).lay(yard.new(), boot)) as q:
                assert records(q) == numbered(flat.payloads)


def test_a_flip_in_the_header_of_a_finished_segment_costs_no_record_and_is_reported(sealed: Flat, yard: Yard) -> None:
    name = sealed.image.names(".data")[1]
    for byte in [*range(8), *range(12, 36)]:
        flipped = sealed.image.flipped(name, 8 * byte)
        with Queue(flipped.lay(yard.new(), "same")) as q:
            assert records(q) == numbered(sealed.payloads * 3)
        with Queue(flipped.lay(yard.new(), "same"), verify_on_startup=True) as q:
            (found,) = q.recovery.damage
            assert name in found


def test_a_flip_in_the_companion_changes_only_the_time_it_hit(flat: Flat, yard: Yard) -> None:
    name, count = flat.image.times, len(SIZES)
    with Queue(flat.image.lay(yard.new(), "same")) as q, q.tailer() as t:
        stamps = [m.timestamp_us for m in t]
    header, size = companion.HEADER_BYTES, companion.HEADER_BYTES + 8 * count
    assert len(flat.image[name]) == size
    for bit in range(0, 8 * size, 5 if NATIVE else 31):
        with Queue(flat.image.flipped(name, bit).lay(yard.new(), "same")) as q:
            assert records(q) == numbered(flat.payloads), bit
            assert q.append(b"next") == count
            with q.tailer() as t:
                now = [m.timestamp_us for m in t][:count]
        if bit < 8 * header:
            assert now in ([None] * count, stamps), bit
        else:
            place = (bit // 8 - header) // 8
            assert [a for i, a in enumerate(now) if i != place] == [a for i, a in enumerate(stamps) if i != place]
            assert now[place] != stamps[place]


def test_a_flip_in_the_companion_does_not_make_a_torn_tail_longer_than_it_is(flat: Flat, yard: Yard) -> None:
    """After a power cut a time may say that a batch goes on; what was synced is kept all the same."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        for p in flat.payloads:
            q.append(p)
        q.sync()
        image = Image.take(path)
    for bit in range(0, 8 * (companion.HEADER_BYTES + 8 * len(SIZES)), 5 if NATIVE else 31):
        with Queue(image.flipped(image.times, bit).lay(yard.new(), "new")) as q:
            assert records(q) == numbered(flat.payloads), bit


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_an_index_never_leads_astray(sealed: Flat, yard: Yard, boot: str) -> None:
    everything = numbered(sealed.payloads * 3)
    for which in (1, 2):
        name = sealed.image.names(".index")[which]
        assert len(sealed.image[name]) == index.bytes_for(len(SIZES), INTERVAL)
        bits = [*range(8 * 16), *range(8 * index.HEADER_BYTES, 8 * len(sealed.image[name]))]
        for bit in bits[boot == "new" :: 3 if NATIVE else 23]:
            with Queue(sealed.image.flipped(name, bit).lay(yard.new(), boot)) as q:
                for to in range(len(SIZES) * which, len(SIZES) * (which + 1)):
                    with q.tailer(at=to) as t:
                        message = t.read()
                        assert message is not None
                        assert (message.sequence, message.payload) == everything[to], (bit, to)
                if bit % 5 == 0:
                    with q.tailer(direction="backward") as t:
                        assert [(m.sequence, m.payload) for m in t] == everything[::-1], bit


def test_a_wrong_index_of_a_finished_segment_is_made_anew(sealed: Flat, yard: Yard) -> None:
    name = sealed.image.names(".index")[1]
    right = sealed.image[name]
    entry = 8 * (index.HEADER_BYTES + index.ENTRY_BYTES * 2 + 8)
    for wrong in (sealed.image.flipped(name, entry), sealed.image.without(name), sealed.image.changed(name, b"")):
        with Queue(wrong.lay(yard.new(), "same")) as q:
            with q.tailer(at=2 * len(SIZES) - 1) as t:
                message = t.read()
            assert message is not None
            assert message.sequence == 2 * len(SIZES) - 1
            assert (q.path / name).read_bytes() == right


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_manifest_loses_and_invents_nothing(sealed: Flat, yard: Yard, boot: str) -> None:
    everything = numbered(sealed.payloads * 3)
    for bit in range(boot == "new", 8 * len(sealed.image["manifest"]), 11 if NATIVE else 53):
        path = sealed.image.flipped("manifest", bit).lay(yard.new(), boot)
        with Queue(path) as q:
            assert records(q) == everything, bit
            assert q.next_sequence == len(everything)
            assert not q.recovery.damage
            assert not q.recovery.torn
        if bit % 8 == 0:
            with Queue(path) as q:
                assert q.recovery.clean
                assert records(q) == everything


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_control_page_loses_and_invents_nothing(sealed: Flat, yard: Yard, boot: str) -> None:
    everything = numbered(sealed.payloads * 3)
    used = [*range(layout.LOCK), *range(layout.TURN, 680)]  # the mutex is made anew by whoever comes first
    bits = [8 * byte + bit for byte in used for bit in range(8)]
    for bit in bits[boot == "new" :: 11 if NATIVE else 41]:
        image = sealed.image.lay(yard.new(), boot)  # first laid out: the page holds this file's inode
        Flipper(image / ".lock").flip(bit)
        if bit // 8 in range(8, 12):
            with pytest.raises(UnknownVersion):
                Queue(image)
            continue
        with Queue(image) as q:
            assert records(q) == everything, bit
            assert not q.recovery.damage
            assert q.append(b"next") == len(everything), bit


def test_a_flip_in_a_cursor_is_refused_and_holds_everything_back(flat: Flat, yard: Yard) -> None:
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        for p in flat.payloads:
            q.append(p)
        q.tailer("reader", at=5)
    image = Image.take(path)
    for bit in range(0, 8 * len(image["cursors/reader"]), 5 if NATIVE else 17):
        with Queue(image.flipped("cursors/reader", bit).lay(yard.new(), "same")) as q:
            if bit < 8 * 28:
                assert q.cursors() == {"reader": 0}
                with pytest.raises(NotALog, match="cursors/reader"):
                    q.tailer("reader")
                q.forget("reader")
            assert q.tailer("reader", at=5).position == 5
            assert records(q) == numbered(flat.payloads)


def test_a_loss_says_why(opened: tuple[Queue, Flat]) -> None:
    q, flat = opened
    flipper = Flipper(q.path / flat.image.data)
    start = frames(flat.payloads)[3][0]
    for bit, reason in (
        (8 * (start + 4), "its checksum does not match"),
        (8 * (start + 3), "its length reaches beyond the end of the log"),
    ):
        flipper.flip(bit)
        with q.tailer(on_corrupt="skip") as t:
            list(t)
            assert t.losses == [Loss(3, 3, reason)]
        flipper.flip(bit)


def test_an_unreadable_log_raises_only_errors_of_ours(flat: Flat, yard: Yard) -> None:
    """Whole bytes, not bits: each byte of the frames set to 0 and to 255 gives records, losses, or an error we name."""
    end = frames(flat.payloads)[-1][1]
    with Queue(flat.image.lay(yard.new(), "same")) as q:
        data = (q.path / flat.image.data).read_bytes()
        for at in range(HEADER, end, 1 if NATIVE else 7):
            for value in (0, 255):
                with (q.path / flat.image.data).open("r+b") as f:
                    f.seek(at)
                    f.write(bytes([value]))
                    f.flush()
                    with q.tailer() as t:
                        try:
                            got = [m.sequence for m in t]
                        except PenstockError:
                            pass
                        else:
                            assert got == list(range(len(SIZES)))
                            assert data[at] == value
                    f.seek(at)
                    f.write(data[at : at + 1])
