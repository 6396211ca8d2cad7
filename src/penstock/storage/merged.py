"""Reading several logs at once: each in its own order, taking turns among those that have something."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from penstock import kernel
from penstock.kernel import Message
from penstock.storage.reader import LogReader

_STATIC_POLL_S: Final = 0.05
_ON_LIVE_CLOSE_S: Final = 1.0


def wait_for_any(readers: Iterable[LogReader], timeout_s: float | None) -> bool:
    """Sleep until one of them may have more to read; False when the time is over. None: for ever."""
    readers = list(readers)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        for reader in readers:
            reader.log.check_open()
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        pages = [page for reader in readers if (page := reader.log.page) is not None]
        if len(pages) < len(readers) or not readers:  # one that nobody writes has no page to watch
            time.sleep(_STATIC_POLL_S if left is None else min(left, _STATIC_POLL_S))
            return True
        nap = _ON_LIVE_CLOSE_S if left is None else min(left, _ON_LIVE_CLOSE_S)
        if kernel.wait_any(pages, [(r.records.segment, r.records.position) for r in readers], nap):
            return True


class Merged:
    """Readers by number, as one. Not thread-safe."""

    def __init__(self, readers: dict[int, LogReader]) -> None:
        self.readers = readers
        self._order = list(readers)
        self._next = 0  # whose turn it is

    def read(self) -> tuple[int, Message] | None:
        """The next record of one that has any; None at the end of them all."""
        for _ in self._order:
            number = self._order[self._next]
            self._next = (self._next + 1) % len(self._order)
            message = self.readers[number].records.read()
            if message is not None:
                return number, message
        return None

    def read_batch(self, n: int) -> tuple[int, list[Message]]:
        """Up to `n` records of one that has any; none at the end of them all."""
        for _ in self._order:
            number = self._order[self._next]
            self._next = (self._next + 1) % len(self._order)
            messages = self.readers[number].read_batch(n)
            if messages:
                return number, messages
        return -1, []

    def wait(self, timeout_s: float | None) -> bool:
        return wait_for_any(self.readers.values(), timeout_s)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
