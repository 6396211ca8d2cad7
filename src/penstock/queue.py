"""`Queue`: fast append and tail, by many processes at once, kept in dated files.

Policy over `storage.log`: which format, which options, how a tailer is used. Everything else is the engine's.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.errors import ReadOnly
from penstock.formats import queue as fmt
from penstock.kernel import Buffer
from penstock.options import (
    FILE_SIZE_BYTES,
    INDEX_INTERVAL,
    MAX_FILE_SIZE_BYTES,
    MAX_INDEX_INTERVAL,
    MIN_FILE_SIZE_BYTES,
    Flush,
    Retention,
    Roll,
)
from penstock.storage import retention as retire
from penstock.storage.arrow import arrow_buffers
from penstock.storage.closable import AsyncClosable
from penstock.storage.dropping import close_dropped
from penstock.storage.janitor import Janitor
from penstock.storage.listed import listed
from penstock.storage.log import Log
from penstock.storage.reader import OnCorrupt
from penstock.storage.report import OnProgress, Recovery
from penstock.storage.settings import Settings, directory_at, settle
from penstock.storage.syncing import telling_appended
from penstock.storage.tailer import At, Tailer
from penstock.storage.weakly import taken_out

if TYPE_CHECKING:
    import pyarrow

_TELL_EVERY_S: Final = 2.0
_DEFAULT: Final[Settings] = {"file_size": FILE_SIZE_BYTES, "index_interval": INDEX_INTERVAL}


class Appender:
    """A queue's `append` and `append_batch`, to hand to code that should do nothing else. Threads may share it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.append = queue.append
        queue._appenders.add(self)

    def append_batch(self, payloads: Sequence[Buffer] | pyarrow.Array) -> range:
        """See `Queue.append_batch`."""
        return self._queue.append_batch(payloads)


