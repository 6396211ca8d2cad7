"""Which of the things that were handed out in order are done: all below `low`, and ranges beyond a gap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Ranges:
    """Half-open ranges that never overlap or touch, oldest first.

    >>> done = Ranges(10)
    >>> done.add(20, 30), done.low, done.beyond
    (False, 10, [(20, 30)])
    >>> done.add(10, 20), done.low, done.beyond
    (True, 30, [])
    """

    def __init__(self, low: int, beyond: Iterable[tuple[int, int]] = ()) -> None:
        self.low = low
        self.beyond: list[tuple[int, int]] = []
        for start, end in sorted(beyond):
            self.add(start, end)

    def copy(self) -> Ranges:
        out = Ranges(self.low)
        out.beyond = self.beyond.copy()
        return out

    def cut(self, end: int) -> None:
        """Nothing from `end` on is done."""
        self.low = min(self.low, end)
        self.beyond = [(start, min(stop, end)) for start, stop in self.beyond if start < end]

    def add(self, start: int, end: int) -> bool:
        """Note that start to end are done; whether `low` has moved."""
        start = max(start, self.low)
        if end <= start:
            return False
        if start == self.low and not self.beyond:  # nearly always
            self.low = end
            return True
        i = bisect_left(self.beyond, (start, start))
        if i and self.beyond[i - 1][1] >= start:
            i -= 1
        j = i
        while j < len(self.beyond) and self.beyond[j][0] <= end:
            start, end = min(start, self.beyond[j][0]), max(end, self.beyond[j][1])
            j += 1
        self.beyond[i:j] = [(start, end)]
        if self.beyond[0][0] > self.low:
            return False
        self.low = self.beyond.pop(0)[1]
        return True

    def remove(self, start: int, end: int) -> None:
        """Start to end are not done after all.

        >>> done = Ranges(30)
        >>> done.remove(10, 20), done.low, done.beyond
        (None, 10, [(20, 30)])
        """
        whole = [(0, self.low), *self.beyond]
        parts = [part for low, high in whole for part in ((low, min(high, start)), (max(low, end), high))]
        (_, self.low), *rest = parts
        self.beyond = [part for part in rest if part[0] < part[1]]

    def end_of(self, at: int) -> int | None:
        """Where the range ends that `at` is in; None when `at` is not done."""
        if at < self.low:
            return self.low
        i = bisect_left(self.beyond, (at + 1, 0)) - 1
        return self.beyond[i][1] if i >= 0 and at < self.beyond[i][1] else None
