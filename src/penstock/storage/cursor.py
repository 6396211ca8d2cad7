"""Named cursors: one small file per reader, replaced atomically, so that a position survives any crash.

magic `PENSCURS` | u32 version | u32 zero | u64 sequence | u32 CRC-32 of these | zeros to 64
"""

from __future__ import annotations

import errno
import re
import struct
import zlib
from pathlib import Path
from typing import Final

from penstock.errors import DiskFull, NotALog
from penstock.storage import files

_MAGIC: Final = b"PENSCURS"
_VERSION: Final = 1
_CURSOR: Final = struct.Struct("<8sIIQ")
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class Cursors:
    """The positions of a log's named readers."""

    def __init__(self, top: Path) -> None:
        self._directory = top / "cursors"

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.endswith(".tmp"):
            raise ValueError(f"cursor name {name!r}: use 1 to 128 of A-Z a-z 0-9 . _ -, not starting with a dot")
        return self._directory / name

    def load(self, name: str) -> int | None:
        """The sequence a reader goes on with, or None when there is no such cursor."""
        path = self._path(name)
        try:
            with files.opened(path) as fd:
                data = files.read(fd, 0, 64)
        except FileNotFoundError:
            return None
        head = data[: _CURSOR.size]
        stored = data[_CURSOR.size : _CURSOR.size + 4]
        if len(data) < 64 or stored != zlib.crc32(head).to_bytes(4, "little"):
            raise NotALog(f"{path}: the cursor fails its checksum; forget it by that name, or commit a new position")
        magic, version, _, sequence = _CURSOR.unpack(head)
        if magic != _MAGIC or version != _VERSION:
            raise NotALog(f"{path}: not a cursor of a version this Penstock knows ({_VERSION})")
        return int(sequence)

    def store(self, name: str, sequence: int) -> None:
        path = self._path(name)
        if not self._directory.is_dir():
            files.make_directories(self._directory, self._directory.parent)
        head = _CURSOR.pack(_MAGIC, _VERSION, 0, sequence)
        try:
            files.replace(path, (head + zlib.crc32(head).to_bytes(4, "little")).ljust(64, b"\0"))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(path, 64) from error
            raise

    def forget(self, name: str) -> None:
        files.remove(self._path(name))

    def all(self) -> dict[str, int]:
        """Every cursor by name. One that cannot be read counts as standing at the start: it holds everything back."""
        found = {}
        for name in sorted(self._names()):
            try:
                sequence = self.load(name)
            except NotALog:
                sequence = 0
            if sequence is not None:
                found[name] = sequence
        return found

    def _names(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return [p for p in files.walk(self._directory) if _NAME.fullmatch(p) and not p.endswith(".tmp")]
