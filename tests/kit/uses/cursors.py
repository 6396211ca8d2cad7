"""Named readers: two of a queue, who go ahead and back, and one of whom is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from penstock import PenstockError, Queue
from penstock.testing.state import Boot
from tests.kit.uses import scale
from tests.kit.uses.base import Use, must
from tests.queue.crash import payload


@dataclass(frozen=True)
class Places:
    """Where two readers stand, None for one that there is not."""

    now: tuple[int | None, int | None] = (None, None)
    doing: tuple[int, int | None] | None = None  # which one is going where
    may: tuple[frozenset[int | None], frozenset[int | None]] = (
        frozenset({None}),
    ) * 2  # where a power cut may leave them


class CursorsUse(Use):
    """Of a queue, whose commits wait for no disk: so none of the operations is `durable`."""

    name = "cursors"
    ops = ("ahead", "back", "forget", "other", "reopen")
    long = ("ahead", "other", "ahead", "forget", "back", "other", "reopen", "ahead", "forget", "ahead")
    _names: ClassVar = ("ada", "bob")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._told = Places()

    def now(self) -> Places:
        return self._told

    def open(self) -> None:
        self.q = Queue(self.path, file_size=scale.FILE_SIZE, index_interval=scale.INTERVAL)
        try:
            if not self.q.next_sequence:
                self.q.append_batch([payload(i, 20) for i in range(4)])
                self.q.sync()
        except BaseException:
            with suppress(PenstockError):
                self.q.close()
            raise

    def close(self) -> None:
        self.q.close()

    def read(self) -> None:
        self._look_at_failed()
        with self.q.tailer() as tailer:
            must(len(list(tailer)) == self.q.next_sequence, "readers see all that was appended")

    def _look_at_failed(self) -> None:
        """A reader is where it was, or where it was to go."""
        if self._told.doing:
            who, to = self._told.doing
            place = self.q.cursors().get(self._names[who])
            must(place in (self._told.now[who], to), "a reader stands where it was committed", place, self._told)
            self._told = self._stands(who, place)

    def _stands(self, who: int, place: int | None) -> Places:
        now = tuple(place if i == who else p for i, p in enumerate(self._told.now))
        return Places(now, None, self._told.may)  # type: ignore[arg-type]

    def _going(self, who: int, to: int | None, act: Callable[[], None]) -> None:
        may = tuple(m | {to} if i == who else m for i, m in enumerate(self._told.may))
        self._told = replace(self._told, doing=(who, to), may=may)
        act()
        self._told = self._stands(who, to)

    def _commit(self, who: int, by: int) -> None:
        self._look_at_failed()
        if self._told.now[who] is None:  # made by the tailer, at the oldest record
            self._going(who, 0, lambda: self.q.tailer(self._names[who]).close())
        with self.q.tailer(self._names[who]) as tailer:
            place = min(max(0, tailer.position + by), self.q.next_sequence)
            tailer.seek(place)
            self._going(who, place, tailer.commit)

    def ahead(self) -> None:
        self._commit(0, 3)

    def back(self) -> None:
        self._commit(0, -1)

    def other(self) -> None:
        self._commit(1, 1)

    def forget(self) -> None:
        self._look_at_failed()
        if self._told.now[0] is not None:
            self._going(0, None, lambda: self.q.forget(self._names[0]))

    def go_on(self) -> None:
        """Each commits where it stands."""
        for name in self.q.cursors():
            with self.q.tailer(name) as tailer:
                tailer.commit()

    @classmethod
    def judge(cls, path: Path, told: Places, boot: Boot) -> int:
        with Queue(path, file_size=scale.FILE_SIZE, index_interval=scale.INTERVAL) as q:
            end, places = q.next_sequence, q.cursors()
            for who, name in enumerate(cls._names):
                may = set(told.may[who]) if boot == "new" else {told.now[who]}
                if told.doing and told.doing[0] == who:
                    may.add(told.doing[1])
                place = places.get(name)
                must(place in may, "a reader stands where it was committed", name, place, may)
                with q.tailer(name) as tailer:
                    must(len(list(tailer)) == end - (place or 0), "and reads on from there", name, place)
                    tailer.commit()
        with Queue(path, file_size=scale.FILE_SIZE, index_interval=scale.INTERVAL) as q:
            must(q.cursors() == dict.fromkeys(cls._names, end), "and goes on", q.cursors())
        return end
