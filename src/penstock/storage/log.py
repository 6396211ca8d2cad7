"""One log: segments, the control page, the manifest and the cursors, as one thing to append to and read from.

The four uses are policy over this. Appends go through the kernel's `Writer`, straight into the map; everything that is not
a plain append (a roll, more disk, another process's roll, an append that was cut short) comes here as `_slow`, without the
lock, takes it, looks again and puts it right. Lock order: `_sync_lock`, then the control page's.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock import kernel
from penstock.errors import (
    DiskFull,
    InvalidPayload,
    LogBusy,
    LogClosed,
    LogNotFound,
    NotALog,
    PenstockError,
    ReadOnly,
    SyncFailed,
    UnsupportedFileSystem,
)
from penstock.kernel.spec import DIRTY, POISONED, REMAP, ROLL, SPACE
from penstock.options import Roll
from penstock.storage import files, segment
from penstock.storage.control import Active, Control, FileLock, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.damage import Place
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.recovery import Opening, Recovery, Tail, list_segments, walk
from penstock.storage.segment import Format, ReadSegment, SegmentPaths, WriteSegment

_NEVER: Final = (1 << 63) - 1
_PERSIST_MARK_S: Final = 1.0
_OFTEN_BYTES: Final = 8 << 20  # a sync for less than this is one of many


class BatchTooLong(Exception):
    """A batch does not fit one segment. Internal: `Log.append_batch` then writes it over several."""


def refuse_network(path: Path) -> None:
    """A log is not written on a network file system. Works also before the directory is made."""
    kind = files.filesystem(path)
    if files.is_network(kind):
        raise UnsupportedFileSystem(
            f"{path} lies on {kind}, where maps and locks are not shared between machines; "
            "keep the log on a local disk (sealed files may be copied anywhere)"
        )


def _grow_errors(path: Path, error: OSError) -> OSError:
    return DiskFull(path, 0) if error.errno in (errno.ENOSPC, errno.EDQUOT) else error


class Log:
    """See the module's docstring. Threads may share it; after a fork the child opens it anew at its next call."""

    def __init__(
        self,
        path: Path,
        fmt: Format,
        *,
        file_size: int,
        interval: int,
        roll: Roll,
        read_only: bool = False,
        verify: bool = False,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.fmt = fmt
        self.file_size = file_size
        self.interval = interval
        self.roll = roll
        self.read_only = read_only
        self.on_work = on_work
        self.cursors = Cursors(path)
        self.closed = False
        self._closing = False  # no more appends; read and set under the lock
        self._close_lock = threading.Lock()
        self._pid = os.getpid()
        self._sync_lock = threading.Lock()
        self._segment: WriteSegment | None = None
        self._turn = -1
        self._persisted_s = 0.0
        self.manifest = Manifest(path / "manifest", read_only=read_only)
        self.control: Control | None = None
        self.writer: kernel.Writer | None = None
        self.recovery = Recovery()
        self._static: Tail | None = None
        self._growing: FileLock | None = None
        self._ahead_fd = -1  # the working-ahead thread's own hold on the grow lock
        try:
            if read_only:
                self._open_to_read(verify)
            else:
                self._open_to_write(verify)
        except BaseException as error:
            self._let_go()
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if full and not isinstance(error, PenstockError):
                raise DiskFull(path, 0) from error
            raise
        _open_logs.add(self)

    # ---- opening ----

    def _open_to_write(self, verify: bool) -> None:
        refuse_network(self.path)
        control = self.control = Control(self.path / ".lock")
        alone = control.try_exclusive()
        if not alone:
            control.share()  # waits while another process recovers
            if not control.same_boot:
                control.wait_exclusive()  # it died over that: our turn
                alone = True
        if alone:
            self._recover(control, verify)
            control.share()
        else:
            self._join(control)
            if verify:
                self._verify_all()
        self._growing = FileLock(self.path / ".grow")
        if kernel.ROBUST and not files.PORTABLE:
            self._ahead_fd = files.create(self.path / ".grow", exclusive=False)
        self.writer = kernel.Writer(control.page, self.fmt.SPEC, self._slow, self.on_work)

    def _join(self, control: Control) -> None:
        """Other processes have the log open: what the control page says is so."""
        control.check_kind()
        if control.poison:
            raise LogBusy(
                f"{self.path}: a sync failed here, and other processes still have the log open; "
                "close it in all of them, then open it again"
            )
        control.forget_clean()
        self.manifest.load(control.generation, believe_rolled=True)

    def _recover(self, control: Control, verify: bool) -> None:
        """Find the end of the log, mend what a crash left, and make the control page valid. Nobody else is here."""
        same = control.same_boot and self._agrees(control)
        self._remove_temporaries()
        listed = self.manifest.load(control.generation, believe_rolled=same)
        opening = Opening(self.path, self.fmt, self.manifest, self.interval, mend=True)
        report = self.recovery = opening.report
        same = not self._drop_leftovers(opening) and same  # on a new boot too
        had_data = bool(list_segments(self.path, self.fmt))
        if had_data and not listed:
            report.rebuilt.append("manifest")
        clean, durable, poison = control.clean, control.durable, control.poison if same else 0
        if same:
            self._finish_appends(control)
            now = control.active()
            floor: Mark | None = Mark(now.segment, now.end, now.next)
            exact, how = True, "clean" if clean == floor else "same boot"
        else:
            floor = max((m for m in (clean, durable) if m), key=lambda m: (m.segment, m.end), default=None)
            exact = clean is not None and clean == floor and self._ends_at(clean)
            how = "clean" if exact else "new boot"
        report.how = how if had_data else "created"
        tail = opening.find_tail(floor, exact=exact, verify=verify or how == "same boot")
        if tail is None:
            tail = self._first_segment()
        mark = durable if same and durable else Mark(tail.segment, tail.end, tail.next)
        if poison and mark.next < tail.next:
            tail = self._move_undurable(tail, mark, control.generation + 1)
            mark = Mark(tail.segment, tail.end, tail.next)
        if verify:
            self._verify(self.manifest.ordered(), report)
        self.manifest.rewrite(control.generation + 1)
        control.next_generation()
        control.initialise(*tail, mark)
        files.sync(control.fd)
        for name, sequence in self.cursors.all().items():
            if sequence > tail.next:
                self.cursors.store(name, tail.next)
                report.cursors_set_back[name] = sequence

    @staticmethod
    def _agrees(control: Control) -> bool:
        """A page that was closed clean says twice where the log ends, once with a checksum: a flipped bit is not believed."""
        clean, now = control.clean, control.active()
        return clean is None or (clean == Mark(now.segment, now.end, now.next) and control.dirty is None)

    def _ends_at(self, mark: Mark) -> bool:
        """Whether nothing was appended after a clean close: a page that says so may be older than the data."""
        paths = SegmentPaths(self.path, self.fmt, mark.segment)
        if any(s > mark.segment for s in list_segments(self.path, self.fmt)):
            return False
        if not paths.data.exists():
            return True
        with files.opened(paths.data) as fd:
            return not any(files.read(fd, mark.end, 4))

    def _first_segment(self) -> Tail:
        finished = self.manifest.ordered()
        now = files.now_us()
        next_ = finished[-1].next if finished else self.manifest.retired_next
        new = self.fmt.next_id(finished[-1].id, now) if finished else self.fmt.first_id(now)
        self._make_segment(new, next_)
        return Tail(new, next_, self.fmt.HEADER_BYTES, next_, finished[-1].last_us if finished else 0)

    def _make_segment(self, new: int, base: int) -> None:
        try:
            if not segment.is_prepared(self.path, self.fmt, new):
                segment.place(segment.prepare(self.path, self.fmt, new, self.file_size, self.interval))
            segment.adopt(self.path, self.fmt, new, base)
        except OSError as error:
            raise _grow_errors(self.path / self.fmt.name(new), error) from error

    def _remove_temporaries(self) -> None:
        for name in list(files.walk(self.path)):
            # The settings are written before anybody has a lock, so another process may be at it just now.
            if name.endswith(".tmp") and self._is_ours(name):
                files.remove(self.path / name)
        self._remove_prepared()

    def _remove_prepared(self) -> None:
        for name in list(files.walk(self.path)):
            if name.endswith(".next") and not name.startswith("cursors/") and self._is_ours(name):
                files.remove(self.path / name)

    def _is_ours(self, name: str) -> bool:
        """Whether a temporary file is the log's: what else lies in its directory is none of our business."""
        return (
            name.startswith(("manifest.", "cursors/")) or self.fmt.parse(name.partition(".")[0] + ".data") is not None
        )

    def _move_undurable(self, tail: Tail, mark: Mark, generation: int) -> Tail:
        """After a failed sync the page cache cannot be trusted to reach the disk: write what it holds to new files."""
        last = tail.segment
        made: list[SegmentInfo] = []
        sources = [s for s in self.manifest.ordered() if s.id >= mark.segment]
        sources.append(SegmentInfo(tail.segment, tail.base, tail.next - tail.base, tail.end, 0, tail.last_us))
        for source in sources:
            seg = ReadSegment(self.path, self.fmt, source.id, source.base)
            start, base = (mark.end, mark.next) if source.id == mark.segment else (seg.start, source.base)
            if source.next == base:
                continue
            last = self.fmt.next_id(last, files.now_us())
            self._make_segment(last, base)
            copy = WriteSegment(self.path, self.fmt, last, self.file_size, self.interval)
            try:
                copy.fill(seg, start, source.end, base, source.next)
                end = copy.header.start + source.end - start
            finally:
                copy.close()
            made.append(
                SegmentInfo(
                    last,
                    base,
                    source.next - base,
                    end,
                    seg.times.us(base - source.base),
                    source.last_us,
                    True,
                )
            )
            self.recovery.moved_bytes += source.end - start
        for source in sources:
            self.manifest.segments.pop(source.id, None)
            if source.id == mark.segment:
                kept = SegmentInfo(
                    source.id,
                    source.base,
                    mark.next - source.base,
                    mark.end,
                    source.first_us,
                    source.last_us,
                    True,
                )
                self.manifest.segments[source.id] = kept
        for info in [*self.manifest.ordered(), *made]:
            self.manifest.segments[info.id] = replace(info, sealed=True)  # the durable mark speaks for the earlier ones
        self.manifest.rewrite(generation)  # from here on the copies are the log, whatever the control page still says
        for source in sources:
            if source.id != mark.segment:
                self._delete_files(source.id)
        return self._first_segment()

    def _drop_leftovers(self, opening: Opening) -> bool:
        """Take away files that are no part of the log any more: retired ones, and those whose records were moved.

        True when a move was cut short after its copies were listed: then the control page still speaks of the old files.
        """
        finished = self.manifest.ordered()
        for segment_id in list_segments(self.path, self.fmt):
            base = self._base_of(segment_id) if segment_id not in self.manifest.segments else None
            if base is not None and base < self.manifest.retired_next:
                self._delete_files(segment_id)
            elif base is not None and any(s.base <= base < s.next and s.id > segment_id for s in finished):
                opening.set_aside(segment_id)
        assert self.control is not None
        if self.control.span is not None:
            return False  # no move, but a batch over several segments that was listed and not yet published
        return bool(finished) and self.control.active().segment < finished[-1].id

    def _base_of(self, segment_id: int) -> int | None:
        """The first sequence of a data file, as its header says, if it can be read."""
        path = self.path / self.fmt.name(segment_id)
        try:
            with files.opened(path) as fd:
                return self.fmt.read_header(files.read(fd, 0, self.fmt.HEADER_BYTES), str(path)).base
        except NotALog:
            return None

    def _verify_all(self) -> None:
        """Check every record, where nothing was recovered: others may be writing, so up to where the log ends now."""
        now = self.active()
        active = SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)
        self._verify([*(s for s in self.manifest.ordered() if s.id < now.segment), active], self.recovery)

    def _verify(self, segments: list[SegmentInfo], report: Recovery) -> None:
        for info in segments:
            seg = ReadSegment(self.path, self.fmt, info.id, info.base, listed=True)
            if seg.header_error and len(seg.data):
                report.damage.append(seg.header_error)
            found = walk(seg, Place(info.end, info.next), self.interval, report)
            for position, loss in found.losses:
                report.damage.append(
                    f"{seg.paths.data}: byte {position}: sequences {loss.first} to {loss.last} are lost: {loss.reason}"
                )

    def _open_to_read(self, verify: bool) -> None:
        """Beside live writers: follow the control page. With none: find the end without changing anything."""
        path = self.path / ".lock"
        if path.exists():
            control = self.control = Control(path, read_only=True)
            control.share()
            if control.same_boot and self.manifest.load(control.generation, believe_rolled=True):
                if verify:
                    self._verify_all()
                return
            files.unlock(control.fd)  # must not keep a writer from making it valid
        self._survey(verify)

    def _survey(self, verify: bool) -> None:
        self.manifest.load(0, believe_rolled=False)
        opening = Opening(self.path, self.fmt, self.manifest, self.interval, mend=False)
        clean = self.control.clean if self.control else None
        floor = clean or (self.control.durable if self.control else None)
        exact = clean is not None and self._ends_at(clean)
        opening.report.how = "clean" if exact else "new boot"
        tail = opening.find_tail(floor, exact=exact, verify=verify)
        if tail is None:
            raise LogNotFound(f"{self.path}: no data files here; open the log for writing to create one")
        self._static = tail
        self.recovery = opening.report
        if verify:
            self._verify(self.manifest.ordered(), self.recovery)

    def become_live(self) -> bool:
        """A read-only log that was closed when opened: has a writer come?"""
        if self._static is None:
            return False
        if self.control is None and (self.path / ".lock").exists():
            self.control = Control(self.path / ".lock", read_only=True)
        if self.control is None or not self.control.same_boot:
            return False
        self.control.share()
        manifest = Manifest(self.path / "manifest", read_only=True)
        if not self.control.same_boot or not manifest.load(self.control.generation, believe_rolled=True):
            manifest.close()
            files.unlock(self.control.fd)
            return False
        self.manifest, found = manifest, self.manifest
        found.close()
        self._static = None
        return True

    # ---- where things are ----

    def active(self) -> Active:
        """The segment being written and the published end of the log."""
        if self._static is not None:
            t = self._static
            return Active(-1, t.segment, t.base, t.end, t.next)
        assert self.control is not None
        return self.control.active()

    @property
    def page(self) -> kernel.ControlPage | None:
        """What a reader watches; None while nothing is being written."""
        return self.control.page if self.control is not None and self._static is None else None

    def finished(self) -> dict[int, SegmentInfo]:
        """Every segment before the active one."""
        if self._static is None:
            assert self.control is not None
            try:
                return self.manifest.snapshot(self.control.generation)
            except OSError:
                self.check_open()  # closed meanwhile, by another thread
                raise
        return self.manifest.segments

    @property
    def first_sequence(self) -> int:
        base = self.active().base  # first: a roll in between is then among the finished ones
        return min((s.base for s in self.finished().values()), default=base)

    @property
    def next_sequence(self) -> int:
        return self.active().next

    @property
    def durable_sequence(self) -> int:
        """Every record below this survives a power cut."""
        if self._static is not None:
            return self._static.next
        assert self.control is not None
        return min(self.control.durable_next, self.control.active().next)

    # ---- the lock ----

    @contextmanager
    def locked(self) -> Iterator[Control]:
        """Hold the lock, with nothing half done underneath."""
        control = self._writable()
        control.page.lock()
        try:
            if control.dirty or control.span:
                self._finish_appends(control)
            yield control
        finally:
            control.page.unlock()

    def _writable(self) -> Control:
        self.check_open()
        if self.read_only:
            raise ReadOnly(f"{self.path}: opened with read_only=True; open it without to append")
        assert self.control is not None
        return self.control

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's object."""
        return self._pid != os.getpid()

    def check_open(self) -> None:
        if self.closed:
            raise LogClosed(f"{self.path}: this log object was closed; open the log again")
        if self.inherited:
            raise LogClosed(f"{self.path}: this log was opened before a fork; open it again in the child process")

    def _finish_appends(self, control: Control) -> None:
        """An append was cut short by the death of its process: finish it if its frames are whole, else wipe them."""
        now, dirty, span = control.active(), control.dirty, control.span
        if dirty is None and span is None:
            return
        seg = WriteSegment(self.path, self.fmt, now.segment, self.file_size, self.interval)
        try:
            end, next_ = (dirty.end, dirty.next) if dirty else (now.end, now.next)
            found = kernel.scan(self.fmt.SPEC, seg.data, now.end, end)
            # `next` is published before `end`: a writer may have died between the two.
            whole = found.position == end and now.next in (next_, next_ - found.count) and end > now.end
            if span is not None and whole:
                self._commit_span(control, Active(now.turn, now.segment, now.base, end, next_), *span)
                return
            if not whole:
                self._guard_sync(control, lambda: seg.zero(now.end, end, now.next, max(now.next, next_)))
                end, next_ = now.end, now.next
                if span is not None:
                    for later in [s for s in list_segments(self.path, self.fmt) if s > now.segment]:
                        self._delete_files(later)
                    control.clear_span()
            control.settle(end, next_)
        finally:
            seg.close()

    def _guard_sync(self, control: Control, sync: Callable[[], None]) -> None:
        """A sync that fails poisons the log for every process: no later success may be reported on top of it."""
        try:
            sync()
        except OSError as error:
            control.set_poison(error.errno or errno.EIO)
            raise SyncFailed(self.path, error.errno or errno.EIO) from error

    # ---- appending ----

    def _slow(self, code: int, need_bytes: int, records: int) -> None:
        """What an append cannot do by itself. The caller tries again afterwards."""
        control = self._writable()
        if code == POISONED:
            raise SyncFailed(self.path, control.poison)
        capacity = self.file_size - self.fmt.HEADER_BYTES
        if need_bytes > capacity:
            if records > 1:
                raise BatchTooLong
            raise InvalidPayload(
                f"{self.path}: a record of {need_bytes - self.fmt.SPEC.overhead} bytes does not fit a file: at most "
                f"{capacity - self.fmt.SPEC.overhead} with file_size={self.file_size}; create the log with a larger one"
            )
        if code == SPACE:
            self._grow(control, need_bytes, records)
            return
        with self.locked():
            self._check_not_closing()
            now = control.active()
            if self._segment is None or self._turn != now.turn:
                self._attach(control, now)
            elif code == ROLL:
                self._roll(control, now)
            else:
                assert code in (REMAP, DIRTY)

    def _attach(self, control: Control, now: Active) -> None:
        """Stand on the active segment. Under the lock."""
        assert self.writer is not None
        self.writer.detach()
        self._segment = None
        seg = WriteSegment(self.path, self.fmt, now.segment, self.file_size, self.interval)
        created_us = seg.header.created_us or 0
        self.writer.attach(
            seg.data,
            seg.times,
            seg.index,
            turn=now.turn,
            start=seg.header.start,
            size=self.file_size,
            limit=min(self.roll.size_bytes or self.file_size, self.file_size),
            interval=self.interval,
            roll_next=now.base + self.roll.records if self.roll.records else _NEVER,
            roll_us=created_us + int(self.roll.interval_s * 1e6) if self.roll.interval_s else _NEVER,
        )
        self._segment, self._turn = seg, now.turn
        if self._ahead_fd >= 0:
            self.writer.work_ahead(self._ahead_fd, *seg.fds)
        self.on_work()

    def _grow(self, control: Control, need_bytes: int, records: int) -> None:
        """Allocate what an append needs, and some more. Only under the grow lock: zeros that came late would wipe records."""
        assert self._growing is not None
        with self._growing:
            with self.locked():  # the three must speak of one segment: zeros in another one would wipe records
                seg, now, have = self._segment, control.active(), control.allocated
            if seg is None or seg.id != now.segment:
                return
            if now.end + need_bytes > have[0] or now.next + records > have[1]:
                reach = seg.grow(now.end, now.next, have, need_bytes, records)
                with self.locked():
                    if control.active().turn == now.turn:
                        control.set_allocated(*reach)

    def _roll(self, control: Control, now: Active) -> None:
        """Go on to a new segment. Under the lock. A crash anywhere in here leaves the old one active."""
        new = self.fmt.next_id(now.segment, files.now_us())
        self._make_segment(new, now.next)
        try:
            self._list_rolled(control, now)
        except OSError as error:
            raise _grow_errors(self.path / self.fmt.name(new), error) from error
        have = segment.prepared(self.fmt, self.file_size, now.next)
        control.roll(new, now.next, self.fmt.HEADER_BYTES, now.next, have)
        self._attach(control, control.active())

    def _list_rolled(self, control: Control, now: Active) -> None:
        seg = ReadSegment(self.path, self.fmt, now.segment, now.base)
        count = now.next - now.base
        last_us = seg.times.us(count - 1) if count else 0
        self.manifest.refresh(control.generation)
        try:
            self.manifest.rolled(SegmentInfo(now.segment, now.base, count, now.end, seg.times.us(0), last_us))
        except OSError as error:
            raise _grow_errors(self.path / "manifest", error) from error

    def roll_now(self) -> None:
        """Go on to a new segment, unless the active one is empty."""
        with self.locked() as control:
            now = control.active()
            if now.next > now.base:
                self._roll(control, now)

    def append_batch(self, payloads: list[kernel.Buffer] | tuple[kernel.Buffer, ...]) -> int:
        """Append many as one; the first sequence."""
        writer = self.appender()
        try:
            return writer.append_batch(payloads)
        except BatchTooLong:
            return self._append_spanning(payloads)

    def append_arrow(
        self, offsets: kernel.Buffer, wide: bool, values: kernel.Buffer | None, start: int, count: int
    ) -> int:
        """Append `count` values of an Arrow binary array as one batch; the first sequence."""
        writer = self.appender()
        try:
            return writer.append_arrow(offsets, wide, values, start, count)
        except BatchTooLong:
            ends = memoryview(offsets).cast("B").cast("q" if wide else "i")
            room = memoryview(values if values is not None else b"").cast("B")
            return self._append_spanning([room[ends[i] : ends[i + 1]] for i in range(start, start + count)])

    def appender(self) -> kernel.Writer:
        self._writable()
        assert self.writer is not None
        return self.writer

    def _append_spanning(self, payloads: list[kernel.Buffer] | tuple[kernel.Buffer, ...]) -> int:
        """A batch larger than a file: its later segments are written whole first, the first one's first frame last."""
        overhead, capacity = self.fmt.SPEC.overhead, self.file_size - self.fmt.HEADER_BYTES
        parts: list[tuple[int, int]] = []
        start, used = 0, 0
        for i, payload in enumerate(payloads):
            size = memoryview(payload).nbytes + overhead
            if size > capacity:
                self._slow(ROLL, size, 1)
            if used + size > capacity:
                parts.append((start, i))
                start, used = i, 0
            used += size
        parts.append((start, len(payloads)))
        assert self._growing is not None
        with self._growing, self.locked() as control:
            self._check_not_closing()
            if control.poison:
                raise SyncFailed(self.path, control.poison)
            now = control.active()
            if now.next > now.base:
                self._roll(control, now)
                now = control.active()
            elif self._segment is None or self._turn != now.turn:
                self._attach(control, now)
            assert self._segment is not None
            us = max(files.now_us(), control.last_us)
            ids = [now.segment]
            for _ in parts[1:]:
                ids.append(self.fmt.next_id(ids[-1], files.now_us()))
            sizes = [sum(memoryview(p).nbytes + overhead for p in payloads[first:end]) for first, end in parts]
            count, need = parts[0][1], sizes[0]
            end_mark = Mark(ids[-1], self.fmt.HEADER_BYTES + sizes[-1], now.next + len(payloads))
            base = now.next + parts[-1][0]
            # From here on there are files that are no part of the log yet. Every append looks at `dirty`, so whoever comes
            # after our death finds the span before it appends anything, and removes them.
            control.announce(now.end, now.next + count)
            control.announce_span(end_mark, base)
            try:
                for segment_id, size, (first, end) in zip(ids[1:], sizes[1:], parts[1:], strict=True):
                    self._make_segment(segment_id, now.next + first)
                    seg = WriteSegment(self.path, self.fmt, segment_id, self.file_size, self.interval)
                    try:
                        have = segment.prepared(self.fmt, self.file_size, now.next + first)
                        seg.grow(self.fmt.HEADER_BYTES, now.next + first, have, size, end - first)
                        seg.put(payloads[first:end], us, self.fmt.SPEC, goes_on=end < len(payloads))
                    finally:
                        seg.close()
                control.set_allocated(*self._segment.grow(now.end, now.next, control.allocated, need, count))
            except BaseException:
                for segment_id in ids[1:]:
                    self._delete_files(segment_id)
                control.clear_span()
                control.settle(now.end, now.next)
                raise
            control.announce(now.end + need, now.next + count)
            self._segment.put(payloads[:count], us, self.fmt.SPEC, goes_on=True)
            control.set_last_us(us)
            self._commit_span(
                control,
                Active(now.turn, now.segment, now.base, now.end + need, now.next + count),
                end_mark,
                base,
            )
        self.on_work()
        return now.next

    def _commit_span(self, control: Control, now: Active, end: Mark, base: int) -> None:
        """Publish a batch over several segments: list all but the last, then make that one active in one store."""
        self._list_rolled(control, now)
        between = [s for s in list_segments(self.path, self.fmt) if now.segment < s < end.segment]
        bases = [ReadSegment(self.path, self.fmt, s, 0).header.base or 0 for s in between]
        for segment_id, first, following in zip(between, bases, [*bases, base][1:], strict=True):
            seg = ReadSegment(self.path, self.fmt, segment_id, first)
            found = seg.scan(seg.start, len(seg.data), verify=False)
            us = seg.times.us(0)
            self.manifest.rolled(SegmentInfo(segment_id, first, following - first, found.position, us, us))
        control.roll(end.segment, base, end.end, end.next, (end.end, end.next))
        control.clear_span()

    # ---- durability ----

    def sync(self) -> int:
        """Put everything appended so far on the disk; the durable mark."""
        control = self._writable()
        wanted = control.active().next
        with self._sync_lock:
            self.check_open()
            if control.poison:
                raise SyncFailed(self.path, control.poison)
            if control.durable_next < wanted:
                self._sync_all(control)
        return self.durable_sequence

    def sync_to(self, next_: int) -> None:
        """Put every record below `next_` on the disk. Callers that wait here meanwhile share the next sync."""
        control = self._writable()
        if control.durable_next < next_ or control.poison:
            self.sync()

    def undurable_bytes(self) -> int:
        """How much a power cut would take."""
        control = self._writable()
        now, durable = control.active(), control.durable
        if durable is not None and durable.segment == now.segment:
            return now.end - durable.end
        return now.end + (self.file_size if durable is not None else 0)

    def _sync_all(self, control: Control) -> None:
        if self.writer is not None:
            self.writer.durable = self.undurable_bytes() < _OFTEN_BYTES
        with self.locked():
            now, seg, n = control.active(), self._segment, control.count_sync()
            if seg is not None and seg.id == now.segment:
                segment.note_sync(seg.fd, n, now.end, now.next)
            else:
                with files.opened(self.path / self.fmt.name(now.segment), write=True) as fd:
                    segment.note_sync(fd, n, now.end, now.next)
        self._guard_sync(control, lambda: self._sync_segments(control, now))
        with self.locked():
            if control.poison:
                raise SyncFailed(self.path, control.poison)
            if control.durable_next < now.next:
                control.mark_durable(Mark(now.segment, now.end, now.next))
        if time.monotonic() - self._persisted_s > _PERSIST_MARK_S:
            # The mark tells damage from a torn tail after a power cut. A second behind is near enough; with every sync it
            # would cost as much as the sync.
            self._guard_sync(control, lambda: files.sync(control.fd))
            self._persisted_s = time.monotonic()

    def _sync_segments(self, control: Control, now: Active) -> None:
        durable = control.durable
        if durable is None or durable.segment != now.segment:
            for info in self.finished().values():
                if not info.sealed and (durable is None or info.id >= durable.segment) and info.id < now.segment:
                    self._sync_file(control, info.id)
        seg = self._segment
        if seg is not None and seg.id == now.segment:
            seg.sync()
        else:
            self._sync_file(control, now.segment)

    def _sync_file(self, control: Control, segment_id: int) -> None:
        path = self.path / self.fmt.name(segment_id)
        with self._unless_retired(control, segment_id):
            with files.opened(path) as fd:
                files.sync(fd)
            files.sync_directory(path.parent)

    @contextmanager
    def _unless_retired(self, control: Control, segment_id: int) -> Iterator[None]:
        """Another process's retention may remove a finished segment while we are at it: that is no failed sync."""
        try:
            yield
        except FileNotFoundError:
            if segment_id == control.active().segment or segment_id in self.finished():
                raise

    # ---- what the background does ----

    def prepare_at(self) -> int:
        """The end of the active segment from which on its successor should be made."""
        now = self.active()
        half = min(self.roll.size_bytes or self.file_size, self.file_size) // 2
        return half if now.end < half else _NEVER

    def prepare_next(self) -> None:
        """Make the next segment's files before they are needed, so that a roll is not a stall."""
        now = self.active()
        few = self.roll.records is not None and now.next - now.base >= self.roll.records // 2
        if now.end < self.prepare_at() < _NEVER and not few and self.roll.interval_s is None:
            return
        new = self.fmt.next_id(now.segment, files.now_us())
        if not segment.is_prepared(self.path, self.fmt, new):
            made = segment.prepare(self.path, self.fmt, new, self.file_size, self.interval)
            with self.locked() as control:
                if control.active().segment == now.segment:
                    segment.place(made)
            segment.discard(made)

    def seal_finished(self) -> int:
        """Sync finished segments, give back what they did not use, and list them as sealed; how many."""
        waiting = [s for s in self.finished().values() if not s.sealed]
        if not waiting:
            return 0
        self.sync()
        for listed in sorted(waiting, key=lambda s: s.id):
            # Look again once it is no longer active: a roll that was cut short lists a segment that then goes on growing.
            info = self.finished().get(listed.id) if listed.id < self.active().segment else None
            if info is not None and not info.sealed:
                self._seal_files(self._writable(), Mark(info.id, info.end, info.count))
                with self.locked() as control:
                    self.manifest.refresh(control.generation)
                    if info.id in self.manifest.segments:
                        self.manifest.sealed(info)
        with self.locked() as control:
            self._guard_sync(control, self.manifest.sync)
            if self.manifest.is_long:
                self.manifest.rewrite(control.generation + 1)
                control.next_generation()
        return len(waiting)

    def _seal_files(self, control: Control, done: Mark) -> None:
        """Here `done.next` counts the segment's records."""

        def seal() -> None:
            with self._unless_retired(control, done.segment):
                segment.seal(self.path, self.fmt, done.segment, done.next, done.end, self.interval, self.file_size)

        self._guard_sync(control, seal)

    def retire(self, info: SegmentInfo) -> None:
        """Delete a sealed segment. It is listed as gone first: a crash in between leaves a file, never a hole."""
        with self.locked() as control:
            self.manifest.refresh(control.generation)
            self.manifest.retired(info)
            self._guard_sync(control, self.manifest.sync)
        self._delete_files(info.id)

    def _delete_files(self, segment_id: int) -> None:
        paths = SegmentPaths(self.path, self.fmt, segment_id)
        for path in (paths.data, paths.index, paths.times):
            files.remove(path)

    # ---- closing ----

    def close(self) -> None:
        """Sync, and if no other process has the log open, give back what is not used and mark it clean."""
        if self.inherited:
            self.closed = True
            return
        with self._close_lock:
            if not self.closed:
                self._close()

    def _close(self) -> None:
        try:
            if not self.read_only and self.control is not None and not self.control.poison:
                with self.locked():  # what is appended beside this is in before it, or refused
                    self._closing = True
                    if self.writer is not None:
                        self.writer.detach()
                self.seal_finished()
                self.sync()
                with self._sync_lock:
                    self._close_clean(self.control)
        finally:
            with self._sync_lock:
                self.closed = True
                if self.control is not None and not self.read_only:
                    self.control.page.ring()
                self._let_go()

    def _check_not_closing(self) -> None:
        if self._closing:
            raise LogClosed(f"{self.path}: this log object is being closed; open the log again")

    def _close_clean(self, control: Control) -> None:
        assert self._growing is not None
        with self._growing:
            if self._segment is not None:
                self._segment.close()
                self._segment = None
        if not control.try_exclusive():
            return
        now = control.active()
        self._seal_files(control, Mark(now.segment, now.end, now.next - now.base))
        self._remove_prepared()
        mark = Mark(now.segment, now.end, now.next)
        control.set_allocated(now.end, now.next)
        control.mark_durable(mark)
        control.mark_clean(mark)
        self._guard_sync(control, lambda: files.sync(control.fd))

    def _let_go(self) -> None:
        _open_logs.discard(self)
        if self.writer is not None:
            self.writer.stop()
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        if self._growing is not None:
            self._growing.close()
            self._growing = None
        if self._ahead_fd >= 0:
            files.close(self._ahead_fd)
            self._ahead_fd = -1
        self.manifest.close()
        if self.control is not None:
            self.control.close()

    def forked(self) -> None:
        """In the child: locks, files and threads are the parent's. Let go of them; the next call says to open it anew."""
        self._sync_lock = threading.Lock()
        for lock in (self.control, self._growing):
            if lock is not None:
                lock.forked()
        self._let_go()


_open_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in list(_open_logs):
        log.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
