"""The kernel in plain Python: what lies in files and in the shared page, and in which order it gets there.

This is the specification of the native kernel, its oracle in the tests, and the fallback where there is no
compiler. Same names, same results; only the lock differs: having no robust mutex, it needs a `file_lock`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import struct
import sys
import time
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import compress, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from fastcrc.crc64 import xz as _xz

from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.kernel import layout
from penstock.kernel import spec as why
from penstock.kernel.spec import FrameSpec, Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Buffer

NAME: Final = "reference"
ROBUST: Final = False

COMPANION_HEADER: Final = 64  # bytes before the first time in a companion file
INDEX_HEADER: Final = 256  # bytes before the first entry of an index file; the u64 at 8 counts the entries

_MAX: Final = 2**64 - 1
_OK: Final = 0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DROP_BEHIND: Final = 32 << 20
_RESYNC_TIMES: Final = 64
_TIME: Final = struct.Struct("<q")
_COUNT: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQ")
SUMMED_ENTRY: Final = struct.Struct("<qQ")  # of a companion, where frames have no checksum: time, CRC-64 of the frame


class FileLock(Protocol):
    """A lock between processes and threads; the system lets it go when its owner dies."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


# ---- checksums ----


def crc64(data: Buffer, value: int = 0) -> int:
    """CRC-64/XZ of `data`, going on from `value`."""
    return _xz(data, value)


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (IEEE) of `data`, going on from `value`."""
    return zlib.crc32(data, value)


def fnv1a(data: Buffer) -> int:
    """FNV-1a, of 64 bits, of `data`."""
    value = 0xCBF29CE484222325
    for byte in memoryview(data).cast("B"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def crc_path() -> str:
    """Which implementation of the checksums runs."""
    return "fastcrc"


def store_big(data: Buffer, offset: int, stride: int, copies: int, value: int) -> None:
    """Store a number at an aligned place, and at further ones `stride` apart, big-endian, each in one piece: whoever looks,
    also after our death, sees each whole."""
    view = check_places(data, offset, stride, copies)
    number = int.from_bytes(value.to_bytes(8, "big"), sys.byteorder)
    for at in range(copies):
        place = offset + at * stride
        view[place : place + 8].cast("Q")[0] = number


def check_places(data: Buffer, offset: int, stride: int, copies: int) -> memoryview:
    """Refuse what `store_big` cannot store to."""
    view = _view(data, True)
    last = offset + stride * (copies - 1)
    if not 1 <= copies <= 64 or (offset | stride) % 8 or not 0 <= offset <= last <= len(view) - 8:
        raise ValueError(f"no aligned places from {offset} to {last}")
    return view


# ---- buffers ----


def _view(data: Buffer, writable: bool = False) -> memoryview:
    """Any contiguous buffer as plain bytes, not copied."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    if writable and view.readonly:
        raise BufferError("the buffer is read-only")
    return view.cast("B") if view.nbytes else memoryview(bytearray())  # an empty view cannot always be cast


def _range(data: Buffer, start: int, end: int, writable: bool = False) -> memoryview:
    view = _view(data, writable)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not within a buffer of {len(view)} bytes")
    return view


def touch(data: Buffer, start: int, end: int) -> None:
    """Make the pages of data[start:end] present and writable without changing them."""
    _range(data, start, end, writable=True)
    if isinstance(data, mmap.mmap) and sys.platform == "linux" and start < end:
        first = start - start % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # only a matter of speed, and kernels before 5.14 have not got it
            data.madvise(23, first, end - first)  # MADV_POPULATE_WRITE


def release(data: Buffer, start: int, end: int) -> None:
    """Let go of the pages of data[start:end], a map: their contents stay, this process's memory shrinks."""
    _range(data, start, end)
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end - end % mmap.PAGESIZE
    if isinstance(data, mmap.mmap) and sys.platform != "win32" and first < last:
        data.madvise(mmap.MADV_DONTNEED, first, last - first)


# ---- frames ----


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


class _Sums:
    """What a companion says of frames that have no checksum of their own: the CRC-64 of each, where it is known."""

    def __init__(self, entries: Buffer | None = None) -> None:
        self._view = _view(b"" if entries is None else entries)

    def differ(self, place: int, frame: memoryview) -> bool:
        at = SUMMED_ENTRY.size * place
        if at + SUMMED_ENTRY.size > len(self._view):
            return False
        _, wanted = SUMMED_ENTRY.unpack_from(self._view, at)
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
    known = _Sums(sums)
    codec, view = codec_of(spec), _range(data, start, end)
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
    codec, view = codec_of(spec), _range(data, start, anchor)
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
    ends, data = _view(offsets), _view(b"" if values is None else values)
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
    view = _view(data)
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


