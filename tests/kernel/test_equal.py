"""Both kernels give the same results, whatever they are given."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.kernel import reference
from penstock.kernel.spec import FrameSpec

from .conftest import QUEUE, Rig

Both = tuple[ModuleType, ModuleType]

ALL = 2**64 - 1
BIG = st.sampled_from([0, 1, 2, 3, 1000, 2**54, 2**55, ALL])
few = settings(deadline=None, max_examples=60)
more = settings(deadline=None, max_examples=200)

plain_specs = st.builds(
    FrameSpec,
    big_endian=st.booleans(),
    shift=st.sampled_from([0, 0, 0, 1, 8, 16]),
    sum_bytes=st.sampled_from([0, 4, 8]),
    sum_first=st.booleans(),
    sum_covers_head=st.booleans(),
    zero_ends=st.booleans(),
)
stated_specs = st.builds(
    FrameSpec,
    big_endian=st.booleans(),
    shift=st.sampled_from([1, 8, 16]),
    sum_bytes=st.sampled_from([0, 0, 4]),
    zero_ends=st.booleans(),
    state_bytes=st.sampled_from([1, 16, 20]),
)
specs = st.one_of(plain_specs, plain_specs, stated_specs)
# short ones often, and lengths around those at which checksums change their ways
lengths = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 700]))
payloads = st.one_of(
    st.binary(max_size=24), st.builds(lambda n, c: bytes([c, 0, 0, 1]) * n, lengths, st.integers(0, 255))
)
wrapped = st.builds(lambda wrap, data: wrap(data), st.sampled_from([bytes, bytearray, memoryview]), payloads)
# bytes in which small numbers, and so plausible lengths, are frequent
hostile = st.lists(
    st.one_of(st.sampled_from([0, 0, 0, 0, 1, 2, 4, 8, 12, 255]), st.integers(0, 255)), max_size=300
).map(bytes)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returns, or the error it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        return type(error), str(error)


def same(both: Both, name: str, *arguments: Any) -> Any:
    native, reference = (outcome(getattr(kernel, name), *arguments) for kernel in both)
    assert native == reference, name
    return native


def frame(spec: FrameSpec, payload: bytes, other_kind: bool) -> bytes:
    """A frame; of kind 1 now and then, and then as some write it: without the length that is always the same."""
    if not other_kind or not spec.shift or not payload:
        return reference.encode(spec, payload)
    if len(payload) % 2 or not spec.state_bytes or spec.sum_bytes:
        return reference.encode(spec, payload, 1)
    return struct.pack(">I" if spec.big_endian else "<I", 1) + payload[: spec.state_bytes].ljust(spec.state_bytes, b"s")


@st.composite
def companions(draw: st.DrawFn, spec: FrameSpec, data: bytes) -> bytes:
    """Entries for the frames of `data`, right or wrong, known or not, short or more than there are records."""
    points = [*reference.scan(spec, data, 0, len(data), verify=False, every=1).points, len(data)]
    out = b""
    for start, end in pairwise([*points, len(data)]):
        us = draw(st.sampled_from([0, 1, -1, 1_700_000_000_000_000, -1_700_000_000_000_001, -(2**63)]))
        crc = draw(st.sampled_from([0, 1, *[reference.crc64(data[start:end])] * 8]))
        out += struct.pack("<q", us) if spec.sum_bytes else struct.pack("<qQ", us, crc)
    return out if draw(st.booleans()) else out[: draw(st.integers(0, len(out)))]


@st.composite
def streams(draw: st.DrawFn, spec: FrameSpec) -> bytes:
    """Frames, sound or damaged: bits flipped, bytes lost or put in, cut off; or no frames at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(hostile)
    items = [item for item in draw(st.lists(payloads, max_size=8)) if item or not spec.zero_ends]
    data = bytearray(b"".join(frame(spec, item, draw(st.booleans()) and draw(st.booleans())) for item in items))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(data)))
            what = draw(st.sampled_from(["flip", "lose", "put", "cut", "zero"]))
            if what == "flip" and at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            elif what == "lose":
                del data[at : at + draw(st.integers(1, 9))]
            elif what == "put":
                data[at:at] = draw(hostile)[:20]
            elif what == "zero":
                data[at : at + 6] = bytes(len(data[at : at + 6]))
            elif what == "cut":
                del data[at:]
    return bytes(data)


