"""What has a `close` can be used by `with`, and what opens a log by `async with` too; and whose turn it is to close."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.storage.aside import aside


class Closable:
    """`with thing:` closes it at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosable(Closable):
    """The same for coroutines."""

    async def aclose(self) -> None:
        """`close()` without blocking the event loop."""
        await aside(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Closing:
    """One close at a time: another thread's waits for it. A signal's handler in the midst of it cannot wait, and need not: it goes on after
    that."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._at_work = False

    def once(self, close: Callable[[], object]) -> None:
        """Close, as far as it is not done, unless this very thread is at it. (No context manager of its own: an exception that a signal's
        handler raises when that was entered, and before what it is for, would keep the turn as long as it is looked at.)"""
        with self.lock:
            if not self._at_work:
                try:
                    self._at_work = True
                    close()
                finally:
                    self._at_work = False
