"""Arguments and options that many commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

LogPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A log, a topic, or a directory that has logs or topics directly in it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def told(command: Callable[..., Any]) -> str:
    """What `--help` says of a command: its docstring, whose lines end where the terminal does."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))
