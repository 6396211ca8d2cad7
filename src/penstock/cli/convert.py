"""`penstock convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, errors_told, line, table
from penstock.cli.progress import progress
from penstock.inspect import FormatName, find


def convert(
    path: LogPath,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where to write; must not exist yet.")],
    to: Annotated[FormatName, typer.Option("--to", help="The format to write.")],
    json: Json = False,
) -> None:
    """Copy logs into another format: every payload, in order and with its time, up to where they end now.

    TARGET gets its name when it is whole: if the command is interrupted, nothing is there, and it can be run again. Of a topic, TARGET is the
    directory above it. A journal's groups become one.

    Example: penstock convert /data/orders /data/topics --to topic
    """
    from penstock.converting import convert as run

    with errors_told(), progress("convert", _records(path)) as advance:
        report = run(path, target, to, advance)
    if json:
        as_json(report.to_dict())
    else:
        table(("log", "partition", "records", "to"), [(x.topic, x.partition, x.records, x.target) for x in report.logs])
        line(count(report.records, "record"))


def _records(path: Path) -> int:
    return sum(part.look(lambda view: view.end - view.first) for part in find(path))
