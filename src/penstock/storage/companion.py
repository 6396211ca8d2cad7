"""The companion beside each segment: one entry per record with its time. Bytes: docs/formats.md, "companion".

Advisory: a zero entry means that the time is not known. A negative one is a time too, and says that the batch goes on with
the next record, so that after a power cut a batch of which only a part came back can be told and cut.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from penstock.kernel import Buffer

_HEADER: Final = struct.Struct("<8sIIQ")
_MAGIC: Final = b"PENSTIME"
_VERSION: Final = 1
HEADER_BYTES: Final = 64
ENTRY_BYTES: Final = 8


def pack_header(base: int) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, ENTRY_BYTES, base)
    return (head + zlib.crc32(head).to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")


def is_valid(data: Buffer, base: int) -> bool:
    """Whether this is the companion of the segment whose first record is `base`."""
    view = memoryview(data)
    return len(view) >= HEADER_BYTES and bytes(view[:HEADER_BYTES]) == pack_header(base)


def base_of(data: Buffer) -> int | None:
    """The first sequence of the segment that this is a companion of; None when it cannot be read."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    base = int(_HEADER.unpack_from(view)[3])
    return base if is_valid(view, base) else None


class Times:
    """The entries of one companion, by place in the segment."""

    def __init__(self, data: Buffer) -> None:
        view = memoryview(data)
        whole = max(0, len(view) - HEADER_BYTES) // ENTRY_BYTES * ENTRY_BYTES
        self._entries = view[HEADER_BYTES : HEADER_BYTES + whole].cast("q") if whole else memoryview(b"").cast("q")

    def __len__(self) -> int:
        """How many records there is room for."""
        return len(self._entries)

    def entry(self, place: int) -> int:
        """What is written for a record: 0 when nothing is."""
        return self._entries[place] if place < len(self._entries) else 0

    def us(self, place: int) -> int:
        """Unix microseconds of a record, or 0 when not known."""
        return abs(self.entry(place))

    def ends_batch(self, place: int) -> bool:
        """Whether a record is known to be the last, or only one, of its batch."""
        return self.entry(place) > 0

    def first_at(self, us: int, count: int) -> int:
        """The first of `count` records that is not older than `us`; `count` when all are. Unknown times are passed over."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            known = middle
            while known > low and self.us(known) == 0:
                known -= 1
            if self.us(known) < us:
                low = middle + 1
            else:
                high = known
        return low
