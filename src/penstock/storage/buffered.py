"""The buffered write path: appends are collected in memory, and a native thread writes and syncs them, a batch at a time.

For frames without a checksum, where a file's length is the truth. What the thread cannot do by itself (a roll, another
process's roll, a batch that was cut short) comes here as `_slow`, in that thread and without the lock; it takes the lock,
looks again and puts it right. Nothing here may wait for a batch with the lock held. Lock order: only the control page's.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock import kernel
from penstock.errors import DiskFull, LogClosed, PenstockError, SyncFailed, storage_failed
from penstock.kernel.spec import DIRTY, POISONED, REMAP, ROLL
from penstock.storage import companion, files, growing
from penstock.storage.control import Active, Control, Mark
from penstock.storage.directory import Directory
from penstock.storage.growing import GrowingSegment
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.segment import Format, next_id
from penstock.storage.span import guard_sync, list_rolled


@dataclass(frozen=True, slots=True)
class Buffering:
    """When a batch is written, how much may wait, and whether it is synced."""

    batch_records: int
    linger_s: float
    most_bytes: int
    most_records: int = 1 << 62
    sync: bool = True


class Owner(Protocol):
    """What the write path asks of its log."""

    path: Path
    fmt: Format
    directory: Directory
    manifest: Manifest
    file_size: int
    interval: int
    control: Control | None
    on_work: Callable[[], None]

    def locked(self) -> AbstractContextManager[Control]: ...
    def writable(self) -> Control: ...
    def failed(self, code: int) -> SyncFailed: ...
    def note_told(self) -> None: ...
    @property
    def inherited(self) -> bool: ...


class Buffered:
    """One process's hand on the active segment. Threads may share it."""

    def __init__(self, log: Owner, control: Control, how: Buffering) -> None:
        self._log = log
        self._how = how
        self._first_bytes = len(log.directory.begin_with())
        self.segment: GrowingSegment | None = None
        self._turn = -1
        self.has_rolled = False
        self._synced: set[int] = set()  # segments left behind whose records are on the disk
        self.appends = kernel.Buffered(
            control.page,
            log.fmt.SPEC,
            self._slow,
            self._failed,
            batch_records=how.batch_records,
            linger_s=how.linger_s,
            most_bytes=how.most_bytes,
            most_records=how.most_records,
            segment_bytes=log.directory.capacity - self._first_bytes,
            sync=how.sync,
        )

    # ---- what the thread asks ----

    def _slow(self, code: int, need_bytes: int, records: int) -> None:
        """What the thread cannot do by itself. It tries again afterwards."""
        control = self._log.writable()
        if code == POISONED:
            raise SyncFailed(self._log.path, control.poison)
        try:
            with self._log.locked():
                now = control.active()
                if self.segment is None or self._turn != now.turn:
                    control.check_here()
                    self._attach(now)
                elif code == ROLL:
                    self.go_on(control, now)
                else:
                    assert code in (REMAP, DIRTY)
        except OSError as error:
            if isinstance(error, PenstockError):
                raise
            # No file could be had for a batch: it fails, and those that come later may not.
            raise storage_failed(error.filename or self._log.path, error) from error

    def _failed(self, code: int) -> None:
        """A write or sync failed: whoever waits for records elsewhere is told by the poison, if there is any."""
        control = self._log.control
        if control is not None:
            control.page.ring()

    def _attach(self, now: Active) -> None:
        """Stand on the active segment. Under the lock."""
        if self._how.sync:
            self.sync_left(now)
        self._leave()
        seg = GrowingSegment(self._log.path, self._log.fmt, now.segment, now.base, self._log.interval)
        self.appends.attach(
            seg.data_fd,
            seg.times_fd,
            seg.index_fd,
            turn=now.turn,
            start=self._log.fmt.HEADER_BYTES + self._first_bytes,
            limit=self._log.file_size,
            interval=self._log.interval,
        )
        self.segment, self._turn = seg, now.turn

    def sync_left(self, now: Active) -> None:
        """Put on the disk what is not there of the segments before the active one: whoever wrote it may not sync, and a durable mark
        in the active one speaks for all before it. Under the lock."""
        log, control = self._log, self._log.writable()
        durable = control.durable
        if durable is not None and durable.next >= now.base:
            return
        for info in log.manifest.snapshot(control.generation).values():
            done = durable is not None and (info.id, info.end) <= (durable.segment, durable.end)
            if not (done or info.sealed or info.id in self._synced) and info.id < now.segment:
                guard_sync(log.directory, control, partial(growing.sync, log.path, log.fmt, info.id))
                self._synced.add(info.id)

    def go_on(self, control: Control, now: Active) -> None:
        """Go on to a new segment. Under the lock. A crash anywhere in here leaves the old one active."""
        control.check_here()
        with self._log.directory.meters.rolling():
            self._roll(control, now)
        self.has_rolled = True
        self._log.on_work()

    def _roll(self, control: Control, now: Active) -> None:
        new = next_id(self._log.path, self._log.fmt, now.segment, files.now_us())
        at = self._log.directory.make(new, now.next, 0)
        # The system tells a failure once: made again, the names would seem to be on the disk.
        guard_sync(self._log.directory, control, lambda: files.sync_directory(self._log.path))
        list_rolled(self._log.directory, control, self._log.manifest, self._info(now))
        if control.durable == Mark(now.segment, now.end, now.next):
            self._synced.add(now.segment)
        control.roll(new, now.next, at.position, at.sequence, at)
        self._attach(control.active())

    def _info(self, now: Active) -> SegmentInfo:
        """What the manifest says of the active segment when it is left; an empty one is not."""
        spec, count = self._log.fmt.SPEC, now.next - now.base
        size, ends = companion.entry_bytes(spec), bytes(companion.HEADER_BYTES)
        with suppress(FileNotFoundError), files.opened(self._log.directory.paths(now.segment).times) as fd:
            for place in (0, max(0, count - 1)):
                ends += files.read(fd, companion.length(spec, place), size).ljust(size, b"\0")
        times = companion.Times(ends, size)
        return SegmentInfo(now.segment, now.base, count, now.end, times.us(0), times.us(1))

    def wait_for_growth(self) -> None:
        """Files grow by what is written alone."""

    def take_synced(self, segment_id: int) -> bool:
        """Whether all records of a segment that was left are known to be on the disk, so that sealing need not sync them. Told
        once: whoever asks seals it."""
        known = segment_id in self._synced
        self._synced.discard(segment_id)
        return known

    # ---- waiting ----

    def wait(self, batch: kernel.Batch, timeout_s: float | None = None) -> bool:
        """Until a batch is done: True, or what failed it; False when the time is over."""
        with self.told():
            return self.appends.wait(batch, timeout_s)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors as this package's: what the kernel says of its own has no path."""
        try:
            yield
        except PenstockError as error:
            if isinstance(error, SyncFailed):
                self._log.note_told()
            raise
        except (OSError, ValueError) as error:
            raise self.explained(error) from error

    def explained(self, error: BaseException) -> BaseException:
        """The same for an error that is not raised here."""
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            if files.is_full(error):
                return DiskFull(self._log.path, 0)
            return self._log.failed(error.errno or errno.EIO)
        if isinstance(error, ValueError) and not isinstance(error, PenstockError):
            how = (
                "was opened before a fork; open it again in the child process" if self._log.inherited else "was closed"
            )
            return LogClosed(f"{self._log.path}: this log {how}")
        return error

    def check_here(self) -> None:
        """Before a lock is taken: in a forked child a thread may hold it that is not there."""
        if self._log.inherited:
            raise self.explained(ValueError())

    def drain(self, timeout_s: float | None = None) -> None:
        """Until everything appended so far is in the file."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.told():
            batch = self.appends.flush()
            left = None if end_s is None else max(0.0, end_s - time.monotonic())
            done = batch is None or self.appends.wait(batch, left)
        if not done:
            raise TimeoutError(f"{self._log.path}: the disk took longer than {timeout_s} s; what was appended stays")

    # ---- letting go ----

    def stop(self) -> None:
        """Write what there is, and take no more."""
        with self.told():
            self.appends.close()

    def _leave(self) -> None:
        self.appends.detach()
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def close_segment(self) -> None:
        self._leave()

    def let_go(self) -> None:
        """After `stop`, or without it when the log cannot go on: then nobody is told of what waits, so it ends here."""
        try:
            self.appends.close()
        except (OSError, PenstockError):
            pass  # whoever waits for a batch of it is told
        finally:
            control = self._log.control
            if control is None or self._log.inherited:  # the lock is the parent's
                self._leave()
            else:
                control.page.lock()  # whoever appends to the files in another way is done
                try:
                    self._leave()
                finally:
                    control.page.unlock()
