"""What the crash tests share: a log's files as bytes, laid out again as a crash or a power cut would have left them.

A crash with nobody left alive is a copy of the files of a quiet, open log (`Image.take`): whatever was appended is in the
page cache, and the control page was never told of a close. `lay` writes the copy down as a log of this boot (the page is
exact), of an earlier boot (only its marks count), and in between a test changes the bytes as a power cut would.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import DiskFull, Queue, kernel
from penstock.formats import queue as fmt
from penstock.storage import control, files
from penstock.storage.log import Log
from penstock.testing.state import State

NATIVE = kernel.NAME == "native" and not files.PORTABLE  # else loops are shortened
HEADER = fmt.HEADER_BYTES
OVERHEAD = fmt.SPEC.overhead
PAGE = 4096


class Image(State):
    """The files of a log by their path within it."""

    @classmethod
    def take(cls, top: Path) -> Image:
        """All but what the background is just preparing."""
        kept = [name for name in files.walk(top) if not name.endswith((".next", ".tmp"))]
        return cls({name: (top / name).read_bytes() for name in kept})

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
def open_yard(place: Path | None = None) -> Iterator[Yard]:
    ram = Path("/dev/shm")
    place = place or (ram if ram.is_dir() and os.access(ram, os.W_OK) else None)
    top = Path(tempfile.mkdtemp(prefix="penstock-", dir=place))
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


def never_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished segments stay unsealed, and so unsynced: as they are when the background has not come round to them."""
    monkeypatch.setattr(Log, "seal_finished", lambda self, least=1: 0)
    monkeypatch.setattr(Log, "prepare_next", lambda self: None)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block can be allocated any more."""

    def full(fd: int, offset: int, length: int) -> None:
        raise DiskFull("planted", 0)

    monkeypatch.setattr(files, "allocate", full)


def half_append(q: Queue, size: int = 60, records: int = 1) -> Image:
    """What a writer leaves that is killed in the middle of an append, lock in hand: announced, begun, not committed."""
    assert q._log is not None
    control_page = q._log.control
    assert control_page is not None
    now = control_page.active()
    control_page.page.lock()
    try:
        control_page.announce(now.end + OVERHEAD + size, now.next + records)
        with (q.path / fmt.name(now.segment)).open("r+b") as f:
            f.seek(now.end)
            f.write(struct.pack("<I", size) + bytes(range(1, size // 2)))
        times = (q.path / fmt.name(now.segment)).with_suffix(".time")
        with times.open("r+b") as f:
            f.seek(64 + 8 * (now.next - now.base))
            f.write(struct.pack("<q", 12345) * records)
        return Image.take(q.path)
    finally:
        control_page.page.unlock()


class Child:
    """Another process with the log open. It does what it is told, a line at a time, and can be killed."""

    _CODE = """
import sys
from penstock import *
q = Queue(sys.argv[1], **eval(sys.argv[2]))
print("open", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

    def __init__(self, path: Path, options: str = "{}") -> None:
        command = [sys.executable, "-c", self._CODE, str(path), options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "open"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, expression: str) -> str:
        """What an expression over `q` gives in the child, or the name of the error."""
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Let it end, by itself when its input does."""
        self._process.communicate(timeout=60)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.wait()


class Disk:
    """Stands in for `files.sync` and `files.sync_directory`: counts, can be held up, and can fail."""

    def __init__(self, patch: pytest.MonkeyPatch, top: Path) -> None:
        self._top = top
        self._real = files.sync
        self.synced: list[str] = []  # names of the files, within the log, whose sync has returned
        self.begun: list[str] = []
        self.go = threading.Event()
        self.go.set()
        self.fail: Callable[[str], bool] = lambda name: False
        self.watch: Callable[[str], None] = lambda name: None
        patch.setattr(files, "sync", self._sync)
        patch.setattr(files, "sync_directory", self._sync_directory)

    def name(self, fd: int) -> str:
        st = os.fstat(fd)
        for name in files.walk(self._top):
            try:
                found = (self._top / name).stat()
            except FileNotFoundError:
                continue
            if (found.st_dev, found.st_ino) == (st.st_dev, st.st_ino):
                return name
        return "?"

    def _sync(self, fd: int) -> None:
        name = self.name(fd)
        self._begin(name)
        self._real(fd)
        self.synced.append(name)

    def _sync_directory(self, path: Path) -> None:
        name = path.relative_to(self._top).as_posix() + "/" if path.is_relative_to(self._top) else "?"
        self._begin(name)
        self.synced.append(name)

    def _begin(self, name: str) -> None:
        self.begun.append(name)
        self.watch(name)
        assert self.go.wait(60)
        if self.fail(name):
            raise OSError(errno.EIO, "the disk says no")

    def data_syncs(self) -> int:
        return sum(name.endswith(".data") for name in self.synced)


class Cut(BaseException):
    """The process ends here."""
