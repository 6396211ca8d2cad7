"""What is to be read, cut into pieces of about the same size: on the driver, from manifests and indexes alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLost, InvalidOption
from penstock.inspect import Part, Segment, View
from penstock.options import INDEX_INTERVAL
from penstock.spark.options import EARLIEST, LATEST, Offsets, ReadOptions

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

    @property
    def size_bytes(self) -> int:
        """As near as can be told without reading."""
        records = self.segment.next - self.segment.base
        return self.segment.end * (self.hi - self.lo) // records if records else 0


class Split(InputPartition):
    """What one task reads, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
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


def end_of(view: View, *, durable_only: bool) -> int:
    """Where a log ends for Spark: not beyond what survives a power cut, unless asked."""
    return view.durable_end() if durable_only else view.end


def first_at(view: View, us: int) -> int:
    """The first record that is not older than `us`; the end when all are."""
    for segment in view.segments():
        if segment.next > segment.base:
            times = segment.read().times
            if segment.active or segment.last_us >= us or not segment.last_us:
                place = times.first_at(us, segment.next - segment.base)
                if place < segment.next - segment.base:
                    return segment.base + place
    return view.end


def place(given: Offsets, part: Part, parts: Sequence[Part], default: int) -> int:
    """What offsets say of a log; `default` where they say nothing."""
    return given.get(key_of(part, parts), {}).get(part.partition, default)


def resolve(where: int, view: View, end: int) -> int:
    """An offset, or what stands for the earliest or the latest."""
    return view.first if where == EARLIEST else end if where == LATEST else where


def start_of(options: ReadOptions, part: Part, view: View, end: int, *, default: int) -> int:
    """Where reading a log starts."""
    if options.starting_us is not None:
        return first_at(view, options.starting_us)
    if options.starting is None:
        return resolve(default, view, end)
    if isinstance(options.starting, str):
        return resolve(EARLIEST if options.starting == "earliest" else LATEST, view, end)
    return resolve(place(options.starting, part, options.parts, default), view, end)


def batch_bounds(options: ReadOptions, part: Part, view: View) -> Bounds:
    """Which records of a log a batch query reads."""
    end = end_of(view, durable_only=options.durable_only)
    lo = start_of(options, part, view, end, default=EARLIEST)
    hi = end
    if options.ending_us is not None:
        hi = min(end, first_at(view, options.ending_us))
    elif not isinstance(options.ending, str):
        hi = resolve(place(options.ending, part, options.parts, LATEST), view, end)
    if hi > end:
        raise InvalidOption(f"endingOffsets: {part.topic} {part.partition} has no offset {hi}; it ends at {end}")
    return checked(options, part, view, Bounds(lo, hi))


def checked(options: ReadOptions, part: Part, view: View, bounds: Bounds) -> Bounds:
    """The bounds, if what they say is still there; else what is left of it, or an error, as `failOnDataLoss` says."""
    lo, hi = bounds
    first, end = view.first, view.end
    if lo < first or lo > end:
        what = (
            f"offsets {lo} to {min(first, hi) - 1} were removed"
            if lo < first
            else f"it ends at {end}, before offset {lo}"
        )
        if options.fail_on_data_loss:
            raise DataLost(
                f"{part.path}, partition {part.partition}: {what}; it has {first} to {end - 1} now. "
                'Set failOnDataLoss=false to go on with what is there, or startingOffsets="earliest" to begin anew'
            )
        lo = min(max(lo, first), end)
    return Bounds(lo, max(lo, min(hi, end)))


def pieces(view: View, bounds: Bounds, wanted: Wanted) -> list[Piece]:
    """The segments that hold these records, with what filters leave of each."""
    lo, hi = max(bounds.lo, wanted.lo), min(bounds.hi, wanted.hi)
    out: list[Piece] = []
    for segment in view.segments():
        start, end = max(lo, segment.base), min(hi, segment.next)
        if start >= end:
            continue
        if segment.last_us and (segment.last_us < wanted.lo_us or segment.first_us > wanted.hi_us):
            continue
        if wanted.lo_us > 0 or wanted.hi_us < _FOREVER_US:
            times, count = segment.read().times, segment.next - segment.base
            start = max(start, segment.base + times.first_at(wanted.lo_us, count))
            end = min(end, segment.base + times.first_at(wanted.hi_us + 1, count))
        if start < end:
            out.append(Piece(segment, start, end))
    return out


def splits(found: Sequence[Piece], least: int | None) -> list[Split]:
    """Pieces for tasks: as many tasks as there are cores, or at least `least`, unless there is too little to read."""
    total = sum(piece.size_bytes for piece in found)
    if not found:
        return []
    tasks = least or min(os.cpu_count() or 1, max(1, total // _LEAST_SPLIT_BYTES))
    target = max(1, -(-total // tasks))
    out: list[list[Piece]] = [[]]
    room = target
    for piece in found:
        while piece.size_bytes > room and _cut(piece, room) is not None:
            cut = _cut(piece, room)
            assert cut is not None
            out[-1].append(Piece(piece.segment, piece.lo, cut))
            out.append([])
            piece, room = Piece(piece.segment, cut, piece.hi), target
        out[-1].append(piece)
        room -= piece.size_bytes
        if room <= 0:
            out.append([])
            room = target
    return [Split(some) for some in out if some]


def _cut(piece: Piece, room: int) -> int | None:
    """The record to end a piece before so that it takes about `room` bytes: one that the index knows, if that is near."""
    share = (piece.hi - piece.lo) * room // max(1, piece.size_bytes)
    cut = piece.lo + share
    known = piece.segment.base + (cut - piece.segment.base + INDEX_INTERVAL // 2) // INDEX_INTERVAL * INDEX_INTERVAL
    for at in (known, cut):
        if piece.lo < at < piece.hi:
            return at
    return None
