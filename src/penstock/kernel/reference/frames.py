"""Frames: a payload with its head and checksum, by a `FrameSpec`; made, found, and found again behind damage."""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.kernel import spec as why
from penstock.kernel.reference.buffers import crc32, crc64, view_of, view_within
from penstock.kernel.spec import FrameSpec, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

COMPANION_HEADER: Final = 64  # bytes before the first time in a companion file
INDEX_HEADER: Final = 256  # bytes before the first entry of an index file; the u64 at 8 counts the entries
SUMMED_ENTRY: Final = struct.Struct("<qQ")  # of a companion, where frames have no checksum: time, CRC-64 of the frame

_MAX: Final = 2**64 - 1
_RESYNC_TIMES: Final = 64


class _Codec:
    """A FrameSpec ready for use: `head | [sum] | payload | [sum]`, head a u32 of `length << shift | kind`."""

    def __init__(self, spec: FrameSpec) -> None:
        order = ">" if spec.big_endian else "<"
        self.spec = spec
        self.overhead = spec.overhead
        self.lead = 4 + (spec.sum_bytes if spec.sum_first else 0)  # from a frame's first byte to its payload
        self._head = struct.Struct(order + "I")
        self._sum = struct.Struct(order + {0: "", 4: "I", 8: "Q"}[spec.sum_bytes])

    def flat(self, payload: Buffer, of_kind: int = 0) -> memoryview:
        """A payload as plain bytes, not copied, if a frame can hold it."""
        kind = type(payload).__name__
        if isinstance(payload, str):
            kind = "str; encode it first, as in text.encode()"
            raise PayloadTypeError(f"a payload must be bytes-like, not {kind}")
        try:
            view = memoryview(payload)
            view = view.cast("B") if view.nbytes else memoryview(b"")
        except TypeError as error:
            raise PayloadTypeError(f"a payload must be bytes-like, not {kind} ({error})") from None
        if not view and self.spec.zero_ends:
            raise InvalidPayload("an empty payload cannot be stored: a zero length marks the end of the data")
        if not view and self.spec.state_bytes and of_kind == why.STATE_KIND:
            stands_for = f"there a zero length says {self.spec.state_bytes} bytes"
            raise InvalidPayload(f"an empty payload of kind {of_kind} cannot be stored: {stands_for}")
        if len(view) > (most := self.spec.max_payload):
            raise InvalidPayload(f"a payload of {len(view)} bytes is longer than a frame can say ({most})")
        return view

    def checksum(self, head: Buffer, payload: Buffer) -> bytes:
        """The checksum as it stands in the file; the head goes into it first, or not at all."""
        if not self.spec.sum_bytes:
            return b""
        crc = crc64 if self.spec.sum_bytes == 8 else crc32
        return self._sum.pack(crc(payload, crc(head) if self.spec.sum_covers_head else 0))

    def parts(self, payload: memoryview, kind: int = 0) -> tuple[bytes, bytes, memoryview, bytes]:
        """The four parts of a frame, in the order of the file."""
        head = self._head.pack(len(payload) << self.spec.shift | kind)
        checksum = self.checksum(head, payload)
        return (head, checksum, payload, b"") if self.spec.sum_first else (head, b"", payload, checksum)

    def check(self, view: memoryview, at: int, end: int, verify: bool) -> tuple[int, int]:
        """(size, LIMIT) of the whole frame at `at`, all of it below `end`; or (0, why there is none)."""
        if end - at < 4:
            return 0, why.SHORT if at < end else why.END
        head: int = self._head.unpack_from(view, at)[0]
        if head == 0 and self.spec.zero_ends:
            return 0, why.ZERO
        size = self.overhead + self._length(head)
        if size > end - at:
            return 0, why.SHORT
        if verify and self.spec.sum_bytes:
            place = at + 4 if self.spec.sum_first else at + size - self.spec.sum_bytes
            wanted = self.checksum(view[at : at + 4], self.payload(view, at, size))
            if view[place : place + self.spec.sum_bytes] != wanted:
                return 0, why.CHECKSUM
        return size, why.LIMIT

    def _length(self, head: int) -> int:
        """A spec with `state_bytes` has kinds, so that a head of 1 is no length but the kind alone."""
        return self.spec.state_bytes if head == why.STATE_KIND and self.spec.state_bytes else head >> self.spec.shift

    def kind(self, view: memoryview, at: int) -> int:
        """The kind of the whole frame at `at`."""
        head: int = self._head.unpack_from(view, at)[0]
        return head & (1 << self.spec.shift) - 1

    def payload(self, view: memoryview, at: int, size: int) -> memoryview:
        """The payload of the frame of `size` bytes at `at`."""
        return view[at + self.lead : at + self.lead + size - self.overhead]


codec_of = lru_cache(maxsize=64)(_Codec)


def encode(spec: FrameSpec, payload: Buffer, kind: int = 0) -> bytes:
    """One frame."""
    return encode_many(spec, (payload,), kind)


