"""One log: segments, the control page, the manifest and the cursors, as one thing to append to and read from.

The four uses are policy over this. Appends go through the kernel's `Writer`, straight into the map; everything that is not
a plain append (a roll, more disk, another process's roll, an append that was cut short) comes here as `_slow`, without the
lock, takes it, looks again and puts it right. Lock order: `_sync_lock`, then the control page's.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NoReturn

from penstock import kernel
from penstock.errors import (
    DiskFull,
    InvalidPayload,
    LogBusy,
    LogClosed,
    PenstockError,
    ReadOnly,
    SyncFailed,
)
from penstock.kernel.spec import DIRTY, POISONED, REMAP, ROLL, SPACE
from penstock.options import Roll
from penstock.storage import files, notes, segment, span
from penstock.storage.control import Active, Control, FileLock, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.directory import Directory, is_full
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.opening import check, recover, survey
from penstock.storage.recovery import OnProgress, Recovery, Tail
from penstock.storage.segment import Format, WriteSegment
from penstock.storage.span import finish_appends, guard_sync, list_rolled, rolled_info

_NEVER: Final = (1 << 63) - 1
_PERSIST_MARK_S: Final = 1.0
_OFTEN_BYTES: Final = 8 << 20  # a sync for less than this is one of many


class BatchTooLong(Exception):
    """A batch does not fit one segment. Internal: `Log.append_batch` then writes it over several."""


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
        verify: OnProgress | None = None,
        written: int = 0,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = Directory(path, fmt, file_size, interval)
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
        self._written = written
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
            if is_full(error) and not isinstance(error, PenstockError):
                raise DiskFull(path, 0) from error
            raise
        _open_logs.add(self)

    # ---- opening ----

    def _open_to_write(self, verify: OnProgress | None) -> None:
        control = self.control = Control(self.path / ".lock")
        alone = control.try_exclusive()
        if not alone:
            control.share()  # waits while another process recovers
            if not control.same_boot:
                control.wait_exclusive()  # it died over that: our turn
                alone = True
        if alone:
            self.recovery = recover(
                self.directory, control, self.manifest, self.cursors, verify=verify, written=self._written
            )
            control.share()
        else:
            self._join(control)
            if verify:
                self._verify_all(verify)
        control.page.on_locked = self._settled
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

    def _open_to_read(self, verify: OnProgress | None) -> None:
        """Beside live writers: follow the control page. With none: find the end without changing anything."""
        path = self.path / ".lock"
        if path.exists():
            control = self.control = Control(path, read_only=True)
            control.share()
            if control.same_boot and self.manifest.load(control.generation, believe_rolled=True):
                if verify:
                    self._verify_all(verify)
                return
            files.unlock(control.fd)  # must not keep a writer from making it valid
        self._static, self.recovery = survey(
            self.directory, self.control, self.manifest, verify=verify, written=self._written
        )

    def _verify_all(self, verify: OnProgress) -> None:
        """Check every record, where nothing was recovered: others may be writing, so up to where the log ends now."""
        self.recovery.tell(verify, self.directory.used_bytes())
        now = self.active()
        active = SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)
        check(self.directory, [*(s for s in self.manifest.ordered() if s.id < now.segment), active], self.recovery)

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

    def locked(self) -> AbstractContextManager[Control]:
        """Hold the lock, with nothing half done underneath: `with self.locked() as control`."""
        return self._writable().page

    def _settled(self) -> Control:
        """What is done first whenever the lock is taken: finish what a process left that died with it."""
        assert self.control is not None
        if self.control.dirty or self.control.span:
            finish_appends(self.directory, self.control, self.manifest)
        return self.control

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

    # ---- appending ----

    def _slow(self, code: int, need_bytes: int, records: int) -> None:
        """What an append cannot do by itself. The caller tries again afterwards."""
        control = self._writable()
        if code == POISONED:
            raise SyncFailed(self.path, control.poison)
        if need_bytes > self.directory.capacity:
            if records > 1:
                raise BatchTooLong
            self._refuse(need_bytes)
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

    def _refuse(self, need_bytes: int) -> NoReturn:
        overhead = self.fmt.SPEC.overhead
        raise InvalidPayload(
            f"{self.path}: a record of {need_bytes - overhead} bytes does not fit a file: at most "
            f"{self.directory.capacity - overhead} with file_size={self.file_size}; create the log with a larger one"
        )

    def _attach(self, control: Control, now: Active) -> None:
        """Stand on the active segment. Under the lock."""
        assert self.writer is not None
        self.writer.detach()
        self._segment = None
        seg = self.directory.write(now.segment, now.base)
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
                if seg is None or self._turn != now.turn:
                    self._attach(control, now)
                    return
            if now.end + need_bytes > have[0] or now.next + records > have[1]:
                reach = seg.grow(now.end, now.next, have, need_bytes, records)
                with self.locked():
                    if control.active().turn == now.turn:
                        control.set_allocated(*reach)

    def _roll(self, control: Control, now: Active) -> None:
        """Go on to a new segment. Under the lock. A crash anywhere in here leaves the old one active."""
        new = self.fmt.next_id(now.segment, files.now_us())
        if new != now.segment + 1:
            self.directory.delete(now.segment + 1)  # of a roll that was cut short on the day before
        self.directory.make(new, now.next, self.directory.begin_after(now.segment, now.end))
        list_rolled(self.directory, control, self.manifest, rolled_info(self.directory, now))
        control.roll(new, now.next, self.fmt.HEADER_BYTES, now.next, self.directory.prepared(now.next))
        self._attach(control, control.active())

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
        """Append a batch that is larger than a file: it begins in a new one."""
        sizes = [memoryview(payload).nbytes + self.fmt.SPEC.overhead for payload in payloads]
        if max(sizes) > self.directory.capacity:
            self._refuse(max(sizes))
        assert self._growing is not None
        with self._growing, self.locked() as control:
            self._check_not_closing()
            if control.poison:
                raise SyncFailed(self.path, control.poison)
            now = control.active()
            if now.next > now.base:
                self._roll(control, now)
            elif self._segment is None or self._turn != now.turn:
                self._attach(control, now)
            assert self._segment is not None
            us = max(files.now_us(), control.last_us)
            span.append(self.directory, control, self.manifest, self._segment, payloads, sizes, us)
        self.on_work()
        return now.next

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
                notes.note(seg.fd, self.fmt.HEADER_BYTES, n, now.end, now.next)
            else:
                with files.opened(self.path / self.fmt.name(now.segment), write=True) as fd:
                    notes.note(fd, self.fmt.HEADER_BYTES, n, now.end, now.next)
        guard_sync(self.directory, control, lambda: self._sync_segments(control, now))
        with self.locked():
            if control.poison:
                raise SyncFailed(self.path, control.poison)
            if control.durable_next < now.next:
                control.mark_durable(Mark(now.segment, now.end, now.next))
        if time.monotonic() - self._persisted_s > _PERSIST_MARK_S:
            # The mark tells damage from a torn tail after a power cut. A second behind is near enough; with every sync it
            # would cost as much as the sync.
            guard_sync(self.directory, control, lambda: files.sync(control.fd))
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
        if not self.directory.is_prepared(new):
            made = self.directory.prepare(new)
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
            guard_sync(self.directory, control, self.manifest.sync)
            if self.manifest.is_long:
                self.manifest.rewrite(control.generation + 1)
                control.next_generation()
        return len(waiting)

    def _seal_files(self, control: Control, done: Mark) -> None:
        """Here `done.next` counts the segment's records."""

        def seal() -> None:
            with self._unless_retired(control, done.segment):
                self.directory.seal(done.segment, done.next, done.end)

        guard_sync(self.directory, control, seal)

    def retire(self, info: SegmentInfo, *, unless: Callable[[SegmentInfo], bool] = lambda _: False) -> bool:
        """Delete a sealed segment, unless (asked under the lock) it is needed. It is listed as gone first: a crash in
        between leaves a file, never a hole."""
        with self.locked() as control:
            if unless(info):
                return False
            self.manifest.refresh(control.generation)
            self.manifest.retired(info)
            guard_sync(self.directory, control, self.manifest.sync)
        self.directory.delete(info.id)
        return True

    def hold(self, name: str, position: int) -> int:
        """Give a new named reader its cursor: from now on retention, which looks under the lock too, keeps what it has not
        passed. Where it stands: `position`, or the oldest record if that is gone already."""
        with self.locked():
            position = max(position, self.first_sequence)
            self.cursors.store(name, position)
        return position

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
                try:
                    self.seal_finished()
                except OSError as error:
                    if isinstance(error, PenstockError) or not is_full(error):
                        raise  # a full disk only leaves the sealing to whoever opens the log next
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
        self.directory.remove_prepared()
        mark = Mark(now.segment, now.end, now.next)
        control.set_allocated(now.end, now.next)
        control.mark_durable(mark)
        control.mark_clean(mark)
        guard_sync(self.directory, control, lambda: files.sync(control.fd))

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
            fd, self._ahead_fd = self._ahead_fd, -1
            files.close(fd)
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
