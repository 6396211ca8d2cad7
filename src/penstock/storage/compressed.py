"""The body of a compressed segment: one stream behind its header. Bytes on disk: docs/formats.md, "compressed segments".

In parts of at most 1 MiB, so that memory stays small whatever the length. A stream is not trusted: no more is made of it than
its header says, and nothing is allocated by what the stream itself says. Damage raises `CorruptSegment`: the file is a
log's, so it is not `NotALog`, and which record it hits, which `CorruptRecord` would name, only the caller can tell.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from penstock.errors import CorruptSegment
from penstock.formats.channel import Method
from penstock.kernel import Buffer
from penstock.storage import files

_PART: Final = 1 << 20
_READ: Final = 256 << 10

_GZIP_LEVEL: Final = 4  # level 6 takes twice as long to save one more byte in a hundred
_GZIP_WRAPPED: Final = 31  # zlib's way to say: the largest window, in gzip's wrapping

_SNAPPY_NAME: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BLOCK: Final = 1 << 16
_SNAPPY_MOST: Final = 4 + 32 + _SNAPPY_BLOCK + _SNAPPY_BLOCK // 6  # checksum, and a block that could not be compressed

_ZSTD_LEVEL: Final = 3
_ZSTD_NOTE: Final = struct.Struct("<IIIII")
_ZSTD_NOTE_IS: Final = (0x184D2A50, 12)
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_MOST: Final = _PART + (_PART >> 7)
_ZSTD_WINDOW: Final = 8 << 20


def compress(method: Method, source: int, start: int, end: int, target: int, at: int, path: str) -> int:
    """Compress bytes `start` to `end` of one open file into another from byte `at`; where the stream ends there.

    `path` is the source's, for an error to name.
    """
    for part in _ENCODERS[method](_parts(source, start, end, path)):
        view = memoryview(part)
        files.write(target, view, at)
        at += len(view)
    return at


def decompress(method: Method, source: int, at: int, target: int, to: int, length: int, path: str) -> None:
    """Write the `length` bytes that the stream from byte `at` of one open file holds into another, from byte `to`.

    `path` is the source's. When this raises CorruptSegment, what was written up to its `whole_bytes` is good.
    """
    stream = _Stream(source, at)
    done, good = 0, at
    try:
        for part in _DECODERS[method](stream):
            if done + len(part) > length:
                raise _Damaged(f"the stream holds more than the {length} bytes that the header says")
            files.write(target, part, to + done)
            done, good = done + len(part), stream.at
        if done < length:
            raise _Damaged(f"the stream holds {done} bytes, the header says {length}")
    except _Damaged as damage:
        raise CorruptSegment(path, good, done, str(damage)) from damage.__cause__


class _Damaged(Exception):
    """What is wrong with a stream."""


class _Stream:
    """The bytes of an open file from `at` to its end, in order."""

    def __init__(self, fd: int, at: int) -> None:
        self._fd = fd
        self.at = at
        self.left = files.size(fd) - at

    def skip(self, length: int) -> None:
        if length > self.left:
            raise _Damaged("the stream is cut short")
        self.at += length
        self.left -= length

    def take(self, length: int) -> bytes:
        at = self.at
        self.skip(length)
        data = files.read(self._fd, at, length)
        if len(data) < length:
            raise _Damaged("the stream is cut short")
        return data


def _parts(fd: int, start: int, end: int, path: str) -> Iterator[bytes]:
    for at in range(start, end, _PART):
        part = files.read(fd, at, min(_PART, end - at))
        if len(part) < min(_PART, end - at):
            raise CorruptSegment(path, at + len(part), at + len(part) - start, f"the file ends before byte {end}")
        yield part


# ---- snappy, in its framing format ----


def _to_snappy(parts: Iterator[bytes]) -> Iterator[Buffer]:
    import cramjam

    stream = cramjam.snappy.Compressor()
    for part in parts:
        stream.compress(part)
        yield stream.flush()
    yield stream.finish()


def _from_snappy(stream: _Stream) -> Iterator[memoryview]:
    """cramjam inflates whole streams only, so each sixteen blocks are handed to it as one; it checks their checksums."""
    import cramjam

    if stream.left and stream.take(len(_SNAPPY_NAME)) != _SNAPPY_NAME:
        raise _Damaged("the stream does not begin as the snappy framing format does")
    room = memoryview(bytearray(_PART))
    while stream.left:
        blocks = [_SNAPPY_NAME]
        while stream.left and len(blocks) <= _PART // _SNAPPY_BLOCK:
            block = _snappy_block(stream)
            if block:
                blocks.append(block)
        try:
            made = cramjam.snappy.decompress_into(b"".join(blocks), room)
        except cramjam.DecompressionError as error:
            raise _Damaged(f"the stream is damaged ({error})") from error
        yield room[:made]


def _snappy_block(stream: _Stream) -> bytes:
    """The next block with its head; nothing for what a reader is to pass over."""
    head = stream.take(4)
    kind, length = head[0], int.from_bytes(head[1:], "little")
    if kind <= 1 and length <= _SNAPPY_MOST:
        return head + stream.take(length)
    if kind == 0xFF and length == 6 and stream.take(6) == _SNAPPY_NAME[4:]:
        return b""
    if not 0x80 <= kind <= 0xFE:
        raise _Damaged(f"the stream is damaged (a block of kind {kind} and {length} bytes)")
    stream.skip(length)
    return b""


# ---- gzip ----


def _to_gzip(parts: Iterator[bytes]) -> Iterator[Buffer]:
    import cramjam

    stream = cramjam.gzip.Compressor(level=_GZIP_LEVEL)
    for part in parts:
        stream.compress(part)
        yield stream.flush()
    yield stream.finish()


def _from_gzip(stream: _Stream) -> Iterator[bytes]:
    """Python's zlib and not cramjam, since it can stop at a length."""
    inflate = zlib.decompressobj(wbits=_GZIP_WRAPPED)
    while not inflate.eof:
        data = inflate.unconsumed_tail or stream.take(max(1, min(_READ, stream.left)))
        try:
            part = inflate.decompress(data, _PART)
        except zlib.error as error:
            raise _Damaged(f"the stream is damaged ({error})") from error
        yield part
    if inflate.unused_data or stream.left:
        raise _Damaged("bytes follow the end of the stream")


