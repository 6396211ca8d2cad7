"""The standard library's queues, in memory: what a hand-over between threads or tasks costs without any durability."""

from __future__ import annotations

import asyncio
import queue
from typing import Any, ClassVar

from bench.peers.base import Peer


class ThreadQueue(Peer):
    """`queue.SimpleQueue` is faster, but `queue.Queue` is what people use."""

    name = "queue.Queue"
    group = "limit"
    settings = "the standard library's queue.Queue: in memory, nothing survives the process; put, get_nowait, and for batches a loop"
    supports = frozenset({"append", "append-batch", "read", "read-batch"})
    consumes = frozenset({"read", "read-batch"})
    _kept: ClassVar[dict[str, Any]] = {}  # what one object put, another one gets: there is no file

    def _make(self) -> Any:
        return queue.Queue()

    def open(self) -> None:
        self.queue = self._kept.setdefault(f"{self.name} {self.job.directory}", self._make())

    def close(self) -> None:
        """Nothing to close."""

    def append(self, payload: bytes, count: int) -> None:
        put = self.queue.put
        for _ in range(count):
            put(payload)

    def append_batch(self, batch: Any) -> None:
        for payload in batch:
            self.queue.put_nowait(payload)

    def read(self) -> Any:
        get, payload = self.queue.get_nowait, None
        for _ in range(self.queue.qsize()):
            payload = get()
        return payload

    def read_batch(self, count: int) -> Any:
        get, left, last = self.queue.get_nowait, self.queue.qsize(), None
        while left:
            last = [get() for _ in range(min(count, left))]
            left -= len(last)
        return last[-1] if last else None


class TaskQueue(ThreadQueue):
    """The event loop's, without the loop: its put_nowait and get_nowait need none."""

    name = "asyncio.Queue"
    settings = (
        "the standard library's asyncio.Queue: in memory, nothing survives the process; put_nowait, get_nowait, and for "
        "batches a loop"
    )

    def _make(self) -> Any:
        return asyncio.Queue()

    def append(self, payload: bytes, count: int) -> None:
        put = self.queue.put_nowait
        for _ in range(count):
            put(payload)
