"""Jobs over logs too big for one process. Each is a function of a Spark session and a path, and returns a report."""

from penstock.spark.jobs.archive import ArchiveReport, LogArchived, archive
from penstock.spark.jobs.compress import CompressReport, compress
from penstock.spark.jobs.convert import Converted, ConvertReport, convert
from penstock.spark.jobs.page import page
from penstock.spark.jobs.reindex import ReindexReport, reindex
from penstock.spark.jobs.replay import ReplayReport, replay
from penstock.spark.jobs.stats import Gap, LogStats, StatsReport, stats
from penstock.spark.jobs.verify import Finding, VerifyReport, verify

__all__ = [
    "ArchiveReport",
    "CompressReport",
    "ConvertReport",
    "Converted",
    "Finding",
    "Gap",
    "LogArchived",
    "LogStats",
    "ReindexReport",
    "ReplayReport",
    "StatsReport",
    "VerifyReport",
    "archive",
    "compress",
    "convert",
    "page",
    "reindex",
    "replay",
    "stats",
    "verify",
]
