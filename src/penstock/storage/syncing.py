"""Putting what was appended on the disk, and who was told when that failed.

One for each open log, which calls it, and which it does not keep: a log that is dropped goes at once. Threads may share it. Lock order:
`lock`, then the write path's, then the control page's.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import DiskFull, LogBusy, NotSynced, StorageFailed, SyncFailed
from penstock.storage import files, growing, notes
from penstock.storage.buffered import Buffered
from penstock.storage.control import Active, Control, Mark
from penstock.storage.directory import Directory
from penstock.storage.manifest import SegmentInfo
from penstock.storage.mapped import Mapped
from penstock.storage.segment import Format, WriteSegment
from penstock.storage.span import guard_sync

_PERSIST_MARK_S: Final = 1.0
_OFTEN_BYTES: Final = 8 << 20  # a sync for less than this is one of many


class Owner(Protocol):
    """What is asked of the log."""

    path: Path
    fmt: Format
    directory: Directory
    file_size: int
    control: Control | None
    writing: Mapped | Buffered | None

    def check_open(self) -> None: ...
    def writable(self) -> Control: ...
    def locked(self) -> AbstractContextManager[Control]: ...
    def finished(self) -> dict[int, SegmentInfo]: ...


class Syncing:
    """See the module's docstring."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lock = threading.Lock()  # of one sync at a time, and of letting go of the files
        self._thread = 0  # the one that syncs
        self._persisted_s = 0.0
        self._told = False  # whoever uses the log has been told that a sync failed
        self._unheard: set[int] = set()  # threads that tell nobody

    def sync(self, log: Owner, timeout_s: float | None) -> None:
        """Put everything appended so far on the disk. Waits for a sync under way at most `timeout_s`."""
        control, writing = log.writable(), log.writing
        if isinstance(writing, Buffered):
            writing.drain(timeout_s)
        wanted = control.active().next
        if timeout_s is not None:
            if not self.lock.acquire(timeout=max(0.0, timeout_s)):
                raise TimeoutError(f"{self._path}: the disk took longer than {timeout_s} s; what was appended stays")
            self.lock.release()
        with self.lock:
            log.check_open()
            if control.poison:
                raise self.failed(control.poison)
            if control.durable_next < wanted:
                self._thread = threading.get_ident()
                try:
                    self._sync_all(log, control)
                except SyncFailed:
                    self.note_told()
                    raise
                finally:
                    self._thread = 0

    def check_interrupts_none(self) -> None:
        """A signal's handler cannot close what it has interrupted in a sync: that would wait for itself."""
        if self._thread == threading.get_ident():
            raise LogBusy(
                f"{self._path}: closed by the handler of a signal that came while this thread syncs it; let the handler raise an "
                "exception, such as SystemExit, and close the log where that is caught"
            )

    def forked(self) -> None:
        """In the child: a thread of the parent may have the lock."""
        self.lock = threading.Lock()

    # ---- failed syncs ----

    def failed(self, code: int) -> SyncFailed:
        """To be raised: a sync failed, here or in another process."""
        self.note_told()
        return SyncFailed(self._path, code)

    def note_told(self) -> None:
        """Whoever uses the log is told that a sync failed, so that closing it need not."""
        self._told |= threading.get_ident() not in self._unheard

    @contextmanager
    def untold(self) -> Iterator[None]:
        """What fails in this thread meanwhile is told to nobody."""
        me = threading.get_ident()
        self._unheard.add(me)
        try:
            yield
        finally:
            self._unheard.discard(me)

    def fails_untold(self, log: Owner) -> int:
        """The error of a sync that failed in the background, or in another process, if it left something undone, and nobody knows; or 0."""
        control, writing = log.control, log.writing
        if control is None or writing is None or not control.poison or self._told:
            return 0
        lost = isinstance(writing, Buffered) and writing.appends.lost > 0
        return control.poison if lost or control.durable_next < control.active().next else 0

    # ---- one sync ----

    def _sync_all(self, log: Owner, control: Control) -> None:
        if isinstance(log.writing, Mapped):
            log.writing.writer.durable = undurable_bytes(log) < _OFTEN_BYTES
        with log.locked():
            now, n = control.active(), control.count_sync()
            seg = _standing_on(log, now)
            if seg is not None:
                notes.note(seg.fd, log.fmt.HEADER_BYTES, n, now.end, now.next)
            else:
                with files.opened(log.path / log.fmt.name(now.segment), write=True) as fd:
                    notes.note(fd, log.fmt.HEADER_BYTES, n, now.end, now.next)
        guard_sync(log.directory, control, lambda: _sync_segments(log, control, now))
        with log.locked():
            if control.poison:
                raise SyncFailed(log.path, control.poison)
            if control.durable_next < now.next:
                control.mark_durable(Mark(now.segment, now.end, now.next))
        if time.monotonic() - self._persisted_s > _PERSIST_MARK_S:
            # The mark tells damage from a torn tail after a power cut. A second behind is near enough; with every sync it
            # would cost as much as the sync.
            guard_sync(log.directory, control, lambda: files.sync(control.fd))
            self._persisted_s = time.monotonic()


@contextmanager
def telling_appended(appended: range) -> Iterator[None]:
    """Of the sync that is to follow an append: what it cannot do says that these are in the log. Whoever takes the call to have done
    nothing would append them again."""
    try:
        yield
    except SyncFailed as error:
        raise SyncFailed(error.filename, error.errno or errno.EIO, appended) from error
    except (DiskFull, StorageFailed) as error:
        raise NotSynced(error.filename, error.errno or errno.EIO, appended) from error


def undurable_bytes(log: Owner) -> int:
    """How much a power cut would take."""
    control = log.writable()
    now, durable = control.active(), control.durable
    if durable is not None and durable.segment == now.segment:
        return now.end - durable.end
    return now.end + (log.file_size if durable is not None else 0)


def _sync_segments(log: Owner, control: Control, now: Active) -> None:
    durable, seg = control.durable, _standing_on(log, now)
    if seg is None or not seg.names_synced or durable is None or durable.segment != now.segment:
        control.check_here()
    if durable is None or durable.segment != now.segment:
        for info in log.finished().values():
            if not info.sealed and (durable is None or info.id >= durable.segment) and info.id < now.segment:
                _sync_file(log, control, info.id)
    if seg is not None:
        seg.sync()
    else:
        _sync_file(log, control, now.segment)


def _standing_on(log: Owner, now: Active) -> WriteSegment | None:
    """The active segment, if it is mapped here."""
    return log.writing.on(now) if isinstance(log.writing, Mapped) else None


def _sync_file(log: Owner, control: Control, segment_id: int) -> None:
    paths = log.directory.paths(segment_id)
    with unless_gone(log, control, segment_id):
        if log.fmt.GROWS:
            growing.sync(log.path, log.fmt, segment_id)
        else:
            with files.opened(paths.data) as fd:
                files.sync(fd)
        paths.sync_names()


class Finishes(Protocol):
    """A log that says which of its segments are finished."""

    def finished(self) -> dict[int, SegmentInfo]: ...


@contextmanager
def unless_gone(log: Finishes, control: Control, segment_id: int) -> Iterator[None]:
    """Somebody's retention may remove a finished segment while we are at it, or his compression its file, once it is sealed, which
    is to say synced: that is no failed sync."""
    try:
        yield
    except FileNotFoundError:
        info = log.finished().get(segment_id)
        if segment_id == control.active().segment or (info is not None and not info.sealed):
            raise
