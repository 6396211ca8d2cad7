"""Replay: records of a log, of its archive, or of both, appended to a log again, through the sink.

What is replayed is one batch of the target: after a crash it is there as a whole or not at all (of a topic: in each partition). The
records have new offsets and new times.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidOption
from penstock.inspect import FormatName, detect, find
from penstock.spark import listing
from penstock.spark.jobs.targets import columns_for, make_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What was replayed."""

    source: str
    target: str
    format: str  # of the target
    records: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def replay(
    spark: SparkSession,
    source: str | Path,
    target: str | Path,
    *,
    archive: str | Path | None = None,
    to: FormatName | None = None,
    start: int | None = None,
    end: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
) -> ReplayReport:
    """Append records of the logs at `source` to the log at `target`, in their order.

    `source` may be an archive itself; or give a log and its `archive`. Of every log and partition the offsets `start` to `end` - 1,
    and what was appended from `since` on and before `until`; without these everything. The target is made if it is not there: as
    `to` says, or of the source's format. Topics keep their names and partitions.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import col, count, lit

    archived = _is_archive(Path(source))
    if archived and archive is not None:
        raise InvalidOption(f"{source} is an archive itself; leave the archive out, or give the log that it is of")
    partitions, kind = _archived_partitions(Path(source)) if archived else _partitions(source)
    format = to or _format(Path(target)) or ("queue" if kind == "journal" else kind)
    frame = _archive(spark, Path(source)) if archived else _log(spark, source, archive)
    for condition in (
        None if start is None else col("offset") >= lit(start),
        None if end is None else col("offset") < lit(end),
        None if since is None else col("timestamp") >= lit(since).cast("timestamp"),
        None if until is None else col("timestamp") < lit(until).cast("timestamp"),
    ):
        frame = frame if condition is None else frame.where(condition)
    if format == "topic":
        make_topics(Path(target), partitions)
    counted = Observation()
    rows = frame.observe(counted, count(lit(1)).alias("records")).select(*columns_for(format))
    rows.write.format("penstock").mode("append").option("format", format).save(str(target))
    return ReplayReport(str(source), str(target), format, int(counted.get["records"]))


def _is_archive(path: Path) -> bool:
    return listing.is_archive(path) and detect(path) is None


def _format(target: Path) -> FormatName | None:
    return detect(target) if target.is_dir() else None


def _partitions(source: str | Path) -> tuple[dict[str, int], FormatName]:
    """How many partitions each log has, and their format."""
    parts = find(source)
    return {part.topic: 1 + max(p.partition for p in parts if p.topic == part.topic) for part in parts}, parts[0].format


def _archived_partitions(archive: Path) -> tuple[dict[str, int], FormatName]:
    found = listing.load_all(archive)
    most = {one.topic: 1 + max(o.partition for o in found if o.topic == one.topic) for one in found}
    return most, found[0].format


def _log(spark: SparkSession, source: str | Path, archive: str | Path | None) -> DataFrame:
    reader = spark.read.format("penstock")
    if archive is not None:
        reader = reader.option("archive", str(archive))
    return reader.load(str(source))


def _archive(spark: SparkSession, archive: Path) -> DataFrame:
    """What an archive lists, in order: Spark reads files in any."""
    found = [
        str(archive / file.file) for one in listing.load_all(archive) for file in one.files if file.file is not None
    ]
    if not found:
        raise InvalidOption(f"{archive}: the archive has no records")
    return spark.read.parquet(*found).orderBy("topic", "partition", "offset")
