"""One log: segments, the control page, the manifest and the cursors, as one thing to append to and read from.

The four uses are policy over this. Here are opening and closing, and what the parts know of each other: how appends are written
is the write path's (`mapped`, or `buffered` where files grow), `syncing` puts them on the disk, `sealing` makes, seals and retires
the files. Lock order: `syncing.lock`, then the write path's, then the control page's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from penstock import kernel
from penstock.errors import (
    LogBusy,
    LogClosed,
    NotALog,
    PenstockError,
    ReadOnly,
    SyncFailed,
)
from penstock.options import Roll
from penstock.storage import files, sealing
from penstock.storage.buffered import Buffered, Buffering
from penstock.storage.closable import Closing
from penstock.storage.control import Active, Control, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.directory import Directory, First
from penstock.storage.losses import LossList
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.mapped import Mapped
from penstock.storage.opening import check, is_believable, join_manifest, recover, survey
from penstock.storage.recovery import Tail
from penstock.storage.report import OnProgress, Recovery
from penstock.storage.segment import Format
from penstock.storage.span import finish_appends, guard_sync
from penstock.storage.syncing import Syncing
from penstock.storage.weakly import all_of


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
        still: bool = False,
        verify: OnProgress | None = None,
        written: int = 0,
        mirror: memoryview | None = None,
        sole: bool = False,
        may_be_empty: bool = False,
        on_opening: Callable[[Directory], None] = lambda directory: None,
        on_work: Callable[[], None] = lambda: None,
        own: Path | None = None,
        buffering: Buffering | None = None,
        begin_with: Callable[[], bytes] = bytes,
        first: First | None = None,
    ) -> None:
        """`own` is where the log keeps what is no segment, if not beside them; `buffering` is for files that grow. One that
        is `still` is only read, and nobody writes it any more. One without files is read if it `may_be_empty`."""
        self.directory = Directory(
            path, fmt, file_size, interval, own=own, begin_with=begin_with, first=first or First()
        )
        self.path = path
        self.fmt = fmt
        self.file_size = file_size
        self.interval = interval
        self.roll = roll
        self.read_only = read_only or still
        self._still = still
        self._on_opening = on_opening  # called first of all when nobody else has the log open
        self.on_work = on_work
        self._buffering = buffering
        self.cursors = Cursors(self.directory.own)
        self.losses = LossList(self.directory.own)
        self.closed = False
        self._closing = False  # no more appends; read and set under the lock
        self._turns = Closing()
        self._written = written  # up to which byte of all frames the log is known to have been written
        self._sole = sole  # nobody else may write it: whoever has it open beside us only reads
        self._may_be_empty = may_be_empty
        self._mirror = mirror  # where every published end, as such a byte, is stored too
        self._pid = os.getpid()
        self.syncing = Syncing(path)
        self.manifest = Manifest(self.directory.own / "manifest", fmt, read_only=self.read_only)
        self.control: Control | None = None
        self.writing: Mapped | Buffered | None = None  # the write path; None when read-only
        self.recovery = Recovery()
        self._static: Tail | None = None
        try:
            if still:
                self._open_still(verify)
            elif read_only:
                self._open_to_read(verify)
            else:
                self._open_to_write(verify)
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                files.tell(error, path)  # what the kernel says has no path
            raise
        _open_logs.add(self)

    # ---- opening ----

    def _open_to_write(self, verify: OnProgress | None) -> None:
        control = self.control = Control(self.directory.own / ".lock", self.fmt)
        if control.alone():
            self._on_opening(self.directory)
            self.recovery = recover(
                self.directory, control, self.manifest, self.cursors, verify=verify, written=self._written
            )
            control.share()
        else:
            self._join(control)
            if verify:
                self._verify_all(verify)
        control.page.on_locked = self._settled
        self.writing = self._write_path(control)

    def _write_path(self, control: Control) -> Mapped | Buffered:
        if not self.fmt.GROWS:
            return Mapped(self, control, self._mirror)
        assert self._buffering is not None
        return Buffered(self, control, self._buffering)

    def _join(self, control: Control) -> None:
        """Other processes have the log open: what the control page says is so."""
        control.check_kind()
        if control.poison:
            raise LogBusy(
                f"{self.path}: a sync failed here, and other processes still have the log open; "
                "close it in all of them, then open it again"
            )
        control.forget_clean()
        if not join_manifest(self.directory, self.manifest, control) and self.manifest.is_open:
            raise LogBusy(
                f"{self.directory.own / 'manifest'}: damaged, and other processes have the log open; "
                "close it in all of them, then open it again: it is made anew"
            )

    def _open_to_read(self, verify: OnProgress | None) -> None:
        """Beside live writers: follow the control page. With none: find the end without changing anything."""
        control = self.control = self._page_to_read()
        if control is not None:
            control.share()
            believed = control.same_boot and is_believable(self.directory, control)
            if believed and join_manifest(self.directory, self.manifest, control):
                if verify:
                    self._verify_all(verify)
                return
            files.unlock(control.fd)  # must not keep a writer from making it valid
        self._static, self.recovery = survey(
            self.directory,
            self.control,
            self.manifest,
            verify=verify,
            written=self._written,
            may_be_empty=self._may_be_empty,
        )

    def _open_still(self, verify: OnProgress | None) -> None:
        """Nobody writes it, nor will: its page need not be locked, and tells of a crash in this boot where the log ends."""
        self.control = self._page_to_read()
        self._static, self.recovery = survey(
            self.directory, self.control, self.manifest, verify=verify, written=self._written, still=True
        )

    def _page_to_read(self) -> Control | None:
        """The control page, if it is whole: one that is cut short, or just being made, says nothing."""
        with suppress(FileNotFoundError, NotALog):
            return Control(self.directory.own / ".lock", self.fmt, read_only=True)
        return None

    def _verify_all(self, verify: OnProgress) -> None:
        """Check every record, where nothing was recovered: others may be writing, so up to where the log ends now."""
        self.recovery._tell(verify, self.directory.used_bytes())
        now = self.active()
        begin = self.directory.begin_of(now.segment)
        active = SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0, begin=begin)
        finished = [s for s in self.manifest.ordered() if s.id < now.segment]
        check(self.directory, [*finished, active], self.recovery, lambda info: info.next <= self.first_sequence)

    def become_live(self) -> bool:
        """A read-only log that was closed when opened: has a writer come?"""
        if self._static is None or self._still:
            return False
        self.check_open()  # before the lock is taken: in a forked child a thread may hold it that is not there
        with self._turns.lock:
            self.check_open()
            return self._static is not None and self._become_live()

    def _become_live(self) -> bool:
        if self.control is None:
            self.control = self._page_to_read()
        if self.control is None or not self.control.same_boot or not is_believable(self.directory, self.control):
            return False
        if not files.lock(self.control.fd, shared=True, wait=False):
            return False  # it is just recovered
        manifest = Manifest(self.directory.own / "manifest", self.fmt, read_only=True)
        if not self.control.same_boot or not join_manifest(self.directory, manifest, self.control):
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
        t = self._static  # once: a writer may come
        if t is not None:
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
        return dict(self.manifest.segments)

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
        static = self._static
        if static is not None:
            return static.next
        assert self.control is not None
        return min(self.control.durable_next, self.control.active().next)

    def durable_mark(self) -> Mark | None:
        """Where durable_sequence lies; None when all of a log that nobody writes is durable."""
        return None if self._static is not None or self.control is None else self.control.durable

    # ---- the lock ----

    def locked(self) -> AbstractContextManager[Control]:
        """Hold the lock, with nothing half done underneath: `with self.locked() as control`."""
        return self.writable().page

    def _settled(self) -> Control:
        """What is done first whenever the lock is taken: finish what a process left that died with it."""
        control = self.control
        assert control is not None
        if self.closed:
            self.check_open()  # while we waited for it
        if control.dirty or control.span:
            control.check_here()
            finish_appends(self.directory, control, self.manifest)
        return control

    def writable(self) -> Control:
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

    @property
    def mapped(self) -> Mapped:
        """The write path, of a log whose frames have checksums."""
        writing = self._write_path_now()
        assert isinstance(writing, Mapped)
        return writing

    @property
    def buffered(self) -> Buffered:
        """The write path, of a log whose files grow."""
        writing = self._write_path_now()
        assert isinstance(writing, Buffered)
        return writing

    def _write_path_now(self) -> Mapped | Buffered | None:
        writing = self.writing
        if writing is None:
            self.check_open()  # closed meanwhile, by another thread
        return writing

    def appender(self) -> kernel.Writer:
        self.writable()
        return self.mapped.writer

    def notify_at(self, end: int) -> None:
        """Call `on_work` when the active segment reaches byte `end`. Where files grow nothing is done ahead."""
        writing = self.writing
        if isinstance(writing, Mapped):
            writing.writer.notify_at = end

    def append_batch(self, payloads: list[kernel.Buffer] | tuple[kernel.Buffer, ...]) -> int:
        """Append many as one; the first sequence."""
        self.writable()
        return self.mapped.append_batch(payloads)

    def append_arrow(
        self, offsets: kernel.Buffer, wide: bool, values: kernel.Buffer | None, start: int, count: int
    ) -> int:
        """Append `count` values of an Arrow binary array as one batch; the first sequence."""
        self.writable()
        return self.mapped.append_arrow(offsets, wide, values, start, count)

    def roll_now(self) -> None:
        """Go on to a new segment, unless the active one is empty."""
        with self.locked() as control:
            self.check_not_closing()
            now, writing = control.active(), self.writing
            if now.next > now.base and writing is not None:
                writing.go_on(control, now)

    # ---- durability ----

    def sync(self, timeout_s: float | None = None) -> int:
        """Put everything appended so far on the disk; the durable mark. Waits for a sync under way at most `timeout_s`."""
        self.syncing.sync(self, timeout_s)
        return self.durable_sequence

    def sync_to(self, next_: int, timeout_s: float | None = None) -> None:
        """Put every record below `next_` on the disk. Callers that wait here meanwhile share the next sync. What is on the disk is so
        also when the log was closed meanwhile."""
        control = self.control
        if control is not None and control.durable_next >= next_ and not control.poison:
            return
        try:
            self.writable()
            self.sync(timeout_s)
        except LogClosed:
            left = self.control  # as the close left it
            if left is None or self.inherited or (not left.poison and left.durable_next < next_):
                raise
            if left.poison:
                raise self.failed(left.poison) from None

    def failed(self, code: int) -> SyncFailed:
        """To be raised: a sync failed, here or in another process."""
        return self.syncing.failed(code)

    def note_told(self) -> None:
        """Whoever uses this log is told that a sync failed, so that closing it need not."""
        self.syncing.note_told()

    # ---- what the background does ----

    def prepare_at(self) -> int:
        """The end of the active segment from which on its successor should be made."""
        return sealing.prepare_at(self)

    def prepare_next(self) -> None:
        """Make the next segment's files before they are needed, so that a roll is not a stall."""
        sealing.prepare_next(self)

    def seal_finished(self, least: int = 1) -> int:
        """Sync finished segments, give back what they did not use, and list them as sealed, if there are so many; how many."""
        return sealing.seal_finished(self, least)

    def retire(self, info: SegmentInfo, *, unless: Callable[[SegmentInfo], bool] = lambda _: False) -> bool:
        """Delete a sealed segment, unless (asked under the lock) it is needed."""
        return sealing.retire(self, info, unless)

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
        self.syncing.check_interrupts_none()
        self._turns.once(self._close)

    def _close(self) -> None:
        if self.closed:
            return
        failed = self.syncing.fails_untold(self)
        try:
            if not self.read_only and self.control is not None and not self.control.poison:
                if isinstance(self.writing, Buffered):
                    self.writing.stop()
                with self.locked():  # what is appended beside this is in before it, or refused
                    self._closing = True
                    if isinstance(self.writing, Mapped):
                        self.writing.writer.detach()
                try:
                    self.seal_finished()
                except OSError as error:
                    if not files.is_full(error):
                        raise  # a full disk only leaves the sealing to whoever opens the log next
                self.sync()
                self.control.check_here()
                with self.syncing.lock:
                    self._close_clean(self.control)
        finally:
            with self.syncing.lock:
                self.closed = True
                if self.control is not None and not self.read_only:
                    self.control.page.ring()
                self._let_go()
        if failed:
            raise self.failed(failed)

    def check_not_closing(self) -> None:
        if self._closing:
            raise LogClosed(f"{self.path}: this log object is being closed; open the log again")

    def _close_clean(self, control: Control) -> None:
        assert self.writing is not None
        self.writing.close_segment()
        if not self._sole and not control.try_exclusive():
            return
        now = control.active()
        # First: should we die over giving blocks back, whoever joins a reader believes the page, and to touch a hole may kill.
        control.set_allocated(now.end, now.next)
        sealing.seal_files(self, control, Mark(now.segment, now.end, now.next - now.base))
        self.directory.remove_prepared()
        mark = Mark(now.segment, now.end, now.next)
        control.mark_durable(mark)
        control.mark_clean(mark)
        guard_sync(self.directory, control, lambda: files.sync(control.fd))

    def _let_go(self) -> None:
        """Of every file and map: what other threads still have a hand on goes when they are done, and nothing waits for the
        collector of garbage."""
        _open_logs.discard(self)
        try:
            if self.writing is not None:
                self.writing.let_go()
        finally:
            self.writing = self._mirror = None
            self.manifest.close()
            if self.control is not None and self.control.fd >= 0:
                self.control.close()
                self.control = self.control.remains()

    def forked(self) -> None:
        """In the child: locks, files and threads are the parent's. Let go of them; the next call says to open it anew."""
        self.syncing.forked()
        self.manifest.forked()
        if self.control is not None:
            self.control.forked()
        if isinstance(self.writing, Mapped):
            self.writing.growing.forked()
        self._let_go()


_open_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def open_logs() -> list[Log]:
    """Every log that this process has open."""
    return all_of(_open_logs)


def _after_fork_in_child() -> None:
    for log in list(_open_logs):
        with suppress(OSError, PenstockError):  # of one file: the others go all the same
            log.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
