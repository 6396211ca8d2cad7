"""To how many partitions of each topic a query's last batch was shared out.

A batch that Spark runs again must go where it went before: a row whose key leads to another partition now would be there twice, or not
at all. `.sinks/<query>` below the topics is replaced before the first record of each batch, and says so over a power cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.storage import checked, files

_NAME: Final = ".sinks"


class Pin(NamedTuple):
    """How many partitions each topic had for a batch."""

    batch: int
    counts: Mapping[str, int]


def keep(top: str, query: str, pin: Pin) -> None:
    place = Path(top) / _NAME
    files.make_directories(place, Path(top))
    checked.store(place / query, pin._asdict())


def load(top: str) -> dict[str, Pin]:
    """By query."""
    place, step = Path(top) / _NAME, "restore it from a copy, or remove it if the query does not come again"
    paths = [path for path in place.iterdir() if not path.name.endswith(".tmp")] if place.is_dir() else []
    found = {path.name: checked.load(path, step, _pin) for path in paths}
    return {query: pin for query, pin in found.items() if pin is not None}


def _pin(said: Any) -> Pin:
    return Pin(checked.number(said["batch"]), {topic: checked.number(count) for topic, count in said["counts"].items()})
