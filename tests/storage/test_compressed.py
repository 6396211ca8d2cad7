"""Compressed streams: whole ones come back, damaged ones are told, hostile ones are stopped, in little memory."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pyarrow
import pytest

from penstock.errors import CorruptSegment
from penstock.formats import channel
from penstock.formats.channel import Method
from penstock.kernel import encode_many
from penstock.storage import compressed, files

MIB = 1 << 20
HEAD = 64
each_method = pytest.mark.parametrize("method", Method, ids=lambda m: m.name.lower())


class Work:
    """Two files to compress and inflate between, each after a header's worth of other bytes."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.plain = files.create(top / "plain")
        self.packed = files.create(top / "packed")
        self.back = files.create(top / "back")

    def close(self) -> None:
        for fd in (self.plain, self.packed, self.back):
            files.close(fd)

    def compress(self, method: Method, body: bytes) -> bytes:
        files.truncate(self.plain, 0)
        files.write(self.plain, bytes(HEAD) + body + b"after", 0)
        files.truncate(self.packed, 0)
        files.write(self.packed, b"h" * HEAD, 0)
        end = compressed.compress(method, self.plain, HEAD, HEAD + len(body), self.packed, HEAD, "plain")
        assert end == files.size(self.packed)
        assert files.read(self.packed, 0, HEAD) == b"h" * HEAD
        return files.read(self.packed, HEAD, end)

    def decompress(self, method: Method, stream: bytes, length: int) -> bytes:
        """What the stream holds. However it ends, no byte is written beyond `length`."""
        files.truncate(self.packed, 0)
        files.write(self.packed, b"h" * HEAD + stream, 0)
        files.truncate(self.back, 0)
        files.write(self.back, b"b" * HEAD, 0)
        try:
            compressed.decompress(method, self.packed, HEAD, self.back, HEAD, length, "packed")
        finally:
            assert files.size(self.back) <= HEAD + length
            assert files.read(self.back, 0, HEAD) == b"b" * HEAD
        return files.read(self.back, HEAD, length + 1)

    def refuses(self, method: Method, stream: bytes, length: int, body: bytes | None = None) -> CorruptSegment:
        """That it is told, and that what is called good is: the beginning of `body`."""
        with pytest.raises(CorruptSegment) as caught:
            self.decompress(method, stream, length)
        error = caught.value
        assert error.path == "packed"
        assert HEAD <= error.position <= HEAD + len(stream)
        assert str(error).startswith(f"packed: byte {error.position}: {error.reason}; the {error.whole_bytes} bytes ")
        assert str(error).endswith("restore the file from a copy")
        assert 0 <= error.whole_bytes <= length
        if body is not None:
            assert files.read(self.back, HEAD, error.whole_bytes) == body[: error.whole_bytes]
        return error


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    made = Work(tmp_path)
    yield made
    made.close()


def messages(length: int, seed: int = 1) -> bytes:
    """Frames of a channel that look like somebody's, cut to a length."""
    chance = random.Random(seed)
    words = [chance.randbytes(5).hex() for _ in range(500)]
    parts, total = [], 0
    while total < length:
        part = encode_many(channel.SPEC, [" ".join(chance.choices(words, k=20)).encode() for _ in range(256)])
        parts.append(part)
        total += len(part)
    return b"".join(parts)[:length]


SMALL = messages(3000)
LENGTHS = [0, 1, 3000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17]


@each_method
@pytest.mark.parametrize("length", LENGTHS)
def test_what_goes_in_comes_out(work: Work, method: Method, length: int) -> None:
    for body in (messages(length), bytes(length), random.Random(2).randbytes(length)):
        assert work.decompress(method, work.compress(method, body), length) == body


@each_method
def test_it_is_worth_it(work: Work, method: Method) -> None:
    body = messages(2 * MIB)
    assert len(work.compress(method, body)) < 0.7 * len(body)


# ---- other programs read it, and we read theirs ----


def test_gzip_is_what_everybody_reads(work: Work) -> None:
    body = messages(2 * MIB + 7)
    assert gzip.decompress(work.compress(Method.GZIP, body)) == body
    for level in (0, 1, 9):
        assert work.decompress(Method.GZIP, gzip.compress(body, level), len(body)) == body


