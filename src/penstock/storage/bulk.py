"""Appending frames that were encoded elsewhere, as one batch, whose place is known before its first byte is written.

For whoever must be able to say, after a crash, whether a batch of theirs is in the log: `on_place` is called under the log's lock
with the first sequence and the time that the batch will have; what it notes there is true if the batch is there, and if the
batch is not there nothing is at that place with that time. Other writers wait meanwhile. `holds` tells afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock import kernel
from penstock.errors import DiskFull, SyncFailed
from penstock.kernel import Buffer, FrameSpec
from penstock.storage import companion, files, growing, index, span
from penstock.storage.buffered import Buffered
from penstock.storage.control import Active, Control, Mark
from penstock.storage.damage import Place
from penstock.storage.directory import is_full
from penstock.storage.log import Log
from penstock.storage.reader import LogReader


@dataclass(frozen=True, slots=True)
class Batch:
    """Where a batch lies: its records, and the time that they all have."""

    first: int
    count: int
    us: int


OnPlace = Callable[[Batch], None]


def append(log: Log, parts: Sequence[Buffer], on_place: OnPlace) -> Batch:
    """Append whole frames, those of all parts as one batch; where they are."""
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    count = sum(kernel.scan(log.fmt.SPEC, view, 0, len(view), verify=False).count for view in views)
    log.writable()
    if isinstance(log.writing, Buffered):
        return _append_growing(log, views, count, on_place)
    with log.mapped.growing, log.locked() as control:
        log.check_not_closing()
        if control.poison:
            raise SyncFailed(log.path, control.poison)
        done = _append_mapped(log, control, views, count, on_place)
        control.page.ring()
    log.on_work()
    return done


def holds(log: Log, batch: Batch) -> bool:
    """Whether the log has this batch: records there that have its time, all of them."""
    if not log.first_sequence <= batch.first or log.next_sequence < batch.first + batch.count:
        return log.first_sequence > batch.first  # retention took it, so it was there
    reader = LogReader(log)
    try:
        for place in (batch.first, batch.first + batch.count - 1):
            reader.seek(place)
            message = reader.records.read()
            if message is None or message.timestamp_us != batch.us:
                return False
        return True
    finally:
        reader.close()


def _time(control: Control) -> int:
    """A time that no record has yet."""
    return max(files.now_us(), control.last_us + 1)


# ---- into a map ----


def _append_mapped(log: Log, control: Control, views: list[memoryview], count: int, on_place: OnPlace) -> Batch:
    mapped, need = log.mapped, sum(map(len, views))
    if need > log.directory.capacity:
        return _append_spanning(log, control, views, count, on_place)
    now = control.active()
    if now.next > now.base and (now.end >= mapped.roll_at() or now.end + need > log.file_size):
        mapped.go_on(control, now)
    else:
        mapped.stand_on(control, now)
    now, seg = control.active(), mapped.segment
    assert seg is not None
    have = control.allocated
    if now.end + need > have[0] or now.next + count > have[1]:
        control.set_allocated(*seg.grow(now.end, now.next, have, need, count))
    batch = Batch(now.next, count, _time(control))
    on_place(batch)
    control.announce(now.end + need, now.next + count)
    at = now.end
    for i, view in enumerate(views):
        skip = 0 if i else 4  # the first head comes last: until then nothing is there
        seg.data[at + skip : at + len(view)] = view[skip:]
        at += len(view)
    sequence = now.next
    for i, view in enumerate(views):
        entries = kernel.entries(log.fmt.SPEC, view, batch.us, i + 1 < len(views))
        low = companion.length(log.fmt.SPEC, sequence - seg.base)
        seg.times[low : low + len(entries)] = entries
        sequence += len(entries) // companion.ENTRY_BYTES
    for entry, raw in _index(log, views, seg.base, Place(now.end, now.next)):
        low = index.HEADER_BYTES + entry * index.ENTRY_BYTES
        seg.index[low : low + len(raw)] = raw
        seg.index[8:16] = (entry + 1).to_bytes(8, "little")
    seg.data[now.end : now.end + 4] = views[0][:4]
    control.set_last_us(batch.us)
    control.settle(now.end + need, now.next + count)
    mapped.mirror_end()
    return batch


def _append_spanning(log: Log, control: Control, views: list[memoryview], count: int, on_place: OnPlace) -> Batch:
    """More than one file: record by record, as any batch of that size."""
    payloads = [payload for view in views for payload in _payloads(log.fmt.SPEC, view)]
    sizes = [len(payload) + log.fmt.SPEC.overhead for payload in payloads]
    now = control.active()
    if now.next > now.base:
        log.mapped.go_on(control, now)
    else:
        log.mapped.stand_on(control, now)
    assert log.mapped.segment is not None
    batch = Batch(now.next, count, _time(control))
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


def _index(log: Log, views: list[memoryview], base: int, at: Place) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of the index entries of frames that lie from `at` on."""
    for view in views:
        skip = -(at.sequence - base) % log.interval
        before = kernel.scan(log.fmt.SPEC, view, 0, len(view), skip, False)
        found = kernel.scan(log.fmt.SPEC, view, before.position, len(view), verify=False, every=log.interval)
        for i, point in enumerate(found.points):
            sequence = at.sequence + before.count + i * log.interval
            raw = sequence.to_bytes(8, "little") + (at.position + point).to_bytes(8, "little")
            yield (sequence - base) // log.interval, raw
        at = Place(at.position + len(view), at.sequence + before.count + found.count)


