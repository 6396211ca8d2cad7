"""The bytes of a channel, made and read with nothing but the standard library: what another implementation would do."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

OURS = {".lock", ".grow", ".append", ".writer", "manifest", "metadata.json", "offset", "cursors"}


def frame(payload: bytes) -> bytes:
    return struct.pack(">II", len(payload), zlib.crc32(payload)) + payload


def frames(payloads: Iterable[bytes]) -> bytes:
    return b"".join(map(frame, payloads))


def header(segment: int, begin: int) -> bytes:
    return struct.pack(">IQ", segment, begin) + bytes(52)


def write(path: Path, *segments: Iterable[bytes], begin: int = 0, first: int = 0) -> None:
    """A directory of plain segments and nothing else."""
    path.mkdir()
    for i, payloads in enumerate(segments, first):
        body = frames(payloads)
        (path / f"segment.{i}").write_bytes(header(i, begin) + body)
        begin += len(body)


def payloads_of(body: bytes) -> Iterator[bytes]:
    """The payloads of frames that end where the bytes end; each checksum is checked."""
    at = 0
    while at < len(body):
        length, checksum = struct.unpack_from(">II", body, at)
        payload = body[at + 8 : at + 8 + length]
        assert len(payload) == length
        assert zlib.crc32(payload) == checksum
        yield payload
        at += 8 + length


def read(path: Path) -> list[bytes]:
    """All messages of a directory of plain segments; headers, names, and that they follow on each other are checked."""
    found = sorted(plain(path))
    out: list[bytes] = []
    begin = None
    for i in range(found[0], found[0] + len(found)):
        data = (path / f"segment.{i}").read_bytes()
        number, begins = struct.unpack_from(">IQ", data)
        assert number == i
        assert begin is None or begins == begin
        assert data[12:64] == bytes(52)
        out += payloads_of(data[64:])
        begin = begins + len(data) - 64
    return out


def plain(path: Path) -> set[int]:
    """The numbers of the plain segments."""
    return {int(p.name[8:]) for p in path.glob("segment.*") if p.name[8:].isdigit()}


def packed(path: Path) -> set[int]:
    """The numbers of the compressed segments."""
    return {int(p.name[8:-2]) for p in path.glob("segment.*.z")}


def numbers(path: Path) -> set[int]:
    return plain(path) | packed(path)


def names(path: Path) -> set[str]:
    """Every file below a directory."""
    return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
