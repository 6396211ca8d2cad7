"""Who of several live members, in any processes, has which of a number of things: the partitions of a topic, say.

Nobody leads, and there is no time to tune: a member is alive while it holds an flock on its own file `member-PID-RANDOM`, and
has a thing while it holds one on `claim-N`. The system lets go of both when the process dies, at whatever instruction, and
never while it is merely slow or stopped. So no state is ever to be mended, and no thing has two owners.

Each member looks for itself how many are alive and which place it has among them. From that follows how many things are its
share; the shares of all add up to all things. Whoever has more gives some back, whoever has fewer takes free ones. Whatever the
members saw in between, once they have seen the same, everything has an owner.

`turn` is a word that everyone has mapped: it gets another value whenever somebody came, left or gave something back. Of a death
nobody tells, so there is a look now and then too.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from penstock.errors import FilesMissing, LogClosed
from penstock.storage import files

_LOOK_S: Final = 0.2  # how soon a death is noticed
_TURN_BYTES: Final = 8
_NO_TURN: Final = memoryview(bytes(_TURN_BYTES)).cast("Q")
_MEMBER: Final = "member-"


def plan(mine: Iterable[int], count: int, live: int, rank: int) -> tuple[list[int], list[int], int]:
    """What a member that has `mine` of `count` things does, being the one of that rank among the live: (what it would rather
    give back, best first; what it would rather take, best first; how many it takes, or gives if negative).

    Every `live`-th thing is its own by preference, and as many of them as there are, its share is. It moves no thing just
    to get another.
    """
    own = range(rank, count, live)
    have = set(mine)
    give = sorted(have, key=lambda i: (i in own, i))
    take = sorted(set(range(count)) - have, key=lambda i: (i not in own, i))
    return give, take, len(own) - len(have)


class Claims:
    """One member's part in the sharing out of `count` things among all live members of a group. Not thread-safe."""

    def __init__(self, top: Path, count: int) -> None:
        self._top = top
        self.count = count  # may become more
        self._gone = "this member was closed; join again"
        self._fds: dict[str, int] = {}  # every file that is open here, also while its lock is only tried for
        self._mine: dict[int, int] = {}  # and a number for each time that one was taken
        self._told: dict[int, int] = {}  # what the caller knows
        self._takings = itertools.count()
        self._name = ""  # of its own file, once it is in
        self._seen = 0
        self._look_at = 0.0
        files.make_directories(top, Path(top.anchor))
        self._turn = self._map_turn()
        _all.add(self)
        weakref.finalize(self, _let_go, self._fds).atexit = False  # one that was dropped holds nothing
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    # ---- coming and going ----

    def _map_turn(self) -> memoryview:
        fd = files.create(self._top / "turn", exclusive=False)
        try:
            if files.size(fd) < _TURN_BYTES:
                files.lengthen(fd, _TURN_BYTES)  # a store to a map without blocks below kills on a full disk
            return memoryview(files.map_write(fd, _TURN_BYTES)).cast("Q")
        finally:
            files.close(fd)

    def _join(self) -> None:
        """Have a file of our own with our lock on it. Between its making and the lock somebody may take it for that of a dead
        one and remove it; then there is another, of another name."""
        while not self._name:
            name = f"{_MEMBER}{os.getpid()}-{os.urandom(6).hex()}"
            fd = self._open(name, new=True)
            if files.lock(fd, shared=False, wait=False) and files.has_name(fd):
                self._name = name
            else:
                files.remove(self._top / name)
                self._shut(name)
        self._bump()

    def close(self) -> None:
        """Leave: what it has is free at once. Safe to call twice."""
        if self._fds:
            name, self._name = self._name, ""
            self._mine.clear()
            _let_go(self._fds)
            self._bump()
            if name:
                files.remove(self._top / name)
        self._turn, self._look_at = _NO_TURN, 0.0

    def _forked(self) -> None:
        """In the child: the locks are the parent's, and end with it."""
        self._gone = "this member joined before a fork; join again in the child process"
        for fd in self._fds.values():
            files.close(fd)
        self._fds.clear()
        self._mine.clear()
        self._name = ""
        self._turn, self._look_at = _NO_TURN, 0.0

    # ---- its files ----

    def _open(self, name: str, *, new: bool) -> int:
        fd = self._fds[name] = files.open_to_lock(self._top / name, exclusive=new)
        return fd

    def _shut(self, name: str) -> None:
        _let_go(self._fds, [name])

    def _bump(self) -> None:
        """Have the others look. A value that was never there before: none can be taken for one that was seen."""
        self._turn[0] = int.from_bytes(os.urandom(_TURN_BYTES), "little")

    # ---- who has what ----

    @property
    def mine(self) -> set[int]:
        return set(self._mine)

    def changed(self) -> bool:
        """Whether it is worth while to settle; costs two loads."""
        return self._turn[0] != self._seen or time.monotonic() >= self._look_at

    def settle(self, may_give: Callable[[int], bool]) -> tuple[set[int], set[int]]:
        """Look again: (newly mine, no longer mine), since the last time this returned. After a call that raised, something may
        be in both: it was given back and is here again, and another one may have had it in between.

        What is beyond this member's share is given back if `may_give(thing)` says so, else it is asked again another time. If
        it says so the thing may have another owner before this returns.
        """
        if not self._name:
            raise LogClosed(f"{self._top}: {self._gone}")
        self._seen = self._turn[0]  # first: what changes after this is seen the next time
        self._look_at = time.monotonic() + _LOOK_S
        self._drop_strays()
        live = self._live()
        give, take, room = plan(self._mine, self.count, len(live), live.index(self._name))
        for thing in give:
            if room >= 0:
                break
            if thing not in self._told or may_give(thing):  # one that the caller never knew of, he cannot need
                del self._mine[thing]
                self._shut(_claim(thing))
                self._bump()
                room += 1
        for thing in take:
            if room <= 0:
                break
            room -= self._take(thing)
        mine, told = dict(self._mine), self._told
        news = {i for i in mine if told.get(i) != mine[i]}, {i for i in told if mine.get(i) != told[i]}
        self._told = mine
        return news

    def _take(self, thing: int) -> bool:
        name = _claim(thing)
        if not files.lock(self._open(name, new=False), shared=False, wait=False):
            self._shut(name)
            return False
        self._mine[thing] = next(self._takings)
        return True

    def _drop_strays(self) -> None:
        """What a call that was interrupted had opened, or was about to close."""
        wanted = {self._name, *map(_claim, self._mine)}
        for name in [name for name in self._fds if name not in wanted]:
            self._shut(name)

    def _live(self) -> list[str]:
        """The names of all live members, in order. The files of dead ones are removed."""
        found, swept = [self._name], False
        try:
            names = [path.name for path in files.children(self._top)]
        except FileNotFoundError as error:
            raise FilesMissing(
                f"{self._top}: it was removed, and with it who is a member of this group; close the member and join again"
            ) from error
        for name in names:
            if name.startswith(_MEMBER) and name != self._name:
                if self._is_alive(name):
                    found.append(name)
                else:
                    swept = True
        if swept:
            self._bump()
        return sorted(found)

    def _is_alive(self, name: str) -> bool:
        """Whether its owner holds the lock. We ask for a shared one: others who ask at the same time get theirs too, and an owner
        that has its lock never asks for it again, so nobody is disturbed or taken for another."""
        path = self._top / name
        try:
            with files.opened_to_lock(path) as fd:
                if not files.lock(fd, shared=True, wait=False):
                    return True
                files.remove(path)  # with our lock on it: one who is just joining cannot get his
        except FileNotFoundError:
            pass
        return False


def _claim(thing: int) -> str:
    return f"claim-{thing}"


def _let_go(fds: dict[str, int], names: Iterable[str] | None = None) -> None:
    for name in list(fds if names is None else names):
        files.unlock(fds[name])  # first: should this be interrupted before the file is closed, nobody waits for it
        files.close(fds.pop(name))


_all: weakref.WeakSet[Claims] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for claims in list(_all):
        claims._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
