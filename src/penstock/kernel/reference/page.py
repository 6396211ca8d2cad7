"""The page that all processes share: its words, its lock, its bell."""

from __future__ import annotations

import errno
import math
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.kernel import layout
from penstock.kernel.reference.buffers import view_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

_TURN, _WAITERS = layout.TURN // 8, layout.WAITERS // 8
# Who waits sleeps for an eighth of the time in which nothing has come, but
_NAP_LEAST_S: Final = 0.00005  # no shorter than this,
_NAP_OPEN_S: Final = 0.002  # nor longer than this where the log is open for writing,
_NAP_MOST_S: Final = 0.05  # nor than this where it is only read


class FileLock(Protocol):
    """A lock between processes and threads; the system lets it go when its owner dies."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


def slot_word(turn: int, field: int) -> int:
    """Number of a word of the slot that `turn` makes the active one."""
    return (layout.SLOTS[turn & 1] + field) // 8


class ControlPage:
    """The words every process shares, each loaded and stored whole; `file_lock` takes turns on them.

    `words` are u64s in the byte order of this machine: no other ever sees them. `with page` holds the lock; `on_locked()`
    is called inside, and what it returns is the block's target.
    """

    def __init__(self, page: Buffer, file_lock: FileLock | None = None, writable: bool = True) -> None:
        self.words = view_within(page, 0, layout.PAGE_BYTES, writable)[: layout.PAGE_BYTES].cast("Q")
        self.writable = writable
        self.on_locked: Callable[[], Any] | None = None
        self._file_lock = file_lock
        self._still, self._still_s = (-1, -1), 0.0  # where those who wait have last seen the log, and since when

    def load(self, offset: int) -> int:
        return self.words[self._word(offset)]

    def store(self, offset: int, value: int) -> None:
        self.must_write()
        self.words[self._word(offset)] = value

    def _word(self, offset: int) -> int:
        if offset % 8 or not 0 <= offset < layout.PAGE_BYTES:
            raise ValueError(f"no word at {offset}")
        return offset // 8

    def must_write(self) -> None:
        if not self.writable:
            raise ValueError("the control page is mapped read-only")

    @property
    def file_lock(self) -> FileLock:
        self.must_write()
        if self._file_lock is None:
            raise OSError(errno.ENOTSUP, "the reference kernel has no robust mutex; it needs a file lock")
        return self._file_lock

    def init_lock(self) -> None:
        """A file lock needs no setting up."""
        _ = self.file_lock

    def lock(self) -> None:
        """Take the lock. What a dead owner left half done shows as dirty_end != end, where appends look."""
        self.file_lock.acquire()

    def unlock(self) -> None:
        self.file_lock.release()
        self.ring_if_waited_for()

    def __enter__(self) -> Any:
        self.lock()
        try:
            return self.on_locked() if self.on_locked is not None else None
        except BaseException:
            self.unlock()
            raise

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def active(self) -> tuple[int, int, int, int, int]:
        """(turn, segment, base, end, next) of the segment being written; the turn held meanwhile."""
        words = self.words
        while True:
            turn = words[_TURN]
            end, next_ = words[slot_word(turn, layout.END)], words[slot_word(turn, layout.NEXT)]
            segment, base = words[slot_word(turn, layout.SEGMENT)], words[layout.BASES[turn & 1] // 8]
            if words[_TURN] == turn:
                return turn, segment, base, end, next_

    def nap(self, place: tuple[int, int]) -> float:
        """How long one who has found the log at `place` is to sleep: the longer, the longer it has been there. Whoever waits in this
        process counts, so one who waits a second at a time does not begin anew with each."""
        now = time.monotonic()
        if place != self._still:
            self._still, self._still_s = place, now
        return max(_NAP_LEAST_S, min((now - self._still_s) / 8, _NAP_OPEN_S if self.writable else _NAP_MOST_S))

    def wait(self, segment: int, end: int, timeout_s: float) -> bool:
        """Sleep until the log is no longer at (segment, end), or the bell is rung: True, look again.

        False: `timeout_s` passed; a negative one is for ever.
        """
        until = time.monotonic() + timeout_s
        bell = self.words[_WAITERS] >> 32
        while True:
            _, segment_now, _, end_now, _ = self.active()
            if (segment_now, end_now) != (segment, end) or self.words[_WAITERS] >> 32 != bell:
                return True
            left = until - time.monotonic() if timeout_s >= 0 else math.inf
            if left <= 0:
                return False
            time.sleep(min(self.nap((segment, end)), left))

    def ring(self) -> None:
        """Wake every sleeping reader, to look again."""
        if self.writable:  # `waiters`, the low half of the word, becomes 0; the bell, the high half, counts on
            self.words[_WAITERS] = ((self.words[_WAITERS] >> 32) + 1 & 0xFFFFFFFF) << 32

    def ring_if_waited_for(self) -> None:
        if self.words[_WAITERS] & 0xFFFFFFFF:
            self.ring()


def wait_any(pages: Sequence[ControlPage], places: Sequence[tuple[int, int]], timeout_s: float | None) -> bool:
    """Sleep until any of these logs is no longer at its place (segment, end), or its bell is rung: True, look again.

    False: `timeout_s` passed. None is for ever.
    """
    held, at = tuple(pages), [(segment, end) for segment, end in places]  # our own: a list may change while we sleep
    if len(held) != len(at):
        raise ValueError(f"{len(held)} pages, but {len(at)} places")
    for page in held:
        if not isinstance(page, ControlPage):
            raise TypeError(f"a ControlPage is needed, not {type(page).__name__}")
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    bells = [page.words[_WAITERS] >> 32 for page in held]
    while True:
        for page, bell, place in zip(held, bells, at, strict=True):
            _, segment, _, end, _ = page.active()
            if (segment, end) != place or page.words[_WAITERS] >> 32 != bell:
                return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        naps = (page.nap(place) for page, place in zip(held, at, strict=True))
        time.sleep(min(left, _NAP_MOST_S, *naps))
