"""The topic: of one partition, whose publishes wait until they are durable."""

from __future__ import annotations

from pathlib import Path

from penstock import Retention, Topics
from tests.kit.uses import scale
from tests.kit.uses.base import must
from tests.kit.uses.records import Found, Records


class TopicUse(Records):
    name = "topic"
    ops = ("publish", "empty", "many", "commit", "work", "reopen")
    appends = ("publish", "empty", "many")
    long = (  # a commit comes again at once: after one that failed nothing else has synced what it made
        *("publish", "many", "commit", "commit", "empty", "work", "many", "publish", "commit", "work", "many"),
        *("reopen", "publish"),
    )
    durable_commits = True
    waits = True
    parts = True
    durable = ("publish", "empty", "many")
    goes_on = True

    def read(self) -> None:
        with self.t.tailer(partitions=[0]) as tailer:
            first, got = tailer.positions[0], [m.payload for m in tailer]
        must(got == list(self.told.sent[first:]), "readers see all that was acknowledged, and no more", got, self.told)

    @staticmethod
    def _open(path: Path) -> Topics:
        return Topics(path, linger_s=0, segment_bytes=scale.SEGMENT_BYTES, retention=Retention(max_bytes=1))

    def open(self) -> None:
        self.logs = self._open(self.path)
        try:
            self.t = self.logs.topic("t")
            self.t.ends()
        except BaseException:
            self.logs.close()
            raise

    def close(self) -> None:
        self.logs.close()

    def publish(self) -> None:
        self._appending([40], self._publish)

    def empty(self) -> None:
        self._appending([0], self._publish)

    def many(self) -> None:
        self._appending([30, 0, 60], self._publish)

    def larger(self) -> None:
        """More than a sector; for segments that have room for it."""
        self._appending([900], self._publish)

    def _publish(self, new: list[bytes]) -> None:
        self.t.publish_many(new, partition=0).wait()

    def commit(self) -> None:
        place = max(self.told.place or 0, len(self.told.sent) - 1)
        if self.told.place is None:
            self._committing(self.logs.topic("t").tailer(at="start").positions[0], self._hold)
        with self.t.tailer("reader", partitions=[0]) as tailer:
            tailer.seek(0, place)
            self._committing(place, tailer.commit)

    def _hold(self) -> None:
        with self.t.tailer("reader", partitions=[0]) as tailer:
            tailer.commit()

    def work(self) -> None:
        janitor = self.t._here(0)._janitor
        janitor.look_again()
        janitor._together = 1
        self._retiring(janitor._turn)

    def go_on(self) -> None:
        """A reader commits where it stands."""
        if self.t.committed("reader"):
            self._hold()
        self.work()

    @classmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        with cls._open(path) as logs:
            t = logs.topic("t")
            with t.tailer(partitions=[0]) as tailer:
                first = tailer.positions[0]
                payloads = [m.payload for m in tailer]
            found = Found(first, payloads, t.committed("reader").get(0), t.recovery(0))
            if after:
                made = t.publish_many(list(after), partition=0)
                must(made.wait()[0].start == first + len(payloads), "it goes on at its end")
        return found
