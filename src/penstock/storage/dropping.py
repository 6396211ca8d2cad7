"""Closing logs that were dropped and not closed.

The collector of garbage finds one wherever something is allocated: in a thread that has a lock in hand which closing asks for, or in the
very thread whose end closing waits for. So one thread, which holds nothing and which nobody waits for with anything in hand, closes
them all. It is there before it is needed: to start one is not for a collection either.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast


class _Dropped:
    """A log to be closed, in `path` or below it."""

    def __init__(self, path: Path, close: Callable[[], object]) -> None:
        self.path = path
        self._close: Callable[[], object] | None = close
        self.done = threading.Event()

    def close(self) -> None:
        """As the end of an object does: what fails is told by the hook for that, since there is nobody to raise it to."""
        close, self._close = self._close, None
        try:
            if close is not None:
                close()
        except BaseException as error:
            told = SimpleNamespace(
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg=f"{self.path}: it was dropped, and closing it failed",
                object=None,
            )
            sys.unraisablehook(cast(Any, told))
        finally:
            del close  # or it would live until the next one
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

    def run(self) -> None:
        while self._bell.get():
            self.waiting[0].close()
            del self.waiting[0]


_closer: _Closer | None = None
_starting = threading.Lock()


def ready() -> None:
    """A log is open from now on that may be dropped."""
    global _closer
    if _closer is None:
        with _starting:
            if _closer is None:
                made = _Closer()
                made.start()
                _closer = made


def close_dropped(path: Path, close: Callable[[], object]) -> None:
    """For `__del__`: close a log that nobody has any more."""
    one, closer = _Dropped(path, close), _closer
    if closer is None:
        one.close()  # at the exit of the interpreter, when no other thread runs
    else:
        closer.close(one)


def wait_for(path: Path) -> None:
    """Until logs that were dropped there are closed, before another one is opened."""
    closer = _closer
    if closer is None or not closer.waiting:
        return
    path = path.absolute()
    for one in list(closer.waiting):
        if one.path.absolute() in (path, *path.parents):
            one.done.wait()


def _at_exit() -> None:
    global _closer
    closer, _closer = _closer, None
    if closer is not None:
        closer.finish()


def _after_fork_in_child() -> None:
    global _closer, _starting
    _closer, _starting = None, threading.Lock()  # what was dropped is the parent's to close


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
