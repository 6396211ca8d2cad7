"""Notes of syncs: a ring of (end, next) in the unused part of a data file's header page, each with a CRC-32.

Before each sync the log's end is noted there, so that the same sync puts the note on the disk. After a power cut, frames that
reach such a place are whole up to it, also as batches: the companion, which is not synced, is not asked. It is a ring, so that
a sync under way does not overwrite what one that is done has promised. A header with no room for it has none; what such a
format keeps elsewhere must say the same. Bytes: docs/formats.md, "queue".
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from penstock.kernel import Buffer
from penstock.storage import files
from penstock.storage.damage import Place

_AT: Final = 128
_COUNT: Final = 64
_NOTE: Final = struct.Struct("<QQI12x")
_BYTES: Final = _COUNT * _NOTE.size


def _has_room(header_bytes: int) -> bool:
    return header_bytes >= _AT + _BYTES


def note(fd: int, header_bytes: int, n: int, end: int, next_: int) -> None:
    """Before the n-th sync, write where the log ends. Under the lock."""
    if _has_room(header_bytes):
        body = struct.pack("<QQ", end, next_)
        files.write(fd, _NOTE.pack(end, next_, zlib.crc32(body)), _AT + n % _COUNT * _NOTE.size)


def reached(data: Buffer, header_bytes: int, end: Place) -> int:
    """The sequence up to which a sync was asked for, of those that the frames, which lead to `end`, have reached; or 0."""
    if not _has_room(header_bytes):
        return 0
    ring = bytes(memoryview(data)[_AT : _AT + _BYTES])
    notes = _NOTE.iter_unpack(ring[: len(ring) // _NOTE.size * _NOTE.size])
    true = [(at, next_) for at, next_, crc in notes if crc == zlib.crc32(struct.pack("<QQ", at, next_))]
    return max((next_ for at, next_ in true if at <= end.position and next_ <= end.sequence), default=0)


def forget_beyond(fd: int, header_bytes: int, end: Place) -> None:
    """Wipe the notes beyond a new, lower end: other records will be written there."""
    if not _has_room(header_bytes):
        return
    ring = files.read(fd, _AT, _BYTES)
    for i, (position, sequence, _) in enumerate(_NOTE.iter_unpack(ring[: len(ring) // _NOTE.size * _NOTE.size])):
        if position > end.position or sequence > end.sequence:
            files.write(fd, bytes(_NOTE.size), _AT + i * _NOTE.size)


def forget_all(fd: int, header_bytes: int) -> None:
    """Of a file that is closed or sealed, all of which is synced."""
    if _has_room(header_bytes) and any(files.read(fd, _AT, _BYTES)):
        files.write(fd, bytes(_BYTES), _AT)
