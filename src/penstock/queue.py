"""`Queue`: fast append and tail, by many processes at once, kept in dated files.

Policy over `storage.log`: which format, which options, how a tailer is used. Everything else is the engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import operator
import os
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock.errors import LogNotFound, NotALog, PayloadTypeError, PenstockError, ReadOnly, RecordGone
from penstock.formats import queue as fmt
from penstock.kernel import Buffer, Message
from penstock.options import (
    FILE_SIZE_BYTES,
    INDEX_INTERVAL,
    MAX_FILE_SIZE_BYTES,
    MIN_FILE_SIZE_BYTES,
    Flush,
    Retention,
    Roll,
)
from penstock.storage import files, metadata
from penstock.storage.arrow import arrow_buffers, read_arrow
from penstock.storage.damage import Loss
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log, refuse_network
from penstock.storage.reader import BackwardReader, LogReader, OnCorrupt
from penstock.storage.recovery import Recovery, settings_of_files

if TYPE_CHECKING:
    import pyarrow

At = Literal["start", "end"] | int | datetime
_ASYNC_NAP_S = 0.5


class Appender:
    """A queue's `append` and `append_batch`, to hand to code that should do nothing else. Threads may share it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.append = queue.append

    def append_batch(self, payloads: Sequence[Buffer] | pyarrow.Array) -> range:
        """See `Queue.append_batch`."""
        return self._queue.append_batch(payloads)


