"""Appends that take more than one store: a batch larger than a file, and finishing what a dead process began.

Everything here runs under the log's lock. A batch over several segments is announced in the control page, its later segments
are written whole, then its first; the first one's first frame is the commit. After that it is published: all but the last
are listed in the manifest, and one store makes the last one active. Whoever finds the announcement knows which of the two
to do: publish, if the first segment's frames are whole, or remove.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial

from penstock import kernel
from penstock.errors import DiskFull, StorageDenied, SyncFailed
from penstock.storage import growing
from penstock.storage.control import Active, Control, Dirty, Mark
from penstock.storage.damage import Place
from penstock.storage.directory import Directory
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.segment import WriteSegment, next_id


def guard_sync(directory: Directory, control: Control, sync: Callable[[], None]) -> None:
    """A sync that fails poisons the log for every process: no later success may be reported on top of it. One for which no file could be
    opened, or for which there was no room to write what belongs before it, was not tried: it may be, later."""
    try:
        with directory.meters.syncing():
            sync()
    except (DiskFull, StorageDenied):
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        control.set_poison(error.errno or errno.EIO)
        raise SyncFailed(directory.path, error.errno or errno.EIO) from error


def list_rolled(directory: Directory, control: Control, manifest: Manifest, *infos: SegmentInfo) -> None:
    """List segments that are about to be left."""
    manifest.refresh(control.generation)
    manifest.rolled(*infos)


def rolled_info(directory: Directory, now: Active) -> SegmentInfo:
    """What the manifest says of the active segment when it is left."""
    seg, count = directory.read(now.segment, now.base), now.next - now.base
    last_us = seg.times.us(count - 1) if count else 0
    return SegmentInfo(now.segment, now.base, count, now.end, seg.times.us(0), last_us, begin=seg.header.begin)


def finish_appends(directory: Directory, control: Control, manifest: Manifest) -> None:
    """An append was cut short by the death of its process: finish it if its frames are whole, else wipe them."""
    now, dirty, span = control.active(), control.dirty, control.span
    if dirty is None and span is None:
        return
    if directory.fmt.GROWS:
        _cut_back(directory, control, now, dirty)
        return
    seg = directory.write(now.segment, now.base)
    try:
        end, next_ = (dirty.end, dirty.next) if dirty else (now.end, now.next)
        found = kernel.scan(directory.fmt.SPEC, seg.data, now.end, end)
        # `next` is published before `end`: a writer may have died between the two.
        whole = found.position == end and now.next in (next_, next_ - found.count) and end > now.end
        if not whole or (span is not None and not _leads_on(directory, now.segment, next_, *span)):
            _withdraw(directory, control, seg, now, end, next_)
            return
        control.set_last_us(max(control.last_us, seg.time_of(next_ - 1)))
        if span is not None:
            commit(directory, control, manifest, now._replace(end=end, next=next_), *span)
        else:
            control.settle(end, next_)
    finally:
        seg.close()


def _cut_back(directory: Directory, control: Control, now: Active, dirty: Dirty | None) -> None:
    """Where lengths are the truth: a batch counts once its number of records does, which is told after its sync."""
    if dirty is None or dirty.next == now.next:
        whole = dirty is None or directory.read(now.segment, now.base).leads_to(Place(dirty.end, dirty.next))
        control.settle(dirty.end if dirty and whole else now.end, now.next)
        return
    cut = partial(growing.cut, directory.path, directory.fmt, now.segment, now.end, now.next - now.base)
    guard_sync(directory, control, cut)
    control.settle(now.end, now.next)


def _withdraw(directory: Directory, control: Control, seg: WriteSegment, now: Active, end: int, next_: int) -> None:
    """Wipe what was written beyond the end of the log, with the later files of a batch over several. It was announced before there were
    blocks for it, and where there are none, to touch the map may kill."""
    have = control.allocated
    end, next_ = max(now.end, min(end, have[0])), max(now.next, min(next_, have[1]))
    guard_sync(directory, control, lambda: seg.zero(now.end, end, now.next, next_))
    if control.span is not None:
        for later in [s for s in directory.segments() if s > now.segment]:
            directory.delete(later)
        control.clear_span()
    control.settle(now.end, now.next)


def split(sizes: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Which records go to which file: (first, end) for each."""
    parts: list[tuple[int, int]] = []
    start, used = 0, 0
    for i, size in enumerate(sizes):
        if used + size > capacity:
            parts.append((start, i))
            start, used = i, 0
        used += size
    return [*parts, (start, len(sizes))]