@final
@dataclass(frozen=True, slots=True)
class Message:
    """One record: `sequence`, `timestamp` (UTC, or None when unknown), `payload`."""

    sequence: int
    timestamp_us: int | None  # Unix microseconds
    payload: bytes

    def __post_init__(self) -> None:
        if self.timestamp_us == 0:  # how a file says that the time is not known
            object.__setattr__(self, "timestamp_us", None)

    @property
    def timestamp(self) -> datetime | None:
        """When the record was appended, in UTC, or None when that is not known."""
        return None if self.timestamp_us is None else _EPOCH + timedelta(microseconds=self.timestamp_us)


# ---- the shared page ----

_TURN, _POISON, _WAITERS = layout.TURN // 8, layout.POISON // 8, layout.WAITERS // 8


def slot_word(turn: int, field: int) -> int:
    """Number of a word of the slot that `turn` makes the active one."""
    return (layout.SLOTS[turn & 1] + field) // 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A record of an earlier session: `payload`, and of what it is a part: `group`, `complete`, `session`. Like a tuple of these
    it can be unpacked and compared."""

    payload: bytes
    group: int
    complete: bool
    session: int

    def __iter__(self) -> Iterator[bytes | int]:
        return iter((self.payload, self.group, self.complete, self.session))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Record | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def records(payloads: list[bytes], group: int, complete: bool, session: int) -> list[Record]:
    """The same group's records, of these payloads."""
    return [Record(payload, group, complete, session) for payload in payloads]


class ControlPage:
    """The words every process shares, each loaded and stored whole; `file_lock` takes turns on them.

    `words` are u64s in the byte order of this machine: no other ever sees them. `with page` holds the lock; `on_locked()`
    is called inside, and what it returns is the block's target.
    """

    def __init__(self, page: Buffer, file_lock: FileLock | None = None, writable: bool = True) -> None:
        self.words = _range(page, 0, layout.PAGE_BYTES, writable)[: layout.PAGE_BYTES].cast("Q")
        self.writable = writable
        self.on_locked: Callable[[], Any] | None = None
        self._file_lock = file_lock

    def load(self, offset: int) -> int:
        return self.words[self._word(offset)]

    def store(self, offset: int, value: int) -> None:
        self.must_write()
        self.words[self._word(offset)] = value

    def _word(self, offset: int) -> int:
        if offset % 8 or not 0 <= offset < layout.PAGE_BYTES:
            raise ValueError(f"no word at {offset}")
        return offset // 8

    def must_write(self) -> None:
        if not self.writable:
            raise ValueError("the control page is mapped read-only")

    @property
    def file_lock(self) -> FileLock:
        self.must_write()
        if self._file_lock is None:
            raise OSError(errno.ENOTSUP, "the reference kernel has no robust mutex; it needs a file lock")
        return self._file_lock

    def init_lock(self) -> None:
        """A file lock needs no setting up."""
        _ = self.file_lock

    def lock(self) -> None:
        """Take the lock. What a dead owner left half done shows as dirty_end != end, where appends look."""
        self.file_lock.acquire()

    def unlock(self) -> None:
        self.file_lock.release()
        self.ring_if_waited_for()

    def __enter__(self) -> Any:
        self.lock()
        try:
            return self.on_locked() if self.on_locked is not None else None
        except BaseException:
            self.unlock()
            raise

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def active(self) -> tuple[int, int, int, int, int]:
        """(turn, segment, base, end, next) of the segment being written; the turn held meanwhile."""
        words = self.words
        while True:
            turn = words[_TURN]
            end, next_ = words[slot_word(turn, layout.END)], words[slot_word(turn, layout.NEXT)]
            segment, base = words[slot_word(turn, layout.SEGMENT)], words[layout.BASES[turn & 1] // 8]
            if words[_TURN] == turn:
                return turn, segment, base, end, next_

    def wait(self, segment: int, end: int, timeout_s: float) -> bool:
        """Sleep until the log is no longer at (segment, end), or the bell is rung: True, look again.

        False: `timeout_s` passed; a negative one is for ever.
        """
        until = time.monotonic() + timeout_s
        bell = self.words[_WAITERS] >> 32
        nap = 0.00005
        while True:
            _, segment_now, _, end_now, _ = self.active()
            if (segment_now, end_now) != (segment, end) or self.words[_WAITERS] >> 32 != bell:
                return True
            left = until - time.monotonic() if timeout_s >= 0 else nap
            if left <= 0:
                return False
            time.sleep(min(nap, left))
            nap = min(nap * 2, 0.002)

    def ring(self) -> None:
        """Wake every sleeping reader, to look again."""
        if self.writable:  # `waiters`, the low half of the word, becomes 0; the bell, the high half, counts on
            self.words[_WAITERS] = ((self.words[_WAITERS] >> 32) + 1 & 0xFFFFFFFF) << 32

    def ring_if_waited_for(self) -> None:
        if self.words[_WAITERS] & 0xFFFFFFFF:
            self.ring()


def wait_any(pages: Sequence[ControlPage], places: Sequence[tuple[int, int]], timeout_s: float | None) -> bool:
    """Sleep until any of these logs is no longer at its place (segment, end), or its bell is rung: True, look again.

    False: `timeout_s` passed. None is for ever.
    """
    held, at = tuple(pages), [(segment, end) for segment, end in places]  # our own: a list may change while we sleep
    if len(held) != len(at):
        raise ValueError(f"{len(held)} pages, but {len(at)} places")
    for page in held:
        if not isinstance(page, ControlPage):
            raise TypeError(f"a ControlPage is needed, not {type(page).__name__}")
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    bells = [page.words[_WAITERS] >> 32 for page in held]
    nap, most = (0.00005, 0.002) if held else (0.05, 0.05)
    while True:
        for page, bell, place in zip(held, bells, at, strict=True):
            _, segment, _, end, _ = page.active()
            if (segment, end) != place or page.words[_WAITERS] >> 32 != bell:
                return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(nap, left))
        nap = min(nap * 2, most)


