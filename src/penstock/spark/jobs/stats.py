"""Stats: how many records, how large, how often, and when none came; of each log and partition, and as a page to look at.

Damaged records are stepped over: `verify` is for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.inspect import Part, Segment, logs
from penstock.spark.jobs.logs import size_of
from penstock.spark.jobs.spread import each
from penstock.spark.plan import Piece
from penstock.spark.scan import read_piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_GAPS: Final = 10
_MINUTE_US: Final = 60_000_000
_BINS: Final = 96
_WIDTHS_S: Final = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)
_EXACT_BITS: Final = 7  # sizes are told by so many leading bits, so within 1 %


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a record."""

    offset: int  # of the record that ended it
    start_us: int
    end_us: int

    @property
    def seconds(self) -> float:
        return (self.end_us - self.start_us) / 1e6


@dataclass(frozen=True, slots=True)
class LogStats:
    """One log, or one partition of a topic. Times are Unix microseconds, 0 where none is known."""

    path: str
    format: str
    topic: str
    partition: int
    segments: int
    first_offset: int
    next_offset: int
    records: int
    bytes: int  # of payloads
    first_us: int
    last_us: int
    per_minute: float
    peak_per_minute: int
    peak_us: int  # the beginning of that minute
    gaps: tuple[Gap, ...]  # the longest, longest first
    size_min: int
    size_max: int
    size_p50: int  # within 1 %, as the next two
    size_p90: int
    size_p99: int
    sizes: tuple[tuple[int, int], ...]  # (size, how many are of this size or more, but not of twice it)
    timeline_s: int  # how long each part of the timeline is
    timeline: tuple[tuple[int, int], ...]  # (beginning in microseconds, records)


@dataclass(frozen=True, slots=True)
class StatsReport:
    """What there is at a path."""

    path: str
    logs: tuple[LogStats, ...]
    failed: tuple[str, ...]  # logs that could not be opened, and why

    @property
    def records(self) -> int:
        return sum(log.records for log in self.logs)

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Counted:
    """What a task found in one segment."""

    records: int = 0
    bytes: int = 0
    first_us: int = 0
    first_known: int = 0  # the offset that has it
    last_us: int = 0
    minutes: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    gaps: list[Gap] = field(default_factory=list)


def stats(spark: SparkSession, path: str | Path) -> StatsReport:
    """Count what is in every log at `path`."""
    found = list(logs(path))
    segments = [segment for log in found for segment in log.segments]
    counted = dict(zip(segments, each(spark, segments, _count, size_of), strict=True))
    return StatsReport(
        path=str(path),
        logs=tuple(_merged(log.part, log.segments, counted) for log in found if not log.error),
        failed=tuple(log.error for log in found if log.error),
    )


# ---- in a task ----


def _count(segment: Segment) -> _Counted:
    import pyarrow as pa

    schema = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("value", pa.binary())])
    out = _Counted()
    for batch in read_piece(Piece(segment, segment.base, segment.next), schema, "skip", fail_on_data_loss=False):
        _count_sizes(out, batch)
        _count_times(out, batch)
    return out


def _count_sizes(out: _Counted, batch: pa.RecordBatch) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.binary_length(batch.column("value")).cast(pa.int64())
    out.records += batch.num_rows
    out.bytes += pc.sum(sizes).as_py()
    for one in pc.value_counts(sizes):
        out.sizes[_rounded(one["values"].as_py())] += one["counts"].as_py()


def _rounded(size: int) -> int:
    """A size by its leading bits: few differ, however many sizes there are.

    >>> _rounded(100), _rounded(1_000_003)
    (100, 999424)
    """
    shift = max(0, size.bit_length() - 1 - _EXACT_BITS)
    return size >> shift << shift


