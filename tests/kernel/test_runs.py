"""Reading runs of records of one kind, and kinds whose length goes without saying."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from itertools import groupby
from types import ModuleType
from typing import Any

import pytest

from penstock.errors import InvalidPayload
from penstock.kernel.spec import CHECKSUM, END, SHORT, ZERO, FrameSpec, Scan

from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC, Rig

STATED = FrameSpec(shift=8, state_bytes=16)
BIG = FrameSpec(big_endian=True, shift=16, state_bytes=16)
STATE = bytes(range(16))


class Reading:
    """A reader over bytes in memory that notes what it asks."""

    def __init__(self, kernel: ModuleType, spec: FrameSpec, data: bytes, *, base: int = 10, start: int = 0) -> None:
        self.asked: list[Any] = []
        self.more: Iterator[bytes] = iter(())
        self.spec = spec
        self.reader = kernel.Reader(None, spec, self.on_end, self.on_bad)
        self.attach(data, base, start)

    def attach(self, data: bytes, base: int, start: int = 0) -> None:
        self.reader.attach(data, b"", self.spec, 1, base, start, base, len(data))

    def on_end(self) -> bool:
        self.asked.append("end")
        data = next(self.more, None)
        if data is not None:
            self.attach(data, self.reader.sequence)
        return data is not None

    def on_bad(self, reason: int) -> None:
        self.asked.append(reason)
        raise ValueError(f"bad frame: {reason}")


def frames(kernel: ModuleType, spec: FrameSpec, records: list[tuple[int, bytes]]) -> bytes:
    return b"".join(kernel.encode(spec, payload, kind) for kind, payload in records)


RECORDS = [(0, b"a"), (0, b""), (1, STATE), (0, b"b" * 300), (2, b""), (2, b"c"), (2, b"dd"), (255, b"e"), (0, b"f")]


# ---- runs ----


@pytest.mark.parametrize("spec", [JOURNAL, STATED], ids=["journal", "stated"])
@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**62])
def test_a_run_ends_with_its_kind(kernel: ModuleType, spec: FrameSpec, n: int) -> None:
    reading = Reading(kernel, spec, frames(kernel, spec, RECORDS))
    wanted = []
    for kind, run in groupby(RECORDS, key=lambda record: record[0]):
        payloads = [payload for _, payload in run]
        wanted += [(kind, payloads[i : i + n]) for i in range(0, len(payloads), n)]
    sequence = 10
    for kind, payloads in wanted:
        assert reading.reader.read_run(n) == (kind, payloads)
        sequence += len(payloads)
        assert reading.reader.sequence == sequence
    assert reading.asked == []
    for _ in range(2):
        assert reading.reader.read_run(n) == (0, [])
    assert reading.asked == ["end", "end"]
    assert reading.reader.position == reading.reader.end


@pytest.mark.parametrize("spec", [CHANNEL, QUEUE, TOPIC], ids=["channel", "queue", "topic"])
def test_without_kinds_it_is_all_one(kernel: ModuleType, spec: FrameSpec) -> None:
    payloads = [b"%d" % i * (i % 40 + 1) for i in range(2000)]
    reading = Reading(kernel, spec, b"head" + kernel.encode_many(spec, payloads), start=4)
    got: list[bytes] = []
    for n in (1, 7, 500, 5000):
        kind, run = reading.reader.read_run(n)
        assert (kind, type(run), set(map(type, run))) == (0, list, {bytes})
        got += run
    assert got == payloads
    assert reading.reader.read_run(1) == (0, [])


def test_none_asked_for(kernel: ModuleType) -> None:
    reading = Reading(kernel, JOURNAL, frames(kernel, JOURNAL, RECORDS[::-1]))
    for n in (0, -1, -(2**62)):
        assert reading.reader.read_run(n) == (0, [])
    assert (reading.asked, reading.reader.position, reading.reader.sequence) == ([], 0, 10)


def test_it_mixes_with_the_others(kernel: ModuleType) -> None:
    reading = Reading(kernel, JOURNAL, frames(kernel, JOURNAL, RECORDS))
    reader = reading.reader
    assert reader.read().payload == b"a"
    assert reader.read_run(5) == (0, [b""])
    assert reader.read_span() == (13, 29)
    assert [message.sequence for message in reader.read_batch(1)] == [13]
    assert reader.read_run(2) == (2, [b"", b"c"])
    assert next(reader) == kernel.Message(16, None, b"dd")
    reader.seek(0, 10)
    assert reader.read_run(1) == (0, [b"a"])


def test_what_is_in_hand_is_not_lost_to_damage(kernel: ModuleType) -> None:
    data = bytearray(kernel.encode_many(QUEUE, [b"a", b"b", b"c", b"d"]))
    data[2 * 13 + 4] ^= 1
    reading = Reading(kernel, QUEUE, bytes(data))
    assert reading.reader.read_run(10) == (0, [b"a", b"b"])
    assert (reading.asked, reading.reader.sequence) == ([], 12)
    with pytest.raises(ValueError, match="bad frame"):
        reading.reader.read_run(10)
    assert reading.asked == [CHECKSUM]
    assert reading.reader.position == 26
    reading.reader.seek(39, 13)
    assert reading.reader.read_run(10) == (0, [b"d"])


@pytest.mark.parametrize("spec", [JOURNAL, TOPIC, STATED], ids=["journal", "topic", "stated"])
@pytest.mark.parametrize("head", [0xFFFFFFFF, 0x7FFFFF00, 0x00000900])
def test_lengths_beyond_the_end(kernel: ModuleType, spec: FrameSpec, head: int) -> None:
    data = kernel.encode_many(spec, [b"a", b"b"]) + struct.pack(">I" if spec.big_endian else "<I", head) + b"12345678"
    for cut in range(1, 13):
        reading = Reading(kernel, spec, data[: 10 + cut])
        assert reading.reader.read_run(10) == (0, [b"a", b"b"])
        with pytest.raises(ValueError, match=f"bad frame: {SHORT}"):
            reading.reader.read_run(10)


def test_on_to_the_next_segment(kernel: ModuleType) -> None:
    reading = Reading(kernel, TOPIC, kernel.encode_many(TOPIC, [b"a", b"b"]))
    reading.more = iter([b"", kernel.encode_many(TOPIC, [b"c"])])
    assert reading.reader.read_run(10) == (0, [b"a", b"b"])
    assert reading.asked == []  # nothing is asked while something is in hand
    assert reading.reader.read_run(10) == (0, [b"c"])
    assert reading.asked == ["end", "end"]
    assert reading.reader.sequence == 13
    assert reading.reader.read_run(10) == (0, [])


def test_it_follows_the_writer(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    reader = rig.reader()
    for i in range(5):
        rig.writer.append_batch([b"%d" % i] * 3)
        assert reader.read_run(2) == (0, [b"%d" % i] * 2)
        rig.writer.append(b"more")
        assert reader.read_run(5) == (0, [b"%d" % i, b"more"])  # the end is looked up again, with something in hand
        assert reader.read_run(5) == (0, [])


def test_a_detached_reader(kernel: ModuleType) -> None:
    reading = Reading(kernel, TOPIC, kernel.encode(TOPIC, b"a"))
    reading.reader.detach()
    assert reading.reader.read_run(1) == (0, [])


def test_it_lets_go_of_pages_behind_it(kernel: ModuleType) -> None:
    room = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    payload = bytes((1 << 20) - 4)
    frame = kernel.encode(TOPIC, payload)
    for at in range(0, 40 << 20, 1 << 20):
        room[at : at + len(frame)] = frame
    reader = kernel.Reader(None, TOPIC, lambda: False, print)
    reader.attach(room, b"", TOPIC, 1, 0, 0, 0, 40 << 20)
    assert reader.read_run(100) == (0, [payload] * 40)
    assert room[0] == 0  # of a file they would stay; of this they are gone
    assert room[39 << 20 : (39 << 20) + 4] == frame[:4]


# ---- a length that goes without saying ----


def unsaid(spec: FrameSpec) -> bytes:
    """A state as some write it: a length of zero, and the bytes all the same."""
    return struct.pack(">I" if spec.big_endian else "<I", 1) + STATE


each_stated = pytest.mark.parametrize("spec", [STATED, BIG], ids=["little", "big"])


@each_stated
def test_a_state_of_length_zero_has_its_bytes(kernel: ModuleType, spec: FrameSpec) -> None:
    said, other = kernel.encode(spec, STATE, 1), kernel.encode(spec, b"other", 1)
    parts = [unsaid(spec), kernel.encode(spec, b"x"), said, other, unsaid(spec), kernel.encode(spec, b""), b""]
    data = b"".join(parts)
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    for verify in (True, False):
        assert kernel.scan(spec, data, 0, len(data), 100, verify, 1) == Scan(6, len(data), END, starts[:-1])
    for start in starts:
        assert kernel.resync(spec, data, start, len(data)) == start
    reading = Reading(kernel, spec, data)
    wanted = [(1, [STATE]), (0, [b"x"]), (1, [STATE, b"other", STATE]), (0, [b""])]
    assert [reading.reader.read_run(9) for _ in range(5)] == [*wanted, (0, [])]
    reading.reader.seek(0, 10)
    assert [message.payload for message in reading.reader] == [STATE, b"x", STATE, b"other", STATE, b""]
    reading.reader.seek(0, 10)
    assert reading.reader.read_span() == (4, 20)
    reading.reader.seek(0, 10)
    assert reading.reader.measure(100, 1 << 20) == (6, 3 * 16 + 6)
    rooms = [bytearray(n) for n in (28, 54, 48, 48, 1)]
    assert reading.reader.fill(6, *rooms) == 6
    assert struct.unpack("<7i", rooms[0]) == (0, 16, 17, 33, 38, 54, 54)
    assert rooms[1] == STATE + b"x" + STATE + b"other" + STATE


@each_stated
def test_a_state_cut_short(kernel: ModuleType, spec: FrameSpec) -> None:
    data = kernel.encode(spec, b"x") + unsaid(spec)
    for end in range(6, len(data)):
        assert kernel.scan(spec, data, 0, end) == Scan(1, 5, SHORT, [])
        reading = Reading(kernel, spec, data[:end])
        assert reading.reader.read_run(9) == (0, [b"x"])
        with pytest.raises(ValueError, match=f"bad frame: {SHORT}"):
            reading.reader.read_run(9)


@each_stated
def test_other_kinds_are_as_long_as_they_say(kernel: ModuleType, spec: FrameSpec) -> None:
    for kind in (0, 2, 3, 255):
        data = kernel.encode(spec, b"", kind) + kernel.encode(spec, b"x")
        assert kernel.scan(spec, data, 0, len(data)).count == 2


def test_where_nothing_is_said_of_it_zero_is_zero(kernel: ModuleType) -> None:
    assert kernel.scan(JOURNAL, unsaid(STATED), 0, 4) == Scan(1, 4, END, [])
    one = struct.pack(">I", 1) + b"x"  # without kinds this is a length
    assert kernel.scan(TOPIC, one, 0, 5) == Scan(1, 5, END, [])


def test_a_zero_head_still_ends_the_data(kernel: ModuleType) -> None:
    spec = FrameSpec(shift=8, state_bytes=16, zero_ends=True)
    data = unsaid(spec) + bytes(8)
    assert kernel.scan(spec, data, 0, len(data)) == Scan(1, 20, ZERO, [])


@pytest.mark.parametrize("sum_bytes", [4, 8])
def test_with_a_checksum(kernel: ModuleType, sum_bytes: int) -> None:
    spec = FrameSpec(shift=8, state_bytes=16, sum_bytes=sum_bytes, sum_covers_head=True)
    crc = kernel.crc32 if sum_bytes == 4 else kernel.crc64
    data = unsaid(spec) + crc(unsaid(spec)).to_bytes(sum_bytes, "little")
    assert kernel.scan(spec, data, 0, len(data)) == Scan(1, len(data), END, [])
    assert kernel.scan(spec, data[:-1] + b"?", 0, len(data)).reason == CHECKSUM


@each_stated
def test_an_empty_state_cannot_be_written(kernel: ModuleType, spec: FrameSpec) -> None:
    for empty in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(InvalidPayload, match="kind 1 cannot be stored: there a zero length says 16 bytes"):
            kernel.encode(spec, empty, 1)
        assert kernel.encode(spec, empty) == bytes(4)
        assert kernel.encode(JOURNAL, empty, 1) == b"\1\0\0\0"
    with pytest.raises(InvalidPayload):
        kernel.encode_many(spec, [b"x", b""], 1)
    assert len(kernel.encode(spec, STATE, 1)) == 20


@pytest.mark.parametrize(
    "wrong",
    [{"state_bytes": 16}, {"state_bytes": -1, "shift": 8}, {"state_bytes": 65536, "shift": 8}],
    ids=["no kinds", "negative", "too many"],
)
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="state_bytes"):
        FrameSpec(**wrong)  # type: ignore[arg-type]


def test_the_most_there_can_be(kernel: ModuleType) -> None:
    spec = FrameSpec(shift=8, state_bytes=65535)
    data = b"\1\0\0\0" + bytes(65535)
    assert kernel.scan(spec, data, 0, len(data)) == Scan(1, len(data), END, [])
