"""Compressed segments as files: made from a sealed one, and opened as if they were plain.

`pack` goes by a temporary name, so that a file with the name of a compressed segment is whole. `unpack` inflates one into a
file without a name, which is mapped like any other and goes when nobody reads it; so memory stays small, and everything
that reads segments reads compressed ones too. Names and headers: `formats.channel`.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from penstock.errors import CorruptSegment, DiskFull, NotALog, UnknownVersion
from penstock.formats import channel as fmt
from penstock.formats.channel import Method
from penstock.storage import compressed, files

_MAGIC: Final = {Method.SNAPPY: b"\xff\x06\0\0", Method.GZIP: b"\x1f\x8b", Method.ZSTD: b"\x50\x2a\x4d\x18"}
_BEFORE_END: Final = 12  # the two headers are the same up to here
_LEAST_LIMIT: Final = 64 << 20
_MOST_TIMES: Final = 256


def pack(source: Path, target: Path, end: int, method: Method) -> None:
    """Compress the plain segment `source`, whose frames end at byte `end`, into `target`, and put that on the disk.

    The target has its name when it is whole. Another may be at the same segment, a task that was given to somebody else and goes on
    later: neither writes into the other's file, nor leaves half of one where a whole one was.
    """
    made = files.temporary(target)
    with files.opened(source) as fd:
        head = fmt.read_header(files.read(fd, 0, fmt.HEADER_BYTES), str(source))
        out = files.create(made, exclusive=False)
        try:
            files.truncate(out, 0)
            ends = head.begin + end - fmt.HEADER_BYTES
            files.write(out, fmt.pack_compressed_header(head.segment, head.begin, ends, method), 0)
            compressed.compress(method, fd, fmt.HEADER_BYTES, end, out, fmt.HEADER_BYTES, str(source))
            files.sync(out)
            files.rename(made, target)
        except BaseException:
            files.remove(made)
            raise
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


def header_for(path: Path, segment: int, begin: int, end: int) -> bytes:
    """The header that a compressed segment should have, whose plain file's frames end at byte `end`."""
    with files.opened(path) as fd:
        raw = files.read(fd, 0, fmt.HEADER_BYTES)
        method = _method_of(files.read(fd, fmt.HEADER_BYTES, 4))
    if method is None:  # its stream does not tell
        try:
            method = fmt.read_compressed_header(raw, str(path)).method
        except (NotALog, UnknownVersion):
            return raw
    return fmt.pack_compressed_header(segment, begin, begin + max(0, end - fmt.HEADER_BYTES), method)


def _method_of(begins: bytes) -> Method | None:
    """How a stream is compressed, as it says itself."""
    return next((method for method, magic in _MAGIC.items() if begins.startswith(magic)), None)


def unpack(path: Path) -> mmap.mmap | bytes:
    """A compressed segment as its plain file was. Of a damaged one, what comes before the damage.

    The header has no checksum: where it is not one, or not this stream's, the stream is asked what it is. A log on a full disk is still
    read: then it goes where temporary files do.
    """
    try:
        return _unpack(path, path.parent)
    except OSError as error:
        if not files.is_full(error):
            raise
    try:
        return _unpack(path, files.temporary_directory())
    except OSError as error:
        if not files.is_full(error):
            raise
        raise DiskFull(path, files.used_bytes(path)) from error


def _unpack(path: Path, place: Path) -> mmap.mmap | bytes:
    with files.opened(path) as fd:
        raw = files.read(fd, 0, fmt.HEADER_BYTES)
        guess = _method_of(files.read(fd, fmt.HEADER_BYTES, 4))
        tries: list[tuple[Method, int]] = [] if guess is None else [(guess, _most(files.size(fd)))]
        try:
            head = fmt.read_compressed_header(raw, str(path))
            tries.insert(0, (head.method, head.length))
        except (NotALog, UnknownVersion):
            if guess is None or len(raw) < fmt.HEADER_BYTES:
                raise
        out = files.create_unnamed(place)
        try:
            files.write(out, raw[:_BEFORE_END].ljust(fmt.HEADER_BYTES, b"\0"), 0)
            length = 0
            for method, most in tries:
                try:
                    compressed.decompress(method, fd, fmt.HEADER_BYTES, out, fmt.HEADER_BYTES, most, str(path))
                except CorruptSegment as damage:
                    length = max(
                        length, damage.whole_bytes
                    )  # records behind it are found missing when they are reached
                else:
                    length = most
                    break
            return files.map_read(out, fmt.HEADER_BYTES + length)
        finally:
            files.close(out)


def _most(size: int) -> int:
    """How much is made of a stream whose header cannot be believed."""
    return max(_LEAST_LIMIT, size * _MOST_TIMES)
