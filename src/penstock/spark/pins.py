"""Which batch of a query a topic had last, and to how many of its partitions that was shared out.

A batch that Spark runs again must go where it went before: a row whose key leads to another partition now would be there twice, or not
at all. And one that all partitions have, or that a later one followed, must go nowhere: a partition that had no row of it knows nothing of
it, and would take what comes to it now. `.sinks/<query>` in the topic's directory is replaced before the first record of each batch and after
the last, and says so over a power cut. It goes with its topic: one that is made anew, or overwritten, has no batch yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import NotALog
from penstock.storage import checked, files

_NAME: Final = ".sinks"
_STEP: Final = "restore it from a copy, or remove it if the query does not come again"


class Pin(NamedTuple):
    """A topic's last batch of a query."""

    batch: int
    partitions: int  # that it was shared out to
    done: bool = False  # all of them have it

    def has(self, batch: int) -> bool:
        """Whether nothing of a batch is to be appended any more."""
        return self.batch > batch or (self.batch == batch and self.done)


Pins = dict[str, dict[str, Pin]]  # by query and topic


def keep(topic: Path, query: str, pin: Pin) -> None:
    place = topic / _NAME
    files.refuse_links(place, topic.parent)
    files.make_directories(place, topic.parent)
    checked.store(place / query, pin._asdict())


def load(topic: Path, query: str) -> Pin | None:
    return checked.load(topic / _NAME / query, _STEP, _pin)


def load_all(top: Path, topics: Iterable[str], query: str | None = None) -> Pins:
    """Those of some topics: a query's, or everybody's."""
    out: Pins = {}
    for topic in topics:
        for name in _queries(top / topic, query):
            with suppress(NotALog):  # told when its own query commits: nobody else's needs it
                pin = load(top / topic, name)
                if pin is not None:
                    out.setdefault(name, {})[topic] = pin
    return out


def _queries(place: Path, query: str | None) -> list[str]:
    if query is not None:
        return [query]
    found = files.children(place / _NAME) if files.is_directory(place / _NAME) else []
    return [path.name for path in found if not path.name.endswith(".tmp")]


def _pin(said: Any) -> Pin:
    if not isinstance(said["done"], bool):
        raise ValueError(f"done is {said['done']!r}")
    return Pin(checked.number(said["batch"]), checked.number(said["partitions"]), said["done"])
