"""Where tasks put encoded frames until the driver appends them: files of each attempt, in a directory of each batch.

`<top>/<query>/<batch>/`, below the log's directory unless told otherwise. What a batch staged goes with its commit, also what
failed attempts left. A job that died and does not come again leaves its directory; it goes with another's commit a day later.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from penstock.kernel import Buffer
from penstock.spark.options import WriteOptions
from penstock.storage import files
from penstock.storage.bulk import Part

_NAME: Final = ".staging"
_STALE_S: Final = 24 * 3600

Key = tuple[str, int]  # topic and partition; ("", 0) where there are none


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one query's batch."""

    top: str
    query: str
    batch: int

    @property
    def path(self) -> Path:
        return Path(self.top) / self.query / str(self.batch)

    def sweep(self) -> None:
        """Remove what was staged for this batch and earlier ones, and what dead jobs left."""
        top = Path(self.top)
        for path in _children(top / self.query):
            if path.name.isdecimal() and int(path.name) <= self.batch:
                shutil.rmtree(path, ignore_errors=True)
        for path in _children(top):
            if path.name.startswith("batch-") and path.name != self.query and _age_s(path) > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        for empty in (top / self.query, top):
            try:
                empty.rmdir()
            except OSError:
                return  # another batch, or query, is at work there


def top_of(options: WriteOptions) -> str:
    return options.staging or str(Path(options.path) / _NAME)


def _children(top: Path) -> Iterator[Path]:
    yield from top.iterdir() if top.is_dir() else ()


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@dataclass(slots=True)
class Attempt:
    """What one attempt of a task stages. `with attempt: attempt.add(…)`. After a power cut it is staged again, so nothing of it is
    synced."""

    place: Place
    files: dict[Key, str] = field(default_factory=dict)  # without the suffix
    _out: dict[str, IO[bytes]] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Attempt:
        self.place.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, key: Key, frames: bytes, times: bytes | None) -> None:
        """Frames for a target, behind those it has already; all of them with times, or none."""
        path = self.files.setdefault(key, str(self.place.path / uuid.uuid4().hex))
        for suffix, content in ((".frames", frames), (".times", times)):
            if content is not None:
                if path + suffix not in self._out:
                    self._out[path + suffix] = self._stack.enter_context(Path(path + suffix).open("wb"))  # noqa: SIM115
                self._out[path + suffix].write(content)


def mapped(stack: ExitStack, path: str) -> Part:
    """What was staged at a path, while the stack lasts. It goes as it is appended: should that fail, it is staged again."""
    frames = stack.enter_context(_open(Path(path + ".frames")))
    times = Path(path + ".times")
    return Part(
        _map(stack, frames),
        _map(stack, stack.enter_context(times.open("rb"))) if times.exists() else None,
        lambda start, length: _give_back(frames.fileno(), start, length),
    )


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")  # workers of another user staged it


def _give_back(fd: int, start: int, length: int) -> None:
    with suppress(OSError):  # where that cannot be done it takes room until the commit is done
        files.give_back(fd, start, length)


def _map(stack: ExitStack, file: IO[bytes]) -> Buffer:
    size = os.fstat(file.fileno()).st_size
    if not size:
        return b""
    made = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    stack.callback(_unmap, made)
    return made


def _unmap(made: mmap.mmap) -> None:
    with suppress(BufferError):  # an error on its way out has views of it in hand: it goes with them
        made.close()
