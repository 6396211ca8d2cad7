"""`penstock spark replay`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json
from penstock.cli.output import as_json, count, line
from penstock.cli.spark.job import LOCAL, Master, TargetFormat, job, utc


def replay(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A log, a directory of logs, or an archive.")],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The log to append to; created if it does not exist.")
    ],
    archive: Annotated[Path | None, typer.Option("--archive", metavar="DIR", help="The archive of the log.")] = None,
    to: Annotated[TargetFormat | None, typer.Option("--to", help="The format of a target that is made.")] = None,
    start: Annotated[int | None, typer.Option("--start", help="The first offset to replay.")] = None,
    end: Annotated[int | None, typer.Option("--end", help="The offset to end before.")] = None,
    since: Annotated[datetime | None, typer.Option("--since", help="From this time on, in UTC.")] = None,
    until: Annotated[datetime | None, typer.Option("--until", help="Before this time, in UTC.")] = None,
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Append records of a log, of its archive, or of both to a log again, as one batch.

    Example: penstock spark replay /archive /data/again --since 2026-11-01 --until 2026-11-02
    """
    with job("replay", master) as spark:
        from penstock.spark.jobs import replay as run

        report = run(
            spark,
            source,
            target,
            archive=archive,
            to=to,
            start=start,
            end=end,
            since=utc(since),
            until=utc(until),
        )
    if json:
        as_json(report.to_dict())
    else:
        line(f"{count(report.records, 'record')} from {report.source} appended to the {report.format} {report.target}")
