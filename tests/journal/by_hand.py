"""The bytes of a journal, made and read with nothing but the standard library: what another implementation would do."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 4 << 20


class Piece(NamedTuple):
    """A record as it lies in a file."""

    kind: int
    body: bytes


def data(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload) << 8) + payload


def checkpoint(checked: int, current: int, *, size: int = 16) -> bytes:
    return struct.pack("<IQQ", size << 8 | 1, checked, current)


def pieces(content: bytes) -> list[Piece]:
    """The records of a file, which end where it ends."""
    out, at = [], 0
    while at < len(content):
        (head,) = struct.unpack_from("<I", content, at)
        kind, size = head & 0xFF, head >> 8
        if kind == 1 and size == 0:
            size = 16
        assert kind in (0, 1)
        assert at + 4 + size <= len(content), "a record is cut"
        out.append(Piece(kind, content[at + 4 : at + 4 + size]))
        at += 4 + size
    return out


def numbers(top: Path) -> list[int]:
    """The numbers of the journal files in a directory."""
    return sorted(int(p.name.removesuffix(".journal")) for p in top.iterdir() if p.suffix == ".journal")


def read(top: Path) -> dict[int, list[Piece]]:
    """Every file of a directory; that each begins as the last one ended is checked."""
    found = numbers(top)
    assert found == list(range(found[0], found[0] + len(found))), found
    out: dict[int, list[Piece]] = {}
    state = None
    for number in found:
        content = (top / f"{number}.journal").read_bytes()
        assert len(content) <= MAX_FILE_BYTES
        out[number] = pieces(content)
        assert out[number][0].kind == 1, "a file begins with a checkpoint record"
        assert state in (None, out[number][0].body)
        state = [piece.body for piece in out[number] if piece.kind == 1][-1]
    return out


class Item(NamedTuple):
    """A data record, the group it is in, and the number of its file."""

    payload: bytes
    group: int
    file: int


def items(top: Path) -> tuple[list[Item], int, int]:
    """All data of a directory, and the last checkpoint that was retired and registered."""
    out, checked, current = [], 0, 0
    for number, found in read(top).items():
        for kind, body in found:
            if kind == 1:
                checked, current = struct.unpack("<QQ", body)
            else:
                out.append(Item(body, current + 1, number))
    return out, checked, current
