"""Arguments and options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LogPath = Annotated[Path, typer.Argument(metavar="PATH", help="A log, a topic, or a directory of logs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
