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
    """Close each, also when another one fails to, or a thread makes another one meanwhile."""
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyError):
        while True:
            stack.callback(still_open.pop().close)


atexit.register(close_all)
