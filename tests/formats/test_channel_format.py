"""The channel's names, headers and frames."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest

from penstock.errors import NotALog, UnknownVersion
from penstock.formats import channel
from penstock.formats.channel import CompressedHeader, Method
from penstock.kernel.spec import CHECKSUM, END

HELLO = bytes.fromhex("0000000c1b85199548656c6c6f20776f726c6421")
READERS = [channel.read_header, channel.read_compressed_header]


def test_frame(kernel: ModuleType) -> None:
    assert kernel.encode(channel.SPEC, b"Hello world!") == HELLO
    found = kernel.scan(channel.SPEC, HELLO, 0, len(HELLO))
    assert (found.count, found.position, found.reason) == (1, len(HELLO), END)


def test_a_flipped_bit_of_the_payload_or_its_checksum_is_seen(kernel: ModuleType) -> None:
    for bit in range(8 * 4, 8 * len(HELLO)):
        bad = bytearray(HELLO)
        bad[bit // 8] ^= 1 << bit % 8
        assert kernel.scan(channel.SPEC, bad, 0, len(bad)).reason == CHECKSUM


def test_an_empty_message_is_a_frame_of_zeros(kernel: ModuleType) -> None:
    assert kernel.encode(channel.SPEC, b"") == bytes(8)
    assert kernel.scan(channel.SPEC, bytes(16), 0, 16).count == 2


@pytest.mark.parametrize("segment", [0, 1, 9, 10, 123456, 2**32 - 1])
def test_names_and_back(segment: int) -> None:
    names = channel.name(segment), channel.compressed_name(segment), channel.compressing_name(segment)
    assert names == (f"segment.{segment}", f"segment.{segment}.z", f"segment.{segment}.z.ing")
    parsers = channel.parse, channel.parse_compressed, channel.parse_compressing
    for i, path in enumerate(names):
        assert [parse(path) for parse in parsers] == [segment if i == j else None for j in range(3)]


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "segment",
            "segment.",
            "segment.00",
            "segment.01",
            "segment.-1",
            "segment.+1",
            "segment. 1",
            "segment.1 ",
        ),
        *(
            "segment.1\n",
            "segment.1.time",
            "segment.1.index",
            "segment.1.next",
            "segment.1.",
            "segment.x",
            "segment.1_0",
        ),
        *("Segment.1", "xsegment.1", "a/segment.1", "./segment.1", "segment/1", "segment.\u0661", "segment.1.5"),
        *(f"segment.{2**32}", "segment." + "9" * 10, "segment." + "9" * 5000, "offset", ".lock"),
    ],
)
def test_no_other_name_is_a_segment(path: str) -> None:
    assert channel.parse(path) is None
    assert channel.parse_compressed(path) is None
    assert channel.parse_compressed(path + ".z") is None
    assert channel.parse_compressing(path + ".z.ing") is None


@pytest.mark.parametrize("path", ["segment.1.z.z", "segment.1.Z", "segment.1.z.", ".z", ".z.ing", "segment.1.ing"])
def test_no_other_name_is_a_compressed_segment(path: str) -> None:
    assert channel.parse(path) is channel.parse_compressed(path) is channel.parse_compressing(path) is None


def test_segments_are_numbered_from_0() -> None:
    assert channel.first_id(1) == 0
    assert channel.next_id(7, 1) == 8
    assert channel.beside(channel.name(7), ".time") == "segment.7.time"


def test_header() -> None:
    packed = channel.pack_header(3, 17, 3003, 1)
    assert packed == bytes.fromhex("000000030000000000000bbb") + bytes(52)
    found = channel.read_header(packed + HELLO, "x")
    assert (found.segment, found.begin, found.start, found.spec) == (3, 3003, 64, channel.SPEC)
    assert found.base is found.created_us is None
    assert not found.foreign


def test_the_first_header_is_all_zeros() -> None:
    assert channel.pack_header(0, 0, 0, 0) == bytes(64)
    assert channel.read_header(memoryview(bytes(64)), "x") == channel.Header(0, 0)


def test_the_largest_header() -> None:
    most = 2**64 - 1
    assert channel.read_header(channel.pack_header(2**32 - 1, 0, most, 0), "x") == channel.Header(2**32 - 1, most)
    for segment, begin in ((2**32, 0), (-1, 0), (0, 2**64)):
        with pytest.raises(struct.error):
            channel.pack_header(segment, 0, begin, 0)


@pytest.mark.parametrize("method", Method)
def test_compressed_header(method: Method) -> None:
    packed = channel.pack_compressed_header(3, 3003, 6006, method)
    assert packed == bytes.fromhex("000000030000000000000bbb0000000000001776") + bytes([method]) + bytes(43)
    found = channel.read_compressed_header(packed + b"stream", "x")
    assert found == CompressedHeader(3, 3003, 6006, method)
    assert found.length == 3003


def test_the_methods_have_their_numbers() -> None:
    assert {m.name: m.value for m in Method} == {"SNAPPY": 0, "GZIP": 1, "ZSTD": 2}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("length", range(64))
def test_a_short_header(read: object, length: int) -> None:
    assert callable(read)
    with pytest.raises(
        NotALog, match=rf"^here: {length} bytes, but a segment has a header of 64; restore it from a copy"
    ):
        read(bytes(length), "here")


@pytest.mark.parametrize("at", range(12, 64))
def test_what_is_zero_in_a_header_is_checked(at: int) -> None:
    bad = bytearray(channel.pack_header(3, 0, 3003, 0))
    bad[at] = 1
    with pytest.raises(NotALog, match=rf"^here: byte {at}: not zero, .*; restore it from a copy"):
        channel.read_header(bad, "here")


@pytest.mark.parametrize("at", range(21, 64))
def test_what_is_zero_in_a_compressed_header_is_checked(at: int) -> None:
    bad = bytearray(channel.pack_compressed_header(3, 3003, 6006, Method.GZIP))
    bad[at] = 0x80
    with pytest.raises(NotALog, match=rf"^here: byte {at}: not zero, .*; restore it from a copy"):
        channel.read_compressed_header(bad, "here")


def test_a_compressed_header_is_not_taken_for_a_plain_one() -> None:
    with pytest.raises(NotALog):
        channel.read_header(channel.pack_compressed_header(3, 3003, 6006, Method.SNAPPY), "x")


def test_a_segment_that_ends_before_it_begins() -> None:
    with pytest.raises(NotALog, match=r"^here: byte 12: ends at offset 9, before it begins at 10; restore"):
        channel.read_compressed_header(channel.pack_compressed_header(3, 10, 9, Method.GZIP), "here")


@pytest.mark.parametrize("method", [3, 4, 255])
def test_an_unknown_method(method: int) -> None:
    bad = bytearray(channel.pack_compressed_header(3, 9, 10, Method.GZIP))
    bad[20] = method
    with pytest.raises(
        UnknownVersion, match=rf"^here: byte 20: .*method {method}, .*0 snappy, 1 gzip, 2 zstd; upgrade"
    ):
        channel.read_compressed_header(bad, "here")
