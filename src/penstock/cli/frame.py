"""One frame of `penstock top`: the logs with their readers below them, as many as fit the screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from penstock.cli.output import count, size
from penstock.inspect.pace import Pace

_COLUMNS: Final = ("rate/s", "bytes/s", "at", "lag", "files")
_FOR_WIDE: Final = ("bytes/s", "at", "files")
_WIDE: Final = 60


def frame(found: Sequence[Pace], width: int, height: int | None = None) -> Table:
    """A table that is no wider and higher than this. On a narrow screen some columns are left out."""
    rows = [row for pace in found for row in _rows(pace)]
    room = len(rows) if height is None else max(1, height - 2)
    shown = rows if len(rows) <= room else rows[: room - 1]
    names = [name for name in _COLUMNS if width >= _WIDE or name not in _FOR_WIDE]
    table = Table(
        box=None, pad_edge=False, header_style="bold", title_justify="left", caption_justify="left", width=width
    )
    table.title = f"{count(len(found), 'log')}, {sum(p.records_s for p in found):,.0f} records/s, {datetime.now(UTC):%H:%M:%S} UTC"
    table.caption = f"and {len(rows) - len(shown)} lines more" if len(shown) < len(rows) else None
    table.add_column("log, reader", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis")
    for first, *others in shown:
        table.add_row(first, *(cell for name, cell in zip(_COLUMNS, others, strict=True) if name in names))
    return table


def _rows(pace: Pace) -> list[tuple[Text, ...]]:
    """A line for the log, whose lag is what is not durable yet, and one for each reader."""
    facts = pace.facts
    name = Text(f"{facts.topic}:{facts.partition}" if facts.format == "topic" else facts.topic, style="bold")
    if facts.problems:
        name.append(f" {facts.problems[0]}", style="red")
    undurable = max(0, facts.next - facts.durable)
    out: list[tuple[Text, ...]] = [
        (
            name,
            _number(pace.records_s, "green"),
            Text(size(pace.bytes_s)),
            Text(f"{facts.next:,}"),
            _number(undurable, "yellow"),
            Text(str(len(facts.segments))),
        )
    ]
    for one in pace.readers:
        behind = _number(one.reader.lag, "red" if one.reader.lag and one.records_s <= 0 else "")
        out.append(
            (
                Text(f"  {one.reader.name}"),
                _number(one.records_s, "cyan"),
                Text(),
                Text(f"{one.reader.position:,}"),
                behind,
                Text(),
            )
        )
    return out


def _number(value: float, style: str) -> Text:
    return Text(f"{value:,.0f}", style=style if value else "dim")
