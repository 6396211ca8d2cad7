"""Real logs of every format as bytes, and ways to make a hostile one of them.

Most files carry a checksum, which stops a mutation at the door. So what is changed is often sealed again: a hostile file has a
right checksum and wrong numbers.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from penstock import Topics
from penstock.inspect import find
from penstock.storage import checked
from penstock.storage.losses import Listed, LossList
from tests.queue.crash import Image, open_yard
from tests.repair import logs
from tests.topic_crash import wreck

KINDS = tuple(logs.KINDS)
_NUMBERS = (0, 1, 7, 255, 4095, 4096, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62) + 1, 1 << 63, (1 << 64) - 1)


@cache
def image(kind: str) -> Image:
    """A closed log with all that a log may have: a named reader, a group, a ledger and a loss list among it."""
    with open_yard() as yard:
        path = logs.lay(kind, yard.new() / "log")
        for part in (part for part in find(path) if part.own.is_dir()):
            with part.open() as view:
                names = [segment.name for segment in view.segments()]
            intent = {"writer": "w", "number": 4, "first": 3, "count": 2, "us": 1, "head": "00" * 16, "tail": "00" * 16}
            checked.store(part.own / "ledger", {"done": {"w": 3}, "intent": intent})
            LossList(part.own).add([Listed(names[0], 3, 4, 100, 200, "its checksum is wrong", 1)] if names else [])
        if kind == "topic":
            _join(path)
        return wreck.everything(path)


def _join(path: Path) -> None:
    """The files of a group, and that of a member that died: an empty one that nobody holds."""
    with Topics(path) as topics, topics.topic("t").group("reader") as member:
        member.poll_many(1)
        for own in list(path.rglob("member-*")):
            own.with_name("member-1-00").touch()


def sort_of(name: str) -> str:
    """What sort of file it is: two with other numbers in their names are of one."""
    last = name.rsplit("/", 1)[-1]
    if "cursors/" in name:
        return "cursor"
    return re.sub("[0-9]+", "N", last)


# ---- sealing again ----


def _crc(data: bytes | bytearray) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def _seal_manifest(data: bytearray) -> None:
    if len(data) >= 64:
        data[60:64] = _crc(data[:60])
    for at in range(64, len(data) - 63, 64):
        data[at : at + 4] = _crc(data[at + 4 : at + 64])


def _seal_cursor(data: bytearray) -> None:
    data[24:28] = _crc(data[:24])
    if len(data) > 68:
        data[-4:] = _crc(data[64:-4])


def _seal_text(data: bytearray) -> None:
    text = bytes(data).strip().rpartition(b"\n")[0]
    data[:] = text + b"\n%08x\n" % zlib.crc32(text)


def _seal_head(size: int) -> Callable[[bytearray], None]:
    def seal(data: bytearray) -> None:
        data[size : size + 4] = _crc(data[:size])

    return seal


def _seal_page(data: bytearray) -> None:
    for at in (at for at in (512, 576, 640) if any(data[at : at + 28])):
        data[at + 24 : at + 28] = _crc(data[at : at + 24])


_SEALS: dict[str, Callable[[bytearray], None]] = {
    "manifest": _seal_manifest,
    "cursor": _seal_cursor,
    "ledger": _seal_text,
    "losses": _seal_text,
    "N-N.data": _seal_head(32),
    ".lock": _seal_page,
}


def seal(name: str, data: bytes) -> bytes:
    """With checksums that are right for what it says now."""
    out = bytearray(data)
    if len(out) >= 64 or name.endswith(("ledger", "losses")):
        sort = sort_of(name)
        _SEALS.get(sort, _seal_head(24) if sort.endswith(".time") else lambda _: None)(out)
    return bytes(out)


# ---- mutations ----


def _flip(data: bytearray, dice: random.Random, _: Image) -> None:
    if data:
        for _n in range(dice.choice((1, 1, 4, 32))):
            data[dice.randrange(min(len(data), dice.choice((64, 1 << 30))))] ^= dice.randrange(1, 256)


def _number(data: bytearray, dice: random.Random, _: Image) -> None:
    """A length, a count or a place that cannot be, or only just."""
    size = dice.choice((4, 8))
    if len(data) >= size:
        at = dice.randrange(min(len(data) - size + 1, dice.choice((256, 1 << 30))))
        value = (dice.choice(_NUMBERS) + dice.choice((0, 0, -1, 1))) % (1 << 8 * size)
        data[at // 4 * 4 : at // 4 * 4 + size] = value.to_bytes(size, dice.choice(("little", "big")))


def _cut(data: bytearray, dice: random.Random, _: Image) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _extend(data: bytearray, dice: random.Random, _: Image) -> None:
    data += dice.choice((bytes, dice.randbytes))(dice.choice((1, 3, 64, 4096, 70_000)))


def _splice(data: bytearray, dice: random.Random, image: Image) -> None:
    """A piece of another file, or of another place."""
    other = image[dice.choice(sorted(image))]
    start = dice.randrange(len(other) + 1)
    piece = other[start : start + dice.choice((8, 64, 512, 5000))]
    at = dice.randrange(len(data) + 1)
    data[at : at + dice.choice((0, len(piece)))] = piece


def _text(data: bytearray, dice: random.Random, _: Image) -> None:
    """Another value in a file of JSON: of a wrong type, or out of bounds."""
    values = [b"-1", b"1e400", b"[]", b"{}", b"null", b'"x"', b"99999999999999999999999", b"true", b'"../../x"', b"NaN"]
    found = list(re.finditer(rb'(?<=: )("[^"]*"|[\[{]?[-0-9a-z]+)', bytes(data)))
    if found:
        one = dice.choice(found)
        data[one.start() : one.end()] = dice.choice(values)


MUTATIONS = (_flip, _number, _number, _cut, _extend, _splice, _text)


def hostile(kind: str, dice: random.Random) -> tuple[Image, str]:
    """A log with something wrong in it, and what."""
    whole, told = image(kind), []
    out = Image(whole)
    sorts: dict[str, list[str]] = {}
    for name in sorted(out):
        sorts.setdefault(sort_of(name), []).append(name)
    for _ in range(dice.choice((1, 1, 2, 3))):
        name = dice.choice(sorts[dice.choice(sorted(sorts))])
        if dice.random() < 0.04:
            out.pop(name, None)
            told.append(f"{name}: gone")
            continue
        data = bytearray(out.get(name, b""))
        is_text = sort_of(name) in ("ledger", "losses", "metadata.json")
        mutate = _text if is_text and dice.random() < 0.7 else dice.choice(MUTATIONS)
        mutate(data, dice, whole)
        sealed = dice.random() < 0.7
        out[name] = seal(name, bytes(data)) if sealed else bytes(data)
        told.append(f"{name}: {mutate.__name__[1:]}{', sealed' if sealed else ''}")
    return out, "; ".join(told)


def lay(image: Image, path: Path, dice: random.Random) -> Path:
    return wreck.lay(image, path, dice.choice(("same", "new"))) if image else path


def laid(kind: str, path: Path, **changed: bytes) -> Path:
    """The whole log with each file of such a name changed to these bytes, and sealed."""
    out = Image(image(kind))
    for last, data in changed.items():
        for name in [name for name in out if name.rsplit("/", 1)[-1] == last]:
            out[name] = seal(name, data)
    return wreck.lay(out, path, "new")