# ---- zstd, a frame to each part ----


def _to_zstd(parts: Iterator[bytes]) -> Iterator[Buffer]:
    """Each frame with a note before it, which other readers skip: cramjam puts no checksum into frames."""
    import cramjam

    for part in parts:
        frame = cramjam.zstd.compress(part, level=_ZSTD_LEVEL)
        yield _ZSTD_NOTE.pack(*_ZSTD_NOTE_IS, len(frame), len(part), zlib.crc32(part))
        yield frame


def _from_zstd(stream: _Stream) -> Iterator[memoryview]:
    import cramjam

    room = memoryview(bytearray(_PART))
    while stream.left:
        magic, note_length, frame_length, length, checksum = _ZSTD_NOTE.unpack(stream.take(_ZSTD_NOTE.size))
        if (magic, note_length) != _ZSTD_NOTE_IS or frame_length > _ZSTD_MOST:
            raise _Damaged("the stream is damaged (no note where one should be)")
        frame = stream.take(frame_length)
        if not _is_one_frame(frame):
            raise _Damaged("the stream is damaged (not one zstd frame, or one with a large window)")
        try:
            made = cramjam.zstd.decompress_into(frame, room[:length])
        except cramjam.DecompressionError as error:
            raise _Damaged(f"the stream is damaged ({error})") from error
        if made != length or zlib.crc32(room[:length]) != checksum:
            raise _Damaged("the stream is damaged (a checksum fails)")
        yield room[:length]


def _is_one_frame(frame: bytes) -> bool:
    """Whether this is one zstd frame and no more, with a window as small as ours: a reader allocates what a frame says."""
    if len(frame) < 6 or frame[:4] != _ZSTD_MAGIC:
        return False
    flags = frame[4]
    single = flags >> 5 & 1  # the content is the window, and its length stands in place of the window's
    at = 6 - single + (0, 1, 2, 4)[flags & 3]
    length_bytes = (single, 2, 4, 8)[flags >> 6]
    window = (8 + (frame[5] & 7)) << (7 + (frame[5] >> 3))
    if single:
        window = int.from_bytes(frame[at : at + length_bytes], "little")
    at += length_bytes
    last = 0
    while not last and at + 3 <= len(frame):
        block = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == 1 else size)  # kind 1 is one byte, repeated
    checksum_bytes = 4 * (flags >> 2 & 1)
    return bool(last) and at + checksum_bytes == len(frame) and window <= _ZSTD_WINDOW


_ENCODERS: Final[dict[Method, Callable[[Iterator[bytes]], Iterator[Buffer]]]] = {
    Method.SNAPPY: _to_snappy,
    Method.GZIP: _to_gzip,
    Method.ZSTD: _to_zstd,
}
_DECODERS: Final[dict[Method, Callable[[_Stream], Iterator[bytes] | Iterator[memoryview]]]] = {
    Method.SNAPPY: _from_snappy,
    Method.GZIP: _from_gzip,
    Method.ZSTD: _from_zstd,
}
