"""The mapped write path: appends go straight into a preallocated map, through the kernel's `Writer`.

What an append cannot do by itself (a roll, more disk, another process's roll, an append that was cut short) comes here as
`_slow`, without the lock; it takes the lock, looks again and puts it right, and the append is tried again. Lock order: the
grow lock, then the control page's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol

from penstock import kernel
from penstock.errors import FilesMissing, InvalidPayload, LogClosed, SyncFailed
from penstock.kernel.spec import DIRTY, POISONED, REMAP, ROLL, SPACE
from penstock.options import Roll
from penstock.storage import files, span
from penstock.storage.control import Active, Control, FileLock
from penstock.storage.directory import Directory
from penstock.storage.manifest import Manifest
from penstock.storage.segment import Format, WriteSegment, next_id
from penstock.storage.span import list_rolled, rolled_info

_NEVER: Final = (1 << 63) - 1


class BatchTooLong(Exception):
    """A batch does not fit one segment. Internal: `append_batch` then writes it over several."""


class Owner(Protocol):
    """What the write path asks of its log."""

    path: Path
    fmt: Format
    directory: Directory
    manifest: Manifest
    file_size: int
    interval: int
    roll: Roll
    on_work: Callable[[], None]

    def locked(self) -> AbstractContextManager[Control]: ...
    def writable(self) -> Control: ...
    def check_not_closing(self) -> None: ...
    def failed(self, code: int) -> SyncFailed: ...
    @property
    def inherited(self) -> bool: ...


class Mapped:
    """One process's hand on the active segment. Threads may share it."""

    def __init__(self, log: Owner, control: Control, mirror: memoryview | None) -> None:
        self._log = log
        self._mirror = mirror  # where every published end, as a byte of all frames, is stored too
        self._page = control.page
        self.segment: WriteSegment | None = None
        self._turn = -1
        self.growing = FileLock(log.path / ".grow")
        self.ahead_fd = -1  # the working-ahead thread's own hold on the grow lock
        if kernel.ROBUST and not files.PORTABLE:
            try:
                self.ahead_fd = files.open_to_lock(log.path / ".grow")
            except BaseException:
                self.growing.close()
                raise
        self.writer = kernel.Writer(control.page, log.fmt.SPEC, self._slow, log.on_work)

    def on(self, now: Active) -> WriteSegment | None:
        """The active segment, if it is the one that this process stands on."""
        return self.segment if self.segment is not None and self.segment.id == now.segment else None

    def _slow(self, code: int, need_bytes: int, records: int) -> None:
        """What an append cannot do by itself. The caller tries again afterwards."""
        control = self._log.writable()
        if code == POISONED:
            raise self._log.failed(control.poison)
        if need_bytes > self._log.directory.capacity:
            if records > 1:
                raise BatchTooLong
            self._refuse(need_bytes)
        if code == SPACE:
            self._grow(control, need_bytes, records)
            return
        with self._log.locked():
            self._log.check_not_closing()
            now = control.active()
            if self.segment is None or self._turn != now.turn:
                self._attach(control, now)
            elif code == ROLL:
                self.go_on(control, now)
            else:
                assert code in (REMAP, DIRTY)

    def _refuse(self, need_bytes: int) -> NoReturn:
        overhead = self._log.fmt.SPEC.overhead
        if self._log.fmt.SPILLS:  # a file has room for the record behind its size to roll at, which is what can be set
            step = "; open the channel with larger segment_bytes"
        else:
            step = f" with file_size={self._log.file_size}; create the log with a larger one"
        raise InvalidPayload(
            f"{self._log.path}: a record of {need_bytes - overhead} bytes does not fit a file: at most "
            f"{self._log.directory.capacity - overhead}{step}"
        )

    def _attach(self, control: Control, now: Active) -> None:
        """Stand on the active segment. Under the lock."""
        control.check_here()
        self.writer.detach()
        self.segment = None
        with _telling(self._log.path):
            seg = self._log.directory.write(now.segment, now.base)
        self.writer.attach(
            seg.data,
            seg.times,
            seg.index,
            turn=now.turn,
            start=seg.header.start,
            size=self._log.file_size,
            limit=min(self.roll_at(), self._log.file_size),
            interval=self._log.interval,
            roll_next=min(_NEVER, now.base + (self._log.roll.records or _NEVER)),
            roll_us=self._roll_us(seg.header.created_us or 0),
            spill=self._log.fmt.SPILLS,
            mirror=self._mirror,
            mirror_add=seg.header.begin - seg.header.start,
        )
        self.segment, self._turn = seg, now.turn
        if self.ahead_fd >= 0:
            self.writer.work_ahead(self.ahead_fd, *seg.fds)
        self._log.on_work()

    def _roll_us(self, created_us: int) -> int:
        """The time from which on a file that was made then is left. One that says it is from a time to come was made before the clock was
        set back: it is as old as this moment."""
        if self._log.roll.interval_s is None:
            return _NEVER
        interval_us = min(self._log.roll.interval_s * 1e6, _NEVER)  # of a float, which may be larger than any time
        return min(_NEVER, min(created_us, files.now_us()) + int(interval_us))

    def stand_on(self, control: Control, now: Active) -> None:
        """Stand on the active segment, if not there yet. Under the lock."""
        if self.segment is None or self._turn != now.turn:
            self._attach(control, now)

    def mirror_end(self) -> None:
        """Store the published end where it is stored too, after an append that the kernel did not do. Under the lock."""
        if self._mirror is not None:
            at = self._log.writable().active()
            kernel.store_big(self._mirror, 0, 0, 1, self._log.directory.begin_after(at.segment, at.end))

    def roll_at(self) -> int:
        """The byte of a file at which the log goes on to the next one."""
        size = self._log.roll.size_bytes or self._log.file_size
        return size + self._log.fmt.HEADER_BYTES if self._log.fmt.SPILLS else size

    def _grow(self, control: Control, need_bytes: int, records: int) -> None:
        """Allocate what an append needs, and some more. Only under the grow lock: zeros that came late would wipe records."""
        with self.growing:
            with self._log.locked():  # the three must speak of one segment: zeros in another one would wipe records
                self._log.check_not_closing()
                seg, now, have = self.segment, control.active(), control.allocated
                if seg is None or self._turn != now.turn:
                    self._attach(control, now)
                    return
            if now.end + need_bytes > have[0] or now.next + records > have[1]:
                reach = seg.grow(now.end, now.next, have, need_bytes, records)
                with self._log.locked():
                    if control.active().turn == now.turn:
                        control.set_allocated(*reach)

    def go_on(self, control: Control, now: Active) -> None:
        """Go on to a new segment. Under the lock. A crash anywhere in here leaves the old one active."""
        control.check_here()
        with self._log.directory.meters.rolling(), _telling(self._log.path):
            self._roll(control, now)

    def _roll(self, control: Control, now: Active) -> None:
        new = next_id(self._log.path, self._log.fmt, now.segment, files.now_us())
        if new != now.segment + 1:
            self._log.directory.delete(now.segment + 1)  # of a roll that was cut short on the day before
        self._log.directory.make(new, now.next, self._log.directory.begin_after(now.segment, now.end))
        list_rolled(self._log.directory, control, self._log.manifest, rolled_info(self._log.directory, now))
        control.roll(new, now.next, self._log.fmt.HEADER_BYTES, now.next, self._log.directory.prepared(now.next))
        self._attach(control, control.active())

    def append_batch(self, payloads: list[kernel.Buffer] | tuple[kernel.Buffer, ...]) -> int:
        """Append many as one; the first sequence."""
        writer = self.writer
        try:
            return writer.append_batch(payloads)
        except BatchTooLong:
            return self._append_spanning(payloads)
        except OSError as error:
            files.tell(error, self._log.path)  # what the kernel says of its own writes has no path

    def append_arrow(
        self, offsets: kernel.Buffer, wide: bool, values: kernel.Buffer | None, start: int, count: int
    ) -> int:
        """Append `count` values of an Arrow binary array as one batch; the first sequence."""
        writer = self.writer
        try:
            return writer.append_arrow(offsets, wide, values, start, count)
        except BatchTooLong:
            ends = memoryview(offsets).cast("B").cast("q" if wide else "i")
            room = memoryview(values if values is not None else b"").cast("B")
            return self._append_spanning([room[ends[i] : ends[i + 1]] for i in range(start, start + count)])
        except OSError as error:
            files.tell(error, self._log.path)  # what the kernel says of its own writes has no path

    def _append_spanning(self, payloads: list[kernel.Buffer] | tuple[kernel.Buffer, ...]) -> int:
        """Append a batch that is larger than a file: it begins in a new one."""
        sizes = [memoryview(payload).nbytes + self._log.fmt.SPEC.overhead for payload in payloads]
        if max(sizes) > self._log.directory.capacity:
            self._refuse(max(sizes))
        with self.growing, self._log.locked() as control:
            self._log.check_not_closing()
            if control.poison:
                raise self._log.failed(control.poison)
            now = control.active()
            if now.next > now.base:
                self.go_on(control, now)
            else:
                self.stand_on(control, now)
            assert self.segment is not None
            us = max(files.now_us(), control.last_us)
            span.append(self._log.directory, control, self._log.manifest, self.segment, payloads, sizes, us)
            self.mirror_end()
        self._log.on_work()
        return now.next

    def wait_for_growth(self) -> None:
        """Until those are done who make room in a segment that was left meanwhile: what they add, nobody would give back."""
        with self.growing:
            pass

    def take_synced(self, segment_id: int) -> bool:
        """Syncs are the log's, and not counted by segment."""
        return False

    # ---- letting go ----

    def close_segment(self) -> None:
        """Close the files, after `writer.detach`; nobody works ahead in them meanwhile."""
        with self.growing:
            self._close_segment()

    def _close_segment(self) -> None:
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def let_go(self) -> None:
        """When nobody is at work in the files: neither one who makes room, nor one who appends. A log that is poisoned is closed while others
        still are. In a forked child nobody is, and the locks are the parent's."""
        self.growing.close()
        if self._log.inherited:
            self.writer.stop(_refusing(self._log))
        else:
            self._page.lock()  # without looking for what others left half done: that is for whoever opens it next
            try:
                self.writer.stop(_refusing(self._log))
            finally:
                self._page.unlock()
        self._close_segment()
        if self.ahead_fd >= 0:
            fd, self.ahead_fd = self.ahead_fd, -1
            files.close(fd)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """What the system says of a log's files while it is appended to, as errors of ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise FilesMissing(
            f"{error.filename or path}: it was removed while the log is open; close the log in every process, restore its files from "
            "a copy, then open it again"
        ) from error
    except OSError as error:
        files.tell(error, path)


def _refusing(log: Owner) -> Callable[[int, int, int], None]:
    """What an append that comes after the close is told. Without the write path, which would keep its writer, and with it the
    page."""

    def refuse(code: int, need_bytes: int, records: int) -> None:
        log.writable()
        raise LogClosed(f"{log.path}: this log object was closed; open the log again")

    return refuse
