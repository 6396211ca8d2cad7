"""What every command says, and how: results on stdout, everything else on stderr; honest exit codes.

0: all is well. 1: damage was found, or it failed. 2: it was used in a wrong way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

from penstock.errors import CorruptSettings, InvalidOption, InvalidTopic, LogNotFound, NotALog, PenstockError
from penstock.inspect import Part
from penstock.storage.damage import Loss
from penstock.times import utc

FAILED: Final = 1
WRONG_USE: Final = 2
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say why, and end."""
    sys.stderr.write(f"penstock: {message}\n")
    raise typer.Exit(code)


@contextmanager
def errors_told() -> Iterator[None]:
    """What Penstock raises on purpose is a line on stderr, not a traceback."""
    try:
        yield
    except CorruptSettings as error:
        fail(str(error))
    except (InvalidOption, InvalidTopic, LogNotFound, NotALog) as error:
        fail(str(error), WRONG_USE)
    except (PenstockError, OSError) as error:
        fail(str(error))


def tell_failed(reasons: Sequence[str], *, quiet: bool) -> None:
    """Say what failed, unless the report was printed whole, and end if anything did."""
    for reason in () if quiet else reasons:
        sys.stderr.write(f"penstock: {reason}\n")
    if reasons:
        raise typer.Exit(FAILED)


def tell_losses(losses: Mapping[Part, Sequence[Loss]]) -> None:
    """Name what was stepped over, and end if anything was."""
    tell_failed(
        [
            f"{part.path}: partition {part.partition}: offsets {loss.first} to {loss.last} are lost: {loss.reason}"
            for part, some in losses.items()
            for loss in some
        ],
        quiet=False,
    )


def as_json(report: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(report, indent=2, default=str) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table, as wide as it needs to be when nobody looks at it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(Text(str(cell)) for cell in row))  # a name in brackets is a name
    Console(width=None if sys.stdout.isatty() else 500, soft_wrap=not sys.stdout.isatty()).print(shown)


def line(text: str) -> None:
    sys.stdout.write(text + "\n")


def count(number: int, what: str) -> str:
    """So many of something, for people.

    >>> count(1, "record"), count(1000, "record")
    ('1 record', '1,000 records')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def size(number: float) -> str:
    """So many bytes, for people.

    >>> size(1536), size(12), size(1)
    ('1.5 KiB', '12 bytes', '1 byte')
    """
    for unit in _UNITS[:-1]:
        if number < 1024:
            return count(round(number), "byte") if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {_UNITS[-1]}"


def when(us: int) -> str:
    """A time, for people, in UTC.

    >>> when(1_700_000_000_000_000), when(0)
    ('2023-11-14 22:13:20', 'not known')
    """
    at = utc(us)
    return f"{at:%Y-%m-%d %H:%M:%S}" if at is not None else "not known"


def lasting(seconds: float) -> str:
    """So long, for people.

    >>> lasting(0.25), lasting(90), lasting(7300), lasting(200_000)
    ('0.2 s', '1 min 30 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for large, small, unit, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            return f"{whole // large} {unit} {whole % large // small} {part}"
    raise AssertionError("unreachable")
