"""What the tests of the kernels share: every test runs over both, on a log made of anonymous maps."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.kernel import layout, reference
from penstock.kernel.spec import FrameSpec

try:
    from penstock.kernel import _native
except ImportError:
    _native = None

CHANNEL = FrameSpec(big_endian=True, sum_bytes=4, sum_first=True)
JOURNAL = FrameSpec(shift=8)
QUEUE = FrameSpec(sum_bytes=8, sum_covers_head=True, zero_ends=True)
TOPIC = FrameSpec(big_endian=True)

SLOT = {
    name: getattr(layout, name.upper())
    for name in ("segment", "end", "next", "dirty_end", "dirty_next", "last_us", "allocated", "entries")
}


def need_native() -> ModuleType:
    if _native is None:
        pytest.skip("no compiler")
    return _native


@pytest.fixture(params=["native", "reference"], scope="session")
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    return reference if request.param == "reference" else need_native()


@pytest.fixture(scope="session")
def native() -> ModuleType:
    return need_native()


@pytest.fixture(scope="session")
def both() -> tuple[ModuleType, ModuleType]:
    return need_native(), reference


@pytest.fixture(params=["native, file lock", "native, mutex", "reference, file lock"])
def make(request: pytest.FixtureRequest) -> Callable[..., Rig]:
    """Makes rigs: with each kernel, in each way it can lock."""
    name, lock = request.param.split(", ")
    kernel = reference if name == "reference" else need_native()
    if lock == "mutex" and not kernel.ROBUST:
        pytest.skip("no robust mutex here")
    return partial(Rig, kernel, robust=lock == "mutex")


class Slow(Exception):
    """Raised by the rig's `on_slow` unless a test sets another."""


class Rig:
    """One segment of a log in anonymous maps, with its control page and a writer standing on it."""

    def __init__(
        self,
        kernel: ModuleType,
        spec: FrameSpec = QUEUE,
        *,
        robust: bool = False,
        turn: int = 3,
        segment: int = 7,
        base: int = 100,
        start: int = 64,
        size: int = 1 << 16,
        limit: int | None = None,
        allocated: int | None = None,
        room: int = 4096,
        interval: int = 4,
        roll_next: int = 2**63,
        roll_us: int = 2**62,
    ) -> None:
        self.kernel, self.spec, self.turn, self.base, self.start = kernel, spec, turn, base, start
        self.page_map = mmap.mmap(-1, layout.PAGE_BYTES)
        self.data = mmap.mmap(-1, size)
        self.times = mmap.mmap(-1, 64 + 8 * room)
        self.index = mmap.mmap(-1, 256 + 16 * room)
        self.file_lock = None if robust else threading.Lock()
        self.page = kernel.ControlPage(self.page_map, self.file_lock)
        self.page.init_lock()
        self.page.store(layout.TURN, turn)
        self.page.store(layout.BASES[turn & 1], base)
        self.slot(segment=segment, end=start, next=base, dirty_end=start, dirty_next=base)
        self.slot(allocated=size if allocated is None else allocated, entries=base + room)
        self.slow: list[tuple[int, int, int]] = []
        self.notified = 0
        self.on_slow: Callable[[int, int, int], None] = self.refuse
        self.writer = kernel.Writer(self.page, spec, self._on_slow, self._on_notify)
        self.writer.notify_at = 2**64 - 1
        self.place: dict[str, int] = {
            "turn": turn,
            "start": start,
            "size": size,
            "limit": size if limit is None else limit,
            "interval": interval,
            "roll_next": roll_next,
            "roll_us": roll_us,
        }
        self.attach()

    def attach(self, **changed: int) -> None:
        self.writer.attach(self.data, self.times, self.index, **(self.place | changed))

    def refuse(self, code: int, need: int, count: int) -> None:
        raise Slow(code)

    def _on_slow(self, code: int, need: int, count: int) -> None:
        self.slow.append((code, need, count))
        self.on_slow(code, need, count)

    def _on_notify(self) -> None:
        self.notified += 1

    def slot(self, **words: int) -> None:
        """Store words of the active slot."""
        for name, value in words.items():
            self.page.store(layout.SLOTS[self.turn & 1] + SLOT[name], value)

    def word(self, name: str) -> int:
        return self.page.load(layout.SLOTS[self.turn & 1] + SLOT[name])

    def stamps(self, count: int) -> list[int]:
        """The first entries of the companion file."""
        return list(struct.unpack_from(f"<{count}q", self.times, 64))

    def entries(self) -> list[tuple[int, int]]:
        """What the index counts."""
        (count,) = struct.unpack_from("<Q", self.index, 8)
        return [struct.unpack_from("<QQ", self.index, 256 + 16 * i) for i in range(count)]

    def state(self) -> tuple[bytes, ...]:
        """Every byte of the log, without the mutex."""
        page = bytearray(self.page_map)
        page[layout.LOCK : layout.TURN] = bytes(layout.TURN - layout.LOCK)
        return bytes(page), bytes(self.data), bytes(self.times), bytes(self.index)

    def timeless(self) -> tuple[Any, ...]:
        """The same, knowing of times only whether they are there and which sign they have."""
        page, data, times, index = self.state()
        at = layout.SLOTS[self.turn & 1] + layout.LAST_US
        signs = [(us > 0) - (us < 0) for (us,) in struct.iter_unpack("<q", times[64:])]
        return page[:at] + page[at + 8 :], data, signs, index

    def reader(self) -> Any:
        """A reader at the beginning of the segment that follows the page and takes no damage."""

        def bad(reason: int) -> None:
            raise AssertionError(f"bad frame: {reason}")

        reader = self.kernel.Reader(self.page, self.spec, lambda: False, bad)
        segment = self.word("segment")
        reader.attach(self.data, self.times, self.spec, segment, self.base, self.start, self.base, self.word("end"))
        return reader


@pytest.fixture(params=["native, file lock", "native, mutex", "reference, file lock"])
def new_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes logs to append to through memory: with each kernel, in each way it can lock."""
    from . import buffering  # it imports from here

    name, lock = request.param.split(", ")
    kernel = buffering.kit(name)
    if lock == "mutex" and not kernel.ROBUST:
        pytest.skip("no robust mutex here")
    rigs: list[buffering.Rig] = []

    def made(**options: Any) -> buffering.Rig:
        path = tmp_path / f"{len(rigs)}"
        path.mkdir()
        rigs.append(buffering.Rig(kernel, path, robust=lock == "mutex", **options))
        return rigs[-1]

    yield made
    for rig in rigs:
        rig.clean()
