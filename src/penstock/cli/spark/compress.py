"""`penstock spark compress`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, line, size, tell_failed
from penstock.cli.spark.job import LOCAL, Master, job

Method = Literal["zstd", "gzip", "snappy"]


def compress(
    path: LogPath,
    method: Annotated[Method, typer.Option("--method", help="The compression method.")] = "zstd",
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Compress the finished segments of channels. Nobody else may have the channel open.

    Exits with 1 if a segment could not be compressed, or a channel could not be opened; the others are still done.

    Example: penstock spark compress /data/mail --method zstd
    """
    with job("compress", master) as spark:
        from penstock.spark.jobs import compress as run

        report = run(spark, path, method=method)
    if json:
        as_json(report.to_dict())
    else:
        line(f"{count(report.segments, 'segment')}: {size(report.bytes_before)} became {size(report.bytes_after)}")
    left = [f"{file}: cannot be compressed; `penstock spark verify` tells why" for file in report.left]
    tell_failed([*left, *report.failed], quiet=json)
