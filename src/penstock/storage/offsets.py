"""The `offset` file: how far a channel is written, and how far each named receiver has read. Bytes: docs/formats.md, "channel".

A mapped file of aligned big-endian u64s, each stored whole, so that what it says survives the death of the process at any
instruction. Number 0 is the write offset, which the kernel stores with every append; the others are the receivers'. They
change too often for a checksum, so each page of them is there three times: a flipped bit, or a death between two stores,
leaves two that agree, or the old and the new one, and the middle one of three is right. (The write offset is kept once.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from penstock.errors import DiskFull
from penstock.kernel import store_big
from penstock.storage import files
from penstock.storage.directory import is_full

_SLOT_BYTES = 8
_PAGE = 4096
_SLOTS = _PAGE // _SLOT_BYTES
_COPIES = 3
_GROUP = _COPIES * _PAGE


def _places(slot: int) -> range:
    """Where the copies of a slot lie."""
    group, place = divmod(slot, _SLOTS)
    first = group * _GROUP + place * _SLOT_BYTES
    return range(first, first + _GROUP, _PAGE)


class Offsets:
    """The file, mapped. Threads may share it."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        if not read_only:
            self._make_copies()
        self._fd = files.open_read(path) if read_only else files.create(path, exclusive=False)
        self._lock = threading.Lock()
        self._tickets = count(1)  # one for each sync that is asked for ...
        self._synced = 0  # ... and up to which they are done
        try:
            if not read_only:
                self._reach(_GROUP)
            self._map()
        except BaseException:
            files.close(self._fd)
            raise

    def _make_copies(self) -> None:
        """Of another implementation's file, which has each offset once."""
        try:
            with files.opened(self._path) as fd:
                data = files.read(fd, 0, _GROUP)
        except FileNotFoundError:
            return
        if 0 < len(data) < _GROUP:
            files.replace(self._path, data[:_PAGE].ljust(_PAGE, b"\0") * _COPIES)

    def _reach(self, length: int) -> None:
        """Make the file so long, of real blocks: a store to a page without one kills when the disk is full."""
        size = files.size(self._fd)
        if size < length:
            try:
                files.allocate(self._fd, size, length - size)
            except OSError as error:
                files.truncate(self._fd, size)
                if is_full(error):
                    raise DiskFull(self._path, length - size) from error
                raise

    def _map(self) -> None:
        size = files.size(self._fd) // _SLOT_BYTES * _SLOT_BYTES
        self._view = memoryview(files.map_read(self._fd, size) if self._read_only else files.map_write(self._fd, size))

    @property
    def slots(self) -> int:
        return len(self._view) // _GROUP * _SLOTS

    def mirror(self) -> memoryview:
        """The write offset, for the kernel to store."""
        return self._view[:_SLOT_BYTES]

    def load(self, slot: int) -> int:
        copies = [int.from_bytes(self._view[at : at + _SLOT_BYTES], "big") for at in _places(slot)]
        return copies[0] if len(self._view) < _GROUP else sorted(copies)[1]

    def store(self, slot: int, offset: int) -> None:
        self.storer(slot)(offset)

    def storer(self, slot: int) -> Callable[[int], None]:
        """`store` for one slot, ready to be called with every message."""
        places = _places(slot)
        return partial(store_big, self._view, places[0], places.step, len(places))

    def grow(self) -> None:
        """Room for more receivers. The kernel's view of the write offset stays good: it is the same page."""
        with self._lock:
            self._reach((len(self._view) // _GROUP + 1) * _GROUP)
            self._map()

    def sync(self) -> None:
        """Put what was stored before this call on the disk. Callers that wait here meanwhile share the next sync."""
        mine = next(self._tickets)
        with self._lock:
            if self._synced < mine and self._fd >= 0:  # whoever closes it has synced it
                asked = next(self._tickets)
                files.sync(self._fd)
                self._synced = asked

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                files.close(fd)
