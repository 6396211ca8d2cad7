"""Frames without a checksum of their own are held to what their companion knows of them."""

from __future__ import annotations

import mmap
import struct
from types import ModuleType
from typing import Any

import pytest

from penstock.kernel.spec import CHECKSUM, END, LIMIT, SHORT, FrameSpec, Scan

from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC

STATED = FrameSpec(shift=8, state_bytes=16)
ALL = 2**64 - 1
NOW = 1_700_000_000_000_000
PAYLOADS = [b"a", b"bb" * 10, b"", b"c" * 300, b"dd", b"e" * 17]
each_spec = pytest.mark.parametrize("spec", [JOURNAL, STATED, TOPIC], ids=["journal", "stated", "topic"])


class Log:
    """Frames and their companion, both in memory."""

    def __init__(self, kernel: ModuleType, spec: FrameSpec, payloads: list[bytes] = PAYLOADS) -> None:
        self.kernel, self.spec, self.payloads = kernel, spec, payloads
        frames = [kernel.encode(spec, payload) for payload in payloads]
        self.starts = [sum(map(len, frames[:i])) for i in range(len(frames) + 1)]
        self.data = bytearray(b"".join(frames))
        self.sums = [kernel.crc64(frame) for frame in frames]
        self.us = [NOW + i if i % 2 else -NOW - i for i in range(len(frames))]

    def entries(self) -> bytes:
        return b"".join(map(struct.Struct("<qQ").pack, self.us, self.sums))

    def scan(self, sums: Any = None, place: int = 0, **options: Any) -> Scan:
        at, end = options.pop("start", 0), options.pop("end", len(self.data))
        sums = self.entries() if sums is None else sums
        found: Scan = self.kernel.scan(self.spec, self.data, at, end, sums=sums, place=place, **options)
        return found

    def reader(self, *, verify: bool = True, times: bytes | None = None, first: int = 0, base: int = 50) -> Any:
        """Stands at the record `first`."""
        reader = self.kernel.Reader(None, self.spec, lambda: False, self.on_bad, verify)
        times = b"T" * 64 + self.entries() if times is None else times
        reader.attach(bytes(self.data), times, self.spec, 1, base, self.starts[first], base + first, len(self.data))
        return reader

    def on_bad(self, reason: int) -> None:
        raise ValueError(f"bad frame: {reason}")


