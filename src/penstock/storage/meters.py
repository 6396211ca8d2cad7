"""What a log did in this process and nothing on the disk tells. Counted where something slow happens, never for an append."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Meters:
    """Counters of one open log."""

    __slots__ = ("corruptions", "roll_ns", "rolls", "sync_ns", "syncs")

    def __init__(self) -> None:
        self.syncs = self.sync_ns = 0
        self.rolls = self.roll_ns = 0
        self.corruptions = 0

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """One that fails does not count."""
        began_ns = time.monotonic_ns()
        yield
        took_ns = time.monotonic_ns() - began_ns
        self.sync_ns += took_ns  # threads may share it: nothing is called between the load and the store
        self.syncs += 1

    @contextmanager
    def rolling(self) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        yield
        took_ns = time.monotonic_ns() - began_ns
        self.roll_ns += took_ns
        self.rolls += 1
