"""What the tests of every part share."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent  # of the checkout


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for other threads or processes, or for time to pass. `what` is waited for: the error names it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.001)


class AWhile:
    """So long, and on until something was `enough`: on a busy machine what comes by chance takes longer to come."""

    def __init__(self, seconds: float, at_most_s: float = 60.0) -> None:
        began = time.monotonic()
        self._least, self._most = began + seconds, began + at_most_s

    def goes_on(self, *, enough: object) -> bool:
        now = time.monotonic()
        return now < self._least or (now < self._most and not enough)


def until_collected(held: weakref.ref[Any]) -> None:
    """Wait until nobody holds it any more: a log's own background may for a moment yet."""
    until(lambda: gc.collect() >= 0 and held() is None, "it is let go of")


def data_files(path: Path) -> list[Path]:
    """The data files of a queue, in the order of the log."""
    return sorted(path.rglob("*.data"), key=lambda p: (p.name.split("-")[0], int(p.stem.split("-")[1])))