class Queue:
    """A durable queue in a directory. Any number of processes and threads may append to it and read it.

    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> with Queue(path) as q:
    ...     q.append(b"hello")
    ...     [m.payload for m in q.tailer()]
    0
    [b'hello']
    """

    _janitor: Janitor | None = None  # of the class: __del__ looks at them also when __init__ was never entered
    _log: Log | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        file_size: int | None = None,
        roll: Roll | None = None,
        flush: Flush | None = None,
        index_interval: int | None = None,
        verify_on_startup: bool = False,
        retention: Retention | None = None,
        read_only: bool = False,
    ) -> None:
        """Open the queue at `path`, creating it (unless `read_only`) if it is not there.

        `file_size` and `index_interval` are fixed when the queue is created. `roll`, `flush` and `retention` hold for this
        object. `verify_on_startup` checks every checksum of every file; `recovery` then says what it found.
        """
        self.path = Path(path)
        self._options = {
            "file_size": file_size,
            "roll": roll,
            "flush": flush,
            "index_interval": index_interval,
            "retention": retention,
            "read_only": read_only,
        }
        given = _checked(file_size, index_interval)
        for name, policy, kind in (("roll", roll, Roll), ("flush", flush, Flush), ("retention", retention, Retention)):
            if policy is not None and not isinstance(policy, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, not {policy!r}")
        flush = flush or Flush.none()
        janitor = Janitor(flush, retention or Retention())
        try:
            settings = self._settle(given, read_only)
            log = Log(
                self.path,
                fmt,
                file_size=settings["file_size"],
                interval=settings["index_interval"],
                roll=roll or Roll(),
                read_only=read_only,
                verify=verify_on_startup,
                on_work=janitor.wake,
            )
        except OSError as error:
            if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise ReadOnly(f"{self.path} cannot be written ({error}); open it with read_only=True") from error
        self._log = log
        self._flush_each = flush.kind == "each"
        if not read_only:
            self._janitor = janitor
            janitor.serve(log)
            if not self._flush_each:
                # The hot path: a bound method of the kernel's, without a Python frame in between.
                assert log.writer is not None
                self.append = log.writer.append  # type: ignore[method-assign]

    def _settle(self, given: dict[str, Any], read_only: bool) -> dict[str, Any]:
        if self.path.exists() and not self.path.is_dir():
            raise NotALog(f"{self.path}: a file, not a directory; a queue is a directory of its own")
        above = next(p for p in (*self.path.absolute().parents, Path("/")) if p.exists())
        if not above.is_dir():
            raise NotALog(f"{above}: a file, so {self.path} cannot be a directory; choose another path")
        default = {"file_size": FILE_SIZE_BYTES, "index_interval": INDEX_INTERVAL}
        if read_only:
            if not self.path.is_dir():
                raise LogNotFound(f"{self.path}: no such directory; open the queue without read_only to create it")
            found = metadata.load(self.path)
            if found is not None:
                metadata.check(self.path, found, fmt.NAME, fmt.VERSION, given)
            return _sane(self.path, {**default, **given, **(found or {})})
        refuse_network(self.path)
        if self.path.is_dir() and metadata.load(self.path) is None:
            with contextlib.suppress(ValueError):
                default |= _checked(*settings_of_files(self.path, fmt))
        files.make_directories(self.path, Path(self.path.anchor or "."))
        return _sane(self.path, metadata.settle(self.path, fmt.NAME, fmt.VERSION, given, default))

    # ---- appending ----

    def append(self, payload: Buffer) -> int:
        """Append one record and return its sequence.

        When it returns every process on this machine can read the record, and it survives the death of them all; with
        `Flush.each()` a power cut too.
        """
        log = self._open_log()
        sequence = log.appender().append(payload)
        if self._flush_each:
            log.sync_to(sequence + 1)
        return sequence

    def append_batch(self, payloads: Sequence[Buffer] | pyarrow.Array) -> range:
        """Append many records as one, and return their sequences: all of them or none, after any crash, to any reader.

        `payloads` is a list of bytes-like objects, or a pyarrow binary or string array (or chunked array) without nulls.
        """
        log = self._open_log()
        if isinstance(payloads, str | bytes | bytearray | memoryview):
            raise PayloadTypeError(f"append_batch takes a list of payloads, not one {type(payloads).__name__}")
        arrow = arrow_buffers(payloads)
        if len(payloads) == 0:
            return range(log.next_sequence, log.next_sequence)
        if arrow is not None:
            first = log.append_arrow(*arrow)
        elif isinstance(payloads, list | tuple):
            first = log.append_batch(payloads)
        else:
            first = log.append_batch(list(payloads))
        if self._flush_each:
            log.sync_to(first + len(payloads))
        return range(first, first + len(payloads))

    def appender(self) -> Appender:
        """An object that can append and nothing else."""
        self._open_log().appender()
        return Appender(self)

    def sync(self) -> int:
        """Put everything appended so far on the disk; returns `durable_sequence`, the first sequence not covered."""
        return self._open_log().sync()

    # ---- facts ----

    @property
    def first_sequence(self) -> int:
        """The oldest record's sequence (`next_sequence` when the queue is empty)."""
        return self._open_log().first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence that the next record will have."""
        return self._open_log().next_sequence

    @property
    def durable_sequence(self) -> int:
        """Every record below this survives a power cut."""
        return self._open_log().durable_sequence

    @property
    def recovery(self) -> Recovery:
        """What opening found and did."""
        return self._open_log().recovery

    @property
    def closed(self) -> bool:
        return self._log is None or self._log.closed

    # ---- reading ----

    def tailer(
        self,
        name: str | None = None,
        at: At | None = None,
        direction: Literal["forward", "backward"] = "forward",
        on_corrupt: OnCorrupt = "raise",
    ) -> Tailer:
        """A reader of its own position.

        With a `name` the position is kept by `commit()`: a tailer of that name goes on there, in whatever process, and
        retention keeps what it has not passed. `at` is where a new one starts: "start" (the default; backwards, "end"),
        "end", a sequence, or a datetime. `on_corrupt="skip"` steps over damage and lists it in `losses`.
        """
        return Tailer(self, self._open_log(), name, at, direction, on_corrupt)

    def cursors(self) -> dict[str, int]:
        """The committed positions of all named tailers."""
        return self._open_log().cursors.all()

    def forget(self, name: str) -> None:
        """Remove a named tailer's position; it no longer holds retention back."""
        log = self._open_log()
        log.appender()
        log.cursors.forget(name)
        if self._janitor is not None:
            self._janitor.look_at_retention()

    # ---- closing ----

    def close(self) -> None:
        """Sync, give back unused disk, and close. Nothing appended is dropped."""
        if self._janitor is not None:
            self._janitor.stop()
            self._janitor = None
        if self._log is not None and not self._log.closed:
            self._log.close()

    async def aclose(self) -> None:
        """`close()` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def _open_log(self) -> Log:
        assert self._log is not None
        self._log.check_open()
        return self._log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._janitor is not None and self._log is not None and not self._log.inherited:
            warnings.warn(f"unclosed queue {str(self.path)!r}", ResourceWarning, stacklevel=2)
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, it is opened there anew."""
        return _open, (str(self.path), self._options)

    def __repr__(self) -> str:
        return f"Queue({str(self.path)!r}{', closed' if self.closed else ''})"


def _open(path: str, options: dict[str, Any]) -> Queue:
    return Queue(path, **options)


def _sane(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, if what metadata.json says can be."""
    try:
        _checked(settings["file_size"], settings["index_interval"])
    except (KeyError, ValueError) as error:
        raise NotALog(f"{path / metadata.FILE}: {error}; restore it from a copy") from error
    return settings


def _checked(file_size: int | None, index_interval: int | None) -> dict[str, Any]:
    """The fixed settings that were given, if they make sense."""
    given: dict[str, Any] = {}
    if file_size is not None:
        whole = isinstance(file_size, int)
        if not whole or not MIN_FILE_SIZE_BYTES <= file_size <= MAX_FILE_SIZE_BYTES or file_size % 4096:
            raise ValueError(
                f"file_size must be a multiple of 4096 from {MIN_FILE_SIZE_BYTES} to {MAX_FILE_SIZE_BYTES}, not {file_size}"
            )
        given["file_size"] = file_size
    if index_interval is not None:
        if not isinstance(index_interval, int) or not 1 <= index_interval <= 1 << 30:
            raise ValueError(f"index_interval must be 1 to {1 << 30}, not {index_interval}")
        given["index_interval"] = index_interval
    return given


class Tailer:
    """Reads a queue in order. One per thread; it holds no lock, and only the file it stands in."""

    def __init__(
        self, queue: Queue, log: Log, name: str | None, at: At | None, direction: str, on_corrupt: OnCorrupt
    ) -> None:
        if direction not in ("forward", "backward"):
            raise ValueError(f'direction must be "forward" or "backward", not {direction!r}')
        if name is not None and direction == "backward":
            raise ValueError("a named tailer reads forward; leave the name out to read backward")
        self.name = name
        self._queue = queue  # which would close itself if nobody held it
        self._log = log
        self._reader = LogReader(log, on_corrupt)
        self._backward: BackwardReader | None = None
        if direction == "backward":
            self._backward = BackwardReader(self._reader, 0)
        stored = log.cursors.load(name) if name is not None else None
        self._start(at if stored is None else max(stored, log.first_sequence))
        if name is not None and stored is None and not log.read_only:
            self.commit()  # from now on retention keeps what it has not passed

    def _start(self, at: At | None) -> None:
        if at is None:
            at = "end" if self._backward is not None else "start"
        if isinstance(at, datetime):
            self.seek_time(at)
        elif isinstance(at, str):
            if at not in ("start", "end"):
                raise ValueError(f'at must be "start", "end", a sequence or a datetime, not {at!r}')
            (self.to_start if at == "start" else self.to_end)()
        else:
            self.seek(at)

    # ---- position ----

    @property
    def position(self) -> int:
        """The sequence of the record that `read` gives next."""
        return self._backward.position if self._backward is not None else self._reader.position

    @property
    def losses(self) -> list[Loss]:
        """(first, last, reason) of every range that was stepped over."""
        return self._reader.losses

    def seek(self, sequence: int) -> None:
        """Go to a record; `next_sequence` is allowed, and stands for the end (backwards: the newest record)."""
        self._log.check_open()
        sequence = operator.index(sequence)
        if self._backward is None:
            self._reader.seek(sequence)
            return
        if not self._log.first_sequence - 1 <= sequence <= self._log.next_sequence:
            self._reader.seek(sequence)  # says why not
        self._backward.seek(min(sequence, self._log.next_sequence - 1))

    def seek_time(self, when: datetime) -> None:
        """Go to the first record appended at `when` or later (backwards: the last one before that)."""
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone; use datetime.now(UTC) or when.astimezone()")
        us = round((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
        self._reader.seek_time(us)
        if self._backward is not None:
            self._backward.seek(self._reader.position - 1)

    def to_start(self) -> None:
        """Go to the oldest record."""
        first = self._log.first_sequence
        while True:
            try:
                self.seek(first)
                return
            except RecordGone:  # retention was faster: there is another oldest one now
                first, gone = self._log.first_sequence, first
                if first == gone:
                    raise

    def to_end(self) -> None:
        """Go behind the newest record (backwards: to it)."""
        self.seek(self._log.next_sequence - (1 if self._backward is not None else 0))

    def commit(self) -> None:
        """Keep the position under the tailer's name, atomically, for the next one of that name."""
        if self.name is None:
            raise ValueError("a tailer without a name has nowhere to keep its position; use queue.tailer(name)")
        self._log.appender()
        self._log.cursors.store(self.name, self.position)

    # ---- reading ----

    def read(self, timeout_s: float | None = 0) -> Message | None:
        """The next record. At the end, 0 gives None at once, None waits for ever, and other times raise TimeoutError."""
        if self._backward is not None:
            return self._backward.read()
        message = self._reader.records.read()
        if message is not None or timeout_s == 0:
            return message
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while message is None:  # it may be woken for nothing, so the time counts from the call
            if not self._reader.wait(None if deadline is None else deadline - time.monotonic()):
                raise TimeoutError(f"{self._log.path}: nothing was appended for {timeout_s} s")
            message = self._reader.records.read()
        return message

    def __iter__(self) -> Iterator[Message]:
        """The records up to the end."""
        return iter(self._backward.read, None) if self._backward is not None else iter(self._reader.records)

    def follow(self) -> Iterator[Message]:
        """The records, waiting for more at the end."""
        self._forward_only("follow")
        while True:
            yield from self._reader.records
            self._reader.wait(None)

    async def afollow(self) -> AsyncIterator[Message]:
        """The records, waiting for more at the end without blocking the event loop."""
        self._forward_only("afollow")
        while True:
            message = self._reader.records.read()
            if message is None:
                await asyncio.to_thread(self._reader.wait, _ASYNC_NAP_S)
            else:
                yield message

    def read_batch(self, n: int) -> list[Message]:
        """Up to `n` records; fewer only at the end, or before a damaged one, at which the next call raises."""
        if self._backward is not None:
            out: list[Message] = []
            try:
                out.extend(m for _, m in zip(range(n), self, strict=False))
            except PenstockError:
                if not out:
                    raise
            return out
        start = self._reader.position
        try:
            return self._reader.records.read_batch(n)
        except PenstockError:
            done = self._reader.position - start
            if done <= 0:
                raise
            self._reader.seek(start)
            return self._reader.records.read_batch(done)

    def read_view(self) -> memoryview | None:
        """The next payload as a view into the mapped file, without a copy, valid while held; None at the end."""
        self._forward_only("read_view")
        span = self._reader.records.read_span()
        return memoryview(self._reader.segment.data)[span[0] : span[1]].toreadonly() if span else None

    def read_arrow(self, n: int) -> pyarrow.RecordBatch:
        """Up to `n` records as columns sequence, timestamp and payload; no rows at the end.

        Fewer than `n` when the payloads come to more than 32 MiB, so go on until there are no rows.
        """
        self._forward_only("read_arrow")
        return read_arrow(self._reader.records, n)

    def _forward_only(self, what: str) -> None:
        if self._backward is not None:
            raise ValueError(f"{what} reads forward; use read, read_batch or iteration to read backward")

    def close(self) -> None:
        """Let go of the file. Reading again needs a seek."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Tailer({str(self._log.path)!r}, name={self.name!r}, position={self.position})"
