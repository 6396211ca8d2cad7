"""Closing logs that were dropped and not closed.

Most are where the last reference to them was: that is in nobody's hand, and closes them on the spot. But the collector of garbage finds
one wherever something is allocated: in a thread that has a lock in hand which closing asks for, or in the very thread whose end
closing waits for. Those, and what a background has let go of last, are closed by a thread that holds nothing and which nobody waits for with
anything in hand. It is there before it is needed: to start one is not for a collection either.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

_LOOK_S: Final = 1.0


class _Last:
    """Closes a log when it goes itself: what fails is told as that of the end of any object, since there is nobody to raise it to."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def __del__(self) -> None:
        self._close()


class _Dropped:
    """A log to be closed, in `path` or below it."""

    def __init__(self, path: Path, close: Callable[[], object]) -> None:
        self.path = path
        self._last: _Last | None = _Last(close)
        self.done = threading.Event()

    def close(self) -> None:
        self._last = None
        self.done.set()


class _Closer(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="penstock-closer", daemon=True)
        self.waiting: list[_Dropped] = []  # in order; the first may be at work
        self._bell: SimpleQueue[bool] = SimpleQueue()  # in C: a collection that comes while it is used does no harm

    def close(self, one: _Dropped) -> None:
        self.waiting.append(one)
        self._bell.put(True)

    def finish(self) -> None:
        self._bell.put(False)
        self.join()
        for one in self.waiting:  # that came when it had been told to
            one.close()

    def run(self) -> None:
        while self._bell.get():
            self.waiting[0].close()
            del self.waiting[0]


_closer: _Closer | None = None
_starting = threading.Lock()
_collecting = 0  # the thread that the collector runs in, while it does; it never runs in two


def _note(phase: str, info: dict[str, int]) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else 0


def ready() -> None:
    """A log is open from now on that may be dropped."""
    global _closer
    if _closer is None:
        with _starting:
            if _closer is None:
                if _note not in gc.callbacks:
                    gc.callbacks.append(_note)
                made = _Closer()
                made.start()
                _closer = made


def close_dropped(path: Path, close: Callable[[], object], background: threading.Thread | None = None) -> None:
    """For `__del__`: close a log that nobody has any more, whose background this is."""
    here, closer = threading.get_ident(), _closer
    elsewhere = here == _collecting or (background is not None and here == background.ident)
    if elsewhere and closer is not None:
        closer.close(_Dropped(path, close))
    else:
        close()


def wait_for(path: Path) -> None:
    """Until logs that were dropped there are closed, before another one is opened."""
    closer = _closer
    if closer is None or not closer.waiting or threading.current_thread() is closer:
        return
    opened = Path(os.path.realpath(path))
    for one in list(closer.waiting):
        if Path(os.path.realpath(one.path)) in (opened, *opened.parents):
            while not one.done.wait(_LOOK_S) and closer.is_alive():
                pass


def _at_exit() -> None:
    global _closer
    closer = _closer
    if closer is not None:
        closer.finish()
        _closer = None  # what is dropped later is closed on the spot: no other thread runs then
        gc.callbacks.remove(_note)


def _after_fork_in_child() -> None:
    global _closer, _starting, _collecting
    _closer, _starting, _collecting = None, threading.Lock(), 0  # what was dropped is the parent's to close


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
