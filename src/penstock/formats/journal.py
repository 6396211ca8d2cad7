"""The journal's bytes: file names, kinds of records, the checkpoint record. No I/O. Bytes on disk: docs/formats.md, "journal".

A file has no header: its first record is a checkpoint record, which says how far the journal had come. A segment's id is its
number.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import NotALog
from penstock.kernel import FrameSpec

NAME: Final = "journal"
VERSION: Final = 1
HEADER_BYTES: Final = 0

SPEC: Final = FrameSpec(shift=8, state_bytes=16)
CUT_WHEN_SEALED: Final = True
SAYS_BEGIN: Final = False
SPILLS: Final = False
GROWS: Final = True
INDEXED: Final = False
CURSORS_ARE_SEQUENCES: Final = True
LAST_ID: Final = 2**64 - 1
MAX_FILE_BYTES: Final = 4 << 20
MAX_RECORD_BYTES: Final = 1 << 20  # with its head
MAX_PAYLOAD_BYTES: Final = MAX_RECORD_BYTES - SPEC.overhead

DATA: Final = 0
CHECKPOINT: Final = 1

_HEAD: Final = struct.Struct("<I")
_BODY: Final = struct.Struct("<QQ")
_PATH: Final = re.compile(r"(0|[1-9][0-9]{0,19})\.journal")


@dataclass(frozen=True, slots=True)
class Header:
    """Where the frames of a file start; it says nothing else. Everybody's files are the same, so none is foreign."""

    spec: FrameSpec = SPEC
    start: int = 0
    base: int | None = None
    begin: int = 0
    created_us: int | None = None
    foreign: bool = False


class Head(NamedTuple):
    """The first four bytes of a record: its kind, and how long the body behind them is."""

    kind: int
    size: int


class Checkpoints(NamedTuple):
    """A checkpoint record's body: the last checkpoint that was retired, and the last one that was registered."""

    checked: int
    current: int


def name(segment: int) -> str:
    """The file's path within the log directory.

    >>> name(0)
    '0.journal'
    """
    return f"{segment}.journal"


def beside(name: str, suffix: str) -> str:
    """The path of the file with this suffix that belongs to a journal file.

    >>> beside("0.journal", ".time")
    '0.journal.time'
    """
    return name + suffix


def parse(path: str) -> int | None:
    """The id of the segment with this path, or None when it is no journal file's.

    >>> parse("12.journal"), parse("012.journal"), parse("old/12.journal")
    (12, None, None)
    """
    m = _PATH.fullmatch(path)
    return int(m[1]) if m and int(m[1]) <= LAST_ID else None


def compressed_name(segment: int) -> str | None:
    """A journal's files are never compressed."""
    return None


def parse_compressed(path: str) -> int | None:
    return None


def first_id(now_us: int) -> int:
    """The first segment of a new log."""
    return 0


def next_id(last: int, now_us: int) -> int:
    """The segment after `last`."""
    return last + 1


def pack_header(segment: int, base: int, begin: int, created_us: int) -> bytes:
    """Nothing: a file begins with its first record."""
    return b""


def read_header(data: bytes | memoryview, path: str) -> Header:
    """The same for every file, since there is nothing to read."""
    return Header()


def read_head(data: bytes | memoryview, at: int = 0) -> Head:
    """The head of the record at `at`. A checkpoint that says size 0 has its 16 bytes all the same: some write it so.

    >>> read_head(bytes.fromhex("00020000")), read_head(bytes.fromhex("01000000"))
    (Head(kind=0, size=2), Head(kind=1, size=16))
    """
    (head,) = _HEAD.unpack_from(data, at)
    kind, size = head & 0xFF, head >> 8
    return Head(kind, size or _BODY.size if kind == CHECKPOINT else size)


def pack_checkpoints(checked: int, current: int) -> bytes:
    """A checkpoint record's body.

    >>> pack_checkpoints(1, 2).hex()
    '01000000000000000200000000000000'
    """
    return _BODY.pack(checked, current)


def read_checkpoints(body: bytes | memoryview, path: str, at: int) -> Checkpoints:
    """Understand the body of the checkpoint record at byte `at` of a file."""
    if len(body) != _BODY.size:
        raise NotALog(
            f"{path}: byte {at}: a checkpoint record of {len(body)} bytes, it has {_BODY.size}; restore it from a copy"
        )
    found = Checkpoints(*_BODY.unpack(body))
    if found.checked > found.current:
        raise NotALog(
            f"{path}: byte {at}: says that checkpoint {found.checked} was retired when {found.current} was the last; "
            "restore it from a copy"
        )
    return found
