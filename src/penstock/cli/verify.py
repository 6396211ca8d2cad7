"""`penstock verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import FAILED, as_json, count, errors_told, line, size, table
from penstock.cli.progress import progress_bytes
from penstock.verify import VerifyReport
from penstock.verify import verify as run

LogPath = Annotated[Path, typer.Argument(metavar="PATH", help="A log, a topic, or a directory of logs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Deep = Annotated[
    bool, typer.Option("--deep", help="Also what is slow and can cost no record: times, compressed streams.")
]


def verify(path: LogPath, deep: Deep = False, json: Json = False) -> None:
    """Check every record and every file of every log at PATH. Nothing is changed, and writers may go on.

    Exits with 1 if anything is not as it should be; `penstock repair` says what can be done about it.

    Example: penstock verify /data/orders
    """
    with errors_told(), progress_bytes("verify") as told:
        report = run(path, deep=deep, progress=told)
    if json:
        as_json(report.to_dict())
    else:
        _tell(report)
    if report.findings:
        raise typer.Exit(FAILED)


def _tell(report: VerifyReport) -> None:
    if report.findings:
        found = [
            (f.file, f.position, f"{f.first} to {f.last}" if f.last >= f.first else "", f.kind, f.what, f.repair)
            for f in report.findings
        ]
        table(("file", "byte", "offsets", "kind", "what", "`penstock repair`"), found)
    unproven = f", {report.unproven} of them without a checksum" if report.unproven else ""
    lost = f", {report.lost} listed as lost before" if report.lost else ""
    verdict = "all good" if not report.findings else f"{len(report.findings)} findings"
    line(
        f"{count(report.records, 'record')}{unproven}{lost}, {size(report.bytes)} in {count(report.segments, 'segment')} of "
        f"{count(report.logs, 'log')}: {verdict}"
    )