def test_snappy_is_the_framing_format(work: Work) -> None:
    body = messages(2 * MIB + 7)
    stream = work.compress(Method.SNAPPY, body)
    assert stream.startswith(bytes.fromhex("ff060000734e61507059"))
    assert bytes(cramjam.snappy.decompress(stream)) == body
    assert work.decompress(Method.SNAPPY, bytes(cramjam.snappy.compress(body)), len(body)) == body


def test_snappy_begins_with_its_name_and_may_have_padding_and_more_names(work: Work) -> None:
    name, stream = bytes.fromhex("ff060000734e61507059"), work.compress(Method.SNAPPY, SMALL)
    work.refuses(Method.SNAPPY, stream[10:], len(SMALL))
    padding = b"\xfe\xff\xff\x00" + bytes(0xFFFF)
    other = b"\x80\x01\x00\x00x"
    for extra in (name, padding, other, padding + other + name + padding):
        assert work.decompress(Method.SNAPPY, name + extra + stream[10:] + extra, len(SMALL)) == SMALL


def test_zstd_is_what_everybody_reads(work: Work) -> None:
    body = messages(2 * MIB + 7)
    stream = work.compress(Method.ZSTD, body)
    assert bytes(cramjam.zstd.decompress(stream)) == body
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(stream), "zstd") as reader:
        assert reader.read() == body


@pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd here")
def test_the_zstd_program_reads_it(work: Work) -> None:
    body = messages(2 * MIB + 7)
    ran = subprocess.run(
        ["zstd", "-dc"], input=work.compress(Method.ZSTD, body), capture_output=True, check=True, timeout=60
    )
    assert ran.stdout == body


def test_the_notes_of_zstd_are_as_documented(work: Work) -> None:
    body = messages(MIB + 7)
    stream = work.compress(Method.ZSTD, body)
    at = 0
    for part in (body[:MIB], body[MIB:]):
        magic, twelve, size, length, checksum = struct.unpack_from("<IIIII", stream, at)
        assert (magic, twelve, length, checksum) == (0x184D2A50, 12, len(part), zlib.crc32(part))
        frame = stream[at + 20 : at + 20 + size]
        assert frame[:4] == bytes.fromhex("28b52ffd")
        assert bytes(cramjam.zstd.decompress(frame)) == part
        at += 20 + size
    assert at == len(stream)


# ---- damage ----


@each_method
def test_a_stream_cut_anywhere(work: Work, method: Method) -> None:
    stream = work.compress(method, SMALL)
    for length in range(len(stream)):
        work.refuses(method, stream[:length], len(SMALL), SMALL)


@each_method
def test_a_large_stream_cut_says_what_is_good(work: Work, method: Method) -> None:
    body = messages(4 * MIB)
    stream = work.compress(method, body)
    error = work.refuses(method, stream[:-1], len(body), body)
    assert error.whole_bytes >= 3 * MIB
    assert error.position > len(stream) // 2


@each_method
def test_any_flipped_bit_is_told_or_changes_nothing(work: Work, method: Method) -> None:
    """A few are in fields that mean nothing to a reader, such as the time in a gzip header."""
    stream = work.compress(method, SMALL)
    harmless = 0
    for bit in range(8 * len(stream)):
        bad = bytearray(stream)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            assert work.decompress(method, bytes(bad), len(SMALL)) == SMALL
            harmless += 1
        except CorruptSegment:
            pass
    assert harmless <= {Method.SNAPPY: 0, Method.GZIP: 64, Method.ZSTD: 24}[method]


@each_method
def test_a_header_that_says_another_length(work: Work, method: Method) -> None:
    for body in (SMALL, messages(2 * MIB)):
        stream = work.compress(method, body)
        for length in (len(body) + 1, len(body) * 2, 2**63):
            assert work.refuses(method, stream, length, body).whole_bytes == len(body)
        for length in (0, 1, len(body) - 1):
            work.refuses(method, stream, length, body)


