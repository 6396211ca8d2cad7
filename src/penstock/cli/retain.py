"""`penstock retain`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, errors_told, line, size, tell_failed
from penstock.cli.units import bytes_of, seconds_of
from penstock.options import Retention
from penstock.retaining import Retained
from penstock.retaining import retain as run


def retain(
    path: LogPath,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="Keep at most this much, such as 10GiB.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="AGE", help="Keep what is younger than this, such as 7d.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also remove what named readers have not read yet.")] = False,
    json: Json = False,
) -> None:
    """Remove the oldest finished files of a log beyond a size or an age, and say which readers hold back others.

    The file being written stays. A channel must not be open elsewhere; a journal is not touched. Exits with 1 if a log could
    not be opened; the others are still done.

    Example: penstock retain /data/orders --max-bytes 10GiB --max-age 7d
    """
    with errors_told():
        size_bytes = max(1, bytes_of(max_bytes)) if max_bytes is not None else None
        age_s = max(1e-6, seconds_of(max_age)) if max_age is not None else None
        report = run(path, Retention(size_bytes, age_s, ignore_cursors=force))
    if json:
        as_json(report.to_dict())
    else:
        for one in report.logs:
            _tell(one)
    tell_failed(report.failed, quiet=json)


def _tell(one: Retained) -> None:
    line(
        f"{one.topic}, partition {one.partition}: {count(one.files, 'file')} removed, {count(one.records, 'record')}, "
        f"{size(one.bytes)}; "
        f"the first record is {one.first:,}"
    )
    for held in one.held_back:
        line(
            f"  held back by {held.name}, which is at {held.position:,}: {count(held.files, 'file')}, {size(held.bytes)}"
        )
