"""`penstock spark archive`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, line, size, table, tell_failed
from penstock.cli.spark.job import LOCAL, Master, job


def archive(
    path: LogPath,
    to: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="The archive's directory; created if it does not exist.")
    ],
    drop: Annotated[bool, typer.Option("--drop", help="Let queues and topics remove what is archived.")] = False,
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Write finished segments to Parquet files by date, each record once.

    Run it as often as you like: what is archived already is left alone. Exits with 1 if a segment could not be archived, or a
    log could not drop what is; the others are still done.

    Example: penstock spark archive /data/orders /archive --drop
    """
    with job("archive", master) as spark:
        from penstock.spark.jobs import archive as run

        report = run(spark, path, to, drop=drop)
    if json:
        as_json(report.to_dict())
    else:
        rows = [
            (
                log.topic,
                log.partition,
                _ranges(log.ranges),
                log.rows,
                size(log.bytes),
                log.droppable_below,
                log.dropped_below,
            )
            for log in report.logs
        ]
        columns = ("log", "partition", "offsets archived", "records", "size", "may drop below", "log begins at")
        table(columns, rows)
        line(f"now: {count(report.segments, 'segment')}, {count(report.rows, 'record')}, {size(report.bytes)}")
    tell_failed(report.failed, quiet=json)


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{first} to {next_ - 1}" for first, next_ in ranges) or "none"
