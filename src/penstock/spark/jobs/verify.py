"""Verify: every checksum of every segment of every log at a path. What is found does not stop the rest.

Frames of queues and channels carry a checksum; those of journals and topics have it in the companion. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.errors import PenstockError
from penstock.inspect import Segment
from penstock.options import INDEX_INTERVAL
from penstock.spark.jobs.logs import logs, size_of
from penstock.spark.jobs.spread import each
from penstock.storage import index
from penstock.storage.damage import Place
from penstock.storage.recovery import Recovery, Walked, walk
from penstock.storage.segment import ReadSegment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["log", "header", "record", "companion", "index"]
_BESIDE: Final = ("companion", "index")  # what `reindex` makes anew: no record is lost with it


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    topic: str
    partition: int
    file: str
    position: int  # the byte, in the inflated file if it is compressed
    first: int  # the offsets that it is about, both included
    last: int
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.file}: byte {self.position}: offsets {self.first} to {self.last}: {self.what}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what was found."""

    path: str
    logs: int
    segments: int
    records: int  # read and found good
    unproven: int  # of these, those that nothing has a checksum of
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> bool:
        """Whether records are lost or in doubt; what lies beside them can be made anew by `reindex`."""
        return any(finding.kind not in _BESIDE for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "damaged": self.damaged}


@dataclass(frozen=True, slots=True)
class _Checked:
    """One segment's part of the report."""

    records: int
    unproven: int
    bytes: int
    findings: tuple[Finding, ...]


def verify(spark: SparkSession, path: str | Path) -> VerifyReport:
    """Check every record of every log at `path`: one log, a topic, or a directory of them."""
    found = list(logs(path))
    segments = [segment for log in found for segment in log.segments]
    checked = each(spark, segments, _check, size_of)
    broken = [
        Finding(log.part.topic, log.part.partition, log.part.path, 0, 0, 0, "log", log.error)
        for log in found
        if log.error
    ]
    return VerifyReport(
        path=str(path),
        logs=len(found),
        segments=len(segments),
        records=sum(one.records for one in checked),
        unproven=sum(one.unproven for one in checked),
        bytes=sum(one.bytes for one in checked),
        findings=(*broken, *(finding for one in checked for finding in one.findings)),
    )


def _check(segment: Segment) -> _Checked:
    """In a task: walk over one segment."""
    try:
        seg = segment.read()
        interval = seg.index.interval or INDEX_INTERVAL
        walked = walk(seg, Place(segment.end, segment.next), interval, Recovery())
    except (PenstockError, OSError) as error:
        return _Checked(0, 0, 0, (_finding(segment, 0, "record", str(error)),))
    lost = [
        _finding(segment, position, "record", loss.reason, loss.first, loss.last) for position, loss in walked.losses
    ]
    records = segment.next - segment.base - sum(one.last - one.first + 1 for one in lost)
    header = [_finding(segment, 0, "header", seg.header_error)] if seg.header_error else []
    return _Checked(
        records=records,
        unproven=min(records, _unproven(seg, segment)),
        bytes=max(0, min(segment.end, len(seg.data)) - seg.start),
        findings=(*header, *lost, *_beside(seg, segment, walked)),
    )


def _finding(
    segment: Segment, position: int, kind: Kind, what: str, first: int | None = None, last: int | None = None
) -> Finding:
    first = segment.base if first is None else first
    last = segment.next - 1 if last is None else last
    paths = segment.paths()
    file = {"companion": paths.times, "index": paths.index}.get(kind, paths.data)
    if file == paths.data and paths.packed is not None and paths.packed.exists():
        file = paths.packed
    return Finding(segment.part.topic, segment.part.partition, str(file), position, first, last, kind, what)


def _unproven(seg: ReadSegment, segment: Segment) -> int:
    """How many records have no checksum, in their frame or beside it."""
    count = segment.next - segment.base
    if seg.spec.sum_bytes:
        return 0
    known = min(count, len(seg.times))
    sums = memoryview(seg.times.raw).cast("B").cast("q")[1 : known * 2 : 2] if known else memoryview(b"")
    return count - known + sum(sums[i : i + 65536].tolist().count(0) for i in range(0, known, 65536))


def _beside(seg: ReadSegment, segment: Segment, walked: Walked) -> list[Finding]:
    """What is wrong with the files beside a segment. Those of the one being written are not finished."""
    count = segment.next - segment.base
    found = []
    if count and len(seg.times) < count:
        what = "it is missing or not this segment's" if not seg.times_data else "it is cut short"
        found.append(_finding(segment, 0, "companion", f"{what}: times are not known"))
    if count and seg.paths.indexed and not segment.active and not _leads(seg, segment, walked):
        found.append(_finding(segment, 0, "index", "it is missing, short, or leads elsewhere than the records lie"))
    return found


def _leads(seg: ReadSegment, segment: Segment, walked: Walked) -> bool:
    """Whether an index says what the records say."""
    interval, count = seg.index.interval, segment.next - segment.base
    if not interval or seg.index.count < -(-count // interval):
        return False
    points = dict(walked.points)
    wanted = index.Index(index.pack(interval, segment.base, count, points.items()), segment.base)
    return all(seg.index.entry(i) == wanted.entry(i) for i in range(wanted.count) if wanted.entry(i)[0] in points)
