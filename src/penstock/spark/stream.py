"""A streaming query: offsets, how much a trigger takes, and what may be forgotten.

Offset calls run in one process on the driver's side, reads in others, from a pickled copy. Nothing is held open between calls.
Offsets are `{log: {partition: offset of the next record, "us": {partition: time of the one before it}}}`; Spark compares them as text, so
keys are in order, and a time stays as long as its offset does. By it another log is told that was put in place of the one which was read:
its records were appended at other times. What went away while `failOnDataLoss` is false keeps its place: it may come back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import DataLost, InvalidOption, LogNotFound
from penstock.inspect import Part
from penstock.spark.history import History
from penstock.spark.marks import mark_of
from penstock.spark.options import LATEST, TIMES, ReadOptions, all_names, each_once
from penstock.spark.plan import (
    EVERYTHING,
    Bounds,
    Split,
    check_offsets,
    checked,
    key_of,
    pieces,
    splits,
    start_of,
)
from penstock.spark.scan import read_split

if TYPE_CHECKING:
    import pyarrow as pa

Ends = dict[Part, int]
_log: Final = logging.getLogger("penstock.spark")


class _Kept(NamedTuple):
    """What offsets say of a log's partition."""

    log: str  # as they call it
    partition: str
    part: Part | None  # what it is, if it is there
    offset: int
    us: int  # 0 when not known


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's docstring."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        _check_cursor(options)
        if isinstance(options.starting, dict):
            check_offsets("startingOffsets", options.starting, options.parts)
        if options.ending != "latest" or options.ending_us is not None:
            raise InvalidOption(
                "endingOffsets and endingTimestamp are for batch queries: a stream has no end; leave them out"
            )
        self._options = options
        self._names = {part: part for part in options.parts}  # every name of each log, and the one that is read
        self._schema = schema
        self._target: dict[str, Any] | None = None  # where an AvailableNow query ends
        self._taken_s = time.monotonic()  # when a trigger last took something
        self._looks: dict[Part, History] = {}  # of one call
        self._began: Ends = {}  # with which record logs that came while the query ran did
        self._by_topic: dict[str, str] = {}  # the path of each log that offsets name by its topic

    # ---- offsets ----

    def initialOffset(self) -> dict[str, Any]:
        out: Ends = {}
        for part in self._options.parts:
            out[part] = start_of(self._options, self._now(part), default=LATEST)
        self._hold(out)
        return self._packed(out)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._look_again()
        ends, unmade = self._ends()
        starts = self._unpacked(start)
        for part, error in unmade.items():
            if part in starts and self._options.fail_on_data_loss:
                raise error
        for part, end in ends.items():
            if end < starts.get(part, 0):  # going on from its end: what comes next has offsets that were read before
                starts[part], _ = checked(self._options, self._seen(part), Bounds(starts[part], starts[part]))
        if self._target is not None:
            target = self._unpacked(self._target)
            ends = {part: min(end, target.get(part, end)) for part, end in ends.items() if part in target}
        new = {part: self._seen(part).first for part in ends if part not in starts}  # they came while the query ran
        self._began |= new
        self._hold(new)
        starts |= new
        ends = {part: max(end, starts[part]) for part, end in ends.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(starts, ends)
        if ends != starts:
            self._taken_s = time.monotonic()
        return self._packed(ends, start, new)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._packed(self._ends()[0], times=False)

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMaxRows(1 << 62)  # no limit, but not "all there is" either, which would override the least
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._look_again()
        self._target = self._packed(self._ends()[0], times=False)

    def _look_again(self) -> None:
        """Partitions and logs may have come since, and others gone."""
        self._looks.clear()
        may_be_away = not self._options.fail_on_data_loss
        self._names = all_names(self._options.paths, self._options.format, may_be_away=may_be_away)
        self._options = replace(self._options, parts=each_once(self._names))
        _check_cursor(self._options)

    def _ends(self) -> tuple[Ends, dict[Part, LogNotFound]]:
        """Where each log ends. One that is just being made comes with a later look."""
        out: Ends = {}
        unmade: dict[Part, LogNotFound] = {}
        for part in self._options.parts:
            try:
                out[part] = self._now(part).end
            except LogNotFound as error:
                unmade[part] = error
        return out, unmade

    def _hold(self, starts: Ends) -> None:
        """Retention keeps what a query with a cursor has not read yet, from its start on: it commits its first batch late."""
        if self._options.cursor is not None:
            for part, start in starts.items():
                held = part.look(lambda view: view.cursors()).get(self._options.cursor)
                if held is None or held > start:  # an earlier query's of this name may have come further
                    part.move_cursor(self._options.cursor, start)

    def _now(self, part: Part) -> History:
        """What there is of a log, as far as queries may go."""
        self._looks[part] = History(part, self._options.archive, durable=self._options.durable_only)
        return self._looks[part]

    def _seen(self, part: Part) -> History:
        """What there was of a log at the last look of this call."""
        if part not in self._looks:
            self._looks[part] = History(part, self._options.archive)
        return self._looks[part]

    def _limited(self, starts: Ends, ends: Ends) -> Ends:
        """As much of what there is as a trigger may take."""
        limits = self._options.limits
        there = sum(ends[part] - starts[part] for part in ends)
        waited_s = time.monotonic() - self._taken_s
        waits = self._target is None  # an AvailableNow query takes what there was when it began
        if waits and limits.min_offsets is not None and there < limits.min_offsets and waited_s < limits.max_delay_s:
            return {part: starts[part] for part in ends}
        if limits.max_bytes is not None:
            size = sum(self._bytes(part, starts[part], ends[part]) for part in ends)
            if size > limits.max_bytes:
                ends = _shared(starts, ends, max(1, there * limits.max_bytes // size))
        if limits.max_offsets is not None:
            ends = _shared(starts, ends, limits.max_offsets)
        return ends

    def _bytes(self, part: Part, lo: int, hi: int) -> int:
        history = History(part, self._options.archive)
        return sum(piece.size_bytes for piece in pieces(history, Bounds(lo, hi), EVERYTHING))

    # ---- as Spark keeps them ----

    def _packed(
        self, ends: Ends, before: dict[str, Any] | None = None, new: Collection[Part] = (), *, times: bool = True
    ) -> dict[str, Any]:
        """With what the offsets before say of logs and partitions that are not among these; of new ones they say nothing."""
        offsets: dict[str, dict[str, int]] = {}
        us: dict[str, dict[str, int]] = {}
        known: dict[tuple[Part | None, int], int] = {}
        for kept in self._read(before or {}):
            if kept.part not in new:
                known[kept.part, kept.offset] = kept.us
            if kept.part not in ends:
                offsets.setdefault(kept.log, {})[kept.partition] = kept.offset
                us.setdefault(kept.log, {})[kept.partition] = kept.us
        for part, end in ends.items():
            log, partition = self._key(part, ends), str(part.partition)
            offsets.setdefault(log, {})[partition] = end
            if times and end:
                there = known.get((part, end))
                us.setdefault(log, {})[partition] = self._seen(part).us_of(end - 1) if there is None else there
        return {log: _ordered(by) | _timed(us.get(log, {})) for log, by in sorted(offsets.items())}

    def _key(self, part: Part, parts: Iterable[Part]) -> str:
        """What offsets call a log. One that they call by its topic keeps that name when another of the same topic comes."""
        key = key_of(part, parts)
        if key == part.topic:
            self._by_topic.setdefault(key, part.path)
        return part.topic if self._by_topic.get(part.topic) == part.path else part.path

    def _meant(self, log: str, paths: Collection[str]) -> str | None:
        """The path of the log that offsets call so, by whichever of its names; `paths` are those that they name themselves."""
        there = {part.path: one.path for part, one in self._names.items()}
        if log in there:
            return there[log]
        same = {there[part.path] for part in self._names if part.topic == log and part.path not in paths}
        known = self._by_topic.get(log)
        known = there.get(known, known) if known is not None else None
        if known is None and len(same) > 1:
            raise InvalidOption(
                f"the checkpoint has offsets of {log}, and there are several now: {', '.join(sorted(same))}; give the paths that the "
                "query began with, and read the others with another"
            )
        return self._by_topic.setdefault(log, same.pop()) if known is None and same else known

    def _unpacked(self, offsets: dict[str, Any]) -> Ends:
        """Without those of logs that are not there, or are others now, unless that is an error."""
        out: Ends = {}
        for log, partition, part, offset, us in self._read(offsets):
            if part is not None:
                if self._is_same(part, offset, us):  # under two names it was read to the later place
                    out[part] = max(offset, out.get(part, 0))
            elif self._options.fail_on_data_loss:
                raise InvalidOption(
                    f"the checkpoint has offset {offset} of partition {partition} of {log}, which is not at "
                    f"{', '.join(self._options.paths)} any more; set failOnDataLoss=false to go on without it"
                )
        return out

    def _read(self, offsets: dict[str, Any]) -> Iterator[_Kept]:
        known = {(part.path, part.partition): part for part in self._options.parts}
        for log, by in offsets.items():
            path = self._meant(log, offsets)
            for partition, offset in by.items():
                if partition != TIMES:
                    part = known.get((path, int(partition))) if path is not None else None
                    yield _Kept(log, partition, part, int(offset), int(by.get(TIMES, {}).get(partition, 0)))

    def _is_same(self, part: Part, offset: int, us: int) -> bool:
        """Whether this is the log whose record before `offset` was appended then. Times never run backwards, so of a log that is shorter
        now the last record tells."""
        if not us:
            return True
        try:
            history = self._seen(part)
        except LogNotFound:  # it is told of where it is read
            return True
        last = min(offset, history.end) - 1
        there = history.us_of(last)
        if not there or there == us or (last < offset - 1 and there < us):
            return True
        told = (
            f"{part.path}, partition {part.partition}: another log than the one that was read up to offset {offset}: its record {last} was "
            "appended at another time"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{told}. Put the old one back, set failOnDataLoss=false to read the new one from its beginning, or start the query with a new "
                "checkpoint"
            )
        _log.warning("%s; reading it from its beginning, since failOnDataLoss is false", told)
        return False

    # ---- reading ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._look_again()
        marks = {part: mark_of(part) for part in self._options.parts}
        starts, found = self._unpacked(start), []
        for part, hi in self._unpacked(end).items():
            history = self._seen(part)
            bounds = Bounds(starts.get(part, self._began.get(part, history.first)), hi)
            if bounds.lo < bounds.hi:
                found += pieces(history, checked(self._options, history, bounds), EVERYTHING, marks[part])
        return list(splits(found, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before may go, as far as this query is concerned: its cursor moves on."""
        if self._options.cursor is not None:
            self._looks.clear()
            for part, offset in self._unpacked(end).items():
                part.move_cursor(self._options.cursor, offset)


def _check_cursor(options: ReadOptions) -> None:
    """Refuse a cursor of a log that would not keep what it holds back, also of one that came while the query ran."""
    why = {
        "channel": "a channel's receivers have byte offsets of their own",
        "journal": "a journal keeps a record until its group is retired, whoever reads it",
    }
    for part in options.parts if options.cursor is not None else ():
        if part.format in why:
            raise InvalidOption(
                f"cursor: {part.path} is a {part.format}, and {why[part.format]}; leave the option out, or read it with a query of its own"
            )


def _ordered(by: dict[str, int]) -> dict[str, Any]:
    return dict(sorted(by.items(), key=lambda one: int(one[0])))


def _timed(us: dict[str, int]) -> dict[str, Any]:
    known = {partition: time for partition, time in us.items() if time}
    return {TIMES: _ordered(known)} if known else {}


def _shared(starts: Ends, ends: Ends, most: int) -> Ends:
    """At most so many records: one of whoever has any, and of the rest each in the share that it has of it.

    Where they are too few for that they go round, from where all that was read so far leads to: each trigger begins as many further as the
    one before took, so it never steps over one that was left out.
    """
    there = {part: ends[part] - starts[part] for part in ends}
    total = sum(there.values())
    if total <= most:
        return ends
    order = sorted(there, key=lambda part: (part.path, part.partition))
    turn = sum(starts[part] for part in order) % len(order)
    waiting = [part for part in order[turn:] + order[:turn] if there[part]]
    served, rest, left = waiting[:most], max(0, most - len(waiting)), total - len(waiting)
    take = {part: 1 + (there[part] - 1) * rest // left for part in served}
    return {part: starts[part] + take.get(part, 0) for part in ends}
