"""`penstock top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.arguments import Json
from penstock.cli.keys import keys
from penstock.cli.output import as_json, errors_told
from penstock.inspect.facts import LogFacts, look
from penstock.inspect.pace import Pace, paces

_ONCE_S: Final = 0.5


def top(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Logs, topics, or directories of logs.")],
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, metavar="SECONDS", help="How often to look.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit, as it does when stdout is not a terminal.")
    ] = False,
    json: Json = False,
) -> None:
    """Watch logs: append and read rates, how far readers are behind, what is not durable yet, files. q or Ctrl-C ends it.

    The lag of a log itself is what a power cut would take now. Red: a reader that is behind, and stands still.

    Example: penstock top /data/orders /data/mail
    """
    with errors_told():
        before, since = _look(paths), time.monotonic()
        if json or once or not sys.stdout.isatty():
            time.sleep(_ONCE_S)
            now = _look(paths)
            _print(paces(before, now, time.monotonic() - since), json)
            return
        with suppress(KeyboardInterrupt):  # as good as q
            _watch(paths, before, since, interval)


def _look(paths: Sequence[Path]) -> list[LogFacts]:
    return [facts for path in paths for facts in look(path, processes=False)]


def _print(found: list[Pace], json: bool) -> None:
    if json:
        as_json({"logs": [pace.to_dict() for pace in found]})
        return
    from rich.console import Console

    from penstock.cli.frame import frame

    console = Console(width=None if sys.stdout.isatty() else 80)
    console.print(frame(found, console.width))


def _watch(paths: Sequence[Path], before: list[LogFacts], since: float, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from penstock.cli.frame import frame

    console, wait = Console(), 0.1  # the first frame soon
    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while not pressed(wait):
            now, at = _look(paths), time.monotonic()
            live.update(frame(paces(before, now, at - since), *console.size), refresh=True)
            before, since, wait = now, at, interval