class Queue(AsyncClosable):
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
        verify_on_startup: bool | OnProgress | None = False,
        retention: Retention | None = None,
        read_only: bool = False,
    ) -> None:
        """Open the queue at `path`, creating it (unless `read_only`) if it is not there.

        `file_size` and `index_interval` are fixed when the queue is created. `roll`, `flush` and `retention` hold for this
        object. `verify_on_startup` checks every checksum of every file; `recovery` then says what it found. A function in
        place of True is told how far it is, as (bytes checked, bytes in all); True says so to the logger "penstock".
        """
        self.path = directory_at(path)
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()
        self._options = {
            "file_size": file_size,
            "roll": roll,
            "flush": flush,
            "index_interval": index_interval,
            "retention": retention,
            "read_only": read_only,
        }
        given = _checked({"file_size": file_size, "index_interval": index_interval})
        for name, policy, kind in (("roll", roll, Roll), ("flush", flush, Flush), ("retention", retention, Retention)):
            if policy is not None and not isinstance(policy, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, not {policy!r}")
        if not isinstance(verify_on_startup, bool | None) and not callable(verify_on_startup):
            raise TypeError(f"verify_on_startup must be True, False or a function, not {verify_on_startup!r}")
        flush = flush or Flush.none()
        kept = retention or Retention()
        tidy = (lambda log: retire.apply(log, kept)) if kept.bounded else None
        janitor = Janitor(flush, tidy, retire.every_s(kept))
        try:
            settings = settle(self.path, fmt, given, _DEFAULT, _checked, read_only=read_only)
            log = Log(
                self.path,
                fmt,
                file_size=settings["file_size"],
                interval=settings["index_interval"],
                roll=roll or Roll(),
                read_only=read_only,
                verify=_log_progress() if verify_on_startup is True else verify_on_startup or None,
                on_work=janitor.wake,
            )
        except OSError as error:
            if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise ReadOnly(
                f"{self.path} cannot be written ({os.strerror(error.errno)}: {error.filename}); check its owner and permissions, or "
                "open it with read_only=True"
            ) from error
        self._log = log
        self._flush_each = flush.kind == "each"
        if not read_only:
            self._janitor = janitor
            janitor.serve(log)
            if not self._flush_each:
                # The hot path: a bound method of the kernel's, without a Python frame in between.
                self.append = log.appender().append  # type: ignore[method-assign]

    # ---- appending ----

    def append(self, payload: Buffer) -> int:
        """Append one record and return its sequence.

        When it returns every process on this machine can read the record, and it survives the death of them all; with
        `Flush.each()` a power cut too. What its sync cannot do raises NotSynced or SyncFailed: then the record is in the log all the
        same, as `appended` of the error says.
        """
        log = self._open_log()
        sequence = log.appender().append(payload)
        if self._flush_each:
            with telling_appended(range(sequence, sequence + 1)):
                log.sync_to(sequence + 1)
        return sequence

    def append_batch(self, payloads: Sequence[Buffer] | pyarrow.Array) -> range:
        """Append many records as one, and return their sequences: all of them or none, after any crash, to any reader.

        `payloads` is a list of bytes-like objects, or a pyarrow binary or string array (or chunked array) without nulls. A sync
        that does not come about is told as by `append`.
        """
        log = self._open_log()
        arrow = arrow_buffers(payloads)
        many = listed("append_batch", payloads) if arrow is None else ()
        if len(payloads) == 0:
            return range(log.next_sequence, log.next_sequence)
        first = log.append_batch(many) if arrow is None else log.append_arrow(*arrow)
        sequences = range(first, first + len(payloads))
        if self._flush_each:
            with telling_appended(sequences):
                log.sync_to(sequences.stop)
        return sequences

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
        """Whether the queue was closed."""
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
        return Tailer(self._open_log(), name, at, direction, on_corrupt, owner=self)

    def cursors(self) -> dict[str, int]:
        """The committed positions of all named tailers."""
        return self._open_log().cursors.all()

    def forget(self, name: str) -> None:
        """Remove a named tailer's position; it no longer holds retention back."""
        log = self._open_log()
        log.appender()
        log.cursors.forget(name)
        if self._janitor is not None:
            self._janitor.look_again()

    # ---- closing ----

    def close(self) -> None:
        """Sync, give back unused disk, and close. Nothing appended is dropped."""
        if self._log is not None:
            self._log.syncing.check_interrupts_none()
        janitor = self._janitor
        if janitor is not None:
            janitor.stop()
            self._janitor = None
        try:
            if self._log is not None and not self._log.closed:
                self._log.close()
        finally:
            self.__dict__.pop("append", None)  # the kernel's, which holds the page
            for appender in taken_out(self._appenders):
                appender.append = self.append

    def _open_log(self) -> Log:
        assert self._log is not None
        self._log.check_open()
        return self._log

    def __del__(self) -> None:
        if self._janitor is not None and self._log is not None and not self._log.inherited:
            warnings.warn(f"unclosed queue {str(self.path)!r}", ResourceWarning, stacklevel=2)
            close_dropped(self.path, self.close, self._janitor)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, it is opened there anew."""
        return _open, (str(self.path), self._options)

    def __repr__(self) -> str:
        return f"Queue({str(self.path)!r}{', closed' if self.closed else ''})"


def _open(path: str, options: dict[str, Any]) -> Queue:
    return Queue(path, **options)


def _log_progress() -> OnProgress:
    """Says how far checking has come, to the logger, every few seconds."""
    logger, told_s = logging.getLogger("penstock"), time.monotonic()

    def tell(done_bytes: int, total_bytes: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _TELL_EVERY_S:
            told_s = time.monotonic()
            logger.info("checked %d of %d bytes (%.0f %%)", done_bytes, total_bytes, 100 * done_bytes / total_bytes)

    return tell


def _checked(settings: Settings) -> Settings:
    """The fixed settings among these that are given (not None), if they make sense."""
    file_size, interval = settings["file_size"], settings["index_interval"]
    if file_size is not None:
        whole = isinstance(file_size, int)
        if not whole or not MIN_FILE_SIZE_BYTES <= file_size <= MAX_FILE_SIZE_BYTES or file_size % 4096:
            raise ValueError(
                f"file_size must be a multiple of 4096 from {MIN_FILE_SIZE_BYTES} to {MAX_FILE_SIZE_BYTES}, not {file_size}"
            )
    if interval is not None and (not isinstance(interval, int) or not 1 <= interval <= MAX_INDEX_INTERVAL):
        raise ValueError(f"index_interval must be 1 to {MAX_INDEX_INTERVAL}, not {interval}")
    return {name: value for name, value in settings.items() if value is not None}
