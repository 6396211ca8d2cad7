"""Verify, each segment by a task: see `penstock.verify`, which this is, shared out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock import verify as plain
from penstock.spark.jobs.logs import size_of
from penstock.spark.jobs.spread import each
from penstock.verify import Finding, VerifyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Finding", "VerifyReport", "verify"]


def verify(spark: SparkSession, path: str | Path) -> VerifyReport:
    """Check every record of every log at `path`: one log, a topic, or a directory of them."""
    found = plain.look(path)
    segments = [segment for log in found for segment in log.segments]
    return plain.report(path, found, each(spark, segments, plain.check, size_of))
