"""Many frames at once: encoded from Arrow's buffers, and the companion's entries for frames that exist already."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest

from penstock.errors import InvalidPayload
from penstock.kernel.spec import FrameSpec

from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC

SPECS = [CHANNEL, JOURNAL, QUEUE, TOPIC]
PAYLOADS = [bytes([i]) * (i % 41 + 1) for i in range(200)]


def arrow(payloads: list[bytes], wide: bool) -> tuple[array[int], bytes]:
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + len(payload))
    return array("q" if wide else "i", ends), b"".join(payloads)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("wide", [False, True])
def test_arrow_values_are_encoded_as_payloads_are(kernel: ModuleType, spec: FrameSpec, wide: bool) -> None:
    offsets, values = arrow(PAYLOADS, wide)
    assert kernel.encode_arrow(spec, offsets, wide, values, 0, 200) == kernel.encode_many(spec, PAYLOADS)
    assert kernel.encode_arrow(spec, offsets, wide, values, 17, 30) == kernel.encode_many(spec, PAYLOADS[17:47])
    assert kernel.encode_arrow(spec, offsets, wide, None, 0, 0) == b""


@pytest.mark.parametrize(("start", "count"), [(0, 201), (200, 1), (1 << 62, 1), (0, 1 << 62)])
def test_more_values_than_there_are(kernel: ModuleType, start: int, count: int) -> None:
    offsets, values = arrow(PAYLOADS, False)
    with pytest.raises(InvalidPayload):
        kernel.encode_arrow(QUEUE, offsets, False, values, start, count)


@pytest.mark.parametrize("ends", [[0, -1], [4, 3], [0, 1000], [-5, 2]])
def test_offsets_that_lie(kernel: ModuleType, ends: list[int]) -> None:
    with pytest.raises(InvalidPayload):
        kernel.encode_arrow(QUEUE, array("i", ends), False, b"12345678", 0, 1)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_entries_are_those_of_a_batch(kernel: ModuleType, spec: FrameSpec, goes_on: bool) -> None:
    frames = kernel.encode_many(spec, PAYLOADS)
    entries = array("q", kernel.entries(spec, frames, 1234, goes_on))
    times = entries if spec.sum_bytes else entries[::2]
    assert list(times) == [-1234] * 199 + [-1234 if goes_on else 1234]
    if not spec.sum_bytes:
        sums = [kernel.crc64(kernel.encode(spec, payload)) for payload in PAYLOADS]
        assert [value & 0xFFFFFFFFFFFFFFFF for value in entries[1::2]] == sums
    assert kernel.entries(spec, b"", 1234) == b""


@pytest.mark.parametrize("spec", SPECS)
def test_entries_of_what_is_no_whole_frame(kernel: ModuleType, spec: FrameSpec) -> None:
    frames = kernel.encode_many(spec, PAYLOADS)
    for cut in (1, 3, len(frames) - 1):
        with pytest.raises(ValueError, match="no whole frame begins at byte"):
            kernel.entries(spec, frames[:cut], 1)


def test_records_of_a_group(kernel: ModuleType) -> None:
    first, second = kernel.records([b"a", b"b"], 7, True, 2)
    assert (first.payload, first.group, first.complete, first.session) == (b"a", 7, True, 2)
    assert first == kernel.Record(b"a", 7, True, 2) == (b"a", 7, True, 2)
    assert first != second
    assert tuple(second) == (b"b", 7, True, 2)
    assert hash(first) == hash(kernel.Record(b"a", 7, True, 2))
    assert repr(first) == "Record(payload=b'a', group=7, complete=True, session=2)"
