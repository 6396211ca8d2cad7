"""The journal: what a walk may give, of groups that are complete and of those that their session left open."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock import Journal, RecoveryUnfinished
from penstock.testing.state import Boot
from tests.kit.uses.base import AFTER, Use, must
from tests.queue.crash import payload

LINGER_S = 3600.0


class Line(NamedTuple):
    """A record of a journal."""

    payload: bytes
    group: int
    left_open: bool = False  # its session ended before the group was complete: only a walk's end retires it


Given = tuple[Line, ...]


def pairs(lines: Iterable[Line]) -> list[tuple[bytes, int]]:
    """As a walk gives them."""
    return [line[:2] for line in lines]


@dataclass(frozen=True)
class Lines:
    """What a walk may give. That is one thing, but while an operation is under way, and after one that has failed: then it may be as
    before, or as after it. Of a batch that was not acknowledged there may be a part, where frames have no checksum that could tell."""

    ways: tuple[Given, ...] = ((),)

    def may_be(self, found: list[tuple[bytes, int]]) -> bool:
        return found in map(pairs, self.ways)

    def each(self, *become: Callable[[Given], Iterable[Given]]) -> Lines:
        """What may be there when each of these may have come of it."""
        return Lines(tuple(dict.fromkeys(way for was in self.ways for makes in become for way in makes(was))))


def _left_open(lines: Given) -> Given:
    return tuple(line for line in lines if line.left_open)


class JournalUse(Use):
    name = "journal"
    ops = ("append", "many", "checkpoint", "check", "walk", "again", "reopen", "work")
    appends = ("append", "many")
    long = (
        *("append", "many", "checkpoint", "append", "checkpoint", "check", "work", "many", "reopen", "append"),
        *("checkpoint", "walk", "append", "checkpoint", "check", "many", "work"),
    )
    durable = ("append", "many", "checkpoint")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines = Lines()
        self._made = 0

    def now(self) -> Lines:
        return self._lines

    def _doing(
        self,
        after: Callable[[Given], Given],
        act: Callable[[], object],
        between: Callable[[Given], Iterable[Given]] = lambda was: (),
    ) -> None:
        """What was there becomes what it is `after` that; when it is half done, it may be something in between."""
        done = self._lines.each(lambda was: [after(was)])
        self._lines = self._lines.each(lambda was: [was, after(was), *between(was)])
        act()
        self._lines = done

    def open(self) -> None:
        self.j = Journal(self.path)
        self._mark_left_open()

    def close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryUnfinished)
            self.j.close()

    def _append(self, sizes: list[int]) -> None:
        new = [payload(self._made + i, size) for i, size in enumerate(sizes)]
        self._made += len(new)
        group = self.j.current + 1
        lines = tuple(Line(p, group) for p in new)
        self._doing(
            lambda was: (*was, *lines),
            lambda: self.j.append_many(new).result(),
            lambda was: ((*was, *lines[:n]) for n in range(1, len(lines))),
        )

    def append(self) -> None:
        self._append([40])

    def many(self) -> None:
        self._append([30, 0, 20])

    def larger(self) -> None:
        """More than a sector; for files that have room for it."""
        self._append([900])

    def checkpoint(self) -> None:
        self.j.checkpoint().result()

    def check(self) -> None:
        if self.j.first_unchecked <= self.j.current:
            number = self.j.first_unchecked
            self._doing(
                lambda was: tuple(line for line in was if line.group > number or line.left_open),
                lambda: self.j.check().result(),
            )

    def reopen(self) -> None:
        self._in_new_session(linger_s=0.0)

    def _in_new_session(self, linger_s: float) -> None:
        self.close()
        self.j = Journal(self.path, linger_s=linger_s)
        self._mark_left_open()

    def _mark_left_open(self) -> None:
        """In a new session: the groups that nobody has completed."""
        now = self.j.current
        self._lines = self._lines.each(
            lambda was: [tuple(line._replace(left_open=line.left_open or line.group > now) for line in was)]
        )

    def _there(self) -> Given:
        """In a new session: which of the ways it is."""
        found = [(r.payload, r.group) for some in self.j._walk("raise", []) for r in some]
        must(self._lines.may_be(found), "what was acknowledged, and no more", found, self._lines)
        self._lines = Lines(tuple(way for way in self._lines.ways if pairs(way) == found))
        return self._lines.ways[0]

    def walk(self) -> None:
        """In a new session: all that was there is read and goes."""
        self._in_new_session(linger_s=0.0)
        had = pairs(self._there())
        walk = iter(self.j.recovered())
        got = [(r.payload, r.group) for r in (next(walk) for _ in had)]
        must(got == had, "a walk gives what is there", got, had)
        self._doing(lambda was: (), lambda: list(walk), lambda was: [_left_open(was)])  # complete groups go first

    def again(self) -> None:
        """The same, and each is appended again and not waited for: the walk's end does that, before what it went over goes."""
        if not any(self._lines.ways):
            self.walk()
            return
        self._in_new_session(linger_s=LINGER_S)  # so that nothing is written before the walk's end
        new = tuple(Line(line.payload, self.j.current + 1) for line in self._there())
        self._doing(
            lambda had: new,
            self._walk_and_append,
            lambda had: ((*_left_open(had), *new), *((*had, *new[:n]) for n in range(1, len(new) + 1))),
        )

    def _walk_and_append(self) -> None:
        for record in self.j.recovered():
            self.j.append(record.payload)

    def work(self) -> None:
        self.j._janitor.look_again()
        self.j._janitor._turn()

    def go_on(self) -> None:
        self.work()

    @classmethod
    def judge(cls, path: Path, told: Lines, boot: Boot) -> int:
        j = Journal(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryUnfinished)
            try:
                found = [(r.payload, r.group) for some in j._walk("raise", []) for r in some]
                must(told.may_be(found), "what was acknowledged, and no more", found, told)
                j.append_many(AFTER).result()
            finally:
                j.close()
            j = Journal(path)
            try:
                again = [r.payload for some in j._walk("raise", []) for r in some]
                must(again == [*(p for p, _ in found), *AFTER], "what was mended stays so, and goes on", again)
            finally:
                j.close()
        return len(found)
