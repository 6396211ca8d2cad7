"""`penstock doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Json
from penstock.cli.output import FAILED, as_json, errors_told, line


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="The directory of a log, which need not exist; by default the one for temporary files.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check whether a log can be kept safe at PATH, and what this machine offers: kernel, file system, clock, limits, Java, Spark.

    Things are tried in a temporary directory, which is removed. Exits with 1 if the durability contract cannot be held there; what is
    merely missing or slow is marked with a -.

    Example: penstock doctor /data
    """
    from penstock.doctor import examine

    with errors_told():
        found = examine(path)
    if json:
        as_json(found.to_dict())
    else:
        _tell(found.path, [(c.name, c.ok, c.needed, c.says, c.advice) for c in found.checks])
        line("the contract holds here" if found.holds else "the contract CANNOT be held here")
    if not found.holds:
        raise typer.Exit(FAILED)


def _tell(path: str, checks: list[tuple[str, bool, bool, str, str]]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(path, style="bold", markup=False, soft_wrap=True)
    for name, ok, needed, says, advice in checks:
        mark, colour = ("✓", "green") if ok else ("✗", "red") if needed else ("-", "yellow")
        console.print(f"[{colour}]{mark}[/] {name:<16}", end="")
        console.print(says + (f"; {advice}" if advice else ""), markup=False, soft_wrap=True)
