"""The commit of a sink, which comes again until it was told that it is done: to a queue, and to a topic."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock import Queue, Topics, kernel
from penstock.storage import bulk
from penstock.storage.ledger import Ledger
from penstock.storage.log import Log
from penstock.testing.state import Boot
from tests.kit.uses import scale
from tests.kit.uses.base import Use, must
from tests.queue.crash import payload


@dataclass(frozen=True)
class Batches:
    done: int = 0  # batches 0 to done - 1 were acknowledged
    doing: bool = False


class SinkUse(Use):
    """To a queue."""

    name = "sink"
    ops = ("batch", "again", "other", "reopen")
    appends = ("batch", "other")
    long = ("batch", "again", "batch", "other", "batch", "reopen", "again", "batch", "other", "batch")
    durable = ("batch",)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._told = Batches()

    def now(self) -> Batches:
        return self._told

    @classmethod
    def _opened(cls, path: Path) -> Any:
        """Something to close, and the log in it."""
        return Queue(path, file_size=scale.FILE_SIZE, index_interval=scale.INTERVAL)

    @staticmethod
    def _log(q: Any) -> Log:
        log: Log = q._open_log()
        return log

    def open(self) -> None:
        self.q = self._opened(self.path)

    @classmethod
    def recover(cls, path: Path) -> None:
        """It asks which batches are there, as a query does that goes on after a crash."""
        with closing(cls._opened(path)) as q:
            Ledger(cls._log(q)).highest("query")

    def close(self) -> None:
        self.q.close()

    @classmethod
    def _parts(cls, number: int) -> list[list[bytes]]:
        """What each task of a batch has: of the third batch more than there is still room for, and of the fourth more than a file holds. (With
        all of that in short workloads their states could not be counted.)"""
        sizes = [[[60]], [[700, 40], [900]], [[2400], [20]], [[4000], [100]]][number % 4]
        made = scale.hollow if number % 4 > 1 else payload  # mostly zeros: fewer states
        numbers = itertools.count(100 * number)
        return [[made(next(numbers), size) for size in some] for some in sizes]

    @classmethod
    def _commit(cls, q: Any, number: int) -> bool:
        log = cls._log(q)
        parts = [bulk.Part(kernel.encode_many(log.fmt.SPEC, payloads), None) for payloads in cls._parts(number)]
        return Ledger(log).append("query", number, parts)

    def read(self) -> None:
        there = self._there(self.q)
        ways = [self._payloads(range(self._told.done + more)) for more in range(self._told.doing + 1)]
        must(there in ways, "readers see batches whole, and all that were acknowledged", there, *ways)

    def batch(self) -> None:
        failed = self._told.doing  # so it may be there
        self._told = replace(self._told, doing=True)
        must(self._commit(self.q, self._told.done) or failed, "a new batch is appended")
        self._told = Batches(self._told.done + 1)

    def again(self) -> None:
        """The last one comes again, as after a crash of whoever waits for it."""
        if self._told.done:
            must(not self._commit(self.q, self._told.done - 1), "a batch that is there is left out")

    def other(self) -> None:
        """Somebody else appends beside it."""
        self.q.append(b"other")

    @classmethod
    def judge(cls, path: Path, told: Batches, boot: Boot) -> int:
        with closing(cls._opened(path)) as q:
            must(not cls._log(q).recovery.damage, "nothing is taken for damage", cls._log(q).recovery.damage)
            before = cls._there(q)
            wanted = cls._payloads(range(told.done))
            both = cls._payloads(range(told.done + told.doing))
            must(before in (wanted, both), "batches are there whole, and all that were acknowledged", before, wanted)
            for number in (max(0, told.done - 1), told.done):
                cls._commit(q, number)
            after = cls._there(q)
            wanted = cls._payloads(range(told.done + 1))
            must(after == wanted, "each batch is there once", after, wanted)
        with closing(cls._opened(path)) as q:
            must(cls._log(q).recovery.clean, "what was mended stays so", cls._log(q).recovery)
            must(cls._there(q) == after, "and so do the batches", cls._there(q), after)
            must(not cls._commit(q, told.done), "and that they are there is known", told)
        return len(before)

    @classmethod
    def _payloads(cls, numbers: range) -> list[bytes]:
        return [p for number in numbers for part in cls._parts(number) for p in part]

    @staticmethod
    def _there(q: Any) -> list[bytes]:
        with q.tailer() as tailer:
            return [m.payload for m in tailer if m.payload != b"other"]


class TopicSinkUse(SinkUse):
    """To a topic, whose files grow: of a batch that came in part nothing may stay, or it would be there twice."""

    name = "topic-sink"
    long = ("batch", "again", "batch", "other", "batch", "reopen", "again", "batch")

    @classmethod
    def _opened(cls, path: Path) -> Any:
        return Topics(path, linger_s=0, segment_bytes=scale.SEGMENT_BYTES)

    @staticmethod
    def _log(q: Any) -> Log:
        log: Log = q.topic("t")._part(0).log
        return log

    def open(self) -> None:
        super().open()
        try:
            self._log(self.q)  # opened when it is first asked for: readers need it, too
        except BaseException:
            self.q.close()
            raise

    def other(self) -> None:
        self.q.topic("t").publish(b"other", partition=0).wait()

    @classmethod
    def _parts(cls, number: int) -> list[list[bytes]]:
        """Of two tasks; with an empty record, and one of nothing but zeros: a file that is longer than what was written looks so."""
        first = payload(100 * number, 20)
        return [[first, b""], [bytes(700), payload(100 * number + 3, 30)]] if number % 2 else [[first]]

    @staticmethod
    def _there(q: Any) -> list[bytes]:
        with q.topic("t").tailer() as tailer:
            return [m.payload for m in tailer if m.payload != b"other"]