@each_method
@pytest.mark.parametrize("extra", [b"\0", b"after", bytes(100), b"\x1f\x8b\x08"])
def test_bytes_behind_the_stream(work: Work, method: Method, extra: bytes) -> None:
    work.refuses(method, work.compress(method, SMALL) + extra, len(SMALL), SMALL)


@each_method
def test_a_second_stream_behind_the_first(work: Work, method: Method) -> None:
    stream = work.compress(method, SMALL)
    work.refuses(method, stream * 2, len(SMALL), SMALL)


@each_method
def test_what_is_no_such_stream(work: Work, method: Method) -> None:
    others = [work.compress(other, SMALL) for other in Method if other != method]
    chance = random.Random(3)
    for stream in [*others, SMALL, bytes(1000), b"\xff" * 1000, *(chance.randbytes(500) for _ in range(200))]:
        assert work.refuses(method, stream, len(SMALL)).whole_bytes == 0


def test_the_plain_file_is_shorter_than_was_said(work: Work) -> None:
    files.write(work.plain, bytes(HEAD) + SMALL, 0)
    with pytest.raises(CorruptSegment, match=r"^plain: byte 3064: the file ends before byte 9000; the 3000 bytes"):
        compressed.compress(Method.ZSTD, work.plain, HEAD, 9000, work.packed, 0, "plain")