def append(
    directory: Directory,
    control: Control,
    manifest: Manifest,
    active: WriteSegment,
    payloads: Sequence[kernel.Buffer],
    sizes: Sequence[int],
    us: int,
) -> None:
    """Append a batch that does not fit one file. `active` is the active segment, and is empty; the grow lock is held."""
    fmt, now = directory.fmt, control.active()
    parts = split(sizes, directory.capacity)
    ids = [now.segment]
    for _ in parts[1:]:
        ids.append(next_id(directory.path, fmt, ids[-1], us))
    totals = [sum(sizes[first:end]) for first, end in parts]
    count, need = parts[0][1], totals[0]
    ends = Mark(ids[-1], fmt.HEADER_BYTES + totals[-1], now.next + len(payloads))
    base = now.next + parts[-1][0]
    # From here on there are files that are no part of the log yet. Every append looks at `dirty`, so whoever comes
    # after our death finds the span before it appends anything, and removes them.
    control.announce(now.end, now.next + count)
    control.announce_span(ends, base)
    try:
        begin = directory.begin_after(now.segment, now.end + need)
        for segment_id, total, (first, end) in zip(ids[1:], totals[1:], parts[1:], strict=True):
            directory.make(segment_id, now.next + first, begin)
            _write(directory, segment_id, now.next + first, payloads[first:end], total, us, end < len(payloads))
            begin += total
        control.set_allocated(*active.grow(now.end, now.next, control.allocated, need, count))
    except BaseException:
        for segment_id in ids[1:]:
            directory.delete(segment_id)
        control.clear_span()
        control.settle(now.end, now.next)
        raise
    control.announce(now.end + need, now.next + count)
    active.put(payloads[:count], us, fmt.SPEC, goes_on=True)
    control.set_last_us(us)
    try:
        commit(directory, control, manifest, now._replace(end=now.end + need, next=now.next + count), ends, base)
    except OSError:
        _withdraw(directory, control, active, now, now.end + need, now.next + count)  # nobody has seen it
        raise


def _write(
    directory: Directory,
    segment_id: int,
    base: int,
    payloads: Sequence[kernel.Buffer],
    total: int,
    us: int,
    goes_on: bool,
) -> None:
    seg = directory.write(segment_id, base)
    try:
        seg.grow(directory.fmt.HEADER_BYTES, base, directory.prepared(base), total, len(payloads))
        seg.put(payloads, us, directory.fmt.SPEC, goes_on=goes_on)
    finally:
        seg.close()


def _between(directory: Directory, first: int, last: int) -> list[tuple[int, int]]:
    """The segments between two, each with its first sequence; 0 where that cannot be read."""
    return [(s, directory.base_of(s) or 0) for s in directory.segments() if first < s < last]


def _leads_on(directory: Directory, segment: int, next_: int, end: Mark, base: int) -> bool:
    """Whether the segments that were announced follow each other: of where the last one begins there is no checksum."""
    sequences = [next_, *(first for _, first in _between(directory, segment, end.segment)), base, end.next]
    return end.segment > segment and sequences == sorted(sequences)


def commit(directory: Directory, control: Control, manifest: Manifest, now: Active, end: Mark, base: int) -> None:
    """Publish a batch over several segments: list all but the last, then make that one active in one store."""
    infos = [rolled_info(directory, now)]
    between = _between(directory, now.segment, end.segment)
    followed_by = [*(first for _, first in between[1:]), base]
    for (segment_id, first), following in zip(between, followed_by[: len(between)], strict=True):
        seg = directory.read(segment_id, first)
        found = seg.scan(seg.start, len(seg.data), following - first, verify=False)
        us = seg.times.us(0)
        begin = seg.header.begin
        infos.append(SegmentInfo(segment_id, first, following - first, found.position, us, us, begin=begin))
    list_rolled(directory, control, manifest, *infos)
    control.roll(end.segment, base, end.end, end.next, (end.end, end.next))
    control.clear_span()
