"""The loss list: ranges of records that are known to be lost, which readers step over without raising.

`losses`, in the log's own directory, is written while nobody has the log open: by `repair`, and when opening finds that the log ends
before what is listed. It is looked at only where a bad frame was met. Bytes: docs/formats.md, "losses".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import NotALog
from penstock.storage import checked, files
from penstock.storage.damage import Loss, Place
from penstock.storage.manifest import SegmentInfo

FILE: Final = "losses"
_VERSION: Final = 1


class Listed(NamedTuple):
    """Records first to last (both included) of a segment, which lay from byte `position` up to byte `end` of it."""

    segment: str  # its data file's path within the log's directory
    first: int
    last: int
    position: int
    end: int
    reason: str
    us: int  # when it was listed

    @property
    def loss(self) -> Loss:
        return Loss(self.first, self.last, self.reason)


def listed_at(listed: Sequence[Listed], sequence: int) -> Listed | None:
    """What is listed of a record; of several, what reaches furthest."""
    found = [one for one in listed if one.first <= sequence <= one.last]
    return max(found, key=lambda one: one.last, default=None)


def is_listed(listed: Sequence[Listed], first: int, last: int) -> bool:
    """Whether every record first to last is."""
    while first <= last:
        found = listed_at(listed, first)
        if found is None:
            return False
        first = found.last + 1
    return True


def within(listed: Sequence[Listed], info: SegmentInfo) -> tuple[Listed, ...]:
    """What is listed of a segment's records."""
    return tuple(one for one in listed if one.first < info.next and one.last >= info.base)


def place_after(listed: Sequence[Listed], segment: str, at: Place) -> Place | None:
    """Where reading goes on after a bad frame in a segment, if the list says. It never goes back."""
    found = listed_at([one for one in listed if one.segment == segment], at.sequence)
    return Place(found.end, found.last + 1) if found is not None and found.end > at.position else None


class LossList:
    """The list of one log. What others write meanwhile is seen."""

    def __init__(self, own: Path) -> None:
        self.path = own / FILE
        self._seen: tuple[int, int] | None = None
        self._all: tuple[Listed, ...] = ()

    def all(self) -> tuple[Listed, ...]:
        """In the order of their records. Raises NotALog if it cannot be read."""
        stamp = files.stamp(self.path)
        if stamp is None:
            return ()
        if stamp != self._seen:
            self._all, self._seen = _load(self.path), stamp
        return self._all

    def known(self) -> tuple[Listed, ...]:
        """The same; nothing, if it is damaged."""
        try:
            return self.all()
        except NotALog:
            return ()

    def cut(self, end: Place, segment: str) -> None:
        """Take out what is listed of records that the log, which ends at that place of a segment, does not have: others will get their
        numbers. On the disk when this returns; a damaged list is left."""
        old = self.known()
        new = tuple(_cut(one, end, segment) for one in old if one.first < end.sequence)
        if new != old:
            _store(self.path, new)

    def add(self, some: Iterable[Listed]) -> None:
        """List more, on the disk when this returns. What a new one covers goes; a list that cannot be read is begun anew."""
        new = list(some)
        kept = [one for one in self.known() if not any(n.first <= one.first and one.last <= n.last for n in new)]
        _store(self.path, sorted([*kept, *new], key=lambda one: (one.first, one.last)))


def _cut(one: Listed, end: Place, segment: str) -> Listed:
    if one.last < end.sequence:
        return one
    upto = max(one.position, min(one.end, end.position)) if one.segment == segment else one.end
    return one._replace(last=end.sequence - 1, end=upto)


def _store(path: Path, losses: Iterable[Listed]) -> None:
    checked.store(path, {"version": _VERSION, "losses": [one._asdict() for one in losses]})


def _load(path: Path) -> tuple[Listed, ...]:
    step = "run `penstock repair`, which makes it anew from what is damaged"
    version, found = checked.load(path, step, _shape) or (_VERSION, ())
    if version != _VERSION:
        raise NotALog(f"{path}: a loss list of version {version}, this Penstock knows {_VERSION}; upgrade")
    return found


def _shape(found: Any) -> tuple[object, tuple[Listed, ...]]:
    """(version, what is listed): nothing, if it is of a version that is not known."""
    version = found.get("version")
    return version, tuple(map(_listed, found["losses"])) if version == _VERSION else ()


def _listed(one: Any) -> Listed:
    number, text = checked.number, checked.text
    made = Listed(
        text(one["segment"]),
        number(one["first"]),
        number(one["last"]),
        number(one["position"]),
        number(one["end"]),
        text(one["reason"]),
        number(one["us"]),
    )
    if made.first > made.last or made.position > made.end:
        raise ValueError(f"{made} ends before it begins")
    return made
