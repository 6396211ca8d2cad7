"""Penstock's topic and journal: written in batches, each on disk before its writer is told."""

from __future__ import annotations

from typing import Any, ClassVar

from bench.peers.base import Peer
from bench.plan import BATCH


class PenstockTopic(Peer):
    """One partition, batches of 500."""

    name = "penstock-topic"
    label = "penstock (Topic)"
    group = "penstock"
    modules: ClassVar[tuple[str, ...]] = ("penstock",)
    distributions = ("penstock",)
    settings = (
        "Topics(batch=500, segments of 1 MiB), one partition; publish one at a time without waiting for each, flushed at the "
        'end; publish_many(500); durable-batch: flush="fsync", wait() after each publish_many; else flush="none"; reads by '
        "tailer, read-batch by tailer.read_batch(500)"
    )
    supports = frozenset({"append", "append-batch", "durable-batch", "read", "read-batch"})

    def open(self) -> None:
        from penstock import Topics

        self.topics = Topics(self.job.directory, batch=BATCH, flush="fsync" if self.job.durable else "none")
        self.topic = self.topics.topic("bench")

    def close(self) -> None:
        self.topics.close()

    def append(self, payload: bytes, count: int) -> None:
        publish = self.topic.publish
        for _ in range(count):
            publish(payload)

    def settle(self) -> None:
        self.topic.flush()

    def append_batch(self, batch: Any) -> None:
        self.topic.publish_many(batch).wait()

    def rewind(self) -> None:
        self.tailer = self.topic.tailer()

    def read(self) -> Any:
        payload = None
        for message in self.tailer:
            payload = message.payload
        return payload

    def read_batch(self, count: int) -> Any:
        read_batch = self.tailer.read_batch
        last = None
        while batch := read_batch(count):
            last = batch
        return last[-1].payload if last else None


class PenstockJournal(Peer):
    """Records with no checkpoint in between."""

    name = "penstock-journal"
    label = "penstock (Journal)"
    group = "penstock"
    modules: ClassVar[tuple[str, ...]] = ("penstock",)
    distributions = ("penstock",)
    settings = (
        "Journal(): files of 4 MiB; append one at a time without waiting for each, flushed at the end; append_many(500), "
        "waited for each; recovery: open and walk over every record"
    )
    supports = frozenset({"append", "durable-batch", "recovery"})

    def open(self) -> None:
        from penstock import Journal

        self.journal = Journal(self.job.directory)
        self.last: bytes | None = None
        for record in self.journal.recovered():
            self.last = record.payload

    def close(self) -> None:
        self.journal.close()

    def append(self, payload: bytes, count: int) -> None:
        append = self.journal.append
        for _ in range(count):
            append(payload)

    def settle(self) -> None:
        self.journal.flush()

    def append_batch(self, batch: Any) -> None:
        self.journal.append_many(batch).result()

    def read(self) -> Any:
        return self.last
