"""Compressed segments as files: made from a sealed one, and opened as if they were plain.

`pack` goes by a temporary name, so that a file with the name of a compressed segment is whole. `unpack` inflates one into a
file without a name, which is mapped like any other and goes when nobody reads it; so memory stays small, and everything
that reads segments reads compressed ones too. Names and headers: `formats.channel`.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from penstock.errors import CorruptSegment, NotALog, UnknownVersion
from penstock.formats import channel as fmt
from penstock.formats.channel import Method
from penstock.storage import compressed, files


def pack(source: Path, target: Path, end: int, method: Method) -> None:
    """Compress the plain segment `source`, whose frames end at byte `end`, into `target`, and put that on the disk."""
    with files.opened(source) as fd:
        head = fmt.read_header(files.read(fd, 0, fmt.HEADER_BYTES), str(source))
        out = files.create(target, exclusive=False)
        try:
            files.truncate(out, 0)
            ends = head.begin + end - fmt.HEADER_BYTES
            files.write(out, fmt.pack_compressed_header(head.segment, head.begin, ends, method), 0)
            compressed.compress(method, fd, fmt.HEADER_BYTES, end, out, fmt.HEADER_BYTES, str(source))
            files.sync(out)
        finally:
            files.close(out)


def is_whole(path: Path) -> bool:
    """Whether all of a compressed segment can be read."""
    with files.opened(path) as fd:
        try:
            head = fmt.read_compressed_header(files.read(fd, 0, fmt.HEADER_BYTES), str(path))
            out = files.create_unnamed(path.parent)
            try:
                compressed.decompress(head.method, fd, fmt.HEADER_BYTES, out, 0, head.length, str(path))
            finally:
                files.close(out)
        except (NotALog, UnknownVersion, CorruptSegment):
            return False
    return True


def unpack(path: Path) -> mmap.mmap | bytes:
    """A compressed segment as its plain file was. Of a damaged one, what comes before the damage."""
    with files.opened(path) as fd:
        head = fmt.read_compressed_header(files.read(fd, 0, fmt.HEADER_BYTES), str(path))
        out = files.create_unnamed(path.parent)
        try:
            files.write(out, fmt.pack_header(head.segment, 0, head.begin, 0), 0)
            length = head.length
            try:
                compressed.decompress(head.method, fd, fmt.HEADER_BYTES, out, fmt.HEADER_BYTES, length, str(path))
            except CorruptSegment as damage:
                length = damage.whole_bytes  # its records are found missing when they are reached
            return files.map_read(out, fmt.HEADER_BYTES + length)
        finally:
            files.close(out)
