"""Keeps memory at hand on machines that take it away.

Many virtual machines back memory lazily and give freed memory back to the host. A page of a fresh file then
costs several microseconds the first time it is touched, ten times more than on other machines, and whether a
measurement pays for that depends on what was deleted just before it. So this process holds touched memory,
lets go of it when a measurement begins, and takes it again when the files of that measurement are gone:
everybody finds the same.
"""

from __future__ import annotations

import mmap
import os
from time import perf_counter

MIB = 1 << 20
PROBE_BYTES = 64 * MIB
LAZY_US = 0.6
"""Microseconds per fresh page above which memory counts as backed lazily; elsewhere it is 0.1 to 0.3."""
POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which the mmap module does not name."""


def _touch(memory: mmap.mmap) -> float:
    """Make all pages present; returns the microseconds per page."""
    start = perf_counter()
    try:
        memory.madvise(POPULATE_WRITE)
    except OSError:  # before Linux 5.14
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset] = 1
    return (perf_counter() - start) * 1e6 / (len(memory) // mmap.PAGESIZE)


def _private(size: int) -> mmap.mmap:
    """Memory of this process alone: of shared memory, MADV_DONTNEED would free nothing."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def fresh_page_us() -> float:
    """What a fresh page costs on this machine now."""
    with _private(PROBE_BYTES) as memory:
        return _touch(memory)


class Ballast:
    """Memory that is held between measurements; none if the machine does not need that."""

    def __init__(self, wanted: int, page_us: float) -> None:
        free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
        size = min(wanted, free // 4) // mmap.PAGESIZE * mmap.PAGESIZE
        self.memory = _private(size) if page_us > LAZY_US and size else None
        self.take()

    def release(self) -> None:
        """Let go, just before a measurement."""
        if self.memory is not None:
            self.memory.madvise(mmap.MADV_DONTNEED)

    def take(self) -> None:
        """Take hold again, when the files of a measurement are deleted."""
        if self.memory is not None:
            _touch(self.memory)
