"""The kernels on any bytes at all: what they find is within what they were given, and both find the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.formats import channel, journal, queue, topic
from penstock.kernel import reference
from penstock.kernel.spec import FrameSpec
from tests.fuzz import corpus

try:
    from penstock.kernel import _native
except ImportError:
    _native = None

SPECS = {"queue": queue.SPEC, "channel": channel.SPEC, "journal": journal.SPEC, "topic": topic.SPEC}
KERNELS: list[ModuleType] = [reference, *([_native] if _native is not None else [])]
many = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def hostile(draw: st.DrawFn, kind: str) -> bytes:
    """Any bytes, or a real file with some of them elsewhere, cut, doubled or of another value."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=300))
    image = corpus.image(kind)
    names = sorted(
        name
        for name in image
        if corpus.sort_of(name) in ("N-N.data", "segment.N", "N.journal") or name.endswith(".log")
    )
    data = bytearray(image[draw(st.sampled_from(names))])
    data = data[4096:] if kind == "queue" else data
    for _ in range(draw(st.integers(1, 4))):
        at, piece = draw(st.integers(0, len(data))), draw(st.binary(max_size=12))
        data[at : at + draw(st.integers(0, 12))] = piece
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def scanned(kernel: ModuleType, spec: FrameSpec, data: bytes, verify: bool) -> tuple[int, int, int, list[int]]:
    found = kernel.scan(spec, data, 0, len(data), 1 << 20, verify, 1)
    return found.count, found.position, found.reason, list(found.points)


@pytest.mark.parametrize("kind", SPECS)
def test_a_scan_stays_within_its_bytes(kind: str) -> None:
    reasons: set[int] = set()

    @many
    @given(data=hostile(kind), verify=st.booleans())
    def check(data: bytes, verify: bool) -> None:
        found = [scanned(kernel, SPECS[kind], data, verify) for kernel in KERNELS]
        assert all(one == found[0] for one in found)
        count, position, reason, points = found[0]
        assert position <= len(data)
        assert len(points) == count
        assert points == sorted(points)
        reasons.add(reason)

    check()
    assert len(reasons) >= 2, "frames were found, and were refused"


@pytest.mark.parametrize("kind", SPECS)
def test_a_search_for_frames_ends_within_its_bytes(kind: str) -> None:
    @many
    @given(data=hostile(kind), start=st.integers(0, 400))
    def check(data: bytes, start: int) -> None:
        begin = min(start, len(data))
        found = [kernel.resync(SPECS[kind], data, begin, len(data)) for kernel in KERNELS]
        assert all(one == found[0] for one in found)
        assert begin <= found[0] <= len(data)

    check()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__.rsplit("_", 1)[-1])
@pytest.mark.parametrize(("start", "end"), [(0, 11), (11, 10), (11, 11), (5, 1 << 40), (1 << 62, 1 << 63)])
def test_a_range_beyond_the_bytes_is_refused(kernel: Any, start: int, end: int) -> None:
    for call in (kernel.scan, kernel.resync):
        with pytest.raises(ValueError, match="not within"):
            call(queue.SPEC, bytes(10), start, end)
