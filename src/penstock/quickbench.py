"""A few figures for the user's own disk, in a minute: append, append_batch, durable batches, read.

Each is measured in rounds that take turns, so that what else the machine does hits all alike; the median counts. A round writes to a
queue of its own, which goes at its end, and no more than a fixed amount: the disk is never filled.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock import kernel
from penstock.errors import InvalidOption
from penstock.queue import Queue
from penstock.storage import files

ROUNDS: Final = 3
BATCH: Final = 500
SIZES: Final = (100, 1000)
_MOST_BYTES: Final = 512 << 20
_LEAST_BYTES: Final = 16 << 20
_READ_BYTES: Final = 32 << 20
_STEP: Final = 1000  # appends between two looks at the clock

Round = Callable[[Path, bytes, float, int], tuple[int, float]]  # what it gives: records, and the seconds they took


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured."""

    name: str
    size: int  # bytes of a record
    records_s: float  # the median of the rounds
    least_s: float
    most_s: float

    @property
    def bytes_s(self) -> float:
        return self.records_s * self.size


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All of it."""

    path: str
    file_system: str
    kernel: str
    figures: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        made = asdict(self)
        made["figures"] = [{**asdict(figure), "bytes_s": figure.bytes_s} for figure in self.figures]
        return made


def measure(path: str | Path, seconds: float, advance: Callable[[int], None] = lambda rounds: None) -> BenchReport:
    """Measure at a directory that is there, for about so many seconds."""
    top = Path(path)
    if not top.is_dir():
        raise InvalidOption(f"{top}: no such directory; name one on the disk to measure")
    most = min(_MOST_BYTES, shutil.disk_usage(top).free // 8)
    if most < _LEAST_BYTES:
        raise InvalidOption(
            f"{top}: the disk is nearly full; free {8 * _LEAST_BYTES >> 20} MiB, or name another directory"
        )
    took: dict[tuple[str, int], list[float]] = {(name, size): [] for size in SIZES for name in SCENARIOS}
    each = seconds / rounds()
    for _ in range(ROUNDS):
        for name, size in took:
            with _place(top) as place:
                records, lasted = SCENARIOS[name](place / "queue", bytes(size), each, most)
            took[name, size].append(records / lasted)
            advance(1)
    figures = (Figure(n, s, statistics.median(all_), min(all_), max(all_)) for (n, s), all_ in took.items())
    return BenchReport(str(top), files.filesystem(top), kernel.NAME, tuple(figures))


def rounds() -> int:
    """How many times something is measured in all."""
    return ROUNDS * len(SIZES) * len(SCENARIOS)


class _place:
    """A directory of our own, which goes with all in it."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix=".penstock-bench-", dir=self._top))
        return self._path

    def __exit__(self, *_: object) -> None:
        files.remove_tree(self._path)


def _until(seconds: float, most: int, step: int) -> Iterator[int]:
    """How many records there are so far, until the time is over or there are as many as may be."""
    done, end = 0, time.perf_counter() + seconds
    while done < most and time.perf_counter() < end:
        yield done
        done += step


def _append(path: Path, payload: bytes, seconds: float, most: int) -> tuple[int, float]:
    with Queue(path) as queue:
        append, started = queue.append, time.perf_counter()
        for _ in _until(seconds, most // len(payload), _STEP):
            for _ in range(_STEP):
                append(payload)
        return queue.next_sequence, time.perf_counter() - started


def _append_batch(path: Path, payload: bytes, seconds: float, most: int) -> tuple[int, float]:
    return _batches(path, payload, seconds, most, durable=False)


def _durable(path: Path, payload: bytes, seconds: float, most: int) -> tuple[int, float]:
    return _batches(path, payload, seconds, most, durable=True)


def _batches(path: Path, payload: bytes, seconds: float, most: int, *, durable: bool) -> tuple[int, float]:
    batch = [payload] * BATCH
    with Queue(path) as queue:
        started = time.perf_counter()
        for _ in _until(seconds, most // len(payload), BATCH):
            queue.append_batch(batch)
            if durable:
                queue.sync()
        return queue.next_sequence, time.perf_counter() - started


def _read(path: Path, payload: bytes, seconds: float, most: int) -> tuple[int, float]:
    """What was just written, from memory then, from its beginning as often as the time allows."""
    count = min(most, _READ_BYTES) // len(payload)
    with Queue(path) as queue:
        for _ in range(0, count, BATCH):
            queue.append_batch([payload] * BATCH)
        read, started = 0, time.perf_counter()
        while not read or time.perf_counter() - started < seconds:
            read += sum(1 for _ in queue.tailer())
        return read, time.perf_counter() - started


SCENARIOS: Final[dict[str, Round]] = {
    "append": _append,
    "append_batch": _append_batch,
    "durable batches": _durable,
    "read": _read,
}
