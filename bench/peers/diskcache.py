"""diskcache: a cache in SQLite that can also serve as a queue (`Cache.push` and `pull`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from bench.peers.arrow import scan_values
from bench.peers.base import POLLS, THROUGHPUT, Peer

SYNC_NORMAL, SYNC_FULL = 1, 2


class DiskCache(Peer):
    """`Cache.push`, which is what its `Deque` is made of, without eviction."""

    name = "diskcache"
    modules = ("diskcache",)
    distributions = ("diskcache",)
    settings = (
        "Cache(eviction_policy='none', cull_limit=0), push() (what Deque.append calls); not durable: "
        "sqlite_synchronous=NORMAL; durable: FULL; batches: push in one transact() per 500; read: iterate "
        "the keys, get each; scan-arrow: the same into lists, then pa.array; tail-latency: pull()"
    )
    supports = THROUGHPUT | {"tail-latency", "two-writers"}
    notes: ClassVar[dict[str, str]] = {"tail-latency": POLLS}

    def open(self) -> None:
        import diskcache

        self.cache = diskcache.Cache(
            str(self.job.directory),
            eviction_policy="none",
            cull_limit=0,
            size_limit=1 << 40,
            sqlite_synchronous=SYNC_FULL if self.job.durable else SYNC_NORMAL,
        )

    def close(self) -> None:
        self.cache.close()

    def append(self, payload: bytes, count: int) -> None:
        push = self.cache.push
        for _ in range(count):
            push(payload, retry=True)

    def append_batch(self, batch: Any) -> None:
        push = self.cache.push
        with self.cache.transact(retry=True):
            for payload in batch:
                push(payload)

    def _values(self) -> Iterator[Any]:
        cache = self.cache
        return (cache[key] for key in cache)

    def read(self) -> Any:
        cache = self.cache
        value = None
        for key in cache:
            value = cache[key]
        return value

    def read_batch(self, count: int) -> Any:
        values = self._values()
        last = None
        while batch := list(islice(values, count)):
            last = batch
        return last[-1] if last else None

    def scan_arrow(self) -> Any:
        return scan_values(self._values())

    def poll(self) -> Sequence[bytes]:
        key, value = self.cache.pull()
        return [] if key is None else [value]
