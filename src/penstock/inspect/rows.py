"""Records of logs of any format as rows, from anywhere in them: up to where they end now, and on from there as they come.

Those of several logs, or partitions, are given in the order of their times; those that come later in the order in which they are
found. A journal's checkpoint records are no rows. Memory holds a few hundred records of each log, whatever their number.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from penstock.errors import InvalidOption, PenstockError, RecordGone
from penstock.formats import journal
from penstock.inspect import Part, View
from penstock.storage.closable import Closable
from penstock.storage.damage import Loss
from penstock.storage.merged import wait_for_any
from penstock.storage.reader import LogReader, OnCorrupt
from penstock.times import EPOCH, utc

T = TypeVar("T")
Bound = int | datetime  # an offset, or a time
_MOST: Final = 512  # records that are taken at a time
_LOOK_S: Final = 1.0  # how soon a journal's next session is noticed, or a new partition


class Row(NamedTuple):
    """One record."""

    part: Part
    offset: int
    timestamp_us: int | None
    payload: bytes

    @property
    def timestamp(self) -> datetime | None:
        return utc(self.timestamp_us)


class Rows(Closable):
    """The rows of some logs. Not thread-safe."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        start: Bound | None = None,
        end: Bound | None = None,
        last: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        """From `start` (what is no longer there is left out) to before `end`; of these the `last` so many."""
        self._end = end
        self._last = last
        self._on_corrupt: OnCorrupt = on_corrupt
        with ExitStack() as stack:
            self._of = [stack.enter_context(_OfOne(part, on_corrupt)) for part in parts]
            for one in self._of:
                one.begin(start)
            self._stack = stack.pop_all()

    @property
    def parts(self) -> list[Part]:
        return [one.part for one in self._of]

    @property
    def losses(self) -> dict[Part, list[Loss]]:
        """What was stepped over."""
        return {one.part: one.losses for one in self._of if one.losses}

    def count(self) -> int:
        """How many records there are from the start to where the logs end now; about, as some may be no rows."""
        return sum(max(0, one.view.end - one.position) for one in self._of)

    def now(self) -> Iterator[Row]:
        """The rows up to where the logs end now."""
        if self._last is not None:
            return iter(self._last_ones(self._last))
        return heapq.merge(*(one.rows(one.view.end, self._end) for one in self._of), key=_time)

    def _last_ones(self, count: int) -> list[Row]:
        found = heapq.merge(*(one.last(count, self._end) for one in self._of), key=_time)
        return list(found)[-count:] if count else []

    def follow(self, find: Callable[[], Sequence[Part]] = tuple) -> Iterator[list[Row]]:
        """The rows behind those, some at a time, and all of logs and partitions that `find` has more; waits for more, for ever."""
        looked_s = time.monotonic()
        while True:
            found = [rows for one in self._of if (rows := one.batch(_MOST))]
            yield from found
            if not found and not any(one.go_on() for one in self._of):
                wait_for_any([one.reader for one in self._of], _LOOK_S)
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                self._take_up(find())

    def _take_up(self, parts: Sequence[Part]) -> None:
        known = set(self.parts)
        for part in parts:
            if part not in known:
                one = self._stack.enter_context(_OfOne(part, self._on_corrupt))
                one.begin(None)
                self._of.append(one)

    def close(self) -> None:
        self._stack.close()


def _time(row: Row) -> int:
    """What rows of several logs are ordered by; each log's own stay in their order."""
    return row.timestamp_us or 0


