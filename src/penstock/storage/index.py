"""The sparse index beside each segment: the place of every n-th record. Bytes: docs/formats.md, "queue".

A cache: whatever it says is checked against the data before it is believed, and it is rebuilt when short, missing or wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from penstock.kernel import Buffer

HEADER_BYTES: Final = 256
ENTRY_BYTES: Final = 16
_HEADER: Final = struct.Struct("<QQ")
_ENTRY: Final = struct.Struct("<QQ")


def pack_header(interval: int, count: int = 0) -> bytes:
    return _HEADER.pack(interval, count).ljust(HEADER_BYTES, b"\0")


def pack(interval: int, base: int, count: int, points: Iterable[tuple[int, int]]) -> bytes:
    """A whole index over `count` records: `points` are (sequence, position) of every interval-th record.

    The entry of one that is lost repeats the entry before it, so that positions stay in order and the gap shows.
    """
    known = dict(points)
    entries, last = [], (0, 0)
    for sequence in range(base, base + count, interval):
        if sequence in known:
            last = (sequence, known[sequence])
        entries.append(_ENTRY.pack(*last))
    return pack_header(interval, len(entries)) + b"".join(entries)


def bytes_for(records: int, interval: int) -> int:
    """The length of an index over so many records."""
    return HEADER_BYTES + ENTRY_BYTES * (-(-records // interval))


class Index:
    """The entries of one index file, as far as they are there."""

    def __init__(self, data: Buffer, base: int) -> None:
        view = memoryview(data)
        self._view = view
        self._base = base
        self.interval, count = _HEADER.unpack_from(view) if len(view) >= HEADER_BYTES else (0, 0)
        self.count = min(count, max(0, len(view) - HEADER_BYTES) // ENTRY_BYTES) if self.interval else 0

    def refresh(self) -> None:
        """Take in what the writer has added."""
        if self.interval:
            self.count = min(_HEADER.unpack_from(self._view)[1], (len(self._view) - HEADER_BYTES) // ENTRY_BYTES)

    def entry(self, i: int) -> tuple[int, int]:
        sequence, position = _ENTRY.unpack_from(self._view, HEADER_BYTES + i * ENTRY_BYTES)
        return sequence, position

    def number(self, sequence: int) -> int:
        """Which entry is the last at or before `sequence`; -1 when there is none."""
        return min((sequence - self._base) // self.interval, self.count - 1) if self.interval else -1

    def after(self, position: int) -> int:
        """Which entry is the first that lies behind `position`; `count` when there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return low
