"""Taking in plain Python: the specification of the native kernel's `Taker`, its oracle, and the fallback without a compiler."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel.reference.buffers import check_places, store_big
from penstock.kernel.reference.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_MAX: Final = 2**64 - 1
_REMEMBERED: Final = 32


class Taker:
    """Takes records off a reader one at a time, and stores with each the offset behind it, so that both come of one call.

    It is stored as `store_big` does, at `place` (data, offset, stride, copies); if that is None it is only known here. `take`
    asks nobody and calls nothing but `decode`. Threads may share it: what is one step under the GIL in the native kernel is done
    under a lock here. Whatever takes more than that is its owner's, who does it under a lock of its own, between `hold` and
    `allow`.
    """

    def __init__(self, reader: Reader, place: tuple[Buffer, int, int, int] | None, taken: int) -> None:
        self.until = _MAX  # `take` gives nothing that reaches this offset
        self.taken = taken  # the offset below which all is taken
        self.count = 0  # how often `take` gave something
        self._reader = reader
        self._place = place
        self._ready = False
        self._shift = 0
        self._version = 0
        self._lock = threading.Lock()
        self._remembered: deque[tuple[int, int, int, int, int]] = deque(maxlen=_REMEMBERED)
        if place is not None:
            check_places(*place)
        _all.add(self)

    def forked(self) -> None:
        """In the child: a thread that held the lock is not there any more."""
        self._lock = threading.Lock()

    def hold(self) -> int:
        """From now on `take` gives nothing; what is taken."""
        with self._lock:
            self._ready = False
            self._version += 1
            return self.taken

    def allow(self, shift: int) -> None:
        """What lies ahead of the reader in its segment may be taken: byte p of it has the offset p + shift."""
        with self._lock:
            self._shift = shift
            self._version += 1
            self._ready = self._reader.attached

    def watch(self, offset: int) -> None:
        """Give nothing from now on that reaches this offset, unless it was reached before."""
        with self._lock:
            self.until = offset if self.taken < offset else _MAX

    def mark(self, offset: int) -> None:
        """All below this offset is taken, and nothing else. It is stored first: whoever is told here that it was taken finds that there."""
        if self._place is not None:
            store_big(*self._place, offset)
        self.taken = offset

    def take(self, decode: Callable[[bytes], Any] | None = None) -> Any:
        """The next payload, or what `decode` makes of it, which is thereby taken. None when it is not to be had just so: at
        the end of what is written, or of the segment; at a bad frame, or one that does not decode, or decodes to None."""
        with self._lock:
            found = self._reader.here() if self._ready else None
            if found is None:
                return None
            payload, size = found
            end = (self._shift + self._reader.position + size) % 2**64
            if end >= self.until:
                return None
            if decode is None:
                return self._commit(payload, size, end)
            version = self._version
        try:
            out = decode(payload)
        except Exception:  # whoever comes to it the slow way is told
            return None
        with self._lock:
            if out is None or version != self._version or end >= self.until:
                return None  # or another thread was faster, or has set a limit
            return self._commit(out, size, end)

    def _commit(self, out: Any, size: int, end: int) -> Any:
        """Counted and remembered first, so that whoever is interrupted here can put right what was done of it."""
        self.count += 1
        self._remembered.appendleft(
            (self.count, threading.get_ident(), self._reader.sequence, (end - size) % 2**64, end)
        )
        self._version += 1
        self._reader._step(size)
        self.mark(end)
        return out

    def mine(self, since: int) -> tuple[int, int, int] | None:
        """(sequence, offset, end) of what this thread took last, after `count` was `since`; or None. For a call that was
        interrupted when it had just taken something, and cannot return it any more."""
        for number, thread, *what in list(self._remembered):
            if number > since and thread == threading.get_ident():
                sequence, offset, end = what
                return sequence, offset, end
        return None


_all: weakref.WeakSet[Taker] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for taker in list(_all):
        taker.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
