"""What publishing gives: promises of offsets; and how many messages are cut into batches that fit a segment."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from penstock import kernel
from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.formats import topic as fmt
from penstock.kernel import Buffer
from penstock.storage.promise import Promise
from penstock.topic.partition import OpenPartition


class Publication(Promise):
    """What `publish` gives: where the message goes, and when it is there."""

    __slots__ = ("_place", "partition")

    def __init__(self, part: OpenPartition, batch: kernel.Batch, place: int) -> None:
        super().__init__(part.path, part.bell, batch)
        self.partition = part.number
        self._place = place

    @property
    def offset(self) -> int | None:
        """The message's offset in its partition; None until it is on the disk."""
        first = self._batch.first
        return None if first is None else first + self._place

    def wait(self, timeout_s: float | None = None) -> int:
        """The offset, when the message is on the disk; raises what kept it from that, or TimeoutError."""
        self._keep(timeout_s)
        return self._there()

    def _there(self) -> int:
        offset = self.offset
        assert offset is not None
        return offset

    def __await__(self) -> Generator[Any, None, int]:
        yield from self._kept()
        return self._there()

    def __repr__(self) -> str:
        return f"Publication(partition={self.partition}, offset={self.offset})"


class Publications:
    """What `publish_many` gives: the messages of one partition, in the batches that they are written in."""

    def __init__(self, partition: int, parts: list[tuple[Publication, int]]) -> None:
        self.partition = partition
        self._parts = parts

    def done(self) -> bool:
        """Whether all are on the disk, or some have failed."""
        return all(publication.done() for publication, _ in self._parts)

    @property
    def offsets(self) -> list[range] | None:
        """The messages' offsets, in their order; more than one range if others published in between. None until all are on
        the disk."""
        out: list[range] = []
        for publication, size in self._parts:
            first = publication.offset
            if first is None:
                return None
            if out and out[-1].stop == first:
                first = out.pop().start
                size = publication._there() + size - first
            out.append(range(first, first + size))
        return out

    def wait(self, timeout_s: float | None = None) -> list[range]:
        """The offsets, when all are on the disk; raises what kept one from that, or TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for publication, _ in self._parts:
            publication.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self.offsets or []

    def __await__(self) -> Generator[Any, None, list[range]]:
        for publication, _ in self._parts:
            yield from publication.__await__()
        return self.offsets or []


def pieces(payloads: Sequence[Buffer], capacity: int) -> Iterator[Sequence[Buffer]]:
    """A list in pieces that fit a segment each. What cannot be published is refused."""
    start, used = 0, 0
    for i, payload in enumerate(payloads):
        size = fmt.SPEC.overhead + (len(payload) if isinstance(payload, bytes) else _size(payload, i))
        if size > capacity:
            raise _too_long(i, size)
        if used + size > capacity:
            yield payloads[start:i]
            start, used = i, 0
        used += size
    if start < len(payloads):
        yield payloads[start:]


def _too_long(i: int, size: int) -> InvalidPayload:
    return InvalidPayload(f"message {i} of the list has {size - fmt.SPEC.overhead} bytes, so none was published")


def _size(payload: Buffer, i: int) -> int:
    kind = "str; encode it first, as in text.encode()" if isinstance(payload, str) else type(payload).__name__
    try:
        view = memoryview(payload)
        return len(view.cast("B")) if view.nbytes else 0
    except TypeError as error:
        raise PayloadTypeError(
            f"message {i} of the list must be bytes-like, not {kind} ({error}), so none was published"
        ) from None


def arrow_pieces(offsets: Buffer, wide: bool, start: int, size: int, capacity: int) -> Iterator[tuple[int, int]]:
    """The same for values `start` to `start + size` of an Arrow array: (first, end) of each."""
    ends = memoryview(offsets).cast("B").cast("q" if wide else "i")
    first, last = start, start + size
    while first < last:
        used = ends[first] + fmt.SPEC.overhead * first
        fit = bisect_right(range(first + 1, last + 1), used + capacity, key=lambda i: ends[i] + fmt.SPEC.overhead * i)
        if not fit:
            raise _too_long(first - start, fmt.SPEC.overhead + ends[first + 1] - ends[first])
        yield first, first + fit
        first += fit
