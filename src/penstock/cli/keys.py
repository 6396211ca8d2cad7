"""Keys of a terminal, one by one."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keys() -> Iterator[Pressed]:
    """Keys are seen as they are pressed, and not shown."""
    if not sys.stdin.isatty():
        yield Pressed(None)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield Pressed(sys.stdin.fileno())
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class Pressed:
    """Waits, and tells whether q was pressed meanwhile."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self, seconds: float) -> bool:
        if self._fd is None:
            time.sleep(seconds)
            return False
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        return sys.stdin.read(1) in ("q", "Q", "")
