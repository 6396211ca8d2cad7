"""`penstock spark stats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, errors_told, line, size, table, tell_failed
from penstock.cli.spark.job import LOCAL, Master, job


def stats(
    path: LogPath,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with charts.")] = None,
    json: Json = False,
    master: Master = LOCAL,
) -> None:
    """Count records, sizes, rates and gaps of every log and partition at PATH.

    Example: penstock spark stats /data/orders --html orders.html
    """
    with job("stats", master) as spark:
        from penstock.spark.jobs import page
        from penstock.spark.jobs import stats as run

        report = run(spark, path)
    if html is not None:
        with errors_told():
            html.write_text(page(report), encoding="utf-8")
    if json:
        as_json(report.to_dict())
    else:
        rows = [
            (
                log.topic,
                log.partition,
                log.records,
                size(log.bytes),
                f"{log.per_minute:.1f}",
                log.peak_per_minute,
                f"{max((gap.seconds for gap in log.gaps), default=0):.1f} s",
                f"{log.size_p50} / {log.size_p99}",
            )
            for log in report.logs
        ]
        columns = ("log", "partition", "records", "payload", "per minute", "peak", "longest gap", "size p50 / p99")
        table(columns, rows)
        line(f"{count(report.records, 'record')}, {size(report.bytes)}")
    tell_failed(report.failed, quiet=json)
