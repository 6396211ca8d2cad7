"""Reindex: indexes and companions of finished segments made anew where they are missing, short or wrong.

An index says again where the records lie. A companion's times are gone with it; what is made has none. Beside frames that have
no checksum it has theirs, from now on: whether they were damaged before, nothing tells any more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import kernel
from penstock.errors import PenstockError
from penstock.inspect import Segment
from penstock.options import INDEX_INTERVAL
from penstock.spark.jobs.logs import logs, size_of
from penstock.spark.jobs.spread import each
from penstock.storage import companion, files, index, metadata
from penstock.storage.damage import Place
from penstock.storage.recovery import Recovery, walk
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
    settings = metadata.load(Path(segment.part.path)) or {}
    interval = int(settings.get("index_interval", INDEX_INTERVAL))
    walked = walk(seg, Place(segment.end, segment.next), interval, Recovery())
    wanted = index.pack(interval, segment.base, segment.next - segment.base, walked.points)
    if _start_of(seg.paths.index, len(wanted)) == wanted:
        return ""
    files.replace(seg.paths.index, wanted)
    return str(seg.paths.index)


def _start_of(path: Path, length: int) -> bytes:
    """The first bytes of a file; none if it is not there. One that is not sealed yet is longer than it needs to be."""
    try:
        with files.opened(path) as fd:
            return files.read(fd, 0, length)
    except FileNotFoundError:
        return b""


def _mend_companion(seg: ReadSegment, segment: Segment) -> str:
    """The file, if it was made anew: what it has is kept, what it lacks is added without times."""
    count, known = segment.next - segment.base, len(seg.times)
    if known >= count:
        return ""
    size = companion.entry_bytes(seg.spec)
    frames = memoryview(seg.data)[seg.start : min(segment.end, len(seg.data))]
    entries = bytes(count * size) if seg.spec.sum_bytes else kernel.entries(seg.spec, frames, 0)
    if len(entries) != count * size:
        raise PenstockError(
            f"{seg.paths.data}: {len(entries) // size} records can be told apart, not {count}, so that no companion can be "
            "made; restore the file from a copy"
        )
    head = companion.pack_header(segment.base, size)
    files.replace(seg.paths.times, head + bytes(seg.times.raw) + entries[known * size :])
    return str(seg.paths.times)