# ---- to a file that grows ----


def _append_growing(log: Log, views: list[memoryview], count: int, on_place: OnPlace) -> Batch:
    """As the thread that writes does it. A segment that is empty takes a batch of any size."""
    need = sum(map(len, views))
    with log.locked() as control:
        if control.poison:
            raise SyncFailed(log.path, control.poison)
        now = control.active()
        empty = log.fmt.HEADER_BYTES + len(log.directory.begin_with())
        if now.end + need > log.file_size and now.end > empty:
            log.buffered.go_on(control, now)
            now = control.active()
        batch = Batch(now.next, count, _time(control))
        on_place(batch)
        control.announce(now.end + need, now.next + count)
        try:
            _write(log, views, now, batch)
        except OSError as error:
            growing.cut(log.path, log.fmt, now.segment, now.end, now.next - now.base)
            control.settle(now.end, now.next)
            if is_full(error):
                raise DiskFull(log.directory.paths(now.segment).data, need) from error
            raise
        span.guard_sync(log.directory, control, lambda: log.directory.sync(now.segment))
        control.set_last_us(batch.us)
        control.settle(now.end + need, now.next + count)
        control.mark_durable(Mark(now.segment, now.end + need, now.next + count))
        control.page.ring()
    return batch


def _write(log: Log, views: list[memoryview], now: Active, batch: Batch) -> None:
    paths, at, sequence = log.directory.paths(now.segment), now.end, now.next
    with files.opened(paths.data, write=True) as fd, files.opened(paths.times, write=True) as times:
        for i, view in enumerate(views):
            files.write(fd, view, at)
            entries = kernel.entries(log.fmt.SPEC, view, batch.us, i + 1 < len(views))
            files.write(times, entries, companion.length(log.fmt.SPEC, sequence - now.base))
            at += len(view)
            sequence += len(entries) // companion.entry_bytes(log.fmt.SPEC)
    if log.fmt.INDEXED:
        _write_index(log, views, now)


def _write_index(log: Log, views: list[memoryview], now: Active) -> None:
    with files.opened(log.directory.paths(now.segment).index, write=True) as fd:
        last = -1
        for last, raw in _index(log, views, now.base, Place(now.end, now.next)):
            files.write(fd, raw, index.HEADER_BYTES + last * index.ENTRY_BYTES)
        if last >= 0:
            files.write(fd, (last + 1).to_bytes(8, "little"), 8)
