"""`penstock spark compress`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import FAILED, as_json, line, size
from penstock.cli.spark.job import LOCAL, Master, job

Method = Literal["zstd", "gzip", "snappy"]


def compress(
    path: LogPath,
    method: Annotated[Method, typer.Option("--method", help="How to compress.")] = "zstd",
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Compress the finished segments of channels. Nobody else may have the channel open.

    Exits with 1 if a segment could not be compressed.

    Example: penstock spark compress /data/mail --method zstd
    """
    with job("compress", master) as spark:
        from penstock.spark.jobs import compress as run

        report = run(spark, path, method=method)
    if json:
        as_json(report.to_dict())
    else:
        line(f"{report.segments} segments: {size(report.bytes_before)} became {size(report.bytes_after)}")
        for file in report.left:
            sys.stderr.write(f"penstock: {file}: cannot be compressed; `penstock spark verify` tells why\n")
    if report.left:
        raise typer.Exit(FAILED)
