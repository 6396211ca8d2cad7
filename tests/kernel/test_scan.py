"""Walking over frames: bounds, truncation, hostile lengths; and finding the way again after damage."""

import random
import struct
import time
from collections.abc import Sequence
from types import ModuleType

import pytest

from penstock.kernel.spec import CHECKSUM, END, LIMIT, SHORT, ZERO, FrameSpec, Scan

from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC

ALL = 2**64 - 1
each_spec = pytest.mark.parametrize(
    "spec", [CHANNEL, JOURNAL, QUEUE, TOPIC], ids=["channel", "journal", "queue", "topic"]
)
summed = pytest.mark.parametrize("spec", [CHANNEL, QUEUE], ids=["channel", "queue"])


def stream(
    kernel: ModuleType, spec: FrameSpec, payloads: Sequence[bytes], lead: bytes = b""
) -> tuple[bytes, list[int]]:
    """The frames of `payloads` after `lead`, and where each begins, with the end."""
    data, starts = lead, [len(lead)]
    for payload in payloads:
        data += kernel.encode(spec, payload)
        starts.append(len(data))
    return data, starts


PAYLOADS = [b"a", b"bb" * 10, b"c" * 300, b"dd", b"e" * 17]


# ---- bounds ----


@each_spec
@pytest.mark.parametrize(("start", "end"), [(0, 11), (11, 11), (5, 4), (2**64 - 1, 2**64 - 1), (0, 2**64 - 1)])
def test_a_range_outside_the_buffer(kernel: ModuleType, spec: FrameSpec, start: int, end: int) -> None:
    for call in (kernel.scan, kernel.resync, kernel.release):
        arguments = (bytes(10), start, end) if call is kernel.release else (spec, bytes(10), start, end)
        with pytest.raises(ValueError, match="is not within a buffer of 10 bytes"):
            call(*arguments)
    with pytest.raises(ValueError, match="is not within a buffer of 10 bytes"):
        kernel.touch(bytearray(10), start, end)


def test_negative_numbers(kernel: ModuleType) -> None:
    for start, end in ((-1, 5), (0, -1), (-5, -1)):
        with pytest.raises((ValueError, OverflowError)):
            kernel.scan(QUEUE, bytes(10), start, end)


@each_spec
def test_nothing_to_walk(kernel: ModuleType, spec: FrameSpec) -> None:
    assert kernel.scan(spec, b"", 0, 0) == Scan(0, 0, END, [])
    assert kernel.scan(spec, bytes(10), 4, 4) == Scan(0, 4, END, [])
    assert kernel.resync(spec, bytes(10), 4, 4) == 4


@each_spec
@pytest.mark.parametrize("verify", [True, False])
def test_every_truncation_stops_at_a_boundary(kernel: ModuleType, spec: FrameSpec, verify: bool) -> None:
    data, starts = stream(kernel, spec, PAYLOADS, b"lead!")
    for end in range(5, len(data) + 1):
        found = kernel.scan(spec, data, 5, end, ALL, verify)
        whole = sum(start <= end for start in starts[1:])
        assert (found.count, found.position) == (whole, starts[whole])
        assert found.reason == (END if end == starts[whole] else SHORT)
        assert kernel.scan(spec, data[:end], 5, end, ALL, verify) == found  # what lies beyond does not matter


@each_spec
def test_limit(kernel: ModuleType, spec: FrameSpec) -> None:
    data, starts = stream(kernel, spec, PAYLOADS)
    for limit in range(5):
        assert kernel.scan(spec, data, 0, len(data), limit) == Scan(limit, starts[limit], LIMIT, [])
    for limit in (5, 6, ALL):  # the end is the end, whether or not more was asked for
        assert kernel.scan(spec, data, 0, len(data), limit) == Scan(5, starts[5], END, [])
    assert kernel.scan(spec, data, len(data), len(data), 0).reason == END


@each_spec
@pytest.mark.parametrize("every", [1, 2, 3, 7, 2999, 3000, 3001, 2**54, 2**55, ALL])
def test_every(kernel: ModuleType, spec: FrameSpec, every: int) -> None:
    data, starts = stream(kernel, spec, [b"%d" % i for i in range(3000)])
    assert kernel.scan(spec, data, 0, len(data), ALL, True, every) == Scan(3000, len(data), END, starts[:3000:every])
    for limit in (0, 1, 511, 512, 513, 1024, 2048):
        found = kernel.scan(spec, data, 0, len(data), limit, False, every)
        assert found == Scan(limit, starts[limit], LIMIT, starts[:limit:every])
    cut = starts[2000] + 3
    assert kernel.scan(spec, data, 0, cut, ALL, True, every) == Scan(2000, starts[2000], SHORT, starts[:2000:every])


