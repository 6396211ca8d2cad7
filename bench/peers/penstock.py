"""Penstock itself, in the ways its own manual shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from bench.peers.arrow import ROWS
from bench.peers.base import THROUGHPUT, Peer

FILE_SIZE = 1 << 30
"""The default, spelled out: it holds the whole of any measurement, so that no scenario measures rolling."""


class Penstock(Peer):
    """The default `Queue`, nothing flushed but what `sync()` flushes."""

    name = "penstock"
    group = "penstock"
    modules: ClassVar[tuple[str, ...]] = ("penstock",)
    distributions = ("penstock",)
    settings = (
        "Queue(file_size=1 GiB, flush=Flush.none()); every message is visible to other processes when "
        "append returns and survives kill -9; a short warm-up first, so the pages ahead are touched; "
        "durable-batch: append_batch + sync(); reads take m.payload of every message; scan-arrow: "
        f"read_arrow({ROWS})"
    )
    supports = THROUGHPUT | {"tail-latency", "latency", "two-writers", "open-clean", "recovery"}
    notes: ClassVar[dict[str, str]] = {"tail-latency": "waits in follow(), woken by the writer"}

    def _flush(self) -> Any:
        from penstock import Flush

        return Flush.none()

    def open(self) -> None:
        from penstock import Queue

        self.queue = Queue(self.job.directory, file_size=FILE_SIZE, flush=self._flush())

    def close(self) -> None:
        self.queue.close()

    def append(self, payload: bytes, count: int) -> None:
        append = self.queue.append
        for _ in range(count):
            append(payload)

    def appender(self) -> Callable[[Any], object]:
        append: Callable[[Any], object] = self.queue.append
        return append

    def append_batch(self, batch: Any) -> None:
        self.queue.append_batch(batch)
        if self.job.durable:
            self.queue.sync()

    def rewind(self) -> None:
        self.tailer = self.queue.tailer(at="start")

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

    def scan_arrow(self) -> Any:
        read_arrow = self.tailer.read_arrow
        last = None
        while (batch := read_arrow(ROWS)).num_rows:
            last = batch
        return None if last is None else last.column("payload")[-1].as_py()

    def first(self) -> Any:
        message = self.queue.tailer(at="start").read()
        return None if message is None else message.payload

    def open_reader(self) -> None:
        self.open()
        self.tailer = self.queue.tailer(at="end")

    def follow(self) -> Iterator[bytes]:
        for message in self.tailer.follow():
            yield message.payload


class PenstockEach(Penstock):
    """The same with the flush in the queue's own policy instead of in the caller's hands."""

    name = "penstock-each"
    label = "penstock (Flush.each)"
    settings = "as penstock, but Queue(flush=Flush.each()): append_batch returns when the batch is on disk"
    supports = frozenset({"durable-batch"})

    def _flush(self) -> Any:
        from penstock import Flush

        return Flush.each()

    def append_batch(self, batch: Any) -> None:
        self.queue.append_batch(batch)


class PenstockArrow(Penstock):
    """Batches that come as pyarrow arrays and never become Python objects."""

    name = "penstock-arrow"
    settings = "as penstock, but each batch is a pyarrow binary array of 500 values instead of a list of bytes"
    supports = frozenset({"append-batch", "durable-batch"})
    modules = ("penstock", "pyarrow")

    def encode_batch(self, payloads: list[bytes]) -> Any:
        import pyarrow as pa

        return pa.array(payloads, pa.binary())


class PenstockReference(Penstock):
    """The kernel in plain Python: what one gets without a compiler, and the yardstick for the native one."""

    name = "penstock-reference"
    label = "penstock (pure Python)"
    settings = "as penstock, with PENSTOCK_KERNEL=reference (the kernel in plain Python)"
    supports = frozenset({"read"})
    env: ClassVar[dict[str, str]] = {"PENSTOCK_KERNEL": "reference"}
