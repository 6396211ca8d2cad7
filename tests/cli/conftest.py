"""Commands, called as a shell would call them: in one process with one Spark session, on a terminal of their own, or beside a process
that has logs open and appends."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the extra `cli` is not installed")

from typer.testing import CliRunner, Result

from tests.spark.conftest import spark as spark

FORMATS = ("queue", "channel", "journal", "topic")
COMMAND = [sys.executable, "-W", "error", "-m", "penstock.cli"]


@pytest.fixture
def run() -> Callable[..., Result]:
    from penstock.cli.app import app

    def call(*args: object, input: bytes | str | None = None) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], input=input)

    return call


class Terminal:
    """A command on a terminal."""

    def __init__(self, *args: object, columns: int = 80, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color"} | {"COLUMNS": str(columns), "LINES": str(rows)}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(slave)
        self.shown = ""

    def until(self, text: str, seconds: float = 20.0) -> float:
        """Wait until something is shown; the time then."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.shown!r}"
            self._read(0.5)
        return time.monotonic()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self._master, 65536)
        except OSError:
            return False  # it has ended
        self.shown += part.decode("utf-8", "replace")
        return bool(part)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ended(self, seconds: float = 20.0) -> int:
        """Its exit code, once all it shows is read."""
        deadline = time.monotonic() + seconds
        while self._read(0.5) and time.monotonic() < deadline:
            if self.process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                break
        code = self.process.wait(max(0.1, deadline - time.monotonic()))
        os.close(self._master)
        return code


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*args: object, columns: int = 80, rows: int = 24) -> Terminal:
        made.append(Terminal(*args, columns=columns, rows=rows))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def piped(*args: object, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command between pipes."""
    return subprocess.run([*COMMAND, *map(str, args)], input=input, capture_output=True, timeout=60, check=False)


class Live:
    """Logs of every format that another process has open."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.writer", str(top)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer(b"ready\n")

    def path(self, format: str) -> Path:
        return self.top / ("topics/topic" if format == "topic" else format)

    def append(self, format: str, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{format} {text}\n".encode())
        self.process.stdin.flush()
        self._answer(b"done\n")

    def _answer(self, wanted: bytes) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == wanted


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    one = Live(tmp_path_factory.mktemp("live"))
    yield one
    assert one.process.stdin is not None
    assert one.process.stdout is not None
    one.process.stdin.close()
    assert one.process.wait(30) == 0, "the writer was disturbed"
    one.process.stdout.close()
