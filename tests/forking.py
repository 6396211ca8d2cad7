"""Forks of this process, as the tests of them make them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable


class Child:
    """A fork of this process: runs a function, says what became of it, and lives on until it is let go."""

    def __init__(self, function: Callable[[], object]) -> None:
        answer, self._answer = os.pipe()
        self._go, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(go)
                os.close(answer)
                said = f"returned {function()!r}"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            try:
                os.write(self._answer, said.encode())
                os.close(self._answer)
                os.read(self._go, 1)
            finally:
                os._exit(0)
        os.close(self._answer)
        os.close(self._go)
        self._pipe, self._let_go = answer, go

    def said(self) -> str:
        parts = []
        while part := os.read(self._pipe, 4096):
            parts.append(part)
        return b"".join(parts).decode()

    def ends(self, seconds: float = 60.0) -> bool:
        """Whether it says something in time; else it is killed."""
        ready = bool(select.select([self._pipe], [], [], seconds)[0])
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        return ready

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._let_go)
        os.close(self._pipe)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0
