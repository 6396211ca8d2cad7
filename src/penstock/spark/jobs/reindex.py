"""Reindex: indexes and companions of finished segments made anew where they are missing, short or wrong.

How they are made: `penstock.storage.beside`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.inspect import Segment, logs
from penstock.options import INDEX_INTERVAL
from penstock.spark.jobs.logs import size_of
from penstock.spark.jobs.spread import each
from penstock.storage import beside, files, metadata
from penstock.storage.damage import Place
from penstock.storage.segment import ReadSegment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReindexReport:
    """What was looked at, and what was made anew."""

    path: str
    segments: int
    indexes: tuple[str, ...]
    companions: tuple[str, ...]
    failed: tuple[str, ...]  # what could not be made, and why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Made:
    index: str = ""
    companion: str = ""
    error: str = ""


def reindex(spark: SparkSession, path: str | Path) -> ReindexReport:
    """Put right what lies beside the finished segments of every log at `path`. The records themselves are only read."""
    found = list(logs(path))
    segments = [segment for log in found for segment in log.segments if not segment.active]
    made = each(spark, segments, _mend, size_of)
    return ReindexReport(
        path=str(path),
        segments=len(segments),
        indexes=tuple(one.index for one in made if one.index),
        companions=tuple(one.companion for one in made if one.companion),
        failed=(*(log.error for log in found if log.error), *(one.error for one in made if one.error)),
    )


def _mend(segment: Segment) -> _Made:
    """In a task."""
    try:
        seg = segment.read()
        if seg.header_error:
            return _Made(error=f"{seg.header_error}; run `penstock spark verify` first")
        return _Made(_mend_index(seg, segment), _mend_companion(seg, segment))
    except (PenstockError, OSError) as error:
        return _Made(error=str(error))


def _mend_index(seg: ReadSegment, segment: Segment) -> str:
    """The file, if it was made anew."""
    if not seg.paths.indexed:
        return ""
    settings = metadata.usable(metadata.load(Path(segment.part.path)) or {})
    interval = int(settings.get("index_interval", INDEX_INTERVAL))
    wanted = beside.index_for(seg, Place(segment.end, segment.next), interval)
    if beside.has_index(seg, wanted):
        return ""
    files.replace(seg.paths.index, wanted)
    return str(seg.paths.index)


def _mend_companion(seg: ReadSegment, segment: Segment) -> str:
    """The file, if it was made anew: what it has is kept, what it lacks is added without times."""
    if len(seg.times) >= segment.next - segment.base:
        return ""
    files.replace(seg.paths.times, beside.companion_for(seg, Place(segment.end, segment.next), now_us=files.now_us()))
    return str(seg.paths.times)
