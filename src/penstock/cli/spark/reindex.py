"""`penstock spark reindex`."""

from __future__ import annotations

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, line, tell_failed
from penstock.cli.spark.job import LOCAL, Master, job


def reindex(path: LogPath, json: Json = False, master: Master = LOCAL) -> None:
    """Rebuild what is missing or wrong beside finished segments: indexes, and companions without their times.

    Exits with 1 if something could not be rebuilt.

    Example: penstock spark reindex /data/orders
    """
    with job("reindex", master) as spark:
        from penstock.spark.jobs import reindex as run

        report = run(spark, path)
    if json:
        as_json(report.to_dict())
    else:
        for file in (*report.indexes, *report.companions):
            line(f"made anew: {file}")
        line(
            f"{count(report.segments, 'segment')}, {count(len(report.indexes) + len(report.companions), 'file')} made anew"
        )
    tell_failed(report.failed, quiet=json)
