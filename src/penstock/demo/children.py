"""The processes of a run: started, told things, heard, killed. None of them outlives it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class Said(NamedTuple):
    """A line of a child; None when it says no more."""

    child: Child
    what: dict[str, Any] | None


class Child:
    """A module of this package as a process, in a session of its own: whoever kills it kills what it has started, too."""

    def __init__(self, module: str, arguments: list[str], heard: queue.SimpleQueue[Said], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.name = module.rpartition(".")[2]
        self.pid = self._process.pid
        self.over = False  # whether it was let go, one way or the other
        self._heard = heard
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):  # cut off by a kill, or not ours
                    self._heard.put(Said(self, json.loads(line)))
        self._heard.put(Said(self, None))

    def tell(self, line: str) -> None:
        """One that has ended does not hear it; that it has is heard."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Let it end by itself, and say how it did."""
        self.over = True
        self._hang_up()
        code = self._process.wait(timeout=60)
        self._thread.join()
        return code

    def kill(self) -> None:
        """SIGKILL to it and to whatever it has started, Java too."""
        self.over = True
        if self._process.poll() is None:  # else the number may be another's by now
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._thread.join()
        self._hang_up()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
