"""The command `penstock`. One module for each command; groups of them are packages. Needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"penstock: the command line needs {error.name}: pip install 'penstock[cli]'")
    from penstock.cli.app import app

    app()
