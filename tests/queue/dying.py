"""What the kill tests share: a queue, processes that die over it, and what must hold of it afterwards.

The dying is done by children of a zygote, a process of its own that has no log open and no threads, so that a death costs a
fork and not a start of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from penstock import Queue, kernel
from penstock.formats import queue as fmt
from penstock.storage import files
from penstock.storage.listing import list_segments
from penstock.testing.standing_in import CHANGING
from tests.stopping import is_stopped
from tests.support import ROOT, until

FILE_SIZE = 16 << 10
BEFORE = [b"first", b"second" * 40, b"third"]
LATE = b"late" * 100
SPAN = [bytes([65 + i]) * 5000 for i in range(7)]  # two to a file: four files
SLOW = kernel.NAME == "reference" or files.PORTABLE


def open_queue(path: Path | str, **options: Any) -> Queue:
    return Queue(path, file_size=FILE_SIZE, index_interval=2, **options)


def roll(q: Queue) -> None:
    assert q._log is not None
    q._log.roll_now()


# ---- dying ----


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def stand() -> None:
    """Stand still, until whoever is told so has it go on."""
    print("standing", os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def command(act: Callable[..., None], *arguments: object) -> list[str]:
    """To call a function of a test module in a process of its own."""
    code = f"import sys; from {act.__module__} import {act.__name__} as act; act(*sys.argv[1:])"
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(act: Callable[..., None], *arguments: object) -> int:
    """The same, here and now: how it ended."""
    return subprocess.run(command(act, *arguments), cwd=ROOT, timeout=60).returncode


def zygote(act: Callable[..., None]) -> None:
    """Reads what to do, a line of JSON each, has a child do it, and says how that ended."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                act(*json.loads(line))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


class Zygote:
    """Has processes call a function of a test module and die over it."""

    def __init__(self, act: Callable[..., None]) -> None:
        code = f"from tests.queue.dying import zygote; from {act.__module__} import {act.__name__} as act; zygote(act)"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, path: Path, *arguments: object) -> int:
        """Have a process do something and die over it; how it ended."""
        self.tell(str(path), *arguments)
        return int(self.answer())

    def tell(self, *arguments: object) -> None:
        """Have a process begin with something; or, if it is at it and waits for that, tell it how to go on."""
        assert self.process.stdin
        print(json.dumps(arguments), file=self.process.stdin, flush=True)

    @contextmanager
    def standing(self, said: str) -> Iterator[bool]:
        """It said this: whether that is that it stands still, as it then does meanwhile."""
        word, _, pid = said.partition(" ")
        if word != "standing":
            yield False
            return
        until(lambda: is_stopped(int(pid)), "it stops")
        try:
            yield True
        finally:
            os.kill(int(pid), signal.SIGCONT)

    def answer(self) -> str:
        """What it says next, or how it ended."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")


@contextmanager
def open_zygote(act: Callable[..., None]) -> Iterator[Zygote]:
    made = Zygote(act)
    with made.process as process:
        yield made
        assert process.stdin
        process.stdin.close()


class Countdown:
    """Counts calls of `files` once `begin` was called, whatever thread makes them; the process dies at the `at`-th, before that is made, or
    does what else is to be done `there`.

    A tree is removed a file at a time. With `halves` a write is two calls, so that a death comes in the midst of it too.
    """

    def __init__(
        self,
        at: int,
        last_words: Callable[[], object] = lambda: None,
        *,
        halves: bool = False,
        there: Callable[[], object] = die,
    ) -> None:
        self.at = at
        self._there = there
        self.calls = -1 << 62
        self._halves = halves
        self._last_words = last_words
        self._lock = threading.Lock()

    def lay(self, names: Iterable[str] = CHANGING) -> None:
        """Under these functions."""
        for name in names:
            setattr(files, name, self.wrap(name, getattr(files, name)))

    def begin(self) -> None:
        self.calls = 0

    def end(self) -> None:
        """Whatever threads are still at work go on."""
        with self._lock:
            self.at = -1

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        if name == "remove_tree":
            return self._remove_tree

        def call(*args: Any, **options: Any) -> Any:
            self._count()
            if name == "write" and self._halves:
                return self._write(real, *args)
            return real(*args, **options)

        return call

    def _count(self) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == self.at:
                self._last_words()
                self._there()

    def _write(self, real: Callable[..., Any], fd: int, data: Any, at: int) -> Any:
        view = memoryview(data).cast("B")
        half = len(view) // 2
        first = real(fd, view[:half], at)
        self._count()
        then = real(fd, view[half:], at + half)
        return None if first is None else first + then

    def _remove_tree(self, path: Path) -> None:
        if path.is_dir():
            for name in list(files.walk(path)):
                files.remove(path / name)
            shutil.rmtree(path)


# ---- what must hold afterwards ----


def payloads(q: Queue) -> list[bytes]:
    with q.tailer() as tailer:
        messages = list(tailer)
    assert [m.sequence for m in messages] == list(range(len(messages)))
    assert q.next_sequence == len(messages)
    return [m.payload for m in messages]


def assert_nothing_beyond(q: Queue) -> None:
    """No byte after the end of the log that could come back to life."""
    assert q._log is not None
    now = q._log.active()
    assert not (q.path / fmt.name(now.segment)).read_bytes()[now.end :].strip(b"\0")
    for later in [s for s in list_segments(q.path, fmt) if s > now.segment]:
        data = (q.path / fmt.name(later)).read_bytes()
        assert not data[fmt.HEADER_BYTES :].strip(b"\0")


def append_at_once(q: Queue, payload: bytes) -> None:
    """A dead writer is noticed at once: there is no timeout to wait for."""
    began = time.monotonic()
    q.append(payload)
    assert time.monotonic() - began < 1.0


def assert_whole_after_reopening(path: Path, expected: list[bytes]) -> None:
    with open_queue(path, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        assert payloads(q) == expected
