"""The queue, with each way to flush: they differ in what is durable when, and in who says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from penstock import Flush, LogClosed, NotSynced, PenstockError, Queue, Retention, SyncFailed
from tests.kit.uses import scale
from tests.kit.uses.base import must
from tests.kit.uses.records import Found, Records, Told
from tests.queue.crash import beyond, payload


class QueueUse(Records):
    name = "queue"
    ops = ("append", "batch", "span", "sync", "work", "commit", "reopen")
    appends = ("append", "batch", "span")
    long = (
        *("append", "batch", "sync", "commit", "span", "work", "append", "sync", "commit", "work"),
        *("batch", "reopen", "batch", "span", "work", "commit", "work"),
    )
    durable_commits = False
    waits = False
    durable = ("sync",)
    goes_on = True
    flush: ClassVar[Flush] = Flush.none()

    def now(self) -> Told:
        """What it says that is durable is so, at any moment."""
        durable = self.told.durable
        if hasattr(self, "q"):
            with suppress(LogClosed):
                durable = max(durable, self.q.durable_sequence)
        return replace(self.told, durable=durable)

    def read(self) -> None:
        with self.q.tailer() as tailer:
            first, got = tailer.position, [m.payload for m in tailer]
        every = [*self.told.sent, *self.told.doing]
        must(got == every[first : first + len(got)], "readers see an exact prefix", got, every)
        must(first + len(got) >= len(self.told.sent), "readers see all that was appended", got)

    @classmethod
    def _open(cls, path: Path) -> Queue:
        return Queue(
            path,
            file_size=scale.FILE_SIZE,
            index_interval=scale.FEWER,
            flush=cls.flush,
            retention=Retention(max_bytes=1),
        )

    def open(self) -> None:
        self.q = self._open(self.path)

    def close(self) -> None:
        self.q.close()
        self._say(durable=len(self.told.sent))

    def append(self) -> None:
        self._appending([50], lambda new: self.q.append(new[0]))  # type: ignore[arg-type, return-value]

    def batch(self) -> None:
        self._appending([20, 250], self._batch)

    def span(self) -> None:
        """More than a file holds."""
        self._appending([3000, 30, 1200], self._batch, scale.hollow)

    def _batch(self, new: list[bytes]) -> None:
        self.q.append_batch(new)

    def sync(self) -> None:
        self.q.sync()
        self._say(durable=len(self.told.sent))

    def work(self) -> None:
        assert self.q._janitor is not None
        self.q._janitor.look_again()
        self._retiring(self.q._janitor._turn)

    def commit(self) -> None:
        place = max(self.told.place or 0, len(self.told.sent) - 1)
        if self.told.place is None:  # made by the tailer, at the oldest record
            self._committing(self.q.first_sequence, lambda: self.q.tailer("reader").close())
        with self.q.tailer("reader") as tailer:
            tailer.seek(place)
            self._committing(place, tailer.commit)

    def go_on(self) -> None:
        """A reader commits where it stands."""
        for name in self.q.cursors():
            with self.q.tailer(name) as tailer:
                tailer.commit()
        self.work()

    @classmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        with cls._open(path) as q, q.tailer() as tailer:
            must(not any(beyond(q)), "nothing is left beyond the end that could come back to life")
            found = Found(tailer.position, [m.payload for m in tailer], q.cursors().get("reader"), q.recovery)
            for i, p in enumerate(after):
                sequence = q.append(p)
                must(sequence == found.first + len(found.payloads) + i, "it goes on at its end", sequence)
        return found


class QueueEachUse(QueueUse):
    """Each append that returned is durable. One whose sync failed, or could not be tried, says that it is there all the same."""

    name = "queue-each"
    ops = ("append", "work", "reopen")
    at_end = ("batch", "commit")
    long = (
        "append",
        "batch",
        "commit",
        "span",
        "append",
        "work",
        "commit",
        "work",
        "batch",
        "reopen",
        "span",
        "append",
    )
    waits = True
    durable = ("append", "batch", "span")
    flush = Flush.each()

    def _appending(
        self, sizes: list[int], act: Callable[[list[bytes]], None], made: Callable[[int, int], bytes] = payload
    ) -> None:
        try:
            super()._appending(sizes, act, made)
        except PenstockError as error:
            said = error.appended if isinstance(error, NotSynced | SyncFailed) else range(0)
            now = range(len(self.told.sent), self.q.next_sequence)
            must(said == now, "what fails says whether it was appended", said, now, error)
            if said:
                sent = (*self.told.sent, *self.told.doing)
                self._say(sent=sent, doing=(), ends=self.told.ends | {len(sent)})
            raise


class QueueBatchUse(QueueUse):
    """The background syncs, and what is durable is told by `durable_sequence` alone."""

    name = "queue-batch"
    ops = ("append", "work", "reopen")
    at_end = ("batch", "commit")
    long = ("append", "batch", "work", "span", "work", "append", "commit", "work", "batch", "reopen", "append", "work")
    durable = ()
    flush = Flush.batch(bytes=1)

    def work(self) -> None:
        super().work()
        must(self.q.durable_sequence == self.q.next_sequence, "the background has synced all", self.q.durable_sequence)
