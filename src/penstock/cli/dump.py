"""`penstock dump`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.arguments import LogPath
from penstock.cli.output import WRONG_USE, as_json, errors_told, fail, tell_losses
from penstock.cli.progress import progress
from penstock.cli.selection import From, Last, Partitions, Skip, Until, bound, parts_of
from penstock.cli.showing import As, as_line
from penstock.errors import InvalidOption

Target = Literal["jsonl", "parquet"]


def dump(
    path: LogPath,
    to: Annotated[Target, typer.Option("--to", help="The format of the output.")] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; stdout if not given.")
    ] = None,
    last: Last = None,
    start: From = None,
    until: Until = None,
    partition: Partitions = None,
    kind: As = "utf8",
    skip_damaged: Skip = False,
    json: Annotated[
        bool, typer.Option("--json", help="With --output: print a report of what was written, as JSON.")
    ] = False,
) -> None:
    """Write the records of a log as lines of JSON, or to a Parquet file, up to where it ends now.

    A line has partition, offset, timestamp and value; of a payload that is no UTF-8, value_base64 in place of value. Parquet has the
    same columns, with values as bytes, and needs the extra `arrow`. With several logs there is a column log, too.
    FILE is there when it is whole, not before.

    Example: penstock dump /data/orders --from 2026-11-15 --to parquet --output orders.parquet
    """
    if to == "parquet" and output is None:
        fail("a Parquet file needs a name; give it with --output", WRONG_USE)
    from penstock.dump import write_lines, write_parquet, written_whole
    from penstock.inspect.rows import Rows

    with errors_told():
        parts = parts_of(path, partition)
        for part in parts:
            if output is not None and output.resolve().is_relative_to(Path(part.path).resolve()):
                raise InvalidOption(f"{output}: lies in the log {part.path}; write beside it")
        if output is not None and not output.parent.is_dir():
            raise InvalidOption(f"{output}: there is no directory {output.parent}; make it, or write elsewhere")
        named = len({part.path for part in parts}) > 1
        bounds = bound(start), bound(until)
        on_corrupt: Literal["skip", "raise"] = "skip" if skip_damaged else "raise"
        with Rows(parts, start=bounds[0], end=bounds[1], last=last, on_corrupt=on_corrupt) as rows:
            records = 0
            if output is None:
                write_lines(rows.now(), sys.stdout, as_line(kind, named=named), lambda step: None)
            else:
                with progress("dump", rows.count()) as advance, written_whole(output) as temporary:
                    if to == "parquet":
                        records = write_parquet(rows.now(), temporary, named, advance)
                    else:
                        with temporary.open("w", encoding="utf-8") as file:
                            records = write_lines(rows.now(), file, as_line(kind, named=named), advance)
            if json and output is not None:
                as_json({"path": str(path), "output": str(output), "format": to, "records": records})
            tell_losses(rows.losses)
