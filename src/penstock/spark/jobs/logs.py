"""The logs at a path, as jobs take them: every one of them, what cannot be opened as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.inspect import Part, Segment, find


class Found(NamedTuple):
    """A log, its segments, and what was wrong with it as a whole; empty if nothing was."""

    part: Part
    segments: tuple[Segment, ...]
    error: str


def logs(path: str | Path, *, durable: bool = False) -> Iterator[Found]:
    """Every log at a path, and every partition of a topic. If `durable`, what they hold is put on the disk first."""
    for part in find(path):
        try:
            with part.open() as view:
                if durable:
                    view.durable_end()
                found = Found(part, tuple(view.segments()), "")
        except (PenstockError, OSError) as error:
            found = Found(part, (), str(error))
        yield found


def size_of(segment: Segment) -> int:
    """How much work a segment is."""
    return segment.end