@more
@given(
    spec=specs,
    items=st.lists(wrapped, max_size=6),
    kind=st.sampled_from([0, 0, 0, 1, 2, 255, 256, 65535, 65536]),
)
def test_encode(both: Both, spec: FrameSpec, items: list[Any], kind: int) -> None:
    frames = same(both, "encode_many", spec, items, kind)
    for item in items[:2]:
        same(both, "encode", spec, item, kind)
    if isinstance(frames, bytes):
        for kernel in both:
            assert kernel.scan(spec, frames, 0, len(frames)).count == len(items)


@more
@given(data=st.data(), spec=specs)
def test_scan(both: Both, data: st.DataObject, spec: FrameSpec) -> None:
    stream = data.draw(streams(spec))
    start, end = (data.draw(st.integers(0, len(stream) + 1)) for _ in range(2))
    for verify in (True, False):
        same(both, "scan", spec, stream, 0, len(stream), ALL, verify)
        same(both, "scan", spec, stream, start, end, data.draw(BIG), verify, data.draw(BIG))
        sums, place = data.draw(companions(spec, stream)), data.draw(st.sampled_from([0, 0, 0, 1, 2, 2**60, ALL]))
        same(both, "scan", spec, stream, 0, len(stream), ALL, verify, data.draw(BIG), sums, place)
        same(both, "scan", spec, stream, start, end, data.draw(BIG), verify, data.draw(BIG), sums, place)


@more
@given(data=st.data(), spec=specs)
def test_resync(both: Both, data: st.DataObject, spec: FrameSpec) -> None:
    stream = data.draw(streams(spec))
    start, anchor = (data.draw(st.integers(0, len(stream))) for _ in range(2))
    same(both, "resync", spec, stream, 0, len(stream))
    same(both, "resync", spec, stream, start, anchor)
    found = same(both, "scan", spec, stream, 0, len(stream), ALL, False, 1)
    for point in found.points:  # boundaries, or what damage made of them
        same(both, "resync", spec, stream, min(start, point), point)


@more
@given(spec=specs, data=hostile)
def test_resync_in_anything(both: Both, spec: FrameSpec, data: bytes) -> None:
    found = same(both, "resync", spec, data, 0, len(data))
    walk = both[0].scan(spec, data, found, len(data))
    assert walk.position == len(data)


# ---- reading ----

read_steps = st.lists(
    st.one_of(
        st.just(("read",)),
        st.just(("read_span",)),
        st.tuples(st.just("read_batch"), st.integers(-1, 5)),
        st.tuples(st.just("read_run"), st.integers(-1, 5)),
        st.tuples(st.just("fill"), st.integers(0, 5), st.sampled_from([0, 1, 50, 400, ALL]), st.integers(-3, 3)),
        st.tuples(st.just("seek"), st.integers(0, 900), st.integers(0, 20)),
    ),
    max_size=12,
)


