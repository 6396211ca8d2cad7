"""RocksDB through rocksdict: a log-structured merge tree with a write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Any, ClassVar

from bench.peers.arrow import scan_values
from bench.peers.base import POLLS, THROUGHPUT, Job, Peer

KEY = Struct(">Q")
WRITE_BUFFER = 256 << 20


class RocksDict(Peer):
    """Raw mode (bytes in, bytes out: no pickling), big-endian counters as keys."""

    name = "rocksdict"
    modules = ("rocksdict",)
    distributions = ("rocksdict",)
    settings = (
        "Options(raw_mode=True), keys are 8-byte big-endian counters, no compression (the payload is "
        "random), write_buffer_size=256 MiB (durable-batch: the default, measured faster), WAL on; "
        "append: db.put; batches: WriteBatch; durable: WriteOptions.sync=True; read: db.values(); "
        "scan-arrow: db.values() into lists, then pa.array; tail-latency: a secondary instance that "
        "catches up"
    )
    supports = THROUGHPUT | {"tail-latency", "open-clean"}
    notes: ClassVar[dict[str, str]] = {"tail-latency": f"{POLLS} (try_catch_up_with_primary)"}

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import rocksdict

        self.rocksdict = rocksdict
        self.next = 0
        self.seen = 0
        self.write_options = rocksdict.WriteOptions()
        self.write_options.sync = job.durable

    def _options(self) -> Any:
        options = self.rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(self.rocksdict.DBCompressionType.none())
        if not self.job.durable:
            options.set_write_buffer_size(WRITE_BUFFER)
        return options

    def open(self) -> None:
        self.db = self.rocksdict.Rdict(str(self.job.directory), self._options())
        last = self.db.iter()
        last.seek_to_last()
        self.next = KEY.unpack(last.key())[0] + 1 if last.valid() else 0

    def close(self) -> None:
        self.db.close()

    def append(self, payload: bytes, count: int) -> None:
        pack, put, options = KEY.pack, self.db.put, self.write_options
        for number in range(self.next, self.next + count):
            put(pack(number), payload, options)
        self.next += count

    def append_batch(self, batch: Any) -> None:
        write_batch = self.rocksdict.WriteBatch(raw_mode=True)
        put = write_batch.put
        start = self.next
        self.next = end = start + len(batch)
        for key, value in zip(map(KEY.pack, range(start, end)), batch, strict=True):
            put(key, value)
        self.db.write(write_batch, self.write_options)

    def read(self) -> Any:
        value = None
        for value in self.db.values():  # noqa: B007 - the last one is the result
            pass
        return value

    def read_batch(self, count: int) -> Any:
        last = None
        values = self.db.values()
        while batch := list(islice(values, count)):
            last = batch
        return last[-1] if last else None

    def scan_arrow(self) -> Any:
        return scan_values(self.db.values())

    def first(self) -> Any:
        return next(iter(self.db.values()))

    def open_reader(self) -> None:
        """Only one process may open a database for writing; others read as secondary instances."""
        own = self.job.directory.parent / f"{self.job.directory.name}-secondary"
        access = self.rocksdict.AccessType.secondary(str(own))
        self.db = self.rocksdict.Rdict(str(self.job.directory), self._options(), access_type=access)

    def poll(self) -> Sequence[bytes]:
        self.db.try_catch_up_with_primary()
        found = list(self.db.values(from_key=KEY.pack(self.seen)))
        self.seen += len(found)
        return found
