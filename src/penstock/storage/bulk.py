"""Appending frames that were encoded elsewhere, as one batch, whose place is known before its first byte is written.

For whoever must be able to say, after a crash, whether a batch of theirs is in the log: `on_place` is called under the log's lock
with where the batch will lie, the time of the append, and digests of its first and last record. Other writers wait
meanwhile, and what they append afterwards is later than that time. `holds` tells, by these, whether the batch is there.
"""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

from penstock import kernel
from penstock.errors import InvalidPayload
from penstock.kernel import Buffer, FrameSpec, Scan
from penstock.storage import companion, files, growing, index, span
from penstock.storage.buffered import Buffered
from penstock.storage.control import Active, Control, Mark
from penstock.storage.damage import Place
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.segment import ReadSegment


@dataclass(frozen=True, slots=True)
class Batch:
    """Where a batch lies, and what tells it from what others would have put there."""

    first: int
    count: int
    us: int  # when it was appended: no record of it has a later time, and none of anybody's after it an earlier one
    head: str  # digest of its first frame
    tail: str  # and of its last


class Part(NamedTuple):
    """Frames one behind the other, and the times of their records, if they have any of their own: 8 bytes each, as the machine
    keeps them. A time is moved to that of the record before it, or of the append, where it would run backwards or ahead.

    `spent` is called with a range of the frames once it is written and will not be looked at again: a batch need not be in memory
    twice.
    """

    frames: Buffer
    times: Buffer | None = None
    spent: Callable[[int, int], object] | None = None