class Session:
    """A reader of one kernel over bytes, and what it said."""

    def __init__(self, kernel: ModuleType, spec: FrameSpec, data: bytes, times: bytes, base: int, verify: bool) -> None:
        self.said: list[Any] = []
        self.reader = kernel.Reader(None, spec, self.on_end, self.on_bad, verify)
        self.reader.attach(data, times, spec, 3, base, 0, base, len(data))

    def on_end(self) -> bool:
        self.said.append("end")
        return False

    def on_bad(self, reason: int) -> None:
        """Give up at every third bad place, else look at the next byte."""
        self.said.append(reason)
        if len(self.said) % 3 == 0:
            raise ValueError(f"bad frame: {reason}")
        self.reader.seek(self.reader.position + 1, self.reader.sequence + 1)

    def step(self, name: str, *arguments: int) -> None:
        reader = self.reader
        result = outcome(self.fill, *arguments) if name == "fill" else outcome(getattr(reader, name), *arguments)
        if name == "read" and not isinstance(result, tuple) and result is not None:
            result = [result]
        if isinstance(result, list):
            result = [(m.sequence, m.timestamp_us, m.payload, repr(m)) for m in result]
        self.said.append((name, result, reader.position, reader.sequence, reader.end, reader.segment, reader.base))

    def fill(self, limit: int, most_bytes: int, off: int) -> tuple[Any, ...]:
        """Measure, then fill; by `off` bytes less or more room for values than was measured."""
        count, size = self.reader.measure(limit, most_bytes)
        rooms = [
            bytearray(b"\xee" * n)
            for n in (4 * (count + 1), max(size + off, 0), 8 * count, 8 * count, (count + 7) // 8)
        ]
        return count, size, self.reader.fill(count, *rooms), *rooms


@more
@given(
    data=st.data(),
    spec=specs,
    steps=read_steps,
    base=st.sampled_from([0, 5, 2**40]),
    verify=st.booleans(),
)
def test_reader(
    both: Both,
    data: st.DataObject,
    spec: FrameSpec,
    steps: list[Any],
    base: int,
    verify: bool,
) -> None:
    stream = data.draw(streams(spec))
    companion = bytes(64) + data.draw(companions(spec, stream)) + bytes(data.draw(st.integers(0, 15)))
    if data.draw(st.integers(0, 3)) == 0:
        companion = companion[: data.draw(st.integers(0, 80))]
    sessions = [Session(kernel, spec, stream, companion, base, verify) for kernel in both]
    for name, *arguments in [*steps, ("read_batch", 1000)]:
        for session in sessions:
            session.step(name, *(n + base if name == "seek" and i == 1 else n for i, n in enumerate(arguments)))
        assert sessions[0].said == sessions[1].said


def refuse(reason: int) -> None:
    raise AssertionError(f"bad frame: {reason}")


# ---- writing ----

write_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), wrapped),
        st.tuples(st.just("append_batch"), st.lists(wrapped, max_size=5)),
        st.tuples(
            st.just("arrow"),
            st.lists(payloads, max_size=5),
            st.booleans(),
            st.integers(0, 2),
            st.integers(-2, 2),
        ),
        st.tuples(st.just("append"), st.sampled_from(["text", None, 7, memoryview(b"abcd")[::2]])),
        st.tuples(st.just("ring")),
    ),
    max_size=20,
)


def write(rig: Rig, name: str, *arguments: Any) -> Any:
    if name == "ring":
        return rig.page.ring()
    if name != "arrow":
        return outcome(getattr(rig.writer, name), *arguments)
    values, wide, lead, wrong = arguments
    offsets, data = [0], b""
    for value in [b"skip"] * lead + values:
        data += value
        offsets.append(len(data))
    if wrong:
        offsets[len(offsets) // 2] += wrong  # now and then still in order, and then just other values
    packed = struct.pack(f"<{len(offsets)}{'q' if wide else 'i'}", *offsets)
    return outcome(rig.writer.append_arrow, packed, wide, data or None, lead, len(values))


@more
@example(spec=QUEUE, steps=[("append", b"x")] * 20, interval=1, size=256, turn=0, notify_at=0)
@given(
    spec=specs,
    steps=write_steps,
    interval=st.integers(1, 5),
    size=st.sampled_from([256, 1024, 16384]),
    turn=st.integers(0, 3),
    notify_at=st.sampled_from([0, 100, 300, ALL]),
)
def test_writer(
    both: Both, spec: FrameSpec, steps: list[Any], interval: int, size: int, turn: int, notify_at: int
) -> None:
    native, reference = both
    rigs = [
        Rig(kernel, spec, robust=robust, size=size, turn=turn, interval=interval, room=64)
        for kernel, robust in ((native, False), (native, bool(native.ROBUST)), (reference, False))
    ]
    for rig in rigs:
        rig.writer.notify_at = notify_at
    for name, *arguments in steps:
        results = [write(rig, name, *arguments) for rig in rigs]
        assert results == [results[2]] * 3
    for rig in rigs[:2]:
        assert rig.timeless() == rigs[2].timeless()
        assert (rig.slow, rig.notified) == (rigs[2].slow, rigs[2].notified)
        assert rig.page.active() == rigs[2].page.active()
        assert rig.writer.notify_at == rigs[2].writer.notify_at


@few
@given(items=st.lists(payloads.filter(bool), min_size=1, max_size=12), spec=specs.filter(lambda spec: spec.sum_bytes))
def test_each_reads_what_the_other_wrote(both: Both, items: list[bytes], spec: FrameSpec) -> None:
    for kernel, other in (both, both[::-1]):
        rig = Rig(kernel, spec)
        rig.writer.append_batch(items)
        page = other.ControlPage(rig.page_map, rig.file_lock)
        reader = other.Reader(page, spec, lambda: False, refuse)
        reader.attach(rig.data, rig.times, spec, 7, 100, 64, 100, 64)
        assert [message.payload for message in reader] == items
