"""The queue's bytes: file names, the file header, its frames. No I/O. Bytes on disk: docs/formats.md, "queue".

A segment's id is `YYYYMMDD << 32 | number`, so that ids order as files do: by date, then number.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.errors import NotALog, UnknownVersion
from penstock.kernel import FrameSpec, scan
from penstock.options import MAX_SEQUENCE

NAME: Final = "queue"
VERSION: Final = 1
HEADER_BYTES: Final = 4096

SPEC: Final = FrameSpec(sum_bytes=8, sum_covers_head=True, zero_ends=True)
SAYS_BEGIN: Final = False
CUT_WHEN_SEALED: Final = False
SPILLS: Final = False
GROWS: Final = False
INDEXED: Final = True
CURSORS_ARE_SEQUENCES: Final = True
LAST_ID: Final = 99999999 << 32 | 999999999
_PAYLOAD_ONLY: Final = FrameSpec(sum_bytes=8, zero_ends=True)
_RUST: Final = FrameSpec(sum_bytes=4, sum_covers_head=True, zero_ends=True)

_MAGIC: Final = b"PENSTOCK"
_HEADER: Final = struct.Struct("<8sIIQQ")
_PATH: Final = re.compile(r"([0-9]{4})/([0-9]{2})/([0-9]{2})/([0-9]{8})-([0-9]{4,9})\.data")


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of a data file say: how its frames are made, where they start, the first one's sequence."""

    spec: FrameSpec
    start: int
    base: int | None
    created_us: int | None
    begin: int = 0

    @property
    def foreign(self) -> bool:
        """A file of another implementation, which does not say what its first sequence is."""
        return self.base is None


def name(segment: int) -> str:
    """The data file's path within the log directory.

    >>> name(20261115 << 32 | 1)
    '2026/11/15/20261115-0001.data'
    """
    date, number = f"{segment >> 32:08}", segment & 0xFFFFFFFF
    return f"{date[:4]}/{date[4:6]}/{date[6:]}/{date}-{number:04}.data"


def beside(name: str, suffix: str) -> str:
    """The path of the file with this suffix that belongs to a data file.

    >>> beside('2026/11/15/20261115-0001.data', '.time')
    '2026/11/15/20261115-0001.time'
    """
    return name.removesuffix(".data") + suffix


def parse(path: str) -> int | None:
    """The id of the segment with this path, or None when it is no data file's."""
    m = _PATH.fullmatch(path)
    if not m or "".join(m.groups()[:3]) != m[4]:
        return None
    return int(m[4]) << 32 | int(m[5])


def compressed_name(segment: int) -> str | None:
    """A queue's files are never compressed."""
    return None


def parse_compressed(path: str) -> int | None:
    return None


def first_id(now_us: int) -> int:
    """The first segment of a new log."""
    return _date(now_us) << 32 | 1


def next_id(last: int, now_us: int) -> int:
    """The segment after `last`: number one of today, or the next number of `last`'s day if the clock ran backwards."""
    today = _date(now_us)
    return today << 32 | 1 if today > last >> 32 else last + 1


def _date(now_us: int) -> int:
    return int(datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y%m%d"))


def pack_header(segment: int, base: int, begin: int, created_us: int) -> bytes:
    """The 4096 bytes before the first frame. They say neither the segment's id nor how many bytes lie before it."""
    head = _HEADER.pack(_MAGIC, VERSION, 0, base, created_us)
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes | memoryview, path: str) -> Header:
    """Understand the start of a data file: ours, or one of the layouts that others write.

    Without our magic the first frame tells: a zeroed header page and CRC-64 of the payload or of length and payload,
    or frames from byte 0 with one of those, or with a CRC-32 (the public Rust implementation).
    """
    if bytes(data[:8]) == _MAGIC:
        if len(data) < HEADER_BYTES:
            raise NotALog(
                f"{path}: {len(data)} bytes, but a data file has a header of {HEADER_BYTES}; restore it from a copy"
            )
        _, version, scope, base, created_us = _HEADER.unpack_from(data)
        (stored,) = struct.unpack_from("<I", data, _HEADER.size)
        if stored != zlib.crc32(data[: _HEADER.size]):
            raise NotALog(f"{path}: byte 0: the file header fails its checksum; restore the file from a copy")
        if base >= MAX_SEQUENCE:
            raise NotALog(f"{path}: byte 16: no log has {base} records before this file; restore the file from a copy")
        if version != VERSION or scope not in (0, 1):
            raise UnknownVersion(
                f"{path}: written by version {version} of the queue format, this Penstock reads version {VERSION}; upgrade"
            )
        return Header(SPEC if scope == 0 else _PAYLOAD_ONLY, HEADER_BYTES, base, created_us)
    places = (HEADER_BYTES,) if not any(data[:HEADER_BYTES]) else (0,)
    for start in places:
        for spec in (SPEC, _PAYLOAD_ONLY, _RUST):
            if len(data) > start and scan(spec, data, start, len(data), 1).count:
                return Header(spec, start, None, None)
    raise NotALog(f"{path}: byte 0: neither Penstock's magic nor a frame of a known queue format")
