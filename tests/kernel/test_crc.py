"""Checksums against a bit-by-bit implementation, at all short lengths and many alignments."""

import mmap
import random
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType

import fastcrc
import pytest

CHECK = b"123456789"
PATHS = ("table", "pclmul", "vpclmul")


def bitwise(polynomial: int, ones: int, data: bytes) -> Iterator[int]:
    """The reflected CRC of each beginning of `data`, from the empty one on."""
    register = ones
    yield register ^ ones
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
        yield register ^ ones


def bitwise64(data: bytes) -> list[int]:
    return list(bitwise(0xC96C5795D7870F42, 2**64 - 1, data))


def bitwise32(data: bytes) -> list[int]:
    return list(bitwise(0xEDB88320, 2**32 - 1, data))


def check_all_lengths(crc64: Callable[..., int], crc32: Callable[..., int]) -> None:
    source = random.Random(64).randbytes(600)
    want64, want32 = bitwise64(source), bitwise32(source)
    room = mmap.mmap(-1, 3 * 4096)
    # several alignments, before and across a page's end, and right at both ends of the map
    for at in (0, 1, 3, 7, 8, 15, 16, 31, 33, 4096 - 300, 4096 - 1, 4096, 4096 + 5, 3 * 4096 - 600):
        room[at : at + 600] = source
        with memoryview(room) as view:
            for n in range(601):
                assert crc64(view[at : at + n]) == want64[n], (at, n)
                assert crc32(view[at : at + n]) == want32[n], (at, n)


def check_random(crc64: Callable[..., int], crc32: Callable[..., int]) -> None:
    chance = random.Random(32)
    for size in (601, 1023, 1024, 4096, 5000, 65537, 1 << 20):
        data = chance.randbytes(size)
        assert crc64(data) == fastcrc.crc64.xz(data)
        assert crc32(data) == zlib.crc32(data)
    data = chance.randbytes(3000)
    for _ in range(300):  # chained at any places
        a, b = sorted(chance.randrange(3001) for _ in range(2))
        assert crc64(data[b:], crc64(data[a:b], crc64(data[:a]))) == fastcrc.crc64.xz(data)
        assert crc32(data[b:], crc32(data[a:b], crc32(data[:a]))) == zlib.crc32(data)


def test_check_values(kernel: ModuleType) -> None:
    assert kernel.crc64(CHECK) == 0x995DC9BBDF1939FA
    assert kernel.crc32(CHECK) == 0xCBF43926
    assert kernel.crc64(b"") == kernel.crc32(b"") == 0
    assert kernel.crc64(b"", 12345) == kernel.crc32(b"", 12345) == 12345


def test_every_length_and_alignment(kernel: ModuleType) -> None:
    check_all_lengths(kernel.crc64, kernel.crc32)


def test_long_and_chained(kernel: ModuleType) -> None:
    check_random(kernel.crc64, kernel.crc32)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_the_native_kernel(native: ModuleType, path: str) -> None:
    before = native.crc_path()
    try:
        if not native.force_crc_path(path):
            pytest.skip(f"this CPU has no {path}")
        assert native.crc_path() == path
        check_all_lengths(native.crc64, native.crc32)
        check_random(native.crc64, native.crc32)
    finally:
        assert native.force_crc_path(before)


def test_the_path_has_a_name(kernel: ModuleType) -> None:
    assert kernel.crc_path() in (*PATHS, "fastcrc")


def test_an_unknown_path_changes_nothing(native: ModuleType) -> None:
    before = native.crc_path()
    assert not native.force_crc_path("abacus")
    assert native.crc_path() == before


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("H")])
def test_any_contiguous_buffer(kernel: ModuleType, wrap: Callable[[bytes], object]) -> None:
    data = bytes(range(64))
    assert kernel.crc64(wrap(data)) == fastcrc.crc64.xz(data)
    assert kernel.crc32(wrap(data)) == zlib.crc32(data)


def test_what_is_no_buffer(kernel: ModuleType) -> None:
    for crc in (kernel.crc64, kernel.crc32):
        with pytest.raises(TypeError):
            crc("text")
        with pytest.raises((BufferError, TypeError, ValueError)):
            crc(memoryview(bytes(64))[::2])
