"""What the tests of appending through memory share: a log in files, and objects that append to it."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.kernel import layout, reference
from penstock.kernel.spec import FrameSpec

from .conftest import JOURNAL, SLOT, need_native

FOREVER = 3600.0
INTERVAL = 4  # of the index
MANY = 10**9


class FileLock:
    """A lock between processes: an open file of each one's own, since a thread's lock does not know of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def acquire(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self.fd = fd

    def release(self) -> None:
        os.close(self.fd)


class Slow(Exception):
    """Raised by the rig's `on_slow` unless a test sets another."""


class Rig:
    """A log in files, and objects that append to it: each has a map of the page and descriptors of its own."""

    def __init__(
        self, kernel: Any, path: Path, *, robust: bool, turn: int = 3, base: int = 100, start: int = 16
    ) -> None:
        self.kernel, self.path, self.robust = kernel, path, robust
        self.turn, self.base, self.start = turn, base, start
        self.slow: list[tuple[int, int, int]] = []
        self.errors: list[int] = []
        self.rooms: list[mmap.mmap] = []
        self.on_slow: Callable[[int, int, int], None] = self.refuse
        self.file_lock: Any = None if robust else threading.Lock()
        (path / "page").write_bytes(bytes(layout.PAGE_BYTES))
        self.page = self.map_page()
        self.page.init_lock()
        self.made: list[Any] = []
        self.fds: list[int] = []
        self.begin(turn, base, "data")

    def begin(self, turn: int, base: int, name: str) -> None:
        """A new segment, empty, and the page says so: a roll."""
        (self.path / name).write_bytes(b"H" * self.start)
        (self.path / f"{name}.time").write_bytes(b"T" * 64)
        (self.path / f"{name}.index").write_bytes(struct.pack("<QQ", INTERVAL, 0).ljust(256, b"\0"))
        self.turn, self.base = turn, base
        self.page.store(layout.BASES[turn & 1], base)
        self.slot(end=self.start, next=base, dirty_end=self.start, dirty_next=base)
        self.page.store(layout.TURN, turn)

    def map_page(self) -> Any:
        with (self.path / "page").open("r+b") as file:
            room = mmap.mmap(file.fileno(), layout.PAGE_BYTES)
        self.rooms.append(room)
        return self.kernel.ControlPage(room, self.file_lock)

    def share(self) -> None:
        """Lock in a way that other processes know of."""
        if not self.robust:
            self.file_lock = FileLock(self.path / "lock")
            self.page = self.map_page()

    def open(self, name: str) -> int:
        self.fds.append(os.open(self.path / name, os.O_RDWR))
        return self.fds[-1]

    def attach(self, buffered: Any, name: str = "data", **changed: Any) -> None:
        place = {"turn": self.turn, "start": self.start, "limit": 1 << 40, "interval": INTERVAL} | changed
        names = {"data_fd": name, "times_fd": f"{name}.time", "index_fd": f"{name}.index"}
        fds = [place.pop(key) if key in place else self.open(file) for key, file in names.items()]
        buffered.attach(*fds, **place)

    def buffered(self, spec: FrameSpec = JOURNAL, *, attach: bool = True, page: Any = None, **options: Any) -> Any:
        """Writes when asked to by `flush`, unless told otherwise."""
        chosen = {
            "batch_records": MANY,
            "linger_s": FOREVER,
            "most_bytes": 1 << 30,
            "segment_bytes": 1 << 30,
            "sync": True,
        } | options
        made = self.kernel.Buffered(page or self.page, spec, self._on_slow, self.errors.append, **chosen)
        self.made.append(made)
        if attach:
            self.attach(made)
        return made

    def refuse(self, code: int, need: int, count: int) -> None:
        raise Slow(code)

    def _on_slow(self, code: int, need: int, count: int) -> None:
        self.slow.append((code, need, count))
        self.on_slow(code, need, count)

    def slot(self, **words: int) -> None:
        for name, value in words.items():
            self.page.store(layout.SLOTS[self.turn & 1] + SLOT[name], value)

    def word(self, name: str) -> int:
        return self.page.load(layout.SLOTS[self.turn & 1] + SLOT[name])

    def ends(self) -> tuple[int, int, int, int]:
        return self.word("end"), self.word("next"), self.word("dirty_end"), self.word("dirty_next")

    def data(self, name: str = "data") -> bytes:
        """The frames in the file: all of it after the header."""
        content = (self.path / name).read_bytes()
        assert content[: self.start] == b"H" * self.start
        return content[self.start :]

    def entries(self, name: str = "data") -> list[tuple[int, int]]:
        """(time, checksum) of each record, from the companion."""
        content = (self.path / f"{name}.time").read_bytes()
        assert content[:64] == b"T" * 64
        return list(struct.iter_unpack("<qQ", content[64:]))

    def index(self, name: str = "data") -> tuple[int, list[tuple[int, int]]]:
        """(interval, entries) of the index, as many as it counts."""
        content = (self.path / f"{name}.index").read_bytes()
        interval, count = struct.unpack_from("<QQ", content)
        assert content[16:256] == bytes(240)
        assert len(content) >= 256 + 16 * count
        return interval, list(struct.iter_unpack("<QQ", content[256 : 256 + 16 * count]))

    def check_index(
        self, spec: FrameSpec = JOURNAL, name: str = "data", interval: int = INTERVAL, base: int | None = None
    ) -> None:
        """Every record that is due is in the index, with its place, and no other."""
        base, starts = self.base if base is None else base, [self.start]
        for frame in self.frames(spec, name):
            starts.append(starts[-1] + len(frame))
        numbered = list(enumerate(starts[:-1], base))
        assert self.index(name)[1] == numbered[::interval]

    def mark(self) -> tuple[int, int, int] | None:
        """The durable mark: (segment, end, next)."""
        body, crc = self.rooms[0][512:536], int.from_bytes(self.rooms[0][536:540], "little")
        segment, end, next_ = struct.unpack("<QQQ", body)
        return (segment, end, next_) if any(body) and crc == zlib.crc32(body) else None

    def frames(self, spec: FrameSpec = JOURNAL, name: str = "data") -> list[bytes]:
        content, out, at = self.data(name), [], 0
        points = reference.scan(spec, content, 0, len(content), every=1)
        assert points.position == len(content)
        for end in [*points.points[1:], len(content)]:
            out.append(content[at:end])
            at = end
        return out if content else []

    def payloads(self, spec: FrameSpec = JOURNAL, name: str = "data") -> list[bytes]:
        return [frame[4:] for frame in self.frames(spec, name)]

    def clean(self) -> None:
        for made in self.made:
            with contextlib.suppress(Exception):
                made.close()
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def kit(name: str) -> Any:
    return need_native() if name == "native" else reference


NewRig = Callable[..., Rig]


def put(buffered: Any) -> int:
    """Flush and wait; the first sequence."""
    batch = buffered.flush()
    assert batch is not None
    assert buffered.wait(batch, 60) is True
    return int(batch.first)


def now_us() -> int:
    return time.time_ns() // 1000


def arrow(values: list[bytes], wide: bool = False, lead: int = 0) -> tuple[bytes, bool, bytes, int, int]:
    offsets, data = [0], b""
    for value in [b"skip"] * lead + values:
        data += value
        offsets.append(len(data))
    return struct.pack(f"<{len(offsets)}{'q' if wide else 'i'}", *offsets), wide, data, lead, len(values)


class Gate:
    """An `on_slow` that holds the thread up: it comes when the object stands nowhere, until the test lets it go."""

    def __init__(self, rig: Rig, buffered: Any, **place: int) -> None:
        self.rig, self.buffered, self.place = rig, buffered, place
        self.reached, self.open = threading.Event(), threading.Event()
        rig.on_slow = self.pass_through

    def pass_through(self, *_: int) -> None:
        self.reached.set()
        assert self.open.wait(60)
        self.rig.attach(self.buffered, **self.place)

    def wait(self) -> None:
        assert self.reached.wait(60)
