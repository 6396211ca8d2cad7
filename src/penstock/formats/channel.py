"""The channel's bytes: file names, the two file headers, its frames. No I/O. Bytes on disk: docs/formats.md, "channel".

A segment's id is its number. Positions in a channel are byte offsets that count whole frames and leave out file headers, so
the length of what a segment holds is the difference of the offsets at its two ends.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.errors import NotALog, UnknownVersion
from penstock.kernel import FrameSpec

NAME: Final = "channel"
VERSION: Final = 1
HEADER_BYTES: Final = 64

SPEC: Final = FrameSpec(big_endian=True, sum_bytes=4, sum_first=True)
CUT_WHEN_SEALED: Final = True
SAYS_BEGIN: Final = True
SPILLS: Final = True
GROWS: Final = False
INDEXED: Final = True
CURSORS_ARE_SEQUENCES: Final = False
LAST_ID: Final = 0xFFFFFFFF

_HEADER: Final = struct.Struct(">IQ")
_COMPRESSED: Final = struct.Struct(">IQQB")
_NUMBER: Final = re.compile(r"segment\.(0|[1-9][0-9]{0,9})")
_Z: Final = ".z"
_ING: Final = ".z.ing"


class Method(IntEnum):
    """How the body of a compressed segment is compressed; the number stands in its header."""

    SNAPPY = 0
    GZIP = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class Header:
    """What a plain segment's header says."""

    segment: int
    begin: int
    spec: FrameSpec = SPEC
    start: int = HEADER_BYTES
    base: int | None = None  # a channel's files know offsets, not sequences, and not when they were made
    created_us: int | None = None
    foreign: bool = False  # everybody's files are the same


@dataclass(frozen=True, slots=True)
class CompressedHeader:
    """What a compressed segment's header says; the body behind it inflates to `length` bytes of frames."""

    segment: int
    begin: int
    end: int
    method: Method

    @property
    def length(self) -> int:
        return self.end - self.begin


def name(segment: int) -> str:
    """The file's path within the log directory.

    >>> name(3), compressed_name(3), compressing_name(3)
    ('segment.3', 'segment.3.z', 'segment.3.z.ing')
    """
    return f"segment.{segment}"


def compressed_name(segment: int) -> str:
    """The same for a compressed segment."""
    return name(segment) + _Z


def compressing_name(segment: int) -> str:
    """A compressed segment's name until it is whole."""
    return name(segment) + _ING


def beside(name: str, suffix: str) -> str:
    """The path of the file with this suffix that belongs to a segment.

    >>> beside("segment.3", ".time")
    'segment.3.time'
    """
    return name + suffix


def parse(path: str) -> int | None:
    """The id of the plain segment with this path, or None when it is no plain segment's.

    >>> parse("segment.3"), parse("segment.03"), parse("segment.3.z")
    (3, None, None)
    """
    m = _NUMBER.fullmatch(path)
    return int(m[1]) if m and int(m[1]) <= LAST_ID else None


def parse_compressed(path: str) -> int | None:
    """The same for a compressed segment."""
    return parse(path.removesuffix(_Z)) if path.endswith(_Z) else None


def parse_compressing(path: str) -> int | None:
    """The same for one that was being compressed."""
    return parse(path.removesuffix(_ING)) if path.endswith(_ING) else None


def first_id(now_us: int) -> int:
    """The first segment of a new log."""
    return 0


def next_id(last: int, now_us: int) -> int:
    """The segment after `last`."""
    return last + 1


def pack_header(segment: int, base: int, begin: int, created_us: int) -> bytes:
    """The 64 bytes before the first frame, whose offset is `begin`. They say neither its sequence nor the time.

    >>> pack_header(3, 0, 3003, 0).rstrip(bytes(1)).hex()
    '000000030000000000000bbb'
    """
    return _HEADER.pack(segment, begin).ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes | memoryview, path: str) -> Header:
    """Understand the start of a plain segment."""
    _check_shape(data, path, _HEADER.size)
    return Header(*_HEADER.unpack_from(data))


def pack_compressed_header(segment: int, begin: int, end: int, method: Method) -> bytes:
    """The 64 bytes before the compressed stream of the frames from offset `begin` up to `end`."""
    return _COMPRESSED.pack(segment, begin, end, method).ljust(HEADER_BYTES, b"\0")


def read_compressed_header(data: bytes | memoryview, path: str) -> CompressedHeader:
    """Understand the start of a compressed segment."""
    _check_shape(data, path, _COMPRESSED.size)
    segment, begin, end, method = _COMPRESSED.unpack_from(data)
    if end < begin:
        raise NotALog(f"{path}: byte 12: ends at offset {end}, before it begins at {begin}; restore it from a copy")
    try:
        return CompressedHeader(segment, begin, end, Method(method))
    except ValueError:
        known = ", ".join(f"{m.value} {m.name.lower()}" for m in Method)
        raise UnknownVersion(
            f"{path}: byte 20: compressed by method {method}, this Penstock reads {known}; upgrade, or restore it from a copy"
        ) from None


def _check_shape(data: bytes | memoryview, path: str, used: int) -> None:
    """Headers have no magic and no checksum: their zeros are all that tells a segment from another file."""
    if len(data) < HEADER_BYTES:
        raise NotALog(
            f"{path}: {len(data)} bytes, but a segment has a header of {HEADER_BYTES}; restore it from a copy"
        )
    for at in range(used, HEADER_BYTES):
        if data[at]:
            raise NotALog(f"{path}: byte {at}: not zero, as a segment's header is here; restore it from a copy")
