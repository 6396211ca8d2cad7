"""`Journal`: records between checkpoints, so that a program can bring back its state after it died.

Policy over `storage.log`: which records are whose group, which files are still needed, and how earlier sessions are walked.
Every open begins a session of its own; what earlier ones left is set aside (`storage.sessions`) and read from there.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsFloat

from penstock import kernel
from penstock.errors import (
    DiskFull,
    InvalidCheck,
    InvalidPayload,
    LogBusy,
    PenstockError,
    RecordGone,
    RecordsLost,
    RecoveryUnfinished,
    SyncFailed,
)
from penstock.formats import journal as fmt
from penstock.formats.journal import CHECKPOINT, DATA, MAX_FILE_BYTES, MAX_PAYLOAD_BYTES, Checkpoints
from penstock.kernel import Buffer, Record
from penstock.options import INDEX_INTERVAL, JOURNAL_BUFFER_BYTES, MAX_NUMBER, Flush, Roll
from penstock.storage import bulk, sessions
from penstock.storage.aside import aside
from penstock.storage.buffered import Buffering
from penstock.storage.closable import AsyncClosable, Closing
from penstock.storage.damage import Loss
from penstock.storage.directory import First
from penstock.storage.dropping import close_dropped
from penstock.storage.holder import Holder
from penstock.storage.janitor import Janitor
from penstock.storage.ledger import Ledger
from penstock.storage.listed import listed
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.promise import Bell, Promise
from penstock.storage.reader import OnCorrupt
from penstock.storage.retention import retire
from penstock.storage.session import CHECKPOINT_BYTES, Session
from penstock.storage.settings import Settings, directory_at, settle
from penstock.storage.weakly import weakly

_MANY: Final = 1 << 62
_TIDY_S: Final = 1.0  # how long the background waits for the disk before it looks at files


def too_large(path: Path, size: int) -> InvalidPayload:
    """What whoever appends a record of more than MAX_PAYLOAD_BYTES is told."""
    return InvalidPayload(f"{path}: a record of {size} bytes; at most {MAX_PAYLOAD_BYTES} fit, append it in parts")


class Appended(Promise):
    """What `append` gives: done when the record is on the disk."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> None:
        """Return when the record is on the disk; raise what kept it from that, or TimeoutError."""
        self._keep(timeout_s)

    def __await__(self) -> Generator[Any, None, None]:
        return self._kept()


class Checkpoint(int):
    """The number of a checkpoint, which can be waited for: `result()` or `await` return it when it is on the disk."""

    _promise: Promise | None = None  # None: it was there already

    def done(self) -> bool:
        """Whether it is on the disk, or has failed."""
        return self._promise is None or self._promise.done()

    def result(self, timeout_s: float | None = None) -> int:
        """The number, when the checkpoint is on the disk; raises what kept it from that, or TimeoutError."""
        if self._promise is not None:
            self._promise._keep(timeout_s)
        return int(self)

    def __await__(self) -> Generator[Any, None, int]:
        if self._promise is not None:
            yield from self._promise._kept()
        return int(self)


class _Change(NamedTuple):
    """A checkpoint record on its way to the disk: what holds when it is there, and which checkpoint it registers, or 0."""

    promise: Promise
    place: int
    state: Checkpoints
    registers: int


