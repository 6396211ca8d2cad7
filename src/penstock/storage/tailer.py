"""`Tailer`: reading a log in order, from anywhere in it, with a position that can be kept by name.

What `Queue.tailer` gives. One per thread; it holds no lock, and only the file it stands in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from penstock.errors import PenstockError, RecordGone
from penstock.kernel import Message
from penstock.options import whole_number
from penstock.storage.arrow import read_arrow
from penstock.storage.aside import aside
from penstock.storage.closable import Closable
from penstock.storage.damage import Loss
from penstock.storage.log import Log
from penstock.storage.reader import BackwardReader, LogReader, OnCorrupt, place_kept

if TYPE_CHECKING:
    import pyarrow

At = Literal["start", "end"] | int | datetime
_ASYNC_NAP_S = 0.5


class Tailer(Closable):
    """Reads a log in order. One per thread."""

    def __init__(
        self, log: Log, name: str | None, at: At | None, direction: str, on_corrupt: OnCorrupt, *, owner: object
    ) -> None:
        if direction not in ("forward", "backward"):
            raise ValueError(f'direction must be "forward" or "backward", not {direction!r}')
        if name is not None and direction == "backward":
            raise ValueError("a named tailer reads forward; leave the name out to read backward")
        self.name = name
        self._owner = owner  # which would close itself if nobody held it
        self._log = log
        self._reader = LogReader(log, on_corrupt)
        self._backward: BackwardReader | None = None
        if direction == "backward":
            self._backward = BackwardReader(self._reader, 0)
        stored = place_kept(log, name) if name is not None else None
        self._start(at if stored is None else stored)
        if name is not None and stored is None and not log.read_only:
            self._hold(name)

    def _hold(self, name: str) -> None:
        """A new name: from now on retention keeps what it has not passed."""
        position = self._log.hold(name, self.position)
        if position != self.position:  # retention was faster
            self.seek(position)

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
        sequence = whole_number("sequence", sequence)
        if self._backward is None:
            self._reader.seek(sequence)
            return
        if not self._log.first_sequence - 1 <= sequence <= self._log.next_sequence:
            self._reader.seek(sequence)  # says why not
        self._backward.seek(min(sequence, self._log.next_sequence - 1))

    def seek_time(self, when: datetime) -> None:
        """Go to the first record appended at `when` or later (backwards: the last one before that)."""
        if not isinstance(when, datetime):
            raise TypeError(f"when must be a datetime, such as datetime.now(UTC), not {when!r}")
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
            raise ValueError("a tailer without a name has nowhere to keep its position; give it one")
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
        if self._backward is not None:
            return iter(self._backward.read, None)
        return self._reader.records.over(self)

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
                await aside(self._reader.wait, _ASYNC_NAP_S)
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
        return self._reader.read_batch(n)

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

    def __repr__(self) -> str:
        return f"Tailer({str(self._log.path)!r}, name={self.name!r}, position={self.position})"