@each_spec
@pytest.mark.parametrize("head", [0xFFFFFFFF, 0xFFFFFFF0, 0x80000000, 0x7FFFFFFF, 0x00FFFFFF, 0x01FFFFFF])
def test_hostile_lengths(kernel: ModuleType, spec: FrameSpec, head: int) -> None:
    good, _ = stream(kernel, spec, PAYLOADS)
    for rest in (b"", b"x", bytes(100)):
        data = good + struct.pack(">I" if spec.big_endian else "<I", head) + rest
        for verify in (True, False):
            found = kernel.scan(spec, data, 0, len(data), ALL, verify, 1)
            assert (found.count, found.position, found.reason) == (5, len(good), SHORT)
    assert kernel.resync(spec, data, len(good), len(data)) >= len(good)


def test_a_zero_head_ends_the_data_where_it_may(kernel: ModuleType) -> None:
    data, _ = stream(kernel, QUEUE, PAYLOADS)
    assert kernel.scan(QUEUE, data + bytes(100), 0, len(data) + 100) == Scan(5, len(data), ZERO, [])
    assert kernel.scan(QUEUE, data + bytes(3), 0, len(data) + 3) == Scan(5, len(data), SHORT, [])
    data, _ = stream(kernel, TOPIC, PAYLOADS)  # here it is an empty record
    assert kernel.scan(TOPIC, data + bytes(8), 0, len(data) + 8) == Scan(7, len(data) + 8, END, [])


def test_a_zero_length_with_a_kind_is_a_record(kernel: ModuleType) -> None:
    spec = FrameSpec(shift=8, zero_ends=True)
    assert kernel.scan(spec, b"\1\0\0\0\0\0\0\0", 0, 8) == Scan(1, 4, ZERO, [])


@summed
def test_a_wrong_checksum(kernel: ModuleType, spec: FrameSpec) -> None:
    data, starts = stream(kernel, spec, PAYLOADS)
    for record, at in enumerate(starts[:-1]):
        bad = bytearray(data)
        bad[at + spec.overhead] ^= 1  # within the payload, or the checksum after it
        assert kernel.scan(spec, bad, 0, len(bad)) == Scan(record, at, CHECKSUM, [])
        assert kernel.scan(spec, bad, 0, len(bad), ALL, False) == Scan(5, len(bad), END, [])


def test_any_buffer_but_a_scattered_one(kernel: ModuleType) -> None:
    data, _ = stream(kernel, QUEUE, PAYLOADS)
    for wrapped in (bytearray(data), memoryview(data), memoryview(data).cast("b")):
        assert kernel.scan(QUEUE, wrapped, 0, len(data)).count == 5
    with pytest.raises(BufferError):
        kernel.scan(QUEUE, memoryview(data)[::2], 0, 4)
    with pytest.raises(TypeError):
        kernel.scan(QUEUE, "text", 0, 0)


# ---- finding the way again ----


@each_spec
def test_sound_data_is_found_at_once(kernel: ModuleType, spec: FrameSpec) -> None:
    data, starts = stream(kernel, spec, PAYLOADS)
    for start in starts:
        assert kernel.resync(spec, data, start, len(data)) == start


@summed
def test_a_flip_in_a_payload_loses_one_record(kernel: ModuleType, spec: FrameSpec) -> None:
    data, starts = stream(kernel, spec, PAYLOADS)
    for record in range(5):
        bad = bytearray(data)
        bad[starts[record] + spec.overhead] ^= 0x10
        assert kernel.resync(spec, bad, starts[record], len(bad)) == starts[record + 1]
        assert kernel.resync(spec, bad, starts[record] + 1, len(bad)) == starts[record + 1]


@summed
@pytest.mark.parametrize("change", [1, -1, 5, -5, 10_000, 0xFFFF0000])
def test_a_broken_length(kernel: ModuleType, spec: FrameSpec, change: int) -> None:
    data, starts = stream(kernel, spec, PAYLOADS)
    code = ">I" if spec.big_endian else "<I"
    for record in range(5):
        bad = bytearray(data)
        length = (len(PAYLOADS[record]) + change) % 2**32
        struct.pack_into(code, bad, starts[record], length)
        if bad[starts[record] :][:4] == bytes(4) and spec.zero_ends:
            continue
        assert kernel.scan(spec, bad, 0, len(bad)).count == record
        assert kernel.resync(spec, bad, starts[record], len(bad)) == starts[record + 1]