class _OfOne(Closable):
    """The rows of one log."""

    def __init__(self, part: Part, on_corrupt: OnCorrupt) -> None:
        self.part = part
        self._on_corrupt: OnCorrupt = on_corrupt
        self._told: list[Loss] = []
        self._open()

    def _open(self) -> None:
        self.view: View = self.part.open()
        self._readers = [LogReader(log, self._on_corrupt) for log in self.view.logs]
        self._which = 0

    @property
    def reader(self) -> LogReader:
        return self._readers[self._which]

    @property
    def position(self) -> int:
        return self.reader.position

    @property
    def losses(self) -> list[Loss]:
        return [*self._told, *(loss for reader in self._readers for loss in reader.losses)]

    # ---- where it begins ----

    def begin(self, start: Bound | None) -> None:
        self._steadily(lambda: self._begin(start), 0)

    def _begin(self, start: Bound | None) -> None:
        if isinstance(start, datetime):
            self._seek_time(round((start - EPOCH).total_seconds() * 1e6))
            return
        if start is not None and start > self.view.end:
            raise InvalidOption(f"{self.part.path}: offset {start} is not written yet; the next one is {self.view.end}")
        self.seek(start or 0)

    def seek(self, offset: int) -> None:
        """Stand before a record, or the oldest if that is no longer there."""
        while True:
            first = self.view.first
            at = max(offset, first)
            self._which = max((i for i, log in enumerate(self.view.logs) if log.first_sequence <= at), default=0)
            try:
                self.reader.seek(at)
                return
            except RecordGone:  # retention was faster
                if self.view.first == first:
                    raise

    def _seek_time(self, us: int) -> None:
        for i, reader in enumerate(self._readers):
            self._which = i
            reader.seek_time(us)
            if reader.position < reader.log.next_sequence:
                return

    # ---- reading ----

    def batch(self, most: int) -> list[Row]:
        """Up to `most` rows; none only at the end."""
        return self._steadily(lambda: self._batch(most), self.position)

    def _batch(self, most: int) -> list[Row]:
        while True:
            rows, read = self._data(most) if self.part.format == "journal" else self._all(most)
            if rows:
                return rows
            if not read:
                if self._which + 1 == len(self._readers):
                    return []
                self._which += 1
                self.reader.seek(self.reader.log.first_sequence)

    def _all(self, most: int) -> tuple[list[Row], int]:
        found = self.reader.read_batch(most)
        return [Row(self.part, m.sequence, m.timestamp_us, m.payload) for m in found], len(found)

    def _data(self, most: int) -> tuple[list[Row], int]:
        """Of a journal, with how many records were read in all."""
        reader = self.reader
        kind, payloads = reader.records.read_run(most)
        if kind != journal.DATA:
            return [], len(payloads)
        first, seg = reader.position - len(payloads), reader.segment
        times = [seg.times.us(first + i - seg.base) or None for i in range(len(payloads))]
        return [Row(self.part, first + i, times[i], p) for i, p in enumerate(payloads)], len(payloads)

    def rows(self, stop: int, end: Bound | None) -> Iterator[Row]:
        """The rows from here to before the offset `stop`, and before `end`."""
        stop = min(stop, end) if isinstance(end, int) else stop
        until_us = round((end - EPOCH).total_seconds() * 1e6) if isinstance(end, datetime) else None
        while self.position < stop or self._which + 1 < len(self._readers):
            found = self.batch(max(1, min(_MOST, stop - self.position)))
            for row in found:
                if row.offset >= stop or (until_us is not None and (row.timestamp_us or 0) >= until_us):
                    return
                yield row
            if not found:
                return

    def last(self, count: int, end: Bound | None) -> list[Row]:
        """The last so many rows; it stands behind them then."""
        low = self.position
        return self._steadily(lambda: self._last(low, count, end), low)

    def _last(self, low: int, count: int, end: Bound | None) -> list[Row]:
        """Some records are no rows, so it may look further and further back."""
        stop, back, told = self.view.end, max(1, count), len(self.losses)
        if isinstance(end, int):
            stop = max(low, min(stop, end))
        while True:
            start = max(low, stop - back)
            self.seek(start)
            found = list(self.rows(stop, end))[-count:] if count else []
            if len(found) >= count or start <= max(low, self.view.first):
                self.seek(stop)
                return found
            back *= 2
            self._reopen(low, told)  # what it steps over comes again

    # ---- as it goes on ----

    def go_on(self) -> bool:
        """Whether a journal was opened anew, which puts its files elsewhere, and is now read from where this stands."""
        if not self.view.moved:
            return False
        self._reopen(self.position, len(self.losses))
        return True

    def _steadily(self, read: Callable[[], T], at: int) -> T:
        """What is read; if such a move came between, once more, as one who stands at `at`. What seemed lost then was not."""
        while True:
            told = len(self.losses)
            try:
                found = read()
                if len(self.losses) == told or not self.view.moved:
                    return found
            except (PenstockError, OSError):
                if not self.view.moved:
                    raise
            self._reopen(at, told)

    def _reopen(self, at: int, told: int) -> None:
        """Stand at `at` anew. Only so many of the losses are so."""
        self._told = self.losses[:told]
        while True:
            self.close()
            self._open()
            try:
                self.seek(min(at, self.view.end))
                return
            except (PenstockError, OSError):
                if not self.view.moved:
                    raise

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.view.close()
