"""What must be closed before the interpreter goes: objects with a thread that holds records, and may need Python for them.

Registered when the kernel is imported, so it runs after every exit handler that uses a log.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol


class Closable(Protocol):
    def close(self) -> None: ...


still_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_all() -> None:
    """Close each, also when another one fails to."""
    with contextlib.ExitStack() as stack:
        for one in list(still_open):
            stack.callback(one.close)


atexit.register(close_all)
