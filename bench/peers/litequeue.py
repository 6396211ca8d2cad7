"""litequeue: a task queue in one SQLite table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bench.peers.arrow import scan_values
from bench.peers.base import POLLS, THROUGHPUT, Peer


class LiteQueue(Peer):
    """Strings in, as its manual says; `pop` marks a message as taken, so every pass needs a fresh queue."""

    name = "litequeue"
    modules = ("litequeue",)
    distributions = ("litequeue",)
    settings = (
        "LiteQueue(file), its defaults (WAL, synchronous=NORMAL); durable: PRAGMA synchronous=FULL on its "
        "connection; payloads are str of the same number of ASCII characters; batches: put in one "
        "transaction() per 500; read: pop() from a queue of 2000 (pop sorts what is left, so it slows "
        "down as the queue grows); scan-arrow: SELECT on its connection, then pa.array"
    )
    supports = THROUGHPUT | {"tail-latency", "two-writers"}
    consumes = frozenset({"read", "read-batch"})
    max_fill = 2000
    notes: ClassVar[dict[str, str]] = {
        "tail-latency": POLLS,
        "read": "of 2000 messages",
        "read-batch": "of 2000 messages",
    }

    def open(self) -> None:
        import litequeue

        self.job.directory.mkdir(parents=True, exist_ok=True)
        self.queue = litequeue.LiteQueue(self.job.directory / "queue.db", timeout=60)
        if self.job.durable:
            self.queue.conn.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        self.queue.close()

    def encode(self, payload: bytes) -> str:
        return payload.decode("ascii")

    def append(self, payload: str, count: int) -> None:
        put = self.queue.put
        for _ in range(count):
            put(payload)

    def append_batch(self, batch: Any) -> None:
        put = self.queue.put
        with self.queue.transaction():
            for payload in batch:
                put(payload)

    def read(self) -> Any:
        pop = self.queue.pop
        data = None
        while message := pop():
            data = message.data
        return data

    def read_batch(self, count: int) -> Any:
        pop = self.queue.pop
        last = None
        while batch := [message for _ in range(count) if (message := pop())]:
            last = batch
        return last[-1].data if last else None

    def scan_arrow(self) -> Any:
        rows = self.queue.conn.execute(f"SELECT data FROM {self.queue.table} ORDER BY message_id")
        return scan_values((row[0] for row in rows), "string")

    def poll(self) -> Sequence[bytes]:
        message = self.queue.pop()
        return [] if message is None else [message.data]
