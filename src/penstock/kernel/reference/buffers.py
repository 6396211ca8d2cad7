"""Memory that others gave: looked at as bytes, summed, stored into, paged in and let go."""

from __future__ import annotations

import contextlib
import mmap
import sys
import zlib
from typing import TYPE_CHECKING

from fastcrc.crc64 import xz as _xz

if TYPE_CHECKING:
    from typing_extensions import Buffer


def view_of(data: Buffer, writable: bool = False) -> memoryview:
    """Any contiguous buffer as plain bytes, not copied."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    if writable and view.readonly:
        raise BufferError("the buffer is read-only")
    return view.cast("B") if view.nbytes else memoryview(bytearray())  # an empty view cannot always be cast


def view_within(data: Buffer, start: int, end: int, writable: bool = False) -> memoryview:
    view = view_of(data, writable)
    if not 0 <= start <= end <= len(view):
        raise ValueError(f"range {start}..{end} is not within a buffer of {len(view)} bytes")
    return view


def touch(data: Buffer, start: int, end: int) -> None:
    """Make the pages of data[start:end] present and writable without changing them."""
    view_within(data, start, end, writable=True)
    if isinstance(data, mmap.mmap) and sys.platform == "linux" and start < end:
        first = start - start % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # only a matter of speed, and kernels before 5.14 have not got it
            data.madvise(23, first, end - first)  # MADV_POPULATE_WRITE


def release(data: Buffer, start: int, end: int) -> None:
    """Let go of the pages of data[start:end], a map: their contents stay, this process's memory shrinks."""
    view_within(data, start, end)
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end - end % mmap.PAGESIZE
    if isinstance(data, mmap.mmap) and sys.platform != "win32" and first < last:
        data.madvise(mmap.MADV_DONTNEED, first, last - first)


def crc64(data: Buffer, value: int = 0) -> int:
    """CRC-64/XZ of `data`, going on from `value`."""
    return _xz(data, value)


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (IEEE) of `data`, going on from `value`."""
    return zlib.crc32(data, value)


def fnv1a(data: Buffer) -> int:
    """FNV-1a, of 64 bits, of `data`."""
    value = 0xCBF29CE484222325
    for byte in memoryview(data).cast("B"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def crc_path() -> str:
    """Which implementation of the checksums runs."""
    return "fastcrc"


def store_big(data: Buffer, offset: int, stride: int, copies: int, value: int) -> None:
    """Store a number at an aligned place, and at further ones `stride` apart, big-endian, each in one piece: whoever looks,
    also after our death, sees each whole."""
    view = check_places(data, offset, stride, copies)
    number = int.from_bytes(value.to_bytes(8, "big"), sys.byteorder)
    for at in range(copies):
        place = offset + at * stride
        view[place : place + 8].cast("Q")[0] = number


def check_places(data: Buffer, offset: int, stride: int, copies: int) -> memoryview:
    """Refuse what `store_big` cannot store to."""
    view = view_of(data, True)
    last = offset + stride * (copies - 1)
    if not 1 <= copies <= 64 or (offset | stride) % 8 or not 0 <= offset <= last <= len(view) - 8:
        raise ValueError(f"no aligned places from {offset} to {last}")
    return view
