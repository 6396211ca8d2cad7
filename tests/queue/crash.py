"""What the crash tests share: a log's files as bytes, laid out again as a crash or a power cut would have left them.

A crash with nobody left alive is a copy of the files of a quiet, open log (`Image.take`): whatever was appended is in the
page cache, and the control page was never told of a close. `lay` writes the copy down as a log of this boot (the page is
exact), of an earlier boot (only its marks count), and in between a test changes the bytes as a power cut would.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from penstock import Queue, kernel
from penstock.formats import queue as fmt
from penstock.storage import control, files
from penstock.storage.log import Log

NATIVE = kernel.NAME == "native" and not files.PORTABLE  # else loops are shortened
HEADER = fmt.HEADER_BYTES
OVERHEAD = fmt.SPEC.overhead
PAGE = 4096
_BOOT_AT, _PLACE_AT = 16, 32  # in the control page: boot id; device and inode

Boot = Literal["same", "new"]


class Image(dict[str, bytes]):
    """The files of a log by their path within it."""

    @classmethod
    def take(cls, top: Path) -> Image:
        return cls({name: (top / name).read_bytes() for name in files.walk(top)})

    def names(self, suffix: str) -> list[str]:
        """The files of a kind, in the order of the log."""
        return sorted(name for name in self if name.endswith(suffix))

    @property
    def data(self) -> str:
        """The last data file."""
        return self.names(".data")[-1]

    @property
    def times(self) -> str:
        return self.names(".time")[-1]

    def put(self, name: str, at: int, data: bytes) -> Image:
        """A copy with some bytes of a file replaced."""
        old = self[name]
        return self.changed(name, old[:at] + data + old[at + len(data) :])

    def changed(self, name: str, data: bytes) -> Image:
        return Image({**self, name: data})

    def without(self, *names: str) -> Image:
        return Image({name: data for name, data in self.items() if name not in names})

    def flipped(self, name: str, bit: int) -> Image:
        return self.put(name, bit // 8, bytes([self[name][bit // 8] ^ 1 << bit % 8]))

    def lay(self, top: Path, boot: Boot) -> Path:
        """Write the files down: as this boot's, where the control page is exact, or as an earlier one's."""
        made: set[Path] = set()
        for name, data in self.items():
            path = top / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(data)
        if ".lock" in self:
            with (top / ".lock").open("r+b") as page:
                st = os.fstat(page.fileno())
                page.seek(_PLACE_AT)
                page.write(struct.pack("<QQ", st.st_dev, st.st_ino))
                if boot == "new":
                    page.seek(_BOOT_AT)
                    page.write(bytes(16))
        return top


class Yard:
    """Room for many short-lived logs, in memory where there is a file system for that: these tests cut no real power."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._made = 0

    def new(self) -> Path:
        """Where a log can go. What was laid out before it is removed."""
        shutil.rmtree(self._top / str(self._made), ignore_errors=True)
        self._made += 1
        return self._top / str(self._made)

    def keep(self) -> Path:
        """Where a log can go that stays until the test is over."""
        self._made += 1
        return self._top / f"{self._made}-kept"


@contextmanager
def open_yard() -> Iterator[Yard]:
    ram = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(prefix="penstock-", dir=ram if ram.is_dir() and os.access(ram, os.W_OK) else None))
    try:
        yield Yard(top)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def payload(sequence: int, size: int) -> bytes:
    """A payload that no other record has, and without a zero byte."""
    return (b"%d." % sequence + bytes(1 + (7 * i + sequence) % 255 for i in range(size)))[:size]


def records(q: Queue, **options: str) -> list[tuple[int, bytes]]:
    """All of (sequence, payload), from the start."""
    with q.tailer(**options) as t:  # type: ignore[arg-type]
        return [(m.sequence, m.payload) for m in t]


def numbered(payloads: list[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    return list(enumerate(payloads, first))


def frames(payloads: list[bytes], start: int = HEADER) -> list[tuple[int, int]]:
    """Where each record's frame begins and ends."""
    out = []
    for p in payloads:
        out.append((start, start + OVERHEAD + len(p)))
        start = out[-1][1]
    return out


def beyond(q: Queue) -> bytes:
    """What the active data file holds behind the end of the log."""
    assert q._log is not None
    now = q._log.active()
    return (q.path / fmt.name(now.segment)).read_bytes()[now.end :]


def durable_mark(page: bytes) -> control.Mark:
    """The durable mark of a control page on disk."""
    return control.Mark(*struct.unpack_from("<QQQ", page, control._DURABLE_AT))


def until(condition: Callable[[], object], what: str = "it never came true", seconds: float = 30.0) -> None:
    """Wait for other threads or processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def never_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished segments stay unsealed, and so unsynced: as they are when the background has not come round to them."""
    monkeypatch.setattr(Log, "seal_finished", lambda self: 0)
    monkeypatch.setattr(Log, "prepare_next", lambda self: None)