class Journal(AsyncClosable):
    """A journal in a directory. Threads may share it; one process at a time may open it.

    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> with Journal(path) as j:
    ...     _ = j.append(b"set x = 1")
    ...     j.checkpoint().result()
    1
    >>> with Journal(path) as j:
    ...     [(r.payload, r.group, r.complete) for r in j.recovered()]
    [(b'set x = 1', 1, True)]
    """

    _log: Log | None = None  # of the class: __del__ looks at it also when __init__ was never entered

    def __init__(
        self, path: str | os.PathLike[str], *, buffer_bytes: int = JOURNAL_BUFFER_BYTES, linger_s: float = 0.0
    ) -> None:
        """Open the journal at `path`, creating it if it is not there.

        `buffer_bytes` is how much may be appended and not yet on the disk. `linger_s` is how long the first record of a batch
        waits for more: a batch is larger then, and each of its records later.
        """
        self.path = directory_at(path)
        # First of all: an open that fails later has begun a session, and set the last one aside.
        if not isinstance(buffer_bytes, int) or not 1 <= buffer_bytes <= MAX_NUMBER:
            raise ValueError(f"buffer_bytes must be 1 to {MAX_NUMBER}, not {buffer_bytes!r}")
        if not isinstance(linger_s, SupportsFloat) or not float(linger_s) >= 0:
            raise ValueError(f"linger_s must be a number from 0 on, not {linger_s!r}")
        self._holder: Holder | None = None
        self._lock = threading.Lock()  # of what is registered and retired, and the order in which that is written
        self._turns = Closing()
        self._forgetting = threading.Lock()  # while what was walked over goes
        self._grown = False  # data came since the last checkpoint was registered
        self._lost = 0  # records of batches that failed, as far as was told, or as their own promises tell
        self._changes: deque[_Change] = deque()  # checkpoint records on their way to the disk
        self._left_out: set[int] = set()  # numbers whose records failed when the next one's were made already
        self._registering: Promise | None = None  # of the checkpoint that was registered last, if in this session
        self._retiring: Promise | None = None  # what says that the last group was retired
        self._marks: deque[tuple[int, int]] = deque()  # (number, sequence) of this session's checkpoints not retired
        self._retired_at = -1  # the sequence of the last one that is: data before it is not needed
        self._wanted = 0  # until this one is retired, as far as known, no file can go
        self.losses: list[Loss] = []  # what the walk stepped over
        self._sessions: list[Session] = []
        try:
            settle(self.path, fmt, {}, {}, _no_settings, read_only=False)
            self._holder = Holder(self.path, "journal", readable=False)
            state = Checkpoints(0, 0)
            for place in sessions.set_aside(self.path, fmt):
                self._sessions.append(Session(place, state))
                state = self._sessions[-1].state
            self._written = state  # as the disk has it
            self._checked, self._current = state  # when all that is on its way has arrived
            self._recovered_to = state.current  # groups up to here are of earlier sessions
            self._walked = not self._sessions
            self._janitor = Janitor(Flush.none(), weakly(self._tidy))
            beginning = _Beginning(state)
            self._log = Log(
                self.path,
                fmt,
                file_size=MAX_FILE_BYTES,
                interval=INDEX_INTERVAL,
                roll=Roll(),
                sole=True,
                on_work=self._janitor.wake,
                buffering=Buffering(_MANY if linger_s else 1, linger_s, buffer_bytes),
                begin_with=beginning,
                first=First(
                    max((s.last_file for s in self._sessions), default=-1) + 1,
                    self._sessions[-1].next_sequence if self._sessions else 0,
                ),
            )
        except BaseException:
            self._let_go()
            raise
        self._path = self._log.buffered
        beginning.appends = self._path.appends
        self._bell = Bell(self._path)
        self._append = self._path.appends.append
        self._janitor.serve(self._log)
        try:
            if self._sessions and not self._has_unwalked():
                with suppress(OSError):  # it can wait: the walk does it too, and so does closing
                    self._finish_walk()
        except BaseException:
            self.close()
            raise

    # ---- appending ----

    def append(self, payload: Buffer, timeout_s: float | None = None) -> Appended:
        """Append a record; returns at once, with a promise that is kept when the record is on the disk.

        The payload is copied. When `buffer_bytes` of records wait, so does this, at most `timeout_s`; then it raises
        BufferFull.
        """
        if isinstance(payload, bytes) and len(payload) > MAX_PAYLOAD_BYTES:
            raise too_large(self.path, len(payload))
        try:
            batch, _ = self._append(payload if isinstance(payload, bytes) else self._flat(payload), DATA, timeout_s)
        except (OSError, ValueError) as error:
            raise self._path.explained(error) from None
        self._grown = True
        return Appended(self._path, self._bell, batch)

    def append_nowait(self, payload: Buffer) -> Appended:
        """`append` that raises BufferFull rather than wait."""
        return self.append(payload, 0)

    def append_many(self, payloads: Sequence[Buffer], timeout_s: float | None = None) -> Appended:
        """Append records that are on the disk together: after a crash all of them are there, or none, where that can be told.

        At most 4 MiB in all.
        """
        payloads = listed("append_many", payloads)
        for payload in payloads:
            if not isinstance(payload, bytes):
                self._flat(payload)
            elif len(payload) > MAX_PAYLOAD_BYTES:
                raise too_large(self.path, len(payload))
        try:
            batch, _ = self._path.appends.append_many(payloads, DATA, timeout_s)
        except (OSError, ValueError) as error:
            raise self._path.explained(error) from None
        self._grown = True
        return Appended(self._path, self._bell, batch)

    def _flat(self, payload: Buffer) -> Buffer:
        with suppress(TypeError):  # the kernel says what it is not
            if memoryview(payload).nbytes > MAX_PAYLOAD_BYTES:
                raise too_large(self.path, memoryview(payload).nbytes)
        return payload

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything appended so far is on the disk."""
        self._open_log().sync(timeout_s)

    # ---- checkpoints ----

    @property
    def first_unchecked(self) -> int:
        """The oldest checkpoint that is not retired; `current + 1` when all are."""
        self._check_here()
        with self._lock:
            self._settle()
            return self._checked + 1

    @property
    def current(self) -> int:
        """The checkpoint that was registered last; 0 before the first. Records appended now belong to the next one."""
        self._check_here()
        with self._lock:
            self._settle()
            return self._current

    def _note_appended(self) -> None:
        """Records came in another way than by `append`: they are of the group that the next checkpoint completes."""
        self._grown = True

    def checkpoint(self) -> Checkpoint:
        """Register a checkpoint: the records since the last one are a complete group. Returns its number, which can be waited
        for. With no records since then nothing is registered, and the number is the last one's.

        Raises RecordsLost, once, if records could not be written since the last one: append them again first.
        """
        self._open_log()
        with self._lock:
            self._settle()
            self._tell_of_lost()
            if not self._grown:
                made = Checkpoint(self._current)
                made._promise = self._registering
                return made
            self._grown = False
            try:
                made = self._register_if_whole(Checkpoints(self._checked, self._current + 1), self._current + 1)
            except BaseException:
                self._grown = True
                raise
            self._registering = made._promise
            return made

    def check(self) -> Checkpoint:
        """Retire the oldest checkpoint, and with it the records of its group; returns its number. Files that have no others
        are deleted once that is on the disk."""
        self._open_log()
        with self._lock:
            self._settle()
            if self._checked >= self._current:
                walked = ", and those of earlier sessions when the walk ended" if self._recovered_to else ""
                raise InvalidCheck(
                    f"{self.path}: no checkpoint is left to retire: {self._checked} was the last{walked}; register one first"
                )
            number = self._oldest()
            made = self._register(Checkpoints(number, self._current), number)
            self._retiring = made._promise
        if number >= self._wanted:
            self._janitor.look_again()
        return made

    def _oldest(self) -> int:
        """The oldest checkpoint that is not retired."""
        number = self._checked + 1
        while number in self._left_out:
            number += 1
        return number

    def _register_if_whole(self, state: Checkpoints, number: int) -> Checkpoint:
        """Unless records are lost at this very moment: then the record may be written, and is taken back."""
        before = Checkpoints(self._checked, self._current)
        made = self._register(state, number)
        try:
            self._tell_of_lost()
        except RecordsLost:
            back = self._register(before, before.current)
            with suppress(PenstockError):  # until then a walk would leave out what was said to be retired
                self._wait_now(back)
            self._settle()
            raise
        return made

    def _wait_now(self, made: Checkpoint) -> None:
        """Until it is on the disk. `linger_s` is for those who append: who waits for this would wait for nothing."""
        with self._path.told():
            self._path.appends.flush()
        made.result()

    def _register(self, state: Checkpoints, number: int) -> Checkpoint:
        try:
            batch, place = self._append(fmt.pack_checkpoints(*state), CHECKPOINT)
        except (OSError, ValueError) as error:
            raise self._path.explained(error) from None
        made = Checkpoint(number)
        made._promise = Promise(self._path, self._bell, batch)
        registers = state.current if state.current > self._current else 0
        self._changes.append(_Change(made._promise, place, state, registers))
        self._checked, self._current = state
        return made

    def _settle(self) -> None:
        """Take in what became of checkpoint records: one that failed is as if it had not been asked for. With the lock."""
        failed = False
        while self._changes and self._changes[0].promise.done():
            change = self._changes.popleft()
            first = change.promise.first
            if first is None:
                failed = True
                self._lost += not isinstance(change.promise.exception(), SyncFailed)  # it is no record of the group's
                self._grown |= change.registers > 0
                continue
            self._written = change.state
            if change.registers:
                self._marks.append((change.registers, first + change.place))
        while self._marks and self._marks[0][0] <= self._written.checked:
            self._retired_at = self._marks.popleft()[1]
        if failed:
            self._checked, self._current = self._changes[-1].state if self._changes else self._written
            self._registering = None
            number = self._written.current + 1
            self._left_out = {n for n in self._left_out if n < number}
            for change in self._changes:  # made before that was noticed, so their numbers are not the next ones
                if change.registers:
                    self._registering = change.promise
                    self._left_out.update(range(number, change.registers))
                    number = change.registers + 1

    def _tell_of_lost(self) -> None:
        """A group of which records were lost is not complete."""
        if self._path.appends.lost == self._lost:
            return
        with self._path.told():
            self._path.appends.flush()  # after a failed sync this says so, every time
        for change in self._changes:  # their records are counted, too, as soon as one before them has failed
            with suppress(PenstockError):
                change.promise._keep()
        self._settle()
        if lost := self._path.appends.lost - self._lost:
            self._lost += lost
            raise RecordsLost(
                f"{self.path}: {lost} records that were appended could not be written, so their group is not complete; "
                "append them again, then register the checkpoint"
            )

    # ---- which files are needed ----

    def _tidy(self, log: Log) -> None:
        """Delete files that have no records of a group that is not retired. In the background."""
        if not self._walked:
            return  # the numbers of what is left must follow those of earlier sessions
        sessions.sweep(self.path)
        if self._retiring is not None:
            try:
                self._retiring._keep(_TIDY_S)
            except TimeoutError:
                self._janitor.look_again()
            except PenstockError:
                pass  # whoever retired it is told
        with self._lock:
            self._settle()
            if self._written.checked < self._wanted:
                return
        active = log.active().segment
        for info in sorted((s for s in log.finished().values() if s.id < active), key=lambda s: s.id):
            if not info.sealed:
                return
            last = info.next - 1 if info.next <= self._retired_at else self._last_data(log, info)
            if last > self._retired_at:
                self._want(last)
                return
            if not retire(log, info):
                return

    def _want(self, last: int) -> None:
        """No file can go before the group of a record is retired."""
        with self._lock:
            after = [number for number, at in self._marks if at > last]
            after += [change.registers for change in self._changes if change.registers]
            self._wanted = min(after, default=self._current + 1)

    def _last_data(self, log: Log, info: SegmentInfo) -> int:
        """The sequence of the last record of a finished file that is no checkpoint record, as the companion proves."""
        seg = log.directory.read(info.id, info.base, listed=True)
        at, place = info.end, info.count
        while place and at <= len(seg.data):
            frame = bytes(seg.data[max(0, at - CHECKPOINT_BYTES) : at])
            if fmt.read_head(frame) != (CHECKPOINT, 16) or kernel.crc64(frame) != seg.times.sum(place - 1):
                break
            at, place = at - CHECKPOINT_BYTES, place - 1
        return info.base + place - 1

    # ---- the recovery walk ----

    def recovered(self, on_corrupt: OnCorrupt = "raise") -> Recovered:
        """Every record of every group that is not retired, oldest first, from all earlier sessions that were not walked to
        their end. `for` and `async for` can go over it, while new records are appended.

        When the walk is finished, and everything appended until then is on the disk, what was walked over is deleted, and its
        groups count as retired: append again what is still needed. If it is not finished, the next open gives it all again.
        `on_corrupt="skip"` steps over damage and lists it in `losses`.
        """
        self._open_log()
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f'on_corrupt must be "raise" or "skip", not {on_corrupt!r}')
        return Recovered(self, on_corrupt)

    def _walk(self, on_corrupt: OnCorrupt, losses: list[Loss]) -> Iterator[list[Record]]:
        """The records, some at a time."""
        with self._lock:
            self._settle()
            checked = self._written.checked
        for number, session in enumerate(self._sessions if not self._walked else ()):
            try:
                for group, payloads in session.walk(checked, on_corrupt, losses):
                    self._check_walking()
                    complete = group <= session.state.current
                    yield kernel.records(payloads, group, complete, number)
                self._check_walking()
            except (PenstockError, OSError):
                self._check_walking()  # files that went with the end of another walk are not missing
                raise

    def _check_walking(self) -> None:
        """Raise what is true if a walk that has begun cannot go on."""
        self._open_log()
        with self._forgetting:
            if self._walked:
                raise RecordGone(
                    f"{self.path}: another walk has come to its end, so what both went over is retired and deleted; go on with what "
                    "that one gave, and walk once at a time"
                )

    def _finish_walk(self) -> None:
        """The walk has come to its end: what it went over goes, once what was appended meanwhile is on the disk."""
        # What was walked over tells whether a batch that was cut short is in the log: if that is not known it comes again at the next open.
        settled = False
        with suppress(LogBusy):
            settled = not self._walked and Ledger(self._open_log(), self._spans).settle()
        if not settled:
            return
        with self._lock:
            if self._walked:
                return
            self._settle()
            self._tell_of_lost()
            retired = max(self._checked, self._recovered_to)
            # What was lost was perhaps appended again from here: then this is still needed.
            made = self._register_if_whole(Checkpoints(retired, self._current), retired)
        self._wait_now(made)
        with self._forgetting:
            sessions.forget(self.path)
            self._walked = True
        for session in self._sessions:
            session.close()
        self._sessions = []
        self._janitor.look_again()

    def _spans(self) -> list[bulk.Span]:
        """All segments that may hold a batch, of earlier sessions too."""
        found = list[bulk.Span]()
        for session in self._sessions:
            with session.reading() as log:
                found += bulk.spans(log)
        return found + bulk.spans(self._open_log())

    def _has_unwalked(self) -> bool:
        """Whether the walk, which did not come to its end, would give anything, or find any damage."""
        with suppress(PenstockError, OSError):  # one that cannot be told is as if it would
            return any(True for _ in self._walk("raise", []))
        return True

    # ---- closing ----

    @property
    def closed(self) -> bool:
        """Whether the journal was closed."""
        return self._log is None or self._log.closed

    def close(self) -> None:
        """Write what there is and close. A walk that was begun or left undone is told by a RecoveryUnfinished warning."""
        log = self._log
        if log is None:
            return
        if log.inherited:
            log.close()
            self._let_go()
            return
        unwalked = False

        def close() -> None:
            nonlocal unwalked
            if log.closed:
                return
            unwalked = not self._walked and self._has_unwalked()
            try:
                if not unwalked:
                    with suppress(DiskFull, RecordsLost):  # it can wait: the next open sees that nothing is needed
                        self._finish_walk()
            finally:
                self._close(log)

        self._turns.once(close)
        if unwalked:
            warnings.warn(
                f"{self.path}: the records of earlier sessions were not walked to their end; they stay, and come again at the "
                "next open",
                RecoveryUnfinished,
                stacklevel=2,
            )

    def _close(self, log: Log) -> None:
        try:
            self._janitor.stop()
            with suppress(OSError, PenstockError), log.syncing.untold():  # closing the log says so again
                log.sync()
                log.seal_finished()
                self._tidy(log)  # so that the next open need not look at it
            log.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for session in self._sessions:
            session.close()
        if self._holder is not None:
            self._holder.close()

    def _check_here(self) -> None:
        """Before a lock is taken: in a forked child a thread may hold it that is not there."""
        if self._log is not None and self._log.inherited:
            self._log.check_open()

    def _open_log(self) -> Log:
        assert self._log is not None
        self._log.check_open()
        return self._log

    def __del__(self) -> None:
        if self._log is not None and not self._log.closed and not self._log.inherited:
            warnings.warn(f"unclosed journal {str(self.path)!r}", ResourceWarning, stacklevel=2)
            close_dropped(self.path, self.close, self._janitor)

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}{', closed' if self.closed else ''})"


class _Beginning:
    """The frame that a new file begins with: how far the journal had come when the last record before it was written.

    Threads have it, so it must not keep a forgotten journal alive.
    """

    def __init__(self, first: Checkpoints) -> None:
        self._first = fmt.pack_checkpoints(*first)
        self.appends: kernel.Buffered | None = None

    def __call__(self) -> bytes:
        state = self.appends.state if self.appends is not None else b""
        return kernel.encode(fmt.SPEC, state or self._first, CHECKPOINT)


class Recovered:
    """What `Journal.recovered` gives: each `for` or `async for` over it walks from the beginning."""

    def __init__(self, journal: Journal, on_corrupt: OnCorrupt) -> None:
        self._journal = journal
        self._on_corrupt: OnCorrupt = on_corrupt

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._walk())

    def _walk(self) -> Iterator[list[Record]]:
        self._journal.losses = losses = list[Loss]()
        yield from self._journal._walk(self._on_corrupt, losses)
        self._journal._finish_walk()

    async def __aiter__(self) -> AsyncIterator[Record]:
        self._journal.losses = losses = list[Loss]()
        walk = self._journal._walk(self._on_corrupt, losses)
        while (records := await aside(next, walk, None)) is not None:
            for record in records:
                yield record
        await aside(self._journal._finish_walk)


def _no_settings(settings: Settings) -> Settings:
    """Nothing about a journal is fixed when it is made."""
    return {}
