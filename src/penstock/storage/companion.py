"""The companion beside each segment: one entry per record with its time. Bytes: docs/formats.md, "companion".

Advisory: a zero entry means that the time is not known. A negative one is a time too, and says that the batch goes on with
the next record, so that after a power cut a batch of which only a part came back can be told and cut. Where frames have no
checksum the entry has it, of the whole frame.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import Final

from penstock.kernel import Buffer, FrameSpec
from penstock.options import MAX_SEQUENCE, MAX_TIME_US

_HEADER: Final = struct.Struct("<8sIIQ")
_MAGIC: Final = b"PENSTIME"
_VERSION: Final = 1
HEADER_BYTES: Final = 64
ENTRY_BYTES: Final = 8  # of a time alone
_SUMMED_BYTES: Final = 16


def entry_bytes(spec: FrameSpec) -> int:
    """How long an entry is beside such frames."""
    return ENTRY_BYTES if spec.sum_bytes else _SUMMED_BYTES


def length(spec: FrameSpec, count: int) -> int:
    """How long a companion over so many records is."""
    return HEADER_BYTES + entry_bytes(spec) * count


def pack_header(base: int, entry_bytes: int = ENTRY_BYTES) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, entry_bytes, base)
    return (head + zlib.crc32(head).to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")


def is_valid(data: Buffer, base: int, entry_bytes: int = ENTRY_BYTES) -> bool:
    """Whether this is the companion of the segment whose first record is `base`."""
    view = memoryview(data)
    return len(view) >= HEADER_BYTES and bytes(view[:HEADER_BYTES]) == pack_header(base, entry_bytes)


def base_of(data: Buffer) -> int | None:
    """The first sequence of the segment that this is a companion of; None when it cannot be read."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    _, _, entry, base = _HEADER.unpack_from(view)
    return int(base) if is_valid(view, base, entry) and base < MAX_SEQUENCE else None


def entries(count: int, us: int, goes_on: bool) -> bytes:
    """Those of so many records of one time: a batch, or a part of one that `goes_on`. Without checksums."""
    words = array("q", [-us]) * count
    if count and not goes_on:
        words[-1] = us
    return words.tobytes()


class Times:
    """The entries of one companion, by place in the segment."""

    def __init__(self, data: Buffer, entry_bytes: int = ENTRY_BYTES) -> None:
        view = memoryview(data)
        whole = max(0, len(view) - HEADER_BYTES) // entry_bytes * entry_bytes
        self.raw = view[HEADER_BYTES : HEADER_BYTES + whole] if whole else memoryview(b"")
        self._words = self.raw.cast("q")
        self._stride = entry_bytes // 8

    def __len__(self) -> int:
        """How many records there is room for."""
        return len(self._words) // self._stride

    def entry(self, place: int) -> int:
        """What is written for a record: 0 when nothing is."""
        return self._words[place * self._stride] if place < len(self) else 0

    def some(self, start: int, end: int) -> list[int]:
        """The same for the records start to end - 1, which must be there."""
        return self._words[start * self._stride : end * self._stride : self._stride].tolist()

    def sum(self, place: int) -> int:
        """The checksum of a record's frame; 0 when not known."""
        return (
            self._words[place * self._stride + 1] & 0xFFFFFFFFFFFFFFFF if place < len(self) and self._stride > 1 else 0
        )

    def us(self, place: int) -> int:
        """Unix microseconds of a record, or 0 when not known."""
        return self._us(self.entry(place))

    def known_backwards(self, start: int, end: int) -> Iterator[int]:
        """The same for the records end - 1 to start, which must be there, without those that are not known."""
        part = self.some(start, end)
        if any(part):  # else there may be very many
            yield from filter(None, map(self._us, reversed(part)))

    @staticmethod
    def _us(entry: int) -> int:
        us = abs(entry)
        return us if us < MAX_TIME_US else 0

    def ends_batch(self, place: int) -> bool:
        """Whether a record is known to be the last, or only one, of its batch."""
        return self.entry(place) > 0

    def goes_on(self, place: int) -> bool:
        """Whether a record is known to have more of its batch behind it."""
        return self.entry(place) < 0

    def first_at(self, us: int, count: int) -> int:
        """The first of `count` records that is not older than `us`; `count` when all are. Unknown times are passed over."""
        low, high = 0, (known_to := min(count, len(self)))  # more may be claimed than there are entries
        while low < high:
            middle = (low + high) // 2
            known = middle
            while known > low and self.us(known) == 0:
                known -= 1
            if self.us(known) < us:
                low = middle + 1
            else:
                high = known
        return low if low < known_to or us <= 0 else count
