"""Named cursors: one small file per reader, replaced atomically, so that a position survives any crash.

magic `PENSCURS` | u32 version | u32 ranges | u64 position | u32 CRC-32 of these | zeros to 64, then, if there are ranges
beyond a gap, each as u64 start | u64 end, and a u32 CRC-32 of them. What a position is, the log's use says.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.errors import NotALog
from penstock.storage import files

_MAGIC: Final = b"PENSCURS"
_VERSION: Final = 1
_CURSOR: Final = struct.Struct("<8sIIQ")
_RANGE: Final = struct.Struct("<QQ")
_HEAD_BYTES: Final = 64
_MOST_BYTES: Final = 64 << 20  # that are looked at
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_name(name: str) -> None:
    """Raise ValueError if a reader cannot be called so."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".tmp"):
        raise ValueError(f"cursor name {name!r}: use 1 to 128 of A-Z a-z 0-9 . _ -, not starting with a dot")


class Cursors:
    """The positions of a log's named readers."""

    def __init__(self, top: Path) -> None:
        self._directory = top / "cursors"
        files.refuse_links(self._directory, top)
        self._is_named = False  # whether the name of the directory is known to be on the disk

    def path(self, name: str) -> Path:
        """The file of a name."""
        check_name(name)
        return self._directory / name

    def load(self, name: str) -> int | None:
        """The position a reader goes on with, or None when there is no such cursor."""
        found = self._load(name)
        return found[0] if found else None

    def position(self, name: str) -> int | None:
        """The position, though the ranges may be unreadable; None when it cannot be read, too."""
        try:
            data = self._read(name)
            return self._head(name, data)[1] if data is not None else None
        except NotALog:
            return None

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """What is done beyond the position."""
        found = self._load(name)
        return found[1] if found else []

    def _read(self, name: str) -> bytes | None:
        try:
            with files.opened(self.path(name)) as fd:
                return files.read(fd, 0, min(files.size(fd), _MOST_BYTES))
        except FileNotFoundError:
            return None

    def _head(self, name: str, data: bytes) -> tuple[int, int]:
        """(number of ranges, position)."""
        path = self.path(name)
        head = data[: _CURSOR.size]
        stored = data[_CURSOR.size : _CURSOR.size + 4]
        if len(data) < _HEAD_BYTES or stored != zlib.crc32(head).to_bytes(4, "little"):
            raise NotALog(f"{path}: the cursor fails its checksum; forget it by that name, or commit a new position")
        magic, version, count, position = _CURSOR.unpack(head)
        if magic != _MAGIC or version != _VERSION:
            raise NotALog(f"{path}: not a cursor of a version this Penstock knows ({_VERSION})")
        return int(count), int(position)

    def _load(self, name: str) -> tuple[int, list[tuple[int, int]]] | None:
        data = self._read(name)
        if data is None:
            return None
        count, position = self._head(name, data)
        body = data[_HEAD_BYTES : _HEAD_BYTES + count * _RANGE.size]
        rest = data[_HEAD_BYTES + len(body) :][:4]
        if count and (len(body) < count * _RANGE.size or rest != zlib.crc32(body).to_bytes(4, "little")):
            raise NotALog(f"{self.path(name)}: byte 64: the ranges fail their checksum; forget the cursor by that name")
        return position, list(_RANGE.iter_unpack(body))

    def store(self, name: str, position: int, ranges: Sequence[tuple[int, int]] = (), *, durable: bool = True) -> None:
        """Keep a position and what is done beyond it. If not `durable` it survives the process, not a power cut."""
        path = self.path(name)
        if not files.is_directory(self._directory):
            files.make_directories(self._directory, self._directory.parent)
        head = _CURSOR.pack(_MAGIC, _VERSION, len(ranges), position)
        data = (head + zlib.crc32(head).to_bytes(4, "little")).ljust(_HEAD_BYTES, b"\0")
        if ranges:
            body = b"".join(_RANGE.pack(*r) for r in ranges)
            data += body + zlib.crc32(body).to_bytes(4, "little")
        files.replace(path, data, durable=durable)

    def sync(self) -> None:
        """Put the names on the disk: what was stored is then found after a power cut, too."""
        files.sync_directory(self._directory)
        if not self._is_named:  # whoever made it may have died before he did
            files.sync_directory(self._directory.parent)
            self._is_named = True

    def forget(self, name: str) -> None:
        files.remove(self.path(name))

    def all(self) -> dict[str, int]:
        """Every cursor by name. One that cannot be read counts as standing at the start: it holds everything back."""
        found = {}
        for name in self.names():
            try:
                sequence = self.load(name)
            except NotALog:
                sequence = 0
            if sequence is not None:
                found[name] = sequence
        return found

    def names(self) -> list[str]:
        """Of all that have a file, readable or not."""
        if not files.is_directory(self._directory):
            return []
        return sorted(p for p in files.walk(self._directory) if _NAME.fullmatch(p) and not p.endswith(".tmp"))