def fill(reader: Any, count: int = 100) -> tuple[int, bytes, list[int], list[int]]:
    """How many, their values, times and validity."""
    count, size = reader.measure(count, 1 << 30)
    rooms = [bytearray(n) for n in (4 * (count + 1), size, 8 * count, 8 * count, (count + 7) // 8)]
    done = reader.fill(count, *rooms)
    stamps = struct.unpack(f"<{count}q", rooms[3])[:done]
    return done, bytes(rooms[1]), list(stamps), [rooms[4][i // 8] >> i % 8 & 1 for i in range(done)]


def stops_at(log: Log, record: int, reason: int = CHECKSUM) -> None:
    """Every way to read gives the records before this one, and complains of it."""
    whole = log.payloads[:record]
    assert log.scan() == Scan(record, log.starts[record], reason, [])
    bad = f"bad frame: {reason}"
    readers = [log.reader() for _ in range(6)]
    assert [readers[0].read().payload for _ in whole] == whole
    assert [message.payload for _, message in zip(whole, readers[1], strict=False)] == whole
    assert [message.payload for message in readers[2].read_batch(record)] == whole
    assert [payload for _ in range(record) for payload in readers[3].read_run(1)[1]] == whole
    assert len([readers[4].read_span() for _ in whole]) == record
    if record:
        done, values, _, _ = fill(readers[5])
        assert (done, values[: len(b"".join(whole))]) == (record, b"".join(whole))
    for reader in readers:
        reader.seek(log.starts[record], 50 + record)
        for call in (reader.read, lambda r=reader: next(r), lambda r=reader: r.read_batch(5)):
            with pytest.raises(ValueError, match=bad):
                call()
        for call in (lambda r=reader: r.read_run(5), reader.read_span, lambda r=reader: r.measure(5, 100)):
            with pytest.raises(ValueError, match=bad):
                call()
        assert (reader.position, reader.sequence) == (log.starts[record], 50 + record)
    if record:
        assert log.reader().read_run(100) == (0, whole)


@each_spec
def test_sound_records(kernel: ModuleType, spec: FrameSpec) -> None:
    log = Log(kernel, spec)
    assert log.scan(every=2) == Scan(6, len(log.data), END, log.starts[:-1:2])
    assert [message.payload for message in log.reader()] == PAYLOADS
    assert [message.timestamp_us for message in log.reader()] == [abs(us) for us in log.us]
    assert fill(log.reader()) == (6, b"".join(PAYLOADS), [abs(us) for us in log.us], [1] * 6)
    assert log.reader().read_run(100) == (0, PAYLOADS)


@each_spec
@pytest.mark.parametrize("record", range(6))
def test_a_flipped_bit(kernel: ModuleType, spec: FrameSpec, record: int) -> None:
    log = Log(kernel, spec)
    if PAYLOADS[record]:
        log.data[log.starts[record + 1] - 1] ^= 0x10
        stops_at(log, record)
    log = Log(kernel, spec)
    log.sums[record] ^= 1 << 63
    stops_at(log, record)


@pytest.mark.parametrize("record", range(6))
def test_a_flipped_kind(kernel: ModuleType, record: int) -> None:
    log = Log(kernel, JOURNAL)
    log.data[log.starts[record]] ^= 2
    stops_at(log, record)


@each_spec
def test_a_broken_length(kernel: ModuleType, spec: FrameSpec) -> None:
    log = Log(kernel, spec)
    log.data[log.starts[1] + (3 if spec.big_endian else spec.shift // 8)] ^= 1
    stops_at(log, 1)
    log.data[log.starts[1] + (0 if spec.big_endian else 3)] ^= 0x80  # and now beyond the end
    stops_at(log, 1, SHORT)


@each_spec
def test_what_is_not_known_is_not_checked(kernel: ModuleType, spec: FrameSpec) -> None:
    log = Log(kernel, spec)
    log.data[log.starts[2] - 1] ^= 1
    log.data[log.starts[4] - 1] ^= 1
    payloads = [bytes(log.data[a + 4 : b]) for a, b in zip(log.starts, log.starts[1:], strict=False)]
    log.sums[1] = log.sums[3] = 0
    log.us[0] = 0
    assert log.scan().count == 6
    reader = log.reader()
    assert [message.payload for message in reader] == payloads
    reader.seek(0, 50)
    assert reader.read_run(9) == (0, payloads)
    reader.seek(0, 50)
    assert fill(reader) == (6, b"".join(payloads), [abs(us) for us in log.us], [0] + [1] * 5)
    assert log.reader().read().timestamp_us is None


@each_spec
def test_a_short_companion(kernel: ModuleType, spec: FrameSpec) -> None:
    log = Log(kernel, spec)
    log.sums = [1] * 6  # all wrong
    entries = log.entries()
    for size in range(len(entries) + 1):
        found = log.scan(entries[:size])
        assert (found.count, found.reason) == ((6, END) if size < 16 else (0, CHECKSUM))
        assert log.scan(entries[:size], 3).count == (6 if size < 16 * 4 else 0)
    for size in range(64 + 16):  # also one without a whole header
        assert [m.payload for m in log.reader(times=(b"T" * 64 + entries)[:size])] == PAYLOADS
        assert {m.timestamp_us for m in log.reader(times=(b"T" * 64 + entries)[:size])} == {None}
    log = Log(kernel, spec)
    log.sums[4] ^= 1
    for size in range(64 + 16 * 4, 64 + 16 * 5):
        reader = log.reader(times=(b"T" * 64 + log.entries())[:size])
        assert [m.timestamp_us for m in reader] == [abs(us) for us in log.us[:4]] + [None] * 2
    with pytest.raises(ValueError, match="bad frame"):
        log.reader(times=(b"T" * 64 + log.entries())[: 64 + 16 * 5]).read_batch(6)


@each_spec
def test_nothing_is_checked_without_verify(kernel: ModuleType, spec: FrameSpec) -> None:
    log = Log(kernel, spec)
    log.sums = [1] * 6
    assert log.scan(verify=False).count == 6
    assert [m.payload for m in log.reader(verify=False)] == PAYLOADS
    assert [m.timestamp_us for m in log.reader(verify=False)] == [abs(us) for us in log.us]
    assert log.reader(verify=False).read_run(9) == (0, PAYLOADS)
    assert fill(log.reader(verify=False))[:2] == (6, b"".join(PAYLOADS))


@each_spec
@pytest.mark.parametrize("base", [0, 50, 2**40])
def test_the_entry_is_that_of_the_place(kernel: ModuleType, spec: FrameSpec, base: int) -> None:
    log = Log(kernel, spec)
    for first in range(6):
        assert log.scan(start=log.starts[first], place=first).count == 6 - first
        reader = log.reader(first=first, base=base)
        assert [m.payload for m in reader] == PAYLOADS[first:]
        reader.seek(log.starts[first], base + first)
        assert fill(reader)[:2] == (6 - first, b"".join(PAYLOADS[first:]))
        if first:
            reader.seek(log.starts[first], base)  # another record's entry
            with pytest.raises(ValueError, match="bad frame"):
                reader.read()
            assert log.scan(start=log.starts[first]) == Scan(0, log.starts[first], CHECKSUM, [])
    assert log.scan(start=log.starts[2], end=log.starts[4], place=2).count == 2
    assert log.scan(start=log.starts[2], limit=3, place=2) == Scan(3, log.starts[5], LIMIT, [])


@pytest.mark.parametrize("place", [6, 7, 2**32, 2**59, 2**60, 2**61, 2**63, ALL])
def test_a_place_beyond_the_entries(kernel: ModuleType, place: int) -> None:
    log = Log(kernel, TOPIC)
    log.sums = [1] * 6
    assert log.scan(place=place).count == 6


def test_a_negative_place(kernel: ModuleType) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Log(kernel, TOPIC).scan(place=-1)


@pytest.mark.parametrize("every", [1, 2, 3, 1999, 2**54, ALL])
@pytest.mark.parametrize("bad", [0, 511, 512, 513, 1024, 1999, None])
def test_many_with_points(kernel: ModuleType, every: int, bad: int | None) -> None:
    log = Log(kernel, TOPIC, [b"%d" % i for i in range(2000)])
    if bad is not None:
        log.sums[bad] ^= 1
    want = 2000 if bad is None else bad
    reason = END if bad is None else CHECKSUM
    assert log.scan(every=every) == Scan(want, log.starts[want], reason, log.starts[:want:every])
    lead = 7
    assert log.scan(b"?" * 16 * lead + log.entries(), lead, every=every).count == want


def test_frames_with_a_checksum_have_times_alone(kernel: ModuleType) -> None:
    for spec in (CHANNEL, QUEUE):
        log = Log(kernel, spec, [b"a", b"b", b"c", b"d"])
        log.sums = [1] * 4
        assert log.scan().count == 4
        times = b"T" * 64 + struct.pack("<4q", NOW, -NOW - 1, 0, NOW + 3)
        assert [m.timestamp_us for m in log.reader(times=times)] == [NOW, NOW + 1, None, NOW + 3]
        assert fill(log.reader(times=times))[2:] == ([NOW, NOW + 1, 0, NOW + 3], [1, 1, 0, 1])
        assert [m.timestamp_us for m in log.reader(times=times[:-1])] == [NOW, NOW + 1, None, None]


def test_times_that_make_no_sense(kernel: ModuleType) -> None:
    log = Log(kernel, TOPIC, [b"a", b"b", b"c"])
    log.us = [-(2**63), 2**63 - 1, -(2**63) + 1]
    assert [m.timestamp_us for m in log.reader()] == [None, 2**63 - 1, 2**63 - 1]
    assert fill(log.reader())[2:] == ([0, 2**63 - 1, 2**63 - 1], [0, 1, 1])


def test_any_buffer_but_a_scattered_one(kernel: ModuleType) -> None:
    log = Log(kernel, TOPIC)
    log.sums[3] ^= 1
    entries = log.entries()
    room = mmap.mmap(-1, 4096)
    room[: len(entries)] = entries
    for sums in (bytearray(entries), memoryview(entries), memoryview(b"x" + entries)[1:], memoryview(room)):
        assert log.scan(sums).count == 3
    with pytest.raises(BufferError):
        log.scan(memoryview(entries)[::2])
    with pytest.raises(TypeError):
        log.scan("text")
    assert log.scan(b"").count == 6
    assert kernel.scan(TOPIC, log.data, 0, len(log.data)).count == 6


def test_what_is_let_go(kernel: ModuleType) -> None:
    """A map can be closed once the reader has left it, and once a walk has ended, well or not."""
    log = Log(kernel, TOPIC)
    room, data = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
    entries = b"T" * 64 + log.entries()
    room[: len(entries)] = entries
    data[: len(log.data)] = bytes(log.data)
    reader = kernel.Reader(None, TOPIC, lambda: False, print)
    reader.attach(data, room, TOPIC, 1, 0, 0, 0, len(log.data))
    assert len(reader.read_batch(10)) == 6
    with pytest.raises(BufferError):
        room.close()
    reader.detach()
    kernel.scan(TOPIC, data, 0, len(log.data), sums=room)
    with pytest.raises(ValueError, match="is not within"):
        kernel.scan(TOPIC, data, 0, 5000, sums=room)
    room.close()
    data.close()