def encode_many(spec: FrameSpec, payloads: Iterable[Buffer], kind: int = 0) -> bytes:
    """The frames of `payloads`, one after the other."""
    codec = codec_of(spec)
    if kind >> spec.shift:
        raise ValueError(f"kind {kind} does not fit the {spec.shift} bits below the length")
    out: list[Buffer] = []
    for payload in payloads:
        out += codec.parts(codec.flat(payload, kind), kind)
    return b"".join(out)


class Sums:
    """What a companion says of frames that have no checksum of their own: the CRC-64 of each, where it is known."""

    def __init__(self, entries: Buffer | None = None) -> None:
        self.view_of = view_of(b"" if entries is None else entries)

    def differ(self, place: int, frame: memoryview) -> bool:
        at = SUMMED_ENTRY.size * place
        if at + SUMMED_ENTRY.size > len(self.view_of):
            return False
        _, wanted = SUMMED_ENTRY.unpack_from(self.view_of, at)
        return wanted not in (0, crc64(frame))


def scan(
    spec: FrameSpec,
    data: Buffer,
    start: int,
    end: int,
    limit: int = _MAX,
    verify: bool = True,
    every: int = 0,
    sums: Buffer | None = None,
    place: int = 0,
) -> Scan:
    """Walk frames in data[start:end], at most `limit`; with `every`, take the position of each every-th.

    Frames without a checksum are held to the entries of a companion, if given: the first frame to the `place`-th.
    """
    if place < 0:
        raise ValueError(f"no entry has the place {place}")
    known = Sums(sums)
    codec, view = codec_of(spec), view_within(data, start, end)
    count, at, points = 0, start, list[int]()
    while count < limit:
        size, reason = codec.check(view, at, end, verify)
        if not size:
            return Scan(count, at, reason, points)
        if verify and not spec.sum_bytes and known.differ(place + count, view[at : at + size]):
            return Scan(count, at, why.CHECKSUM, points)
        if every and count % every == 0:
            points.append(at)
        at += size
        count += 1
    return Scan(count, at, why.END if at == end else why.LIMIT, points)


def resync(spec: FrameSpec, data: Buffer, start: int, anchor: int) -> int:
    """The first position in [start, anchor) from which whole frames lead right to `anchor`; else `anchor`.

    Backwards, so that what follows a frame is already known. Bytes made to claim many long frames at once would take for
    ever: once checksums have covered the stretch `_RESYNC_TIMES`, no more are believed.
    """
    codec, view = codec_of(spec), view_within(data, start, anchor)
    budget = (anchor - start) * _RESYNC_TIMES
    leads = bytearray(anchor - start + 1)  # 1 where whole frames lead to the anchor
    leads[-1] = 1
    for at in range(anchor - 1, start - 1, -1):
        size, _ = codec.check(view, at, anchor, False)
        if size and leads[at + size - start] and size <= budget:
            budget -= size
            leads[at - start] = codec.check(view, at, anchor, True)[0] > 0
    return start + leads.index(1)


def arrow_values(
    codec: _Codec, offsets: Buffer, wide: bool, values: Buffer | None, start: int, count: int
) -> list[memoryview]:
    """`count` values of an Arrow binary array, from its `start`-th, not copied; each one that a frame can hold."""
    ends, data = view_of(offsets), view_of(b"" if values is None else values)
    width, end = 8 if wide else 4, start + count + 1
    if count and end * width > len(ends):
        raise InvalidPayload("the offsets do not hold that many values")
    bounds = ends[start * width : end * width].cast("q" if wide else "i")
    views = []
    for i in range(count):
        if not 0 <= bounds[i] <= bounds[i + 1] <= len(data):
            raise InvalidPayload(f"offsets of value {i} lie outside the array's data")
        views.append(codec.flat(data[bounds[i] : bounds[i + 1]]))
    return views


def encode_arrow(spec: FrameSpec, offsets: Buffer, wide: bool, values: Buffer | None, start: int, count: int) -> bytes:
    """The frames of `count` values of an Arrow binary array, from its `start`-th, one after the other."""
    return encode_many(spec, arrow_values(codec_of(spec), offsets, wide, values, start, count))


def entries(spec: FrameSpec, data: Buffer, us: int, goes_on: bool = False) -> bytes:
    """The companion's entries for the whole frames that `data` consists of, as one batch, or a part of one that `goes_on`."""
    view = view_of(data)
    found = scan(spec, view, 0, len(view), verify=False, every=1)
    if found.position != len(view):
        raise ValueError(f"no whole frame begins at byte {found.position}")
    out = bytearray()
    for i, (at, end) in enumerate(pairwise([*found.points, len(view)])):
        last = not goes_on and i + 1 == found.count
        out += (us if last else -us).to_bytes(8, "little", signed=True)
        if not spec.sum_bytes:
            out += crc64(view[at:end]).to_bytes(8, "little")
    return bytes(out)
