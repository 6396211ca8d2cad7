"""A small journal whose every record, byte and batch is known, and what a walk over what is left of it must give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import Journal, journal
from penstock.formats import journal as fmt
from penstock.storage.janitor import Janitor
from tests.journal import by_hand
from tests.journal_crash.wreck import Found, everything
from tests.queue.crash import Image, payload

FILE_BYTES = 210
CHECKED = 1


class Part(NamedTuple):
    """A record, where it lies, and where its batch does."""

    sequence: int
    file: int
    start: int
    end: int
    batch_end: int  # the byte at which its batch ends
    kind: int
    body: bytes
    group: int


@dataclass
class Small:
    """Two files and a third, in four states."""

    parts: list[Part]
    crashed: Image  # as a kill leaves it
    closed: Image
    stale: Image  # the same, with the control page of an earlier moment
    stale_at: int  # the byte of the last file that it knows of

    @property
    def last(self) -> int:
        return self.parts[-1].file

    @property
    def name(self) -> str:
        return fmt.name(self.last)

    def wanted(self, kept: list[Part]) -> list[tuple[bytes, int]]:
        """What a walk gives if exactly these are left."""
        return [(part.body, part.group) for part in kept if part.kind == 0 and part.group > CHECKED]

    def agrees(self, found: Found, kept: list[Part]) -> None:
        """All of these come, and nothing else; groups are complete if their checkpoint is among them."""
        assert [(r.payload, r.group) for r in found.records] == self.wanted(kept)
        registered = max((int.from_bytes(p.body[8:], "little") for p in kept if p.kind == 1), default=0)
        for record in found.records:
            assert record.complete == (record.group <= registered)
            assert record.session == 0


def build(path: Path) -> Small:
    """Records of many lengths, empty ones, batches of one and of more, groups over the end of a file."""
    acts: list[list[bytes] | str] = [
        [payload(1, 10)],
        [payload(2, 3), b"", payload(3, 7)],
        "register",
        [payload(4, 40)],
        "register",
        "check",
        [payload(5, 60)],
        [payload(6, 1)],
        "register",
        [payload(7, 50), payload(8, 30)],
        [b""],
        "register",
        [payload(9, 12)],
        "page",
        [payload(10, 9), b"", payload(11, 2), payload(12, 21)],
        [payload(13, 5)],
        "register",
        [payload(14, 16), payload(15, 1)],
        [payload(16, 4)],
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
        patch.setattr(Janitor, "serve", lambda self, log: None)  # no file is sealed or deleted
        page, at, places = b"", 0, []
        with Journal(path) as j:
            for act in acts:
                if act == "register":
                    j.checkpoint().result()
                elif act == "check":
                    j.check().result()
                elif act == "page":
                    page = (path / ".lock").read_bytes()
                    at = j._log.active().end  # type: ignore[union-attr]
                else:
                    j.append_many(act).result()  # type: ignore[arg-type]
                now = j._log.active()  # type: ignore[union-attr]
                places.append((now.segment, now.end))
            crashed = everything(path)
            patch.setattr(j, "_tidy", lambda log: None)
        closed = everything(path)
    return Small(_parts(crashed, places), crashed, closed, crashed.changed(".lock", page), at)


def _parts(image: Image, batches: list[tuple[int, int]]) -> list[Part]:
    out: list[Part] = []
    group, sequence = 1, 0
    names = sorted((n for n in image if n.endswith(".journal")), key=lambda n: int(n.split(".")[0]))
    for name in names:
        file, at = int(name.split(".")[0]), 0
        for kind, body in by_hand.pieces(image[name]):
            end = at + 4 + len(body)
            batch_end = min((b for f, b in batches if f == file and b >= end), default=end)
            out.append(Part(sequence, file, at, end, batch_end if at else end, kind, body, group))
            if kind == 1:
                group = int.from_bytes(body[8:], "little") + 1
            at, sequence = end, sequence + 1
    return out
