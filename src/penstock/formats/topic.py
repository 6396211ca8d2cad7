"""A topic's bytes: names of topics and files, its frames, which partition a key goes to. No I/O.

Bytes on disk: docs/formats.md, "topic". A file has no header. `Partition` is what the engine takes for a format: each
partition is a log of its own, whose segments' ids are their numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import InvalidTopic
from penstock.kernel import Buffer, FrameSpec, fnv1a

NAME: Final = "topic"
VERSION: Final = 1
HEADER_BYTES: Final = 0

SPEC: Final = FrameSpec(big_endian=True)
CUT_WHEN_SEALED: Final = True
SAYS_BEGIN: Final = False
SPILLS: Final = False
GROWS: Final = True
INDEXED: Final = True
CURSORS_ARE_SEQUENCES: Final = True
LAST_ID: Final = 10**19 - 1

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TAKEN: Final = (".sinks", ".staging", "metadata.json")  # names of others' files in a directory of topics
_FILE: Final = re.compile(r"partition_(0|[1-9][0-9]{0,18})_segment_(0|[1-9][0-9]{0,18})\.log")


@dataclass(frozen=True, slots=True)
class Header:
    """Where the frames of a file start; it says nothing else. Everybody's files are the same, so none is foreign."""

    spec: FrameSpec = SPEC
    start: int = 0
    base: int | None = None
    begin: int = 0
    created_us: int | None = None
    foreign: bool = False


class Place(NamedTuple):
    """What the name of a file says."""

    partition: int
    segment: int


def check_topic(topic: str) -> str:
    """The name itself, if a topic may have it: it becomes a directory, which must lie below the log's.

    >>> check_topic("orders.eu-1")
    'orders.eu-1'
    """
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopic(f"topic name {topic!r}: use 1 to 249 of A-Z a-z 0-9 . _ -, and neither . nor .. alone")
    if topic in _TAKEN:
        raise InvalidTopic(
            f"topic name {topic!r}: a file of this name tells of all topics in the directory; use another"
        )
    return topic


def parse(path: str) -> Place | None:
    """What the path of a file within the topic's directory says, or None when it is no segment's.

    >>> parse("partition_0_segment_2.log")
    Place(partition=0, segment=2)
    >>> parse("partition_00_segment_2.log")
    """
    m = _FILE.fullmatch(path)
    return Place(int(m[1]), int(m[2])) if m else None


class Partition:
    """The files of one partition of a topic.

    >>> Partition(0).name(2)
    'partition_0_segment_2.log'
    """

    NAME = NAME
    VERSION = VERSION
    HEADER_BYTES = HEADER_BYTES
    SPEC = SPEC
    CUT_WHEN_SEALED = CUT_WHEN_SEALED
    SAYS_BEGIN = SAYS_BEGIN
    SPILLS = SPILLS
    GROWS = GROWS
    INDEXED = INDEXED
    CURSORS_ARE_SEQUENCES = CURSORS_ARE_SEQUENCES
    LAST_ID = LAST_ID

    def __init__(self, partition: int) -> None:
        if partition < 0:
            raise ValueError(f"partition {partition}: they are numbered from 0")
        self.partition = partition

    def name(self, segment: int) -> str:
        """The file's path within the topic's directory."""
        return f"partition_{self.partition}_segment_{segment}.log"

    def beside(self, name: str, suffix: str) -> str:
        """The path of the file with this suffix that belongs to a segment."""
        return name + suffix

    def parse(self, path: str) -> int | None:
        """The id of the segment with this path, or None when it is not this partition's."""
        found = parse(path)
        return found.segment if found and found.partition == self.partition else None

    def compressed_name(self, segment: int) -> str | None:
        """A topic's files are never compressed."""
        return None

    def parse_compressed(self, path: str) -> int | None:
        return None

    def first_id(self, now_us: int) -> int:
        """The first segment of a new partition."""
        return 0

    def next_id(self, last: int, now_us: int) -> int:
        """The segment after `last`."""
        return last + 1

    def pack_header(self, segment: int, base: int, begin: int, created_us: int) -> bytes:
        """Nothing: a file begins with its first message."""
        return b""

    def read_header(self, data: bytes | memoryview, path: str) -> Header:
        """The same for every file, since there is nothing to read."""
        return Header()


def partition_of(key: Buffer, partitions: int) -> int:
    """The partition that messages with this key go to, of so many. Fixed: changing it would tear keys apart.

    >>> partition_of(b"customer-7", 4)
    1
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions: a topic has at least 1")
    return fnv1a(key) % partitions
