"""Logs of records with a named reader: what the queue and the topic promise, and how both are judged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from penstock import Recovery
from penstock.testing.state import Boot
from tests.kit.uses.base import AFTER, Use, must
from tests.queue.crash import payload


@dataclass(frozen=True)
class Told:
    """What was promised."""

    sent: tuple[bytes, ...] = ()
    doing: tuple[bytes, ...] = ()  # under way: whole or absent
    failed: tuple[tuple[bytes, ...], ...] = ()  # since the last that did not: a power cut may bring one back
    durable: int = 0  # so many survive a power cut
    ends: frozenset[int] = frozenset({0})
    place: int | None = None  # of the reader, when last committed
    places: frozenset[int | None] = frozenset({None})  # where a power cut may leave it
    committing: int | None = None
    passed: int = 0  # what lies before may be retired


@dataclass
class Found:
    first: int
    payloads: list[bytes]
    place: int | None
    recovery: Recovery


class Records(Use):
    """What the queue and the topic have in common."""

    durable_commits: ClassVar[bool]  # a place survives a power cut when `commit` returned
    waits: ClassVar[bool]  # nothing is done before it is durable
    parts: ClassVar[bool] = False  # a batch that was not acknowledged may be there in part

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.told = Told()

    def now(self) -> Told:
        return self.told

    def _say(self, **changes: Any) -> None:
        self.told = replace(self.told, **changes)

    def _appending(
        self, sizes: list[int], act: Callable[[list[bytes]], None], made: Callable[[int, int], bytes] = payload
    ) -> None:
        new = [made(len(self.told.sent) + i, size) for i, size in enumerate(sizes)]
        failed = (*self.told.failed, self.told.doing) if self.told.doing else self.told.failed
        self._say(doing=tuple(new), failed=failed)
        act(new)
        sent = (*self.told.sent, *new)
        durable = len(sent) if self.waits else self.told.durable
        self._say(sent=sent, doing=(), failed=(), ends=self.told.ends | {len(sent)}, durable=durable)

    def _retiring(self, act: Callable[[], None]) -> None:
        """Without a reader nothing holds anything back."""
        if self.told.place is None:
            self._say(passed=len(self.told.sent))
        act()

    def _committing(self, place: int, act: Callable[[], None]) -> None:
        self._say(committing=place, passed=max(self.told.passed, place), places=self.told.places | {place})
        act()
        places = frozenset({place}) if self.durable_commits else self.told.places
        self._say(place=place, committing=None, places=places)

    @classmethod
    def going_on(cls, told: Told, boot: Boot) -> Told:
        """Without a reader, or when a power cut has taken it, its background holds nothing back."""
        some = len(told.sent) + max(map(len, (told.doing, *told.failed)))
        return replace(told, passed=some) if None in (told.places if boot == "new" else (told.place,)) else told

    @classmethod
    def settled(cls, told: Told) -> Told:
        return replace(told, durable=len(told.sent))

    @classmethod
    @abstractmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        """Open and read everything, then append some."""

    @classmethod
    def judge(cls, path: Path, told: Told, boot: Boot) -> int:
        found = cls.look(path, AFTER)
        ways = [[*told.sent, *doing] for doing in (told.doing, *(told.failed if boot == "new" else ()))]
        end = found.first + len(found.payloads)
        must(not found.recovery.damage, "nothing is taken for damage", found.recovery.damage)
        must(found.first <= told.passed, "nothing that the reader has not passed is gone", found.first, told)
        same = [every for every in ways if found.payloads == every[found.first : end]]
        must(same, "an exact prefix", found.payloads, *ways)
        must(end in told.ends or end in map(len, same) or cls.parts, "batches are whole or absent", end, told.ends)
        must(end >= (told.durable if boot == "new" else len(told.sent)), "nothing promised is lost", end, told)
        place = found.place
        if boot == "new":
            may = {min(p, end) if p is not None else None for p in told.places}
            # One whose last commits are undone, and who has committed since where he stood: at the first that is left.
            may |= {found.first} if any(p is not None and p < found.first for p in may) else set()
        else:
            may = {told.place} | ({told.committing} if told.committing is not None else set())
        must(place in may, "the reader stands where it was committed", place, may)
        again = cls.look(path, [])
        must(again.recovery.clean, "what was mended stays so", again.recovery)
        must(again.payloads == [*found.payloads, *AFTER][again.first - found.first :], "and goes on", again.payloads)
        must(again.place == place, "and so does the reader", again.place, place)
        return len(found.payloads)
