"""Which processes have a log open, as the system tells: whoever has it open holds a lock on its control page. Linux only.

Nothing is locked or touched. Other users' processes show their number, and not what they do, unless root asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MOST_COMMAND: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One that has a log open. `writes` is None where that cannot be told."""

    pid: int
    command: str
    writes: bool | None


def holding(paths: Iterable[Path]) -> dict[Path, tuple[Process, ...]]:
    """By file, the processes that have it open."""
    wanted = {path.resolve(): path for path in paths}
    found: dict[Path, dict[int, Process]] = {path: {} for path in wanted.values()}
    inodes = {}
    for path in wanted.values():
        with suppress(OSError):
            inodes[path.stat().st_ino] = path
    for pid, fd, target in _open_files():
        held = wanted.get(Path(target)) if target.startswith("/") else None
        writes = _how(pid, fd) if held is not None else None
        if held is not None and writes is not None:
            before = found[held].get(pid)
            found[held][pid] = Process(pid, _command(pid), writes or (before is not None and bool(before.writes)))
    for pid, inode in _locks():
        if inode in inodes and pid not in found[inodes[inode]]:
            found[inodes[inode]][pid] = Process(pid, _command(pid), None)
    return {path: tuple(sorted(there.values(), key=lambda process: process.pid)) for path, there in found.items()}


def _open_files() -> Iterator[tuple[int, str, str]]:
    """(process, descriptor, path) of every file that may be looked at."""
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdecimal():
            with suppress(OSError):  # another user's, or gone
                for fd in os.listdir(entry / "fd"):  # noqa: PTH208  # names alone: there may be very many
                    with suppress(OSError):
                        yield int(entry.name), fd, os.readlink(f"/proc/{entry.name}/fd/{fd}")  # noqa: PTH115


def _how(pid: int, fd: str) -> bool | None:
    """Whether a locked file was opened for writing, too; None when it is not locked: a map that outlives its log's closing."""
    with suppress(OSError, ValueError):
        lines = (_PROC / str(pid) / "fdinfo" / fd).read_text().splitlines()
        flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
        if any(line.startswith("lock:") for line in lines):
            return flags & os.O_ACCMODE != os.O_RDONLY
    return None


def _locks() -> Iterator[tuple[int, int]]:
    """(process, inode) of every flock of processes that are seen here."""
    with suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            words = line.split()
            if len(words) >= 6 and words[1] == "FLOCK" and words[4].isdecimal():
                pid, inode = int(words[4]), int(words[5].rpartition(":")[2])
                if pid > 0 and _is_hidden(pid):
                    yield pid, inode


def _is_hidden(pid: int) -> bool:
    """Whether a process lives whose files may not be looked at; else what it has open is known already."""
    try:
        os.listdir(_PROC / str(pid) / "fd")  # noqa: PTH208
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes()[:_MOST_COMMAND].split(b"\0")
        return " ".join(word.decode("utf-8", "replace") for word in words if word)
    return ""
