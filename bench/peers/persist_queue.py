"""persist-queue: queues of pickled objects, in files or in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bench.peers.arrow import scan_values
from bench.peers.base import POLLS, THROUGHPUT, Peer


class PersistQueue(Peer):
    """Its SQLite queue, whose put measured faster than that of its file queue."""

    name = "persist-queue"
    modules = ("persistqueue",)
    distributions = ("persist-queue",)
    settings = (
        "SQLiteQueue(auto_commit=False), the faster of its queues at put here (its file queue reads some 3 "
        "times as fast); put commits every message by itself whatever auto_commit says, with SQLite's "
        "default synchronous=FULL, so every row of it is durable and a batch is 500 puts; read: get_nowait "
        "without task_done; scan-arrow: queue(), then pa.array"
    )
    supports = THROUGHPUT | {"tail-latency", "two-writers"}
    notes: ClassVar[dict[str, str]] = {
        "tail-latency": f"{POLLS} (get() waits for its own process only)",
        "append": "on disk after every put",
        "append-batch": "on disk after every put",
        "two-writers": "on disk after every put",
    }

    def open(self) -> None:
        import persistqueue

        self.empty = persistqueue.Empty
        self.queue = persistqueue.SQLiteQueue(str(self.job.directory), auto_commit=False, timeout=60)

    def close(self) -> None:
        self.queue.close()

    def append(self, payload: bytes, count: int) -> None:
        put = self.queue.put
        for _ in range(count):
            put(payload)

    def append_batch(self, batch: Any) -> None:
        put = self.queue.put
        for payload in batch:
            put(payload)

    def rewind(self) -> None:
        self.close()
        self.open()

    def read(self) -> Any:
        get = self.queue.get_nowait
        payload = None
        for _ in range(self.queue.qsize()):
            payload = get()
        return payload

    def read_batch(self, count: int) -> Any:
        get = self.queue.get_nowait
        left = self.queue.qsize()
        batch: list[Any] = []
        while left:
            part = min(count, left)
            batch = [get() for _ in range(part)]
            left -= part
        return batch[-1] if batch else None

    def scan_arrow(self) -> Any:
        return scan_values(row["data"] for row in self.queue.queue())

    def poll(self) -> Sequence[bytes]:
        try:
            return [self.queue.get_nowait()]
        except self.empty:
            return []
