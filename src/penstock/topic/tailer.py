"""`TopicTailer`: reading partitions of a topic, with places that can be kept by name."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from penstock.options import whole_number
from penstock.storage.aside import aside
from penstock.storage.closable import Closable
from penstock.storage.damage import Loss
from penstock.storage.merged import Merged
from penstock.storage.reader import LogReader, OnCorrupt, place_kept
from penstock.topic.message import TopicMessage, delivered
from penstock.topic.partition import OpenPartition

_ASYNC_NAP_S: Final = 0.5


class TopicTailer(Closable):
    """Reads partitions of a topic, each in its order. One per thread."""

    def __init__(
        self, top: Path, name: str | None, parts: list[OpenPartition], at: str, on_corrupt: OnCorrupt, *, owner: object
    ) -> None:
        if at not in ("start", "end"):
            raise ValueError(f'at must be "start" or "end", not {at!r}')
        if not parts:
            raise ValueError(f"{top}: a tailer of no partitions")
        self.name = name
        self._path = top
        self._owner = owner  # which would close itself if nobody held it
        readers: dict[int, LogReader] = {}
        for part in parts:
            log, reader = part.log, LogReader(part.log, on_corrupt)
            place = place_kept(log, name) if name is not None else None
            if place is None:
                place = log.first_sequence if at == "start" else log.next_sequence
                if name is not None and not log.read_only:
                    place = log.hold(name, place)
            reader.seek(place)
            readers[part.number] = reader
        self._merged = Merged(readers)

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset of the message that is read next."""
        return {p: reader.position for p, reader in self._merged.readers.items()}

    @property
    def losses(self) -> dict[int, list[Loss]]:
        """By partition, what was stepped over."""
        return {p: reader.losses for p, reader in self._merged.readers.items() if reader.losses}

    def seek(self, partition: int, offset: int) -> None:
        """Go to an offset of a partition; its end is allowed."""
        if partition not in self._merged.readers:
            raise ValueError(f"this tailer reads the partitions {list(self._merged.readers)}, not {partition!r}")
        self._merged.readers[partition].seek(whole_number("offset", offset))

    def commit(self) -> None:
        """Keep the positions under the tailer's name, for the next one of that name. One partition after the other: each
        is kept whole, also if the process dies in between."""
        if self.name is None:
            raise ValueError("a tailer without a name has nowhere to keep its positions; give it one")
        for reader in self._merged.readers.values():
            reader.log.writable()
            reader.log.cursors.store(self.name, reader.position)
            reader.log.cursors.sync()

    def read(self, timeout_s: float | None = 0) -> TopicMessage | None:
        """The next message. At the end, 0 gives None at once, None waits for ever, and other times raise TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (found := self._merged.read()) is None:
            if timeout_s == 0:
                return None
            if not self._merged.wait(None if deadline is None else deadline - time.monotonic()):
                raise TimeoutError(f"{self._path}: nothing was published for {timeout_s} s")
        partition, message = found
        return TopicMessage(partition, message.sequence, message.payload, message.timestamp_us)

    def read_batch(self, n: int) -> list[TopicMessage]:
        """Up to `n` messages, of one partition; none at the end of them all."""
        return delivered(*self._merged.read_batch(n))

    def __iter__(self) -> Iterator[TopicMessage]:
        """The messages up to the end."""
        return iter(self.read, None)

    def follow(self) -> Iterator[TopicMessage]:
        """The messages, waiting for more at the end."""
        while True:
            yield from self
            self._merged.wait(None)

    async def afollow(self) -> AsyncIterator[TopicMessage]:
        """The messages, waiting for more at the end without blocking the event loop."""
        while True:
            message = self.read()
            if message is None:
                await aside(self._merged.wait, _ASYNC_NAP_S)
            else:
                yield message

    def close(self) -> None:
        """Let go of the files."""
        self._merged.close()

    def __repr__(self) -> str:
        return f"TopicTailer({str(self._path)!r}, name={self.name!r}, positions={self.positions})"
