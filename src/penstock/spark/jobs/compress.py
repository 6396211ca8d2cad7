"""Compress, with the packing shared out: `penstock.compressing` on the driver, which has the channel open meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.compressing import Compression, CompressReport, Plain
from penstock.compressing import compress as run
from penstock.spark.jobs.spread import each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompressReport", "compress"]


def compress(spark: SparkSession, path: str | Path, *, method: Compression = "zstd") -> CompressReport:
    """See `penstock.compressing.compress`."""
    return run(path, method, lambda items: each(spark, list(items), Plain.pack, lambda item: item.end))
