"""The processes of a kill campaign, any number at once.

They are forked by one that has no log open and no threads, so that each costs a fork and not a start of Python. (Where one at a time is to
die at a place of its own: `tests.queue.dying`.)
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import ROOT

_END = "end"


class Life:
    """One process. What ends it, if it is not killed, stands in `words`."""

    def __init__(self, pid: int, words: Path, wait: Callable[[], int]) -> None:
        self.pid = pid
        self._words = words
        self._wait = wait

    @property
    def ended(self) -> bool:
        """By itself, or killed and not yet waited for."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Unless it has ended already; how it did, once it has."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, how)
        return self._wait()

    @property
    def last_words(self) -> str:
        return self._words.read_text()[-4000:] if self._words.exists() else ""


class Lives:
    """Begins them: each calls the `live` of a module with what it is given, and is to go on for ever."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, words: Path, *arguments: object) -> Life:
        """`words` is where to put what goes wrong with it; paths among the arguments are given as text."""
        pid = self._ask(str(words), *arguments)
        return Life(pid, words, lambda: self._ask(_END, pid))

    def _ask(self, *words: object) -> int:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(words, default=str), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@contextmanager
def open_lives(module: str) -> Iterator[Lives]:
    """For processes that call `live` of this module."""
    code = f"from tests.lives import serve; from {module} import live; serve(live)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Lives(process)


def serve(act: Callable[..., None]) -> None:
    """What that process does."""
    faulthandler.enable()
    for line in sys.stdin:
        first, *rest = json.loads(line)
        if first == _END:
            print(os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _live(act, Path(first), rest)
        print(pid, flush=True)


def _live(act: Callable[..., None], words: Path, arguments: list[Any]) -> None:
    try:
        act(*arguments)
    except BaseException:
        with suppress(FileExistsError), words.open("x") as f:  # a thread of its own may have told first
            f.write(traceback.format_exc())
    os._exit(3)


# ---- what they note, which outlives them ----


def note(path: Path) -> Callable[[bytes], int]:
    """Writes an entry to a file of notes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    return lambda data: os.write(fd, data)


def noted(shape: struct.Struct, path: Path) -> list[tuple[int, ...]]:
    """The entries of such a file; a torn last one was not written."""
    data = path.read_bytes() if path.exists() else b""
    return list(shape.iter_unpack(data[: len(data) // shape.size * shape.size]))
