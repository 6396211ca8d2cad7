"""The machine's own limits, as rows of the same tables: nothing on this machine can be faster than these."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from bench import native
from bench.peers.base import Peer, Unavailable

MEMORY_BYTES = 256 << 20
FILE_BYTES = 128 << 20


class Limit(Peer):
    """A row that bounds the others and is nobody's peer."""

    group = "limit"

    def _native(self) -> Any:
        try:
            return native.load()
        except native.CannotBuild as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Most of them have nothing to close."""


class Noop(Limit):
    """A method call that does nothing: what Python itself asks for one append."""

    name = "noop"
    label = "no-op call"
    settings = "an empty Cython method (METH_O) that takes bytes and returns a new int above 2**40, in the same loop"
    supports = frozenset({"append", "latency"})

    def open(self) -> None:
        self.noop = self._native().Noop()

    def appender(self) -> Callable[[Any], object]:
        append: Callable[[Any], object] = self.noop.append
        return append

    def append(self, payload: bytes, count: int) -> None:
        append = self.noop.append
        for _ in range(count):
            append(payload)


class Memcpy(Limit):
    """The bytes alone, without frames, checksums, files or readers."""

    name = "memcpy"
    settings = "memcpy of the same 500 messages, in C, round a touched buffer of 256 MiB"
    supports = frozenset({"append-batch"})

    def open(self) -> None:
        self.append_batch = self._native().Memory(MEMORY_BYTES).copy_list  # type: ignore[method-assign]


class WriteSync(Limit):
    """What the disk asks for one durable batch."""

    name = "write-fdatasync"
    label = "write+fdatasync"
    settings = (
        "pwrite + fdatasync, in C, of the same bytes as one buffer per batch, round a file of 128 MiB "
        "whose blocks are allocated and written beforehand"
    )
    supports = frozenset({"durable-batch"})

    def open(self) -> None:
        self.job.directory.mkdir(parents=True, exist_ok=True)
        self.file = self._native().DurableFile(str(self.job.directory / "limit"), FILE_BYTES)
        self.append_batch = self.file.write  # type: ignore[method-assign]

    def encode_batch(self, payloads: list[bytes]) -> bytes:
        return b"".join(payloads)

    def close(self) -> None:
        self.file.close()


class GrowSync(WriteSync):
    """The same where nothing was written beforehand: a file that grows with every batch."""

    name = "grow-fdatasync"
    label = "write+fdatasync, growing"
    settings = "pwrite + fdatasync, in C, of the same bytes as one buffer per batch, to the end of a file that grows"

    def open(self) -> None:
        self.job.directory.mkdir(parents=True, exist_ok=True)
        self.file = self._native().DurableFile(str(self.job.directory / "limit"), 0)
        self.append_batch = self.file.append  # type: ignore[method-assign]


class Fifo(Limit):
    """The cheapest wake-up of another process that the kernel offers to Python."""

    name = "fifo"
    label = "blocking FIFO"
    settings = "a named pipe: os.write of the message, a blocking os.read in the other process"
    supports = frozenset({"tail-latency"})
    notes = Peer.notes | {"tail-latency": "blocks in read()"}

    def _path(self) -> str:
        self.job.directory.mkdir(parents=True, exist_ok=True)
        path = self.job.directory / "fifo"
        if not path.exists():
            os.mkfifo(path)
        return str(path)

    def open(self) -> None:
        # Read and write, so that neither end waits for the other to open.
        self.fd = os.open(self._path(), os.O_RDWR)

    def close(self) -> None:
        os.close(self.fd)

    def append(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            os.write(self.fd, payload)

    def follow(self) -> Iterator[bytes]:
        fd, size = self.fd, self.job.size
        while True:
            yield os.read(fd, size)
