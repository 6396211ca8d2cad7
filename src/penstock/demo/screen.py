"""What is shown while the demo runs: lines, and on a terminal one that lives."""

from __future__ import annotations

import os
import time
from typing import Final, TextIO

_PLAIN_EVERY_S: Final = 5.0
_LIVE_EVERY_S: Final = 0.1


class Screen:
    """Writes to a terminal or to anything else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False  # whether the live line is there
        self._last_s = 0.0

    def line(self, text: str = "") -> None:
        """A line that stays."""
        self._out.write(f"{self._cleared()}{text}\n")
        self._out.flush()

    def progress(self, text: str) -> None:
        """How far it is: shown in place on a terminal, and as a plain line every few seconds elsewhere."""
        now = time.monotonic()
        if now - self._last_s < (_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S):
            return
        self._last_s = now
        if self._live:
            width = os.get_terminal_size(self._out.fileno()).columns or 80
            self._out.write(f"{self._cleared()}{text[: width - 1]}")
            self._shown = True
        else:
            self._out.write(f"{text}\n")
        self._out.flush()

    def _cleared(self) -> str:
        shown, self._shown = self._shown, False
        return "\r\x1b[2K" if shown else ""
