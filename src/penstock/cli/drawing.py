"""A log as a bar of its files, and its readers below it where they stand. Fits any width.

A cell of the bar is a stretch of records. Where files are at least two cells wide each begins with a half cell, so that they can
be told apart without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rich.text import Text

from penstock.inspect.facts import LogFacts, ReaderFacts, SegmentFacts

_LEAST_CELLS: Final = 10
_MOST_READERS: Final = 8
_LOOKS: Final = {
    "active": ("█", "green"),
    "finished": ("▓", "yellow"),
    "sealed": ("▓", "blue"),
    "compressed": ("▒", "magenta"),
}


def draw(facts: LogFacts, width: int) -> list[Text]:
    """The lines of the drawing, none longer than `width`; none for a log without records."""
    if not facts.records:
        return []
    cells = max(_LEAST_CELLS, width)
    bar = Text(no_wrap=True)
    for segment, size in zip(facts.segments, _share_out(facts, cells), strict=True):
        sign, colour = _LOOKS[_look(segment)]
        bar.append(("▐" + sign * (size - 1)) if size > 1 else sign * size, style=colour)
    lines = [_scale(facts, cells), bar]
    shown = sorted(facts.readers, key=lambda reader: (reader.position, reader.name))
    lines += [_marked(facts, reader, cells) for reader in shown[:_MOST_READERS]]
    if len(shown) > _MOST_READERS:
        lines.append(Text(f"and {len(shown) - _MOST_READERS} readers more, all ahead of these"[:cells], style="dim"))
    return lines


def legend(several: Sequence[LogFacts]) -> Text:
    """What the signs mean that were used."""
    used = {_look(segment) for facts in several for segment in facts.segments if facts.records}
    out = Text()
    for name, (sign, colour) in _LOOKS.items():
        if name in used:
            out.append(sign + " ", style=colour).append(name + "  ")
    if any(facts.readers and facts.records for facts in several):
        out.append("▲ ", style="bold").append("reads from here")
    return out


def _look(segment: SegmentFacts) -> str:
    return "compressed" if segment.compressed else segment.state


def _cell(facts: LogFacts, offset: int, cells: int) -> int:
    return (offset - facts.first) * cells // facts.records


def _share_out(facts: LogFacts, cells: int) -> list[int]:
    """How many cells each file has. One too small to be seen has none, but for the last, which is being written."""
    edges = [_cell(facts, segment.base, cells) for segment in facts.segments] + [cells]
    edges[-2] = min(edges[-2], cells - 1)
    for i in range(len(edges) - 2, 0, -1):
        edges[i - 1] = min(edges[i - 1], edges[i])
    edges[0] = 0
    return [after - before for before, after in pairwise(edges)]


def _scale(facts: LogFacts, cells: int) -> Text:
    """The first and the last offset, above the ends of the bar."""
    first, last = f"{facts.first:,}", f"{facts.next - 1:,}"
    gap = cells - len(first) - len(last)
    return Text(first + " " * gap + last if gap > 0 else last[:cells], style="dim", no_wrap=True)


def _marked(facts: LogFacts, reader: ReaderFacts, cells: int) -> Text:
    """An arrow where a reader stands, and its name on the side where there is room."""
    at = min(cells - 1, _cell(facts, reader.position, cells))
    behind = f"{'' if reader.exact else 'about '}{reader.lag:,} behind" if reader.lag else "at the end"
    words = f"{reader.name}, {behind}"
    room = max(cells - at - 2, at - 1)
    words = words if len(words) <= room else words[: max(0, room - 1)] + "…"
    left = cells - at - 2 < len(words)
    line = Text(" " * (at - len(words) - 1) + words + " ▲" if left and at > len(words) else " " * at + "▲ " + words)
    line.no_wrap = True
    line.stylize("bold", line.plain.index("▲"), line.plain.index("▲") + 1)
    return line
