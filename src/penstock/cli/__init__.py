"""The command `penstock`. One module for each command; groups of them are packages. Needs the extra `cli`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def main() -> None:
    """The entry point."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"penstock: the command line needs {error.name}: pip install 'penstock[cli]'")
    from penstock.cli.app import app

    _have_streams()
    app()


def _have_streams() -> None:
    """Whoever started us may have closed them, and may take fewer characters than there are."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
