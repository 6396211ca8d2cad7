"""What is to be read, cut into pieces of about the same size: on the driver, from manifests and indexes alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLost, InvalidOption
from penstock.inspect import Part, Segment
from penstock.options import INDEX_INTERVAL
from penstock.spark.history import History
from penstock.spark.listing import ArchivedFile, without
from penstock.spark.marks import Mark
from penstock.spark.options import EARLIEST, LATEST, Offsets, ReadOptions

_log: Final = logging.getLogger("penstock.spark")
_LEAST_SPLIT_BYTES: Final = 4 << 20  # a task costs some 40 ms, whatever it reads
_FOREVER_US: Final = 1 << 62


class Bounds(NamedTuple):
    """Which records of a log: lo to hi - 1."""

    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Records lo to hi - 1 of one segment."""

    segment: Segment
    lo: int
    hi: int
    mark: Mark | None = None  # of the log that it was planned with

    @property
    def size_bytes(self) -> int:
        """As near as can be told without reading."""
        records = self.segment.next - self.segment.base
        return self.segment.end * (self.hi - self.lo) // records if records else 0

    def easy_cut(self, at: int) -> int:
        """The record near this one that the index knows."""
        base = self.segment.base
        return base + (at - base + INDEX_INTERVAL // 2) // INDEX_INTERVAL * INDEX_INTERVAL


@dataclass(frozen=True, slots=True)
class ArchivedPiece:
    """Records lo to hi - 1 of one file of an archive."""

    part: Part
    archive: str
    file: ArchivedFile
    lo: int
    hi: int

    @property
    def path(self) -> Path:
        assert self.file.file is not None
        return Path(self.archive) / self.file.file

    @property
    def size_bytes(self) -> int:
        """As near as can be told without reading."""
        return self.file.bytes * (self.hi - self.lo) // (self.file.next - self.file.first)

    def easy_cut(self, at: int) -> int:
        """Any is as good as another."""
        return at


AnyPiece = Piece | ArchivedPiece


class Split(InputPartition):
    """What one task reads, in order."""

    def __init__(self, pieces: Sequence[AnyPiece]) -> None:
        super().__init__(len(pieces))
        self.pieces = tuple(pieces)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What filters leave of everything: a superset of the rows that pass them."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    lo: int = 0
    hi: int = 1 << 62
    lo_us: int = 0
    hi_us: int = _FOREVER_US  # the last that is wanted

    def has(self, part: Part) -> bool:
        return (self.topics is None or part.topic in self.topics) and (
            self.partitions is None or part.partition in self.partitions
        )


EVERYTHING: Final = Wanted()


def key_of(part: Part, parts: Iterable[Part]) -> str:
    """What a log is called in offsets: its topic, or its path where two of them have the same."""
    same = {other.path for other in parts if other.topic == part.topic}
    return part.topic if len(same) == 1 else part.path


def check_offsets(name: str, given: Offsets, parts: Sequence[Part]) -> None:
    """Refuse offsets of logs or partitions that are not there."""
    known = {(key_of(part, parts), part.partition) for part in parts}
    for log, by in given.items():
        for partition in by:
            if (log, partition) not in known:
                there = ", ".join(f"{log} {p}" for log, p in sorted(known))
                raise InvalidOption(f"{name}: partition {partition} of {log!r} is not there; there are {there}")


def place(given: Offsets, part: Part, parts: Sequence[Part], default: int) -> int:
    """What offsets say of a log; `default` where they say nothing."""
    return given.get(key_of(part, parts), {}).get(part.partition, default)


def resolve(where: int, history: History) -> int:
    """An offset, or what stands for the earliest or the latest."""
    return history.first if where == EARLIEST else history.end if where == LATEST else where


def start_of(options: ReadOptions, history: History, *, default: int) -> int:
    """Where reading a log starts."""
    if options.starting_us is not None:
        return history.first_at(options.starting_us)
    if options.starting is None:
        return resolve(default, history)
    if isinstance(options.starting, str):
        return resolve(EARLIEST if options.starting == "earliest" else LATEST, history)
    return resolve(place(options.starting, history.part, options.parts, default), history)


def batch_bounds(options: ReadOptions, history: History) -> Bounds:
    """Which records of a log a batch query reads."""
    part, end = history.part, history.end
    lo = start_of(options, history, default=EARLIEST)
    hi = end
    if options.ending_us is not None:
        hi = min(end, history.first_at(options.ending_us))
    elif not isinstance(options.ending, str):
        hi = resolve(place(options.ending, part, options.parts, LATEST), history)
    if hi > end:
        raise InvalidOption(f"endingOffsets: {part.topic} {part.partition} has no offset {hi}; it ends at {end}")
    return checked(options, history, Bounds(lo, hi))


def checked(options: ReadOptions, history: History, bounds: Bounds) -> Bounds:
    """The bounds, if what they say is still there; else what is left of it, or an error, as `failOnDataLoss` says."""
    lo, hi = bounds
    first, end = history.first, history.end
    lost = [f"offsets {gap[0]} to {gap[1] - 1} were removed" for gap in history.gaps(lo, min(hi, end))]
    if lo > end:
        lost.append(f"it ends at {end}, before offset {lo}")
    if lost:
        part, archived = history.part, f", archive {history.archive} counted" if history.archive else ""
        told = f"{part.path}, partition {part.partition}: {', '.join(lost)}; it has {first} to {end - 1} now{archived}"
        if options.fail_on_data_loss:
            raise DataLost(
                f'{told}. Set failOnDataLoss=false to go on with what is there, or startingOffsets="earliest" to begin anew'
            )
        _log.warning("%s; going on, since failOnDataLoss is false", told)
    lo = min(max(lo, first), end)
    return Bounds(lo, max(lo, min(hi, end)))


def pieces(history: History, bounds: Bounds, wanted: Wanted, mark: Mark | None = None) -> list[AnyPiece]:
    """What holds these records, archived or not, with what filters leave of each; in the order of offsets. With the log's mark from before
    the look at it, tasks will know whether another one took its place."""
    lo, hi = max(bounds.lo, wanted.lo), min(bounds.hi, wanted.hi)
    found: list[AnyPiece] = [*_archived(history, lo, hi, wanted)]
    for segment in history.segments:
        if segment.last_us and (segment.last_us < wanted.lo_us or segment.first_us > wanted.hi_us):
            continue
        for start, end in without(max(lo, segment.base), min(hi, segment.next), history.archived):
            if wanted.lo_us > 0 or wanted.hi_us < _FOREVER_US:
                times, count = segment.read().times, segment.next - segment.base
                start = max(start, segment.base + times.first_at(wanted.lo_us, count))
                end = min(end, segment.base + times.first_at(wanted.hi_us + 1, count))
            if start < end:
                found.append(Piece(segment, start, end, mark.at(segment, start) if mark is not None else None))
    return sorted(found, key=lambda piece: piece.lo)


def _archived(history: History, lo: int, hi: int, wanted: Wanted) -> Iterator[ArchivedPiece]:
    for file in history.files:
        start, end = max(lo, file.first), min(hi, file.next)
        outside = file.last_us and (file.last_us < wanted.lo_us or file.first_us > wanted.hi_us)
        if file.file is not None and start < end and not outside:
            assert history.archive is not None
            yield ArchivedPiece(history.part, history.archive, file, start, end)


def splits(found: Sequence[AnyPiece], least: int | None) -> list[Split]:
    """Pieces for tasks: as many tasks as there are cores, or at least `least`, unless there is too little to read."""
    total = sum(piece.size_bytes for piece in found)
    if not found:
        return []
    tasks = least or min(os.cpu_count() or 1, max(1, total // _LEAST_SPLIT_BYTES))
    target = max(1, -(-total // tasks))
    out: list[list[AnyPiece]] = [[]]
    room = target
    for piece in found:
        while len(out) < tasks and piece.size_bytes > room and (cut := _cut(piece, room)) is not None:
            out[-1].append(replace(piece, hi=cut))
            out.append([])
            piece, room = replace(piece, lo=cut), target
        out[-1].append(piece)
        room -= piece.size_bytes
        if room <= 0 and len(out) < tasks:
            out.append([])
            room = target
    return [Split(some) for some in out if some]


def _cut(piece: AnyPiece, room: int) -> int | None:
    """The record to end a piece before so that it takes about `room` bytes: one that is easy to find, if that is near."""
    share = (piece.hi - piece.lo) * room // max(1, piece.size_bytes)
    cut = piece.lo + share
    for at in (piece.easy_cut(cut), cut):
        if piece.lo < at < piece.hi:
            return at
    return None
