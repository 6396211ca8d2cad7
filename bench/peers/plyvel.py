"""LevelDB through plyvel: the log-structured merge tree RocksDB grew out of."""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Any

from bench.peers.arrow import scan_values
from bench.peers.base import THROUGHPUT, Job, Peer

KEY = Struct(">Q")
WRITE_BUFFER = 64 << 20


class Plyvel(Peer):
    """Big-endian counters as keys; one process at a time, so none of the scenarios with two."""

    name = "plyvel"
    modules = ("plyvel",)
    distributions = ("plyvel",)
    settings = (
        "keys are 8-byte big-endian counters, no compression (the payload is random), "
        "write_buffer_size=64 MiB; append: db.put; batches: write_batch(); durable: sync=True; read: "
        "db.iterator(include_key=False); scan-arrow: the iterator into lists, then pa.array; LevelDB "
        "allows one process only"
    )
    supports = THROUGHPUT

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.next = 0

    def open(self) -> None:
        import plyvel

        self.db = plyvel.DB(
            str(self.job.directory), create_if_missing=True, write_buffer_size=WRITE_BUFFER, compression=None
        )

    def close(self) -> None:
        self.db.close()

    def append(self, payload: bytes, count: int) -> None:
        pack, put = KEY.pack, self.db.put
        for number in range(self.next, self.next + count):
            put(pack(number), payload)
        self.next += count

    def append_batch(self, batch: Any) -> None:
        start = self.next
        self.next = end = start + len(batch)
        with self.db.write_batch(sync=self.job.durable) as writes:
            put = writes.put
            for key, value in zip(map(KEY.pack, range(start, end)), batch, strict=True):
                put(key, value)

    def read(self) -> Any:
        value = None
        with self.db.iterator(include_key=False) as values:
            for value in values:  # noqa: B007 - the last one is the result
                pass
        return value

    def read_batch(self, count: int) -> Any:
        last = None
        with self.db.iterator(include_key=False) as values:
            while batch := list(islice(values, count)):
                last = batch
        return last[-1] if last else None

    def scan_arrow(self) -> Any:
        with self.db.iterator(include_key=False) as values:
            return scan_values(values)
