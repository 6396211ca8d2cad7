"""SQLite through the standard library: a table with an integer primary key, in WAL mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, ClassVar

from bench.peers.arrow import ROWS
from bench.peers.base import POLLS, THROUGHPUT, Job, Peer

INSERT = "INSERT INTO log(payload) VALUES (?)"
SELECT = "SELECT payload FROM log ORDER BY id"
MMAP_SIZE = 0x7FFF0000
"""The most that SQLite takes as it is usually built; more is cut to this."""


class Sqlite(Peer):
    """Explicit transactions; WAL with the `synchronous` level SQLite's manual names for each promise."""

    name = "sqlite3"
    settings = (
        "journal_mode=WAL, mmap_size=2 GiB, table log(id INTEGER PRIMARY KEY, payload BLOB); not durable: "
        "synchronous=NORMAL; durable: synchronous=FULL; append: one execute per message in one "
        "transaction per burst, so a message is neither visible nor safe from kill -9 until its commit; "
        "batches: executemany, one transaction per 500; read: iterate the cursor; read-batch: "
        "fetchmany(500); scan-arrow: fetchmany, then pa.array; two-writers and tail-latency: one "
        "transaction per insert"
    )
    supports = THROUGHPUT | {"tail-latency", "two-writers", "open-clean"}
    notes: ClassVar[dict[str, str]] = {"tail-latency": POLLS}

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.seen = 0

    def open(self) -> None:
        self.job.directory.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(self.job.directory / "log.db", isolation_level=None, timeout=60)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if self.job.durable else 'NORMAL'}")
        self.db.execute(f"PRAGMA mmap_size={MMAP_SIZE}")
        self.db.execute("CREATE TABLE IF NOT EXISTS log(id INTEGER PRIMARY KEY, payload BLOB)")

    def close(self) -> None:
        self.settle()
        self.db.close()

    def append(self, payload: bytes, count: int) -> None:
        execute = self.db.execute
        if not self.db.in_transaction:
            execute("BEGIN")
        row = (payload,)
        for _ in range(count):
            execute(INSERT, row)

    def append_visible(self, payload: bytes, count: int) -> None:
        execute = self.db.execute
        row = (payload,)
        for _ in range(count):
            execute(INSERT, row)

    def append_batch(self, batch: Any) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(INSERT, zip(batch))
        self.db.execute("COMMIT")

    def settle(self) -> None:
        if self.db.in_transaction:
            self.db.execute("COMMIT")

    def read(self) -> Any:
        payload = None
        for (payload,) in self.db.execute(SELECT):  # noqa: B007 - the last one is the result
            pass
        return payload

    def read_batch(self, count: int) -> Any:
        fetch = self.db.execute(SELECT).fetchmany
        last = None
        while rows := fetch(count):
            last = [payload for (payload,) in rows]
        return last[-1] if last else None

    def scan_arrow(self) -> Any:
        import pyarrow as pa

        fetch = self.db.execute(SELECT).fetchmany
        last = None
        while rows := fetch(ROWS):
            last = pa.array([payload for (payload,) in rows], pa.binary())
        return None if last is None else last[-1].as_py()

    def first(self) -> Any:
        return self.db.execute(f"{SELECT} LIMIT 1").fetchone()[0]

    def poll(self) -> Sequence[bytes]:
        rows = self.db.execute("SELECT id, payload FROM log WHERE id > ? ORDER BY id", (self.seen,)).fetchall()
        if rows:
            self.seen = rows[-1][0]
        return [payload for _, payload in rows]
