"""The command `penstock`. One module for each command; groups of them are packages. Needs the extra `cli`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import extras


def main() -> None:
    """The entry point."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"penstock: the command line needs {error.name}: {extras.install('cli')}")
    from penstock.cli.app import app

    _have_streams()
    with _until_nobody_reads():
        app()


@contextmanager
def _until_nobody_reads() -> Iterator[None]:
    """Whoever reads what is printed may have had enough, as `head` has: then a command ends there, and says nothing of it."""
    like = sys.stdout
    if isinstance(like, io.TextIOWrapper) and like is sys.__stdout__:
        end = io.BufferedWriter(_Stdout(like.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(end, like.encoding, like.errors, line_buffering=like.line_buffering)
    try:
        yield
    finally:
        with suppress(_NobodyReads):  # all is done, so how it ends stays what it is
            sys.stdout.flush()


class _NobodyReads(SystemExit):
    """Ends a command. No error that a library on the way might take for its own to tell."""


class _CannotBeWritten(SystemExit):
    """Ends a command, too, which failed: of what it had to say something is missing."""


class _Stdout(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._give_up()
            raise _NobodyReads(0) from None
        except OSError as error:
            self._give_up()
            sys.stderr.write(f"penstock: stdout cannot be written: {error.strerror}; what was printed is not whole\n")
            raise _CannotBeWritten(1) from None

    def _give_up(self) -> None:
        """Nor may Python tell when it ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def _have_streams() -> None:
    """Whoever started us may have closed them, and may take fewer characters than there are."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