def _count_times(out: _Counted, batch: pa.RecordBatch) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = batch.filter(pc.is_valid(batch.column("timestamp")))
    if not known.num_rows:
        return
    times, offsets = known.column("timestamp").cast(pa.int64()), known.column("offset")
    for one in pc.value_counts(pc.divide(times, _MINUTE_US)):
        out.minutes[one["values"].as_py()] += one["counts"].as_py()
    if out.last_us:
        out.gaps.append(Gap(offsets[0].as_py(), out.last_us, times[0].as_py()))
    else:
        out.first_us, out.first_known = times[0].as_py(), offsets[0].as_py()
    out.last_us = times[-1].as_py()
    waits = pc.subtract(times[1:], times[:-1])
    for place in pc.top_k_unstable(waits, _GAPS).to_pylist() if len(waits) else ():
        out.gaps.append(Gap(offsets[place + 1].as_py(), times[place].as_py(), times[place + 1].as_py()))
    out.gaps = _longest(out.gaps)


def _longest(gaps: list[Gap]) -> list[Gap]:
    return sorted(gaps, key=lambda gap: (gap.start_us - gap.end_us, gap.offset))[:_GAPS]


# ---- on the driver again ----


def _merged(part: Part, segments: tuple[Segment, ...], counted: dict[Segment, _Counted]) -> LogStats:
    """The segments of a log, oldest first, as one."""
    sizes, minutes, gaps = Counter[int](), Counter[int](), list[Gap]()
    first_us = last_us = 0
    parts = [counted[segment] for segment in segments]
    for one in parts:
        sizes += one.sizes
        minutes += one.minutes
        gaps += one.gaps
        if one.last_us:
            if last_us:
                gaps.append(Gap(one.first_known, last_us, one.first_us))
            first_us, last_us = first_us or one.first_us, one.last_us
    peak, peak_count = min(minutes.items(), key=lambda item: (-item[1], item[0]), default=(0, 0))
    width_s, timeline = _timeline(minutes)
    by_power = Counter[int]()
    for size, count in sizes.items():
        by_power[1 << size.bit_length() - 1 if size else 0] += count
    return LogStats(
        path=part.path,
        format=part.format,
        topic=part.topic,
        partition=part.partition,
        segments=len(segments),
        first_offset=min((segment.base for segment in segments), default=0),  # a partition without a message has none
        next_offset=max((segment.next for segment in segments), default=0),
        records=sum(one.records for one in parts),
        bytes=sum(one.bytes for one in parts),
        first_us=first_us,
        last_us=last_us,
        per_minute=minutes.total() / max(1.0, (last_us - first_us) / _MINUTE_US),
        peak_per_minute=peak_count,
        peak_us=peak * _MINUTE_US,
        gaps=tuple(_longest(gaps)),
        size_min=min(sizes, default=0),
        size_max=max(sizes, default=0),
        size_p50=_percentile(sizes, 0.5),
        size_p90=_percentile(sizes, 0.9),
        size_p99=_percentile(sizes, 0.99),
        sizes=tuple(sorted(by_power.items())),
        timeline_s=width_s,
        timeline=timeline,
    )


def _percentile(sizes: Counter[int], share: float) -> int:
    """The size that this share of the records does not exceed."""
    wanted, seen = share * sizes.total(), 0
    for size, count in sorted(sizes.items()):
        seen += count
        if seen >= wanted:
            return size
    return 0


def _timeline(minutes: Counter[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Minutes put together so that there are not too many, with those in which nothing came."""
    if not minutes:
        return _WIDTHS_S[0], ()
    first_s, last_s = min(minutes) * 60, max(minutes) * 60
    width_s = next((w for w in _WIDTHS_S if last_s // w - first_s // w < _BINS), 0)
    if not width_s:
        width_s = _WIDTHS_S[-1] * -(-(last_s - first_s) // (_WIDTHS_S[-1] * (_BINS - 1)))
    bins = dict.fromkeys(range(first_s // width_s, last_s // width_s + 1), 0)
    for minute, count in minutes.items():
        bins[minute * 60 // width_s] += count
    return width_s, tuple((number * width_s * 1_000_000, count) for number, count in bins.items())
