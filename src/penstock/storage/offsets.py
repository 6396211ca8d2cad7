"""The `offset` file: how far a channel is written, and how far each named receiver has read. Bytes: docs/formats.md, "channel".

A mapped file of aligned big-endian u64s, each stored whole, so that what it says survives the death of the process at any
instruction. Number 0 is the write offset, which the kernel stores with every append; the others are the receivers'. They
change too often for a checksum, so each page of them is there three times: a flipped bit, or a death between two stores,
leaves two that agree, or the old and the new one, and the middle one of three is right. (The write offset is kept once.)
"""

from __future__ import annotations

import copy
import mmap
import threading
from itertools import count
from pathlib import Path
from typing import TypeGuard

from penstock.errors import DiskFull, NotALog
from penstock.kernel import Buffer, store_big
from penstock.storage import files

_SLOT_BYTES = 8
_PAGE = 4096
_SLOTS = _PAGE // _SLOT_BYTES
_COPIES = 3
_MOST_SLOTS = 1 << 20  # receivers of one channel
GROUP_BYTES = _COPIES * _PAGE

WRITTEN = 0  # the slot of the write offset
DURABLE = 511  # the slot of the offset up to which all was put on the disk, when that was last promised


def _places(slot: int) -> range:
    """Where the copies of a slot lie."""
    group, place = divmod(slot, _SLOTS)
    first = group * GROUP_BYTES + place * _SLOT_BYTES
    return range(first, first + GROUP_BYTES, _PAGE)


def is_slot(position: int | None) -> TypeGuard[int]:
    """Whether what a cursor says can be the number of a slot."""
    return position is not None and position < _MOST_SLOTS


class Offsets:
    """The file, mapped. Threads may share it."""

    _fd = -1  # of the class: __del__ looks at it also when there was no file to open

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        if not read_only:
            self._make_copies()
        self._fd = files.open_read(path) if read_only else files.create(path, exclusive=False)
        self._lock = threading.Lock()
        self._tickets = count(1)  # one for each sync that is asked for ...
        self._synced = 0  # ... and up to which they are done
        self._failed: OSError | None = None
        try:
            if not read_only:
                self._reach(GROUP_BYTES)
            self._open_map()
        except BaseException:
            fd, self._fd = self._fd, -1
            files.close(fd)
            raise

    def _make_copies(self) -> None:
        """Of another implementation's file, which has each offset once."""
        try:
            with files.opened(self._path) as fd:
                data = files.read(fd, 0, GROUP_BYTES)
        except FileNotFoundError:
            return
        if 0 < len(data) < GROUP_BYTES:
            files.replace(self._path, data[:_PAGE].ljust(_PAGE, b"\0") * _COPIES)

    def _reach(self, length: int) -> None:
        """Make the file so long, of real blocks: a store to a page without one kills when the disk is full."""
        size = files.size(self._fd)
        if size < length:
            try:
                files.allocate(self._fd, size, length - size)
            except OSError as error:
                files.truncate(self._fd, size)
                if files.is_full(error):
                    raise DiskFull(self._path, length - size) from error
                raise

    def _open_map(self) -> None:
        size = min(files.size(self._fd) // _SLOT_BYTES * _SLOT_BYTES, _MOST_SLOTS // _SLOTS * GROUP_BYTES)
        self._map: mmap.mmap | bytearray | bytes = (
            files.map_read(self._fd, size) if self._read_only else files.map_write(self._fd, size)
        )
        self._view = memoryview(self._map)

    @property
    def slots(self) -> int:
        return len(self._view) // GROUP_BYTES * _SLOTS

    def mirror(self) -> memoryview:
        """The write offset, for the kernel to store."""
        return self._view[:_SLOT_BYTES]

    def load(self, slot: int) -> int:
        if self._read_only and slot >= self.slots and self._fd >= 0:
            self._open_map()  # it may have grown
        copies = [int.from_bytes(self._view[at : at + _SLOT_BYTES], "big") for at in _places(slot)]
        return copies[0] if len(self._view) < GROUP_BYTES else sorted(copies)[1]

    @property
    def written(self) -> int:
        """The write offset, of which one copy is kept up."""
        return int.from_bytes(self._view[:_SLOT_BYTES], "big")

    def disagree(self) -> list[int]:
        """Slots whose copies are not the same. While one is stored a look may be too early. Of the write offset there is but
        one, and of another implementation's file of each."""
        out = []
        for slot in range(1, self.slots):
            copies = {bytes(self._view[at : at + _SLOT_BYTES]) for at in _places(slot)}
            if len(copies) > 1:
                out.append(slot)
        return out

    def store(self, slot: int, offset: int) -> None:
        store_big(*self.place(slot), offset)

    def place(self, slot: int) -> tuple[Buffer, int, int, int]:
        """Where a slot lies, for the kernel to store to: in what, and where its copies are."""
        places = _places(slot)
        return self._map, places[0], places.step, len(places)

    def reach(self, slot: int, of: Path) -> None:
        """Room for a slot that the file `of` says is there: it may have been lost with the rest."""
        if not is_slot(slot):
            raise NotALog(f"{of}: slot {slot}, and there are at most {_MOST_SLOTS}; forget the receiver of that name")
        while slot >= self.slots:
            self.grow()

    def grow(self) -> None:
        """Room for more receivers. What the kernel stores to stays good: it is the same pages."""
        with self._lock:
            self._reach((len(self._view) // GROUP_BYTES + 1) * GROUP_BYTES)
            self._open_map()

    def sync(self) -> None:
        """Put what was stored before this call on the disk. Callers that wait here meanwhile share the next sync."""
        mine = next(self._tickets)
        with self._lock:
            if self._failed is not None:
                raise copy.copy(self._failed)  # the next one would find nothing to write, and succeed
            if self._synced < mine and self._fd >= 0:  # whoever closes it has synced it
                asked = next(self._tickets)
                try:
                    files.sync(self._fd)
                except OSError as error:
                    self._failed = error
                    raise
                self._synced = asked

    def forked(self) -> None:
        """In the child: a thread that held the lock is not there any more."""
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                files.close(fd)
                # What it says, for whoever asks now. Who stores to the map itself keeps that, and it goes with the last of them.
                self._map = bytearray(self._map)
                self._view = memoryview(self._map)

    def __del__(self) -> None:
        # Of a channel that was only read, and forgotten. One that is written closes it, and when the collector finds both together, not first.
        if self._fd >= 0 and self._read_only:
            files.close(self._fd)