class Span(Protocol):
    """A segment's records, `base` to `next - 1`, which end at byte `end`."""

    @property
    def base(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def end(self) -> int: ...
    def read(self) -> ReadSegment: ...


_STEP_BYTES = 4 << 20

OnPlace = Callable[[Batch], None]
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


class _Frames:
    """What is to be appended."""

    def __init__(self, spec: FrameSpec, parts: Sequence[Part], interval: int, *, history: bool) -> None:
        self.spec = spec
        self.last_us = 0  # of its last record, once it has entries
        self._interval = interval
        self._history = history
        some = [part for part in parts if memoryview(part.frames).nbytes]
        self.views = [memoryview(part.frames).cast("B") for part in some]
        self.times = [part.times for part in some]
        self._spent = [part.spent for part in some]
        self._found = _all_cores(lambda view: self._scan(view, interval), self.views)
        for view, scanned in zip(self.views, self._found, strict=True):
            if scanned.position != len(view):
                raise ValueError(f"no whole frame begins at byte {scanned.position}")
        self.count = sum(scanned.count for scanned in self._found)
        self.bytes = sum(map(len, self.views))
        first, last = self.views[0], self.views[-1]
        self.head = _digest(first[: kernel.scan(spec, first, 0, len(first), 1, False).position])
        self.tail = _digest(last[self._scan(last, 1, self._found[-1].points[-1]).points[-1] :])

    def _scan(self, view: memoryview, every: int, start: int = 0) -> Scan:
        return kernel.scan(self.spec, view, start, len(view), verify=False, every=every)

    def ends_us(self, batch: Batch) -> int:
        """The time that no later record is before."""
        return self.last_us if self._history else batch.us

    def at(self, sequence: int, us: int) -> Batch:
        return Batch(sequence, self.count, us, self.head, self.tail)

    def entries(self, us: int, last_us: int) -> Iterator[bytes]:
        """The companion's entries for each view."""
        self.last_us = last_us
        for i, (view, times) in enumerate(zip(self.views, self.times, strict=True)):
            goes_on = i + 1 < len(self.views)
            if self.spec.sum_bytes:
                raw = companion.entries(self._found[i].count, us, goes_on)
            else:
                raw = kernel.entries(self.spec, view, us, goes_on)
            if times is not None:
                raw, self.last_us = self._timed(raw, times, us, self.last_us, goes_on)
            else:
                self.last_us = us
            yield raw

    def _timed(self, raw: bytes, times: Buffer, us: int, last_us: int, goes_on: bool) -> tuple[bytes, int]:
        given = memoryview(times).cast("B").cast("q")
        if last_us <= 0:  # nothing before it has a time: what has none has that of the first which has
            last_us = next((time for time in given if time > 0), us)
        own = [min(us, time) for time in accumulate(given, max, initial=last_us)][1:]
        words = array("q", raw)
        signs = array("q", (-time for time in own))
        if not goes_on:
            signs[-1] = own[-1]
        words[:: companion.entry_bytes(self.spec) // 8] = signs
        return words.tobytes(), own[-1]

    def write(self, i: int, fd: int, at: int, skip: int = 0) -> None:
        """Put one view into a file from a byte on, but for its first bytes; what is written is spent."""
        view, spent = self.views[i], self._spent[i]
        for low in range(skip, len(view), _STEP_BYTES):
            part = view[low : low + _STEP_BYTES]
            files.write(fd, part, at + low)
            if spent is not None:
                spent(low, len(part))

    def index(self, base: int, at: Place) -> tuple[int, bytes]:
        """The index entries of these frames, if they lie from `at` on in the segment that begins with `base`, and the number of the
        first. Before they are written."""
        starts = [at]
        for view, scanned in zip(self.views, self._found, strict=True):
            starts.append(Place(starts[-1].position + len(view), starts[-1].sequence + scanned.count))

        def points(i: int) -> Sequence[int]:
            skip = (base - starts[i].sequence) % self._interval
            if not skip:
                return self._found[i].points
            before = kernel.scan(self.spec, self.views[i], 0, len(self.views[i]), skip, False)
            return self._scan(self.views[i], self._interval, before.position).points

        number = -((base - at.sequence) // self._interval)
        found = _all_cores(points, range(len(self.views)))
        positions = array("Q", [start.position + p for start, some in zip(starts, found, strict=False) for p in some])
        sequence = base + number * self._interval
        entries = array("Q", bytes(2 * positions.itemsize * len(positions)))
        entries[::2] = array("Q", range(sequence, sequence + len(positions) * self._interval, self._interval))
        entries[1::2] = positions
        if sys.byteorder == "big":
            entries.byteswap()
        return number, entries.tobytes()


def _all_cores(work: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
    """What the kernel finds in each of them, without the interpreter's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def append(log: Log, parts: Sequence[Part], on_place: OnPlace, *, history: bool = False) -> Batch:
    """Append whole frames, those of all parts as one batch; where they are.

    What is appended next has no time before this append; but if it is `history` that is written anew, and nobody else writes, it may
    have any from that of the batch's last record on.
    """
    frames = _Frames(log.fmt.SPEC, parts, log.interval, history=history)
    log.writable()
    if isinstance(log.writing, Buffered):
        return _append_growing(log, frames, on_place)
    with log.mapped.growing, log.locked() as control:
        log.check_not_closing()
        if control.poison:
            raise log.failed(control.poison)
        done = _append_mapped(log, control, frames, on_place)
        control.page.ring()
    log.on_work()
    return done


def spans(log: Log) -> list[Span]:
    """The segments of an open log."""
    now = log.active()
    infos = [s for s in sorted(log.finished().values(), key=lambda s: s.id) if s.id < now.segment]
    infos.append(SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0))
    return [_Span(log, info) for info in infos]


@dataclass(frozen=True, slots=True)
class _Span:
    _log: Log
    _info: SegmentInfo

    @property
    def base(self) -> int:
        return self._info.base

    @property
    def next(self) -> int:
        return self._info.next

    @property
    def end(self) -> int:
        return self._info.end

    def read(self) -> ReadSegment:
        return self._log.directory.read(self._info.id, self._info.base, listed=True)


def holds(segments: Iterable[Span], batch: Batch) -> bool:
    """Whether a log of these segments has a batch. What was removed since it was appended was there."""
    found = list(segments)
    if not found or found[-1].next < batch.first + batch.count:
        return False
    if batch.first < found[0].base:
        return True
    return _is_at(found, batch.first, batch.head, batch.us) and _is_at(
        found, batch.first + batch.count - 1, batch.tail, batch.us
    )


def _is_at(segments: list[Span], sequence: int, digest: str, us: int) -> bool:
    span = next((span for span in segments if span.base <= sequence < span.next), None)
    if span is None:
        return False  # a manifest that lies: there is nothing between two segments
    seg = span.read()
    at = seg.place_before(sequence, span.end)
    skipped = seg.scan(at.position, span.end, sequence - at.sequence, False)
    frame = seg.scan(skipped.position, span.end, 1, False)
    there = seg.times.us(sequence - span.base)
    return there <= us and _digest(seg.data[skipped.position : frame.position]) == digest


def _digest(frame: Buffer) -> str:
    """No CRC: that of a frame which has its own within it may be the same for all."""
    return hashlib.blake2b(frame, digest_size=16).hexdigest()


def _time(control: Control) -> int:
    """A time that no record has yet."""
    return max(files.now_us(), control.last_us + 1)


# ---- into a map ----


def _append_mapped(log: Log, control: Control, frames: _Frames, on_place: OnPlace) -> Batch:
    mapped, need, count = log.mapped, frames.bytes, frames.count
    if need > log.directory.capacity:
        return _append_spanning(log, control, frames, on_place)
    now = control.active()
    if now.next > now.base and (now.end >= mapped.roll_at() or now.end + need > log.file_size):
        mapped.go_on(control, now)
    else:
        mapped.stand_on(control, now)
    now, seg = control.active(), mapped.segment
    assert seg is not None
    have = control.allocated
    if now.end + need > have[0] or now.next + count > have[1]:
        control.set_allocated(*seg.reserve(now.end, now.next, have, need, count))
    batch = frames.at(now.next, _time(control))
    on_place(batch)
    control.announce(now.end + need, now.next + count)
    first, points = frames.index(seg.base, Place(now.end, now.next))
    head = bytes(frames.views[0][:4])
    at, sequence = now.end, now.next
    for i, entries in enumerate(frames.entries(batch.us, control.last_us)):
        frames.write(i, seg.fd, at, 0 if i else 4)  # the first head comes last: until then nothing is there
        at += len(frames.views[i])
        low = companion.length(log.fmt.SPEC, sequence - seg.base)
        seg.times[low : low + len(entries)] = entries
        sequence += len(entries) // companion.ENTRY_BYTES
    low = index.HEADER_BYTES + first * index.ENTRY_BYTES
    seg.index[low : low + len(points)] = points
    if points:
        seg.index[8:16] = (first + len(points) // index.ENTRY_BYTES).to_bytes(8, "little")
    seg.data[now.end : now.end + 4] = head
    control.set_last_us(frames.ends_us(batch))
    control.settle(now.end + need, now.next + count)
    mapped.mirror_end()
    return batch


def _append_spanning(log: Log, control: Control, frames: _Frames, on_place: OnPlace) -> Batch:
    """More than one file: record by record, as any batch of that size. All have the time of the append."""
    payloads = [payload for view in frames.views for payload in _payloads(log.fmt.SPEC, view)]
    sizes = [len(payload) + log.fmt.SPEC.overhead for payload in payloads]
    if max(sizes) > log.directory.capacity:
        raise InvalidPayload(
            f"{log.path}: a record of {max(sizes) - log.fmt.SPEC.overhead} bytes does not fit a file of {log.file_size}; make the log "
            "with larger ones"
        )
    now = control.active()
    if now.next > now.base:
        log.mapped.go_on(control, now)
    else:
        log.mapped.stand_on(control, now)
    assert log.mapped.segment is not None
    batch = frames.at(now.next, _time(control))
    on_place(batch)
    span.append(log.directory, control, log.manifest, log.mapped.segment, payloads, sizes, batch.us)
    log.mapped.mirror_end()
    return batch


def _payloads(spec: FrameSpec, frames: memoryview) -> Iterator[memoryview]:
    points = kernel.scan(spec, frames, 0, len(frames), verify=False, every=1).points
    before = 4 + (spec.sum_bytes if spec.sum_first else 0)
    behind = spec.overhead - before
    for at, end in zip(points, [*points[1:], len(frames)], strict=True):
        yield frames[at + before : end - behind]


# ---- to a file that grows ----


def _append_growing(log: Log, frames: _Frames, on_place: OnPlace) -> Batch:
    """As the thread that writes does it, which is to have nothing left: after a failure of its own nothing more goes in. A segment that is
    empty takes a batch of any size."""
    log.buffered.drain()
    need, count = frames.bytes, frames.count
    with log.locked() as control:
        log.check_not_closing()
        if control.poison:
            raise log.failed(control.poison)
        now = control.active()
        empty = log.fmt.HEADER_BYTES + len(log.directory.begin_with())
        if now.end + need > log.file_size and now.end > empty:
            log.buffered.go_on(control, now)
            now = control.active()
        log.buffered.sync_left(now)
        batch = frames.at(now.next, _time(control))
        on_place(batch)
        control.announce(now.end + need, now.next + count)
        try:
            _write(log, control, frames, now, batch)
            span.guard_sync(log.directory, control, lambda: log.directory.sync(now.segment))
        except OSError:
            if not control.poison:  # else whoever opens the log next cuts it
                growing.cut(log.path, log.fmt, now.segment, now.end, now.next - now.base)
                control.settle(now.end, now.next)
            raise
        control.set_last_us(frames.ends_us(batch))
        control.settle(now.end + need, now.next + count)
        control.mark_durable(Mark(now.segment, now.end + need, now.next + count))
        control.page.ring()
    return batch


def _write(log: Log, control: Control, frames: _Frames, now: Active, batch: Batch) -> None:
    """The companion first, and on the disk: its entries tell a part of the batch, which a power cut may leave, from the whole."""
    paths, at, sequence = log.directory.paths(now.segment), now.end, now.next
    points = frames.index(now.base, Place(now.end, now.next)) if log.fmt.INDEXED else (0, b"")
    with files.opened(paths.times, write=True) as fd:
        for entries in frames.entries(batch.us, control.last_us):
            files.write(fd, entries, companion.length(log.fmt.SPEC, sequence - now.base))
            sequence += len(entries) // companion.entry_bytes(log.fmt.SPEC)
        span.guard_sync(log.directory, control, lambda: files.sync(fd))
    with files.opened(paths.data, write=True) as fd:
        for i, view in enumerate(frames.views):
            frames.write(i, fd, at)
            at += len(view)
    if points[1]:
        _write_index(log, now, *points)


def _write_index(log: Log, now: Active, first: int, points: bytes) -> None:
    with files.opened(log.directory.paths(now.segment).index, write=True) as fd:
        files.write(fd, points, index.HEADER_BYTES + first * index.ENTRY_BYTES)
        files.write(fd, (first + len(points) // index.ENTRY_BYTES).to_bytes(8, "little"), 8)
