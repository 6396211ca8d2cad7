"""`penstock spark convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, line, table
from penstock.cli.spark.job import LOCAL, Master, TargetFormat, job


def convert(
    path: LogPath,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where to write; must not exist yet.")],
    to: Annotated[TargetFormat, typer.Option("--to", help="The format to write.")],
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Copy logs into another format. If it is interrupted, the same command continues where it was.

    Example: penstock spark convert /data/orders /data/orders-queue --to queue
    """
    with job("convert", master) as spark:
        from penstock.spark.jobs import convert as run

        report = run(spark, path, target, to=to)
    if json:
        as_json(report.to_dict())
    else:
        table(("log", "partition", "records", "to"), [(x.topic, x.partition, x.records, x.target) for x in report.logs])
        line(count(report.records, "record"))
