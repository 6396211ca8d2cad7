"""Where tasks put encoded frames until the driver appends them: files of each attempt, in a directory of each batch.

`<top>/<query>/<batch>/`, below the log's directory unless told otherwise. What a batch staged goes with its commit, also what failed
attempts left. A query comes again with frames staged anew, so what no task keeps fresh is nobody's: it goes with another's commit
when it has been so for a day. The commit appends what its tasks have told it of, byte for byte, or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from penstock import kernel
from penstock.errors import StagingLost, StorageFailed, storage_failed
from penstock.kernel import Buffer
from penstock.spark.options import WriteOptions
from penstock.storage import files
from penstock.storage.bulk import Part

_NAME: Final = ".staging"
_STALE_S: Final = 24 * 3600
_MOST_OPEN: Final = 64  # files of a task
_FRESH_S: Final = 600.0  # so often a task says that it runs
_OWN: Final = re.compile(  # a job, an application, or a query by its id
    r"batch-.+|txn-[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_FRAMES: Final = ".frames"
_TIMES: Final = ".times"

Key = tuple[str, int]  # topic and partition; ("", 0) where there are none


class Seal(NamedTuple):
    """What tells a file from every other."""

    size_bytes: int = 0
    sum: int = 0

    def over(self, more: bytes) -> Seal:
        return Seal(self.size_bytes + len(more), kernel.crc64(more, self.sum))


@dataclass(slots=True)
class Put:
    """What an attempt has staged for one target. Plain data: it travels to the driver."""

    path: str  # without the suffix
    seals: dict[str, Seal] = field(default_factory=dict)  # by suffix

    def check_there(self) -> None:
        """Raise StagingLost if a look at the directory tells that it is not what was staged."""
        for suffix, seal in self.seals.items():
            try:
                found = Path(self.path + suffix).stat().st_size
            except FileNotFoundError:
                raise _lost(self.path + suffix, "it is gone") from None
            if found != seal.size_bytes:
                raise _lost(self.path + suffix, f"it has {found} bytes, not {seal.size_bytes}")


def _lost(path: str, what: str) -> StagingLost:
    return StagingLost(
        f"{path}: staged for this batch, but {what}. Nothing of it was appended: run it again, and see that nobody else removes or writes "
        "files there"
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one query's batch."""

    top: str
    query: str
    batch: int

    @property
    def path(self) -> Path:
        return Path(self.top) / self.query / str(self.batch)

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            what, step = (
                "a file is where a directory is to be made",
                "move it away, or give another one as option staging",
            )
            raise StorageFailed(self.path, error.errno or errno.ENOTDIR, what, step) from error
        except OSError as error:
            raise storage_failed(self.path, error) from error

    def keep_fresh(self) -> None:
        """Say that what is staged for the query is still of use."""
        with suppress(FileNotFoundError):
            os.utime(Path(self.top) / self.query)

    def sweep(self) -> None:
        """Remove what was staged for this batch and earlier ones, and what is nobody's any more."""
        top = Path(self.top)
        _remove(top / self.query, self.batch)
        for path in _children(top):
            if _OWN.fullmatch(path.name) and path.name != self.query and _age_s(path) > _STALE_S:
                _remove(path)
        with suppress(OSError):  # another query is at work there
            top.rmdir()


def _remove(query: Path, last: int | None = None) -> None:
    """What was staged for a query up to a batch. A staging directory may be one that others use, too: all else in it stays."""
    for batch in _children(query):
        if batch.name.isdecimal() and (last is None or int(batch.name) <= last):
            for path in _children(batch):
                if path.suffix in (_FRAMES, _TIMES):
                    path.unlink(missing_ok=True)
            with suppress(OSError):  # an attempt that nobody waits for has put something there
                batch.rmdir()
    with suppress(OSError):  # another batch is at work there
        query.rmdir()


def name_of(app: str) -> str:
    """What stands for an application that has told its name: any text, and this is the name of a file, too."""
    return f"txn-{hashlib.blake2b(app.encode(), digest_size=16).hexdigest()}"


def top_of(options: WriteOptions) -> str:
    return options.staging or str(Path(options.path) / _NAME)


def _children(top: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from list(top.iterdir())


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class _Open:
    """Files that are written by turns. A task may have more targets than a process may have files: those that were not written to for the
    longest time are closed, and opened again if more comes."""

    def __init__(self) -> None:
        self._fds: OrderedDict[str, int] = OrderedDict()

    def write(self, path: str, content: bytes, at: int) -> None:
        if path not in self._fds:
            if len(self._fds) >= _MOST_OPEN:
                files.close(self._fds.popitem(last=False)[1])
            self._fds[path] = files.create(Path(path), exclusive=False)
        self._fds.move_to_end(path)
        files.write(self._fds[path], content, at)

    def close(self) -> None:
        while self._fds:
            files.close(self._fds.popitem()[1])


@dataclass(slots=True)
class Attempt:
    """What one attempt of a task stages. `with attempt: attempt.add(…)`. After a power cut it is staged again, so nothing of it is
    synced. As long as it lasts, also while it waits for rows, it keeps what is staged for its query from being swept."""

    place: Place
    files: dict[Key, Put] = field(default_factory=dict)
    _out: _Open = field(default_factory=_Open)
    _stack: ExitStack = field(default_factory=ExitStack)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Attempt:
        self.place.make()
        self.place.keep_fresh()
        beside = threading.Thread(target=self._keep_fresh, name="penstock-staging", daemon=True)
        beside.start()
        self._stack.callback(beside.join)
        self._stack.callback(self._done.set)
        self._stack.callback(self._out.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _keep_fresh(self) -> None:
        while not self._done.wait(_FRESH_S):
            self.place.keep_fresh()

    def add(self, key: Key, frames: bytes, times: bytes | None) -> None:
        """Frames for a target, behind those it has already; all of them with times, or none."""
        put = self.files.setdefault(key, Put(str(self.place.path / uuid.uuid4().hex)))
        for suffix, content in ((_FRAMES, frames), (_TIMES, times)):
            if content is not None:
                seal = put.seals.get(suffix, Seal())
                self._out.write(put.path + suffix, content, seal.size_bytes)
                put.seals[suffix] = seal.over(content)


def mapped(put: Put) -> Part:
    """What was staged; StagingLost if it is not that any more. It goes as it is appended: should that fail, it is staged again.

    Nothing of it is open: a batch may have more tasks than a process may have files.
    """
    put.check_there()
    content = {suffix: _map(put.path + suffix) for suffix in put.seals}
    for suffix, seal in put.seals.items():
        if kernel.crc64(content[suffix]) != seal.sum:
            raise _lost(put.path + suffix, "other bytes are in it")
    frames = Path(put.path + _FRAMES)
    return Part(content[_FRAMES], content.get(_TIMES), lambda start, length: _give_back(frames, start, length))


def _map(path: str) -> Buffer:
    import pyarrow as pa

    try:
        with pa.memory_map(path) as file:
            return memoryview(file.read_buffer())
    except FileNotFoundError:
        raise _lost(path, "it is gone") from None


def _give_back(path: Path, start: int, length: int) -> None:
    """Where that cannot be done, as where workers of another user staged it, it takes room until the commit is done."""
    with suppress(OSError), files.opened(path, write=True) as fd:
        files.give_back(fd, start, length)
