"""`penstock tail`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer

from penstock.cli.arguments import LogPath
from penstock.cli.output import errors_told, tell_losses
from penstock.cli.selection import From, Last, Partitions, Skip, bound, parts_of
from penstock.cli.showing import As, as_line, plain
from penstock.inspect.rows import Row, Rows

_LINES: Final = 10


def tail(
    path: LogPath,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for new records and show them, until Ctrl-C.")
    ] = False,
    last: Last = None,
    start: From = None,
    partition: Partitions = None,
    kind: As = "utf8",
    json: Annotated[bool, typer.Option("--json", help="Lines of JSON: partition, offset, timestamp, value.")] = False,
    skip_damaged: Skip = False,
) -> None:
    """Show the last records of a log (10, or all from --from on), one per line, and with -f new ones as they come.

    On a terminal each line begins with the record's number and time; in a pipe it is the payload alone. Partitions and logs are
    merged by time; -f also shows those that are created later. If records that --from asks for are gone, it begins with the oldest
    one that is left. Ctrl-C ends it with exit status 0.

    Example: penstock tail /data/orders -f --from 15m
    """
    with errors_told():
        parts = parts_of(path, partition)
        count = last if last is not None or start is not None else _LINES
        with Rows(parts, start=bound(start), last=count, on_corrupt="skip" if skip_damaged else "raise") as rows:
            show = (
                as_line(kind, named=len({p.path for p in parts}) > 1)
                if json
                else _shown(rows, plain(kind, escaped=_seen()))
            )
            try:
                _write(rows.now(), show)
                if follow:
                    for some in rows.follow(lambda: parts_of(path, partition)):
                        _write(some, show)
            except KeyboardInterrupt:
                if not follow:  # else it is how it is ended
                    raise
            tell_losses(rows.losses)


def _seen() -> bool:
    return sys.stdout.isatty()


def _shown(rows: Rows, payload: Callable[[Row], str]) -> Callable[[Row], str]:
    """On a terminal, with where and when."""
    if not _seen():
        return payload

    def show(row: Row) -> str:
        names, numbers = len({p.path for p in rows.parts}) > 1, len(rows.parts) > 1
        where = f"{row.part.topic} " * names + f"{row.part.partition}:" * numbers + str(row.offset)
        when = f"{row.timestamp:%H:%M:%S.%f}"[:-3] if row.timestamp else "-"
        return f"\x1b[2m{where} {when}\x1b[0m {payload(row)}"

    return show


def _write(rows: Iterable[Row], show: Callable[[Row], str]) -> None:
    for row in rows:
        sys.stdout.write(show(row) + "\n")
    sys.stdout.flush()
