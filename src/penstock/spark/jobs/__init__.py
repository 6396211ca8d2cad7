"""Jobs over logs too big for one process. Each is a function of a Spark session and a path, and returns a report."""

from penstock.spark.jobs.archive import ArchiveReport, LogArchived, archive
from penstock.spark.jobs.stats import Gap, LogStats, StatsReport, stats
from penstock.spark.jobs.verify import Finding, VerifyReport, verify

__all__ = [
    "ArchiveReport",
    "Finding",
    "Gap",
    "LogArchived",
    "LogStats",
    "StatsReport",
    "VerifyReport",
    "archive",
    "stats",
    "verify",
]