@summed
def test_frames_in_a_payload_are_not_taken_for_records(kernel: ModuleType, spec: FrameSpec) -> None:
    inner, _ = stream(kernel, spec, [b"not", b"a record"])
    data, starts = stream(kernel, spec, [b"first", inner + b"tail", b"last"])
    bad = bytearray(data)
    bad[starts[0] + spec.overhead] ^= 1
    assert kernel.resync(spec, bad, 0, len(bad)) == starts[1]
    bad[starts[2] - spec.sum_bytes - 1] ^= 1  # now the outer frame is broken too; the inner ones lead nowhere
    assert kernel.resync(spec, bad, 0, len(bad)) == starts[2]


def test_frames_in_a_payload_that_lead_to_a_boundary(kernel: ModuleType) -> None:
    """Where no checksum follows the payload, inner frames can lead to the anchor: whole frames, too."""
    inner, _ = stream(kernel, CHANNEL, [b"not", b"a record"])
    data, starts = stream(kernel, CHANNEL, [inner, b"last"])
    assert kernel.resync(CHANNEL, data, 1, len(data)) == starts[0] + CHANNEL.overhead


@summed
def test_double_damage(kernel: ModuleType, spec: FrameSpec) -> None:
    data, starts = stream(kernel, spec, [b"%d" % i * (i % 7 + 1) for i in range(1, 60)])
    for first in range(0, 50, 7):
        for second in range(first + 1, 58, 11):
            bad = bytearray(data)
            bad[starts[first]] ^= 0x40
            bad[starts[second] + spec.overhead] ^= 0x40
            assert kernel.resync(spec, bad, starts[first], len(bad)) == starts[second + 1]
            between = kernel.resync(spec, bad, starts[first], starts[second])
            assert between == starts[first + 1]


@summed
def test_nothing_but_damage(kernel: ModuleType, spec: FrameSpec) -> None:
    for data in (b"\xff" * 1000, b"\1" * 1000, bytes(999) + b"\1"):
        assert kernel.resync(spec, data, 0, len(data)) == len(data)
        assert kernel.resync(spec, data, 17, 993) in range(17, 994)


def test_all_zero(kernel: ModuleType) -> None:
    assert kernel.resync(QUEUE, bytes(5000), 0, 5000) == 5000  # a zero head is no frame
    assert kernel.resync(TOPIC, bytes(5000), 0, 5000) == 0  # empty records, one after the other
    assert kernel.resync(TOPIC, bytes(5001), 0, 5001) == 1
    assert kernel.resync(CHANNEL, bytes(5003), 0, 5003) == 3  # the CRC of nothing is zero


def test_a_chain_that_stops_short_of_the_anchor(kernel: ModuleType) -> None:
    data, starts = stream(kernel, QUEUE, PAYLOADS)
    for short in (1, 3, 4, 11):
        assert kernel.resync(QUEUE, data, 0, len(data) - short) == len(data) - short
    assert kernel.resync(QUEUE, data, 0, starts[3]) == 0


@each_spec
@pytest.mark.parametrize("size", [1000, 65536, 1 << 20])
def test_random_bytes_take_no_time(kernel: ModuleType, spec: FrameSpec, size: int) -> None:
    data = random.Random(size).randbytes(size)
    before = time.perf_counter()
    found = kernel.resync(spec, data, 0, size)
    kernel.scan(spec, data, 0, size)
    assert time.perf_counter() - before < 10  # some milliseconds natively, a second in Python
    assert kernel.scan(spec, data, found, size) == Scan(kernel.scan(spec, data, found, size).count, size, END, [])


def test_small_lengths_everywhere_take_no_time(kernel: ModuleType) -> None:
    """Each byte looks like the beginning of a short frame; the checksums are all wrong."""
    data = random.Random(1).choices([0, 0, 0, 1, 7, 30], k=200_000)
    before = time.perf_counter()
    assert kernel.resync(QUEUE, bytes(data), 0, len(data)) == len(data)
    assert time.perf_counter() - before < 10


@summed
def test_many_long_frames_claimed_at_once_take_no_time(kernel: ModuleType, spec: FrameSpec) -> None:
    """Each fourth byte begins a frame that reaches right to the anchor: a checksum each would be quadratic."""
    size = 4 << 20 if kernel.NAME == "native" else 1 << 19
    order = ">" if spec.big_endian else "<"
    lengths = [size - at - spec.overhead for at in range(0, size - spec.overhead + 1, 4)]
    data = struct.pack(f"{order}{len(lengths)}I", *lengths).ljust(size, b"\xff")
    before = time.perf_counter()
    assert kernel.resync(spec, data, 0, size) == size
    assert time.perf_counter() - before < 10
