"""Which records a command is about: options that `tail` and `dump` share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.units import seconds_of
from penstock.errors import InvalidOption
from penstock.inspect import Part, find
from penstock.inspect.rows import Bound

_DIGITS: Final = 20  # more have no offsets
_WHERE: Final = "an offset, a time such as 2026-11-15T10:00 (UTC if it names no zone), or how long ago, such as 15m"
From = Annotated[str | None, typer.Option("--from", metavar="SEQ|TIME", help=f"Where to begin: {_WHERE}.")]
Until = Annotated[
    str | None, typer.Option("--until", metavar="SEQ|TIME", help="Where to end, before that record or time.")
]
Last = Annotated[int | None, typer.Option("-n", metavar="N", min=0, help="Only the last N records.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", metavar="P", help="Only this partition of a topic.")
]
Skip = Annotated[bool, typer.Option("--skip-damaged", help="Step over damage, and say at the end what is lost.")]


def parts_of(path: Path, partitions: Sequence[int] | None) -> list[Part]:
    """The logs at a path; of topics only some partitions, if so many are named."""
    parts = find(path)
    if not partitions:
        return parts
    found = [part for part in parts if part.format == "topic" and part.partition in partitions]
    missing = set(partitions) - {part.partition for part in found}
    if missing:
        have = ", ".join(str(part.partition) for part in parts if part.format == "topic") or "none"
        raise InvalidOption(f"{path}: no partition {min(missing)}; there are {have}")
    return found


def bound(text: str | None, now: datetime | None = None) -> Bound | None:
    """What a place was given as.

    >>> bound("12"), bound("2026-11-15T10:00").isoformat(), bound("15m", datetime(2026, 1, 1, tzinfo=UTC)).isoformat()
    (12, '2026-11-15T10:00:00+00:00', '2025-12-31T23:45:00+00:00')
    """
    if text is None:
        return None
    if text.isdecimal():
        if len(text) > _DIGITS:
            raise InvalidOption(f"{text[:_DIGITS]}… is no place in a log; give {_WHERE}")
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    try:
        return (now or datetime.now(UTC)) - timedelta(seconds=seconds_of(text))
    except (InvalidOption, OverflowError):
        raise InvalidOption(f"{text!r} is no place in a log; give {_WHERE}") from None
