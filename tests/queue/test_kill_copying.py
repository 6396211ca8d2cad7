"""A process that dies in the midst of copying a payload into the map, in the kernel's own code, under the lock."""

from __future__ import annotations

import ctypes
import mmap
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Queue, kernel
from penstock.formats import queue as fmt
from tests.queue.dying import BEFORE, append_at_once, assert_nothing_beyond, payloads, run


def unreadable(size: int = 400_000) -> bytes:
    """A payload with a page in its midst that cannot be read: whoever copies it dies there, in the kernel's own code."""
    payload = b"u" * size  # larger than what malloc keeps in its heap, so the pages are all its own
    libc = ctypes.CDLL(None)
    middle = (id(payload) + size // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(middle), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return payload


def die_copying(path: str, what: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    q = Queue(path)
    if what == "append":
        q.append(unreadable())
    else:
        q.append_batch([b"one" * 100, b"two" * 100, unreadable(), b"four" * 100])


@pytest.fixture(params=["append", "append_batch"])
def died_copying(request: pytest.FixtureRequest, path: Path) -> Callable[[], None]:
    """A function that has a process die in the midst of copying a payload into the map, under the lock."""

    def die() -> None:
        assert run(die_copying, path, request.param) == -signal.SIGSEGV

    return die


def test_writer_that_dies_copying_is_cut_by_the_next_append(path: Path, died_copying: Callable[[], None]) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
        died_copying()
        if kernel.NAME == "native":  # there is something to cut; the reference kernel sums before it copies
            assert q._log is not None
            now = q._log.active()
            assert (path / fmt.name(now.segment)).read_bytes()[now.end :].strip(b"\0")
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, b"x"]
        assert_nothing_beyond(q)


def test_writer_that_dies_copying_is_cut_by_the_next_opening(path: Path, died_copying: Callable[[], None]) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
    died_copying()
    with Queue(path) as q:
        assert payloads(q) == BEFORE
        assert_nothing_beyond(q)
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, b"x"]


@pytest.mark.parametrize("with_companion", [True, False])
def test_part_of_a_batch_is_not_taken_for_records_by_whoever_scans_the_files(
    path: Path, tmp_path: Path, died_copying: Callable[[], None], with_companion: bool
) -> None:
    """As after a power cut: a copy, for which the control page says nothing. The first frame's head comes last, so the scan
    ends before the batch, also where the companion, which would tell too, did not come back."""
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
        died_copying()
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", str(path), str(copy)], check=True)
    if not with_companion:
        for name in copy.rglob("*.time"):
            name.unlink()
    with Queue(copy) as q:
        assert q.recovery.how == "new boot"
        assert payloads(q) == BEFORE
        assert_nothing_beyond(q)
