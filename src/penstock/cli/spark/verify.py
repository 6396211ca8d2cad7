"""`penstock spark verify`."""

from __future__ import annotations

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import FAILED, as_json, count, line, size, table
from penstock.cli.spark.job import LOCAL, Master, job


def verify(path: LogPath, json: Json = False, master: Master = LOCAL) -> None:
    """Check every checksum of every segment of every log at PATH. Nothing is changed.

    Exits with 1 if records are damaged.

    Example: penstock spark verify /data/orders
    """
    with job("verify", master) as spark:
        from penstock.spark.jobs import verify as run

        report = run(spark, path)
    if json:
        as_json(report.to_dict())
    else:
        if report.findings:
            found = [(f.file, f.position, f"{f.first} to {f.last}", f.kind, f.what) for f in report.findings]
            table(("file", "byte", "offsets", "kind", "what"), found)
        unproven = f", {report.unproven} of them without a checksum" if report.unproven else ""
        line(
            f"{count(report.records, 'record')}{unproven}, {size(report.bytes)} in {count(report.segments, 'segment')} of "
            f"{count(report.logs, 'log')}: {_verdict(report.damaged, len(report.findings))}"
        )
    if report.damaged:
        raise typer.Exit(FAILED)


def _verdict(damaged: bool, findings: int) -> str:
    if damaged:
        return f"damaged, {findings} findings"
    return "all good" if not findings else "records are good; `penstock repair` puts right what else was found"