@each_method
def test_an_error_of_the_disk_is_not_damage(work: Work, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = work.compress(method, SMALL)

    def full(fd: int, data: bytes | memoryview, offset: int) -> None:
        if fd == work.back and offset:
            raise OSError(28, "full")
        real(fd, data, offset)

    real = files.write
    monkeypatch.setattr(files, "write", full)
    with pytest.raises(OSError, match="full"):
        work.decompress(method, stream, len(SMALL))


# ---- hostile streams ----


def note(frame: bytes, content: bytes) -> bytes:
    return struct.pack("<IIIII", 0x184D2A50, 12, len(frame), len(content), zlib.crc32(content)) + frame


def zstd_frame(window: int, *blocks: tuple[int, int]) -> bytes:
    """A frame of blocks that each repeat one byte so often; `window` is the exponent in the header."""
    out = bytes.fromhex("28b52ffd00") + bytes([window << 3])
    for i, (byte, times) in enumerate(blocks):
        out += (times << 3 | 1 << 1 | (i + 1 == len(blocks))).to_bytes(3, "little") + bytes([byte])
    return out


def bomb(method: Method) -> bytes:
    """A few hundred KiB that inflate to very much more than they should."""
    if method is Method.GZIP:
        return gzip.compress(bytes(128 * MIB), 9)
    if method is Method.SNAPPY:
        return bytes(cramjam.snappy.compress(bytes(128 * MIB)))
    frame = zstd_frame(3, *[(0, 1 << 17)] * 1000)
    return note(frame, bytes(MIB)) * 100


@each_method
def test_a_stream_that_inflates_without_end_is_stopped(work: Work, method: Method) -> None:
    stream = bomb(method)
    for length in (0, 1, 1000, 3 * MIB + 1):
        error = work.refuses(method, stream, length)
        assert error.whole_bytes <= length


def test_a_zstd_frame_that_repeats_a_byte_is_a_frame(work: Work) -> None:
    frame = zstd_frame(3, (7, 1000), (8, 24))
    content = b"\7" * 1000 + b"\x08" * 24
    assert work.decompress(Method.ZSTD, note(frame, content), 1024) == content


def test_a_zstd_frame_may_not_ask_for_much_memory(work: Work) -> None:
    content = b"\7" * 1000
    small = zstd_frame(13, (7, 1000))
    large = zstd_frame(14, (7, 1000))
    single = bytes.fromhex("28b52ffda0") + struct.pack("<I", 100 * MIB) + large[6:]
    assert work.decompress(Method.ZSTD, note(small, content), 1000) == content
    for frame in (large, zstd_frame(17, (7, 1000)), single, small + large, small + small):
        assert "one with a large window" in work.refuses(Method.ZSTD, note(frame, content), 1000).reason


def test_a_zstd_frame_may_not_be_longer_than_its_content_needs(work: Work) -> None:
    content = b"\7" * 1000
    frame = zstd_frame(3, (7, 1000))
    assert work.decompress(Method.ZSTD, note(frame[:6] + bytes(3) * 1000 + frame[6:], content), 1000) == content
    long = frame[:6] + bytes(3) * (MIB // 2) + frame[6:]
    assert bytes(cramjam.zstd.decompress(long)) == content
    assert work.refuses(Method.ZSTD, note(long, content), 1000).whole_bytes == 0


def test_a_zstd_note_may_not_lie(work: Work) -> None:
    content = b"\7" * 1000
    frame = zstd_frame(3, (7, 1000))
    good = note(frame, content)
    assert work.decompress(Method.ZSTD, good, 1000) == content
    for length in (0, 999, 1001, MIB + 1, 2**32 - 1):
        lie = good[:12] + struct.pack("<I", length) + good[16:]
        assert work.refuses(Method.ZSTD, lie, 1000).whole_bytes == 0
    assert work.refuses(Method.ZSTD, note(zstd_frame(3, (0, 500)), bytes(1000)), 1000).whole_bytes == 0
    for size in (0, len(frame) - 1, len(frame) + 1, 2 * MIB, 2**32 - 1):
        lie = good[:8] + struct.pack("<I", size) + good[12:]
        assert work.refuses(Method.ZSTD, lie, 1000).whole_bytes == 0


def test_a_snappy_block_may_not_be_larger_than_blocks_are(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bytes.fromhex("ff060000734e61507059")
    read: list[int] = []
    real = files.read

    def noted(fd: int, offset: int, length: int) -> bytes:
        read.append(length)
        return real(fd, offset, length)

    monkeypatch.setattr(files, "read", noted)
    for kind in (0, 1, 2, 0x7F, 0xFF):
        assert work.refuses(Method.SNAPPY, name + bytes([kind]) + b"\xff\xff\xff" + bytes(1 << 24), 1000)
    assert max(read) < 1 << 17
    larger = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    block = b"\0" + (len(larger) + 4).to_bytes(3, "little") + bytes(4) + larger
    assert work.refuses(Method.SNAPPY, name + block, MIB).whole_bytes == 0


# ---- memory ----

MEASURE = """
import re, sys
from pathlib import Path
from penstock.formats.channel import Method
from penstock.storage import compressed, files

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

def measured(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    try:
        work()
    except Exception as error:
        print(type(error).__name__, end=" ")
    print(peak() - before)

top, method, length = Path(sys.argv[1]), Method(int(sys.argv[2])), int(sys.argv[3])
plain, packed, back = (files.open_write(top / name) for name in ("plain", "packed", "back"))
def once(length):
    compressed.compress(method, plain, 64, 64 + length, packed, 64, "plain")
    compressed.decompress(method, packed, 64, back, 64, length, "packed")
once(3 << 20)  # what is loaded and allocated once
files.truncate(packed, 0)
files.truncate(back, 0)
measured(lambda: compressed.compress(method, plain, 64, 64 + length, packed, 64, "plain"))
measured(lambda: compressed.decompress(method, packed, 64, back, 64, length, "packed"))
bomb = files.open_read(top / "bomb")
measured(lambda: compressed.decompress(method, bomb, 64, files.create(top / "boom"), 64, 3 << 20, "bomb"))
"""


@each_method
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc, to measure memory")
def test_memory_is_small_whatever_the_length(work: Work, method: Method) -> None:
    length = 64 * MIB
    body = messages(2 * MIB)
    files.write(work.plain, bytes(HEAD), 0)
    for at in range(HEAD, HEAD + length, len(body)):
        files.write(work.plain, body, at)
    (work.top / "bomb").write_bytes(bytes(HEAD) + bomb(method))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEASURE, str(work.top), str(int(method)), str(length)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    there, back, (error, hostile) = (line.split() for line in ran.stdout.splitlines())
    assert error == "CorruptSegment"
    assert int(there[0]) <= 8
    assert int(back[0]) <= 8
    assert int(hostile) <= 16  # a window of 8 MiB is allowed
    for at in range(HEAD, HEAD + length, len(body)):
        assert files.read(work.back, at, len(body)) == body
