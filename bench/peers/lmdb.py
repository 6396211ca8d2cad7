"""LMDB through py-lmdb: a copy-on-write B+tree in one memory map."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Any, ClassVar

from bench.peers.arrow import scan_values
from bench.peers.base import POLLS, THROUGHPUT, Job, Peer

KEY = Struct(">Q")
MAP_SIZE = 1 << 36
PUTS_PER_TXN = 10_000


class Lmdb(Peer):
    """Big-endian counters as keys, `append=True`, as the manual advises for sorted bulk inserts."""

    name = "lmdb"
    modules = ("lmdb",)
    distributions = ("lmdb",)
    settings = (
        "keys are 8-byte big-endian counters, append=True, map_size=64 GiB; not durable: sync=False, "
        "writemap=True, map_async=True; durable: sync=True, writemap=False (measured faster than True "
        f"here); append: one put per message, {PUTS_PER_TXN} puts per transaction, so a message is neither "
        "visible nor safe from kill -9 until that commit (lmdb-txn commits each); append-batch: "
        "cursor.putmulti, one transaction per 500; read: cursor.iternext(keys=False); scan-arrow: the "
        "cursor into lists, then pa.array; two-writers and tail-latency: one transaction per put"
    )
    supports = THROUGHPUT | {"tail-latency", "two-writers", "open-clean"}
    notes: ClassVar[dict[str, str]] = {"tail-latency": POLLS}

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.next = 0
        self.txn: Any = None
        self.in_txn = 0

    def open(self) -> None:
        import lmdb

        fast: dict[str, Any] = {} if self.job.durable else {"sync": False, "writemap": True, "map_async": True}
        self.db = lmdb.open(str(self.job.directory), map_size=MAP_SIZE, **fast)
        with self.db.begin() as txn, txn.cursor() as cursor:
            self.next = KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0
        self.seen = self.next

    def close(self) -> None:
        self.settle()
        self.db.close()

    def append(self, payload: bytes, count: int) -> None:
        pack = KEY.pack
        while count:
            if self.txn is None:
                self.txn = self.db.begin(write=True)
                self.in_txn = 0
            part = min(count, PUTS_PER_TXN - self.in_txn)
            put = self.txn.put
            for number in range(self.next, self.next + part):
                put(pack(number), payload, append=True)
            self.next += part
            self.in_txn += part
            count -= part
            if self.in_txn == PUTS_PER_TXN:
                self.settle()

    def append_visible(self, payload: bytes, count: int) -> None:
        begin, pack = self.db.begin, KEY.pack
        for _ in range(count):
            with begin(write=True) as txn, txn.cursor() as cursor:
                # Another process may have appended. The transaction holds the writers' lock: ask for the end.
                number = KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0
                cursor.put(pack(number), payload, append=True)

    def append_batch(self, batch: Any) -> None:
        start = self.next
        self.next = end = start + len(batch)
        with self.db.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(zip(map(KEY.pack, range(start, end)), batch, strict=True), append=True)

    def settle(self) -> None:
        if self.txn is not None:
            self.txn.commit()
            self.txn = None

    def read(self) -> Any:
        value = None
        with self.db.begin() as txn, txn.cursor() as cursor:
            for value in cursor.iternext(keys=False, values=True):  # noqa: B007 - the last one is the result
                pass
        return value

    def read_batch(self, count: int) -> Any:
        last = None
        with self.db.begin() as txn, txn.cursor() as cursor:
            values = cursor.iternext(keys=False, values=True)
            while batch := list(islice(values, count)):
                last = batch
        return last[-1] if last else None

    def scan_arrow(self) -> Any:
        with self.db.begin() as txn, txn.cursor() as cursor:
            return scan_values(cursor.iternext(keys=False, values=True))

    def first(self) -> Any:
        with self.db.begin() as txn, txn.cursor() as cursor:
            cursor.first()
            return cursor.value()

    def poll(self) -> Sequence[bytes]:
        found: list[bytes] = []
        with self.db.begin() as txn, txn.cursor() as cursor:
            if cursor.set_range(KEY.pack(self.seen)):
                found.extend(cursor.iternext(keys=False, values=True))
        self.seen += len(found)
        return found


class LmdbTxn(Lmdb):
    """The same, every message its own transaction: the row that promises what `Queue.append` promises."""

    name = "lmdb-txn"
    label = "lmdb (txn per put)"
    settings = "as lmdb, one transaction per put: visible to other processes when it returns, like penstock's append"
    supports = frozenset({"append"})
    notes: ClassVar[dict[str, str]] = {}

    def append(self, payload: bytes, count: int) -> None:
        begin, pack = self.db.begin, KEY.pack
        for number in range(self.next, self.next + count):
            with begin(write=True) as txn:
                txn.put(pack(number), payload, append=True)
        self.next += count