# ---- appending ----


@dataclass(frozen=True, slots=True)
class _Segment:
    """The files that a writer stands on, and when to leave them."""

    data: memoryview
    times: memoryview
    index: memoryview
    turn: int
    base: int
    start: int
    size: int
    limit: int
    interval: int
    roll_next: int
    roll_us: int
    spill: bool
    mirror: memoryview | None
    mirror_add: int


class Writer:
    """Appends to the active segment of one log, for one process. Thread-safe, as it holds the page's lock.

    `on_slow(code, bytes, records)` is called without the lock when an append cannot go on; it mends the cause
    or raises, and the append is tried again. `on_notify()` is called when `end` passed `notify_at`.

    Order of the stores, so that a process may die between any two of them:
      1. dirty_next, dirty_end    from here on there may be bytes beyond `end`
      2. payload, checksum, companion entry, index entry
      3. the frame's head         (of a batch: frames 2..n whole, then the first one's head)
      4. last_us, next, end       readers look at `end` alone
    Whoever finds dirty_end != end under the lock finishes the append if its frames verify, or zeroes them.
    """

    def __init__(
        self,
        page: ControlPage,
        spec: FrameSpec,
        on_slow: Callable[[int, int, int], None],
        on_notify: Callable[[], None],
    ) -> None:
        page.must_write()
        self.notify_at = 0
        self.durable = False  # the native kernel then writes batches through the file; here all ways are slow
        self._page = page
        self._codec = codec_of(spec)
        self._on_slow = on_slow
        self._on_notify = on_notify
        self._segment: _Segment | None = None

    def detach(self) -> None:
        """Stand on no segment: the next append asks `on_slow` for one. Call with the lock held, or alone."""
        if self._segment is not None:
            for view in (self._segment.data, self._segment.times, self._segment.index, self._segment.mirror):
                if view is not None:
                    view.release()
            self._segment = None

    def stop(self, on_slow: Callable[[int, int, int], None] | None = None) -> None:
        """Detach for good. What comes later asks `on_slow`, if that is given. (The native kernel has a thread to end here;
        this one does not work ahead.)"""
        self.detach()
        if on_slow is not None:
            self._on_slow = on_slow

    def attach(
        self,
        data: Buffer,
        times: Buffer,
        index: Buffer,
        *,
        turn: int,
        start: int,
        size: int,
        limit: int,
        interval: int,
        roll_next: int,
        roll_us: int,
        spill: bool = False,
        mirror: Buffer | None = None,
        mirror_add: int = 0,
    ) -> None:
        """Stand on the segment of `turn`. Call with the lock held.

        With `spill` a record may pass the limit, and the segment is left before the next one. Into the first eight bytes of
        `mirror` every published end is stored too, big-endian, plus `mirror_add`.
        """
        self.detach()
        if interval < 1 or start > size:
            raise ValueError("no such segment")
        views = _view(data, True), _view(times, True), _view(index, True)
        if size > len(views[0]):
            raise ValueError("the segment is larger than its map")
        base = self._page.words[layout.BASES[turn & 1] // 8]
        limit = min(limit, size)
        copy = None if mirror is None else _view(mirror, True)
        if copy is not None and len(copy) < 8:
            raise ValueError("a mirror is eight bytes, aligned")
        self._segment = _Segment(
            *views, turn, base, start, size, limit, interval, roll_next, roll_us, spill, copy, mirror_add
        )

    def append(self, payload: Buffer) -> int:
        """Append one record; its sequence."""
        return self.append_batch((payload,))

    def append_batch(self, payloads: Iterable[Buffer]) -> int:
        """Append many records as one; the first one's sequence."""
        return self._append([self._codec.flat(payload) for payload in payloads])

    def append_arrow(self, offsets: Buffer, wide: bool, values: Buffer | None, start: int, count: int) -> int:
        """Append `count` values of an Arrow binary array, from its `start`-th."""
        return self._append(arrow_values(self._codec, offsets, wide, values, start, count))

    def _append(self, payloads: list[memoryview]) -> int:
        count = len(payloads)
        if not count:
            raise InvalidPayload("an empty batch has no sequence")
        need = sum(map(len, payloads)) + count * self._codec.overhead
        while True:
            notify = False
            self._page.lock()
            try:
                code, segment, us = self._admit(need, count)
                if segment is not None:
                    first, end = self._write(segment, payloads, need, us)
                    notify = end >= self.notify_at
                    if notify:
                        self.notify_at = _MAX  # under the lock, so that it fires once
            finally:
                self._page.file_lock.release()
            if code == _OK:
                break
            self._on_slow(code, need, count)
        self._page.ring_if_waited_for()
        if notify:
            self._on_notify()
        return first

    def _admit(self, need: int, count: int) -> tuple[int, _Segment | None, int]:
        """Is there room, where, and which time will the records have? Or why not. Changes nothing."""
        segment, words = self._segment, self._page.words
        if segment is None or words[_TURN] != segment.turn:
            return why.REMAP, None, 0
        if words[_POISON]:
            return why.POISONED, None, 0
        end, next_, dirty_end, dirty_next, last_us, allocated, entries = words[
            slot_word(segment.turn, layout.END) : slot_word(segment.turn, layout.ENTRIES) + 1
        ]
        if dirty_end != end or dirty_next != next_:
            return why.DIRTY, None, 0
        now = time.time_ns() // 1000
        within = 1 if segment.spill else need
        full = end + within > segment.limit or next_ >= segment.roll_next or now >= segment.roll_us
        full |= end + need > segment.size
        if full and (end != segment.start or end + need > segment.size):  # an empty one takes all that fits
            return why.ROLL, None, 0
        if end + need > allocated or next_ + count > entries:
            return why.SPACE, None, 0
        return _OK, segment, max(now, last_us)  # time never runs backwards in a log

    def _write(self, segment: _Segment, payloads: list[memoryview], need: int, us: int) -> tuple[int, int]:
        """Append under the lock, in the order given above; the first sequence, and the new end."""
        words, turn, data = self._page.words, segment.turn, segment.data
        start = at = words[slot_word(turn, layout.END)]
        first = sequence = words[slot_word(turn, layout.NEXT)]
        last = first + len(payloads) - 1
        words[slot_word(turn, layout.DIRTY_NEXT)] = last + 1
        words[slot_word(turn, layout.DIRTY_END)] = start + need
        commit = b""
        for payload in payloads:
            head, before, _, after = self._codec.parts(payload)
            place = at + 4
            for part in (before, payload, after):
                data[place : place + len(part)] = part
                place += len(part)
            if at == start:
                commit = head
            else:
                data[at : at + 4] = head
            # A negative time says that the batch goes on: after a power cut, the proof that it is not whole.
            self._companions(segment, sequence, at, us if sequence == last else -us)
            at = place
            sequence += 1
        data[start : start + 4] = commit
        words[slot_word(turn, layout.LAST_US)] = us
        words[slot_word(turn, layout.NEXT)] = sequence
        words[slot_word(turn, layout.END)] = at
        if segment.mirror is not None:
            store_big(segment.mirror, 0, 0, 1, at + segment.mirror_add)
        return first, at

    def _companions(self, segment: _Segment, sequence: int, position: int, us: int) -> None:
        """The record's time; of each interval-th record, the position in the index, and then their count."""
        place = sequence - segment.base
        _TIME.pack_into(segment.times, COMPANION_HEADER + 8 * place, us)
        if place % segment.interval == 0:
            n = place // segment.interval
            _ENTRY.pack_into(segment.index, INDEX_HEADER + 16 * n, sequence, position)
            _COUNT.pack_into(segment.index, 8, n + 1)


# ---- reading ----


class Reader:
    """Reads one segment at a time, in order, up to the published end. One per tailer; not thread-safe.

    `on_end()` is called when the segment is read up: True when there is more (it moved the reader on).
    `on_bad(reason)` is called at a frame that does not verify: it raises, or moves the reader past it.
    """

    def __init__(
        self,
        page: ControlPage | None,
        spec: FrameSpec,
        on_end: Callable[[], bool],
        on_bad: Callable[[int], None],
        verify: bool = True,
    ) -> None:
        self.page = page  # None while nothing is being written
        self._codec = codec_of(spec)
        self._on_end = on_end
        self._on_bad = on_bad
        self._verify = verify
        self.base = self.sequence = 0
        self._empty()

    def _empty(self) -> None:
        self.segment = _MAX
        self.position = self.end = self._dropped = 0
        self._owner: Buffer = b""
        self._data = self._times = memoryview(b"")
        self._sums = _Sums()

    def detach(self) -> None:
        """Let the segment's files go; nothing is readable until the next `attach`."""
        self._data.release()
        self._times.release()
        self._empty()

    def attach(
        self,
        data: Buffer,
        times: Buffer,
        spec: FrameSpec,
        segment: int,
        base: int,
        position: int,
        sequence: int,
        end: int,
    ) -> None:
        """Stand in `segment` at `position`, where record `sequence` begins; bytes below `end` may be read."""
        self.detach()
        self._codec = codec_of(spec)
        views = _view(data), _view(times)
        if not position <= end <= len(views[0]) or sequence < base:
            raise ValueError("the segment ends beyond its map")
        self._owner, (self._data, self._times) = data, views
        if self._verify and not spec.sum_bytes:
            self._sums = _Sums(self._times[COMPANION_HEADER:])
        self.segment, self.base, self.end, self.sequence = segment, base, end, sequence
        self.position = self._dropped = position

    def seek(self, position: int, sequence: int) -> None:
        """Move within the segment."""
        if not 0 <= position <= self.end or sequence < self.base:
            raise ValueError("not within the segment")
        self.position, self.sequence = position, sequence
        self._dropped = min(self._dropped, position)

    def _more(self) -> bool:
        """Has the segment grown?"""
        if self.page is None:
            return False
        _, segment, _, end, _ = self.page.active()
        if segment != self.segment or not self.position < end <= len(self._data):
            return False
        self.end = end
        return True

    def _frame(self) -> int:
        """Size of the verified frame at the position, having moved on as needed; 0 at the end."""
        while True:
            if self.position >= self.end and not self._more():
                if not self._on_end():
                    return 0
                continue
            size, reason = self._check(self.position, self.sequence)
            if size:
                return size
            self._on_bad(reason)

    def _check(self, at: int, sequence: int) -> tuple[int, int]:
        """(size, LIMIT) of the verified frame at `at`, which is that of a record; or (0, why there is none)."""
        size, reason = self._codec.check(self._data, at, self.end, self._verify)
        if size and self._sums.differ(sequence - self.base, self._data[at : at + size]):
            return 0, why.CHECKSUM
        return size, reason

    @property
    def attached(self) -> bool:
        return self.segment != _MAX

    def here(self) -> tuple[bytes, int] | None:
        """The payload of the record at the position, and its frame's size, if it is whole and in this segment."""
        if self.position >= self.end and not self._more():
            return None
        size, _ = self._check(self.position, self.sequence)
        return (bytes(self._codec.payload(self._data, self.position, size)), size) if size else None

    def _time(self, sequence: int) -> int:
        """When the record was appended, whether or not its batch goes on; 0 when that is not known."""
        entry = 8 if self._codec.spec.sum_bytes else SUMMED_ENTRY.size
        at = COMPANION_HEADER + entry * (sequence - self.base)
        us: int = _TIME.unpack_from(self._times, at)[0] if at + entry <= len(self._times) else 0
        return abs(us) if us != -(2**63) else 0  # nonsense, which has no absolute value

    def _step(self, size: int, records: int = 1) -> None:
        self.position += size
        self.sequence += records
        if self.position - self._dropped > _DROP_BEHIND:
            release(self._owner, self._dropped, self.position)
            self._dropped = self.position

    def read(self) -> Message | None:
        """The next message, or None at the end."""
        size = self._frame()
        if not size:
            return None
        payload = bytes(self._codec.payload(self._data, self.position, size))
        message = Message(self.sequence, self._time(self.sequence), payload)
        self._step(size)
        return message

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Message:
        message = self.read()
        if message is None:
            raise StopIteration
        return message

    def over(self, owner: object) -> Iterator[Message]:
        """The messages, as iterating gives them, for as long as somebody goes over them: `owner` is kept alive meanwhile."""
        return compress(self, repeat((owner,)))

    def read_batch(self, n: int) -> list[Message]:
        """Up to `n` messages."""
        out: list[Message] = []
        while len(out) < n and (message := self.read()) is not None:
            out.append(message)
        return out

    def read_run(self, n: int) -> tuple[int, list[bytes]]:
        """(kind, payloads) of up to `n` records that follow each other and are of one kind: (0, []) only at the end.

        With some in hand it stops before whatever `on_end` or `on_bad` would be asked about: `sequence` less their number
        is the first one's.
        """
        out: list[bytes] = []
        size = self._frame() if n > 0 else 0
        kind = self._codec.kind(self._data, self.position) if size else 0
        while size and self._codec.kind(self._data, self.position) == kind:
            out.append(bytes(self._codec.payload(self._data, self.position, size)))
            self._step(size)
            if len(out) == n or (self.position >= self.end and not self._more()):
                break
            size, _ = self._check(self.position, self.sequence)
        return kind, out

    def read_span(self) -> tuple[int, int] | None:
        """(start, end) of the next payload in the segment's data, stepping over it; None at the end."""
        size = self._frame()
        if not size:
            return None
        start = self.position + self._codec.lead
        self._step(size)
        return start, start + size - self._codec.overhead

    def measure(self, limit: int, most_bytes: int) -> tuple[int, int]:
        """(records, payload bytes) that the next `fill` can take from here: (0, 0) only at the end."""
        if not self._frame():
            return 0, 0
        spec, end = self._codec.spec, min(self.end, self.position + most_bytes)
        found = scan(spec, self._data, self.position, end, limit, False)
        if not found.count:
            found = scan(spec, self._data, self.position, self.end, 1, False)
        return found.count, found.position - self.position - found.count * spec.overhead

    def fill(self, count: int, offsets: Buffer, values: Buffer, sequences: Buffer, times: Buffer, valid: Buffer) -> int:
        """Read `count` records into Arrow buffers, verified; how many were (fewer before a bad frame)."""
        rooms = [_view(buffer, True) for buffer in (offsets, values, sequences, times, valid)]
        wanted = [4 * (count + 1), 0, 8 * count, 8 * count, (count + 7) // 8]
        short = any(len(room) < size for room, size in zip(rooms, wanted, strict=True))
        if short or len(rooms[1]) > 0x7FFFFFFF:
            raise ValueError("the buffers do not fit the records")
        ends, out = rooms[0][: wanted[0]].cast("i"), rooms[1]
        numbers, stamps = rooms[2][: wanted[2]].cast("q"), rooms[3][: wanted[3]].cast("q")
        known = 0  # the validity bits as one number: bit i says that the time of record i is known
        done = ends[0] = 0
        at, filled = self.position, 0
        while done < count:
            size, _ = self._check(at, self.sequence + done)
            payload = self._codec.payload(self._data, at, size)
            if not size or filled + len(payload) > len(out):
                break
            out[filled : filled + len(payload)] = payload
            filled += len(payload)
            numbers[done] = self.sequence + done
            stamps[done] = self._time(self.sequence + done)
            known |= (stamps[done] != 0) << done
            done += 1
            ends[done] = filled
            at += size
        rooms[4][: (done + 7) // 8] = known.to_bytes((done + 7) // 8, "little")
        self._step(at - self.position, done)
        return done
