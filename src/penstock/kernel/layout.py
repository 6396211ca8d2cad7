"""Word offsets of the control page, for the Python side. The native kernel has the same in shared.h; a test compares.

All words are little-endian u64 at multiples of 8; `docs/formats.md` ("control page") says what they mean.
"""

from typing import Final

PAGE_BYTES: Final = 4096

READY: Final = 48
POISON: Final = 56
LOCK: Final = 64
TURN: Final = 192
GENERATION: Final = 200
WAITERS: Final = 256
SLOTS: Final = (320, 384)
BASES: Final = (448, 456)
DURABLE: Final = 512  # a mark: segment, end, next, and the CRC-32 of these

# within a slot
SEGMENT: Final = 0
END: Final = 8
NEXT: Final = 16
DIRTY_END: Final = 24
DIRTY_NEXT: Final = 32
LAST_US: Final = 40
ALLOCATED: Final = 48
ENTRIES: Final = 56
