"""What both kernels share: how a frame is described, and what a walk over frames reports."""

from dataclasses import dataclass
from typing import Final

# Why a walk over frames stopped.
LIMIT: Final = 0  # as many as were asked for
END: Final = 1  # exactly at the end of what may be read
ZERO: Final = 2  # a zero head, where that marks the end of the data
SHORT: Final = 3  # the frame would pass the end
CHECKSUM: Final = 4  # the checksum does not match

# Why an append could not go on by itself (`on_slow`).
REMAP: Final = 1  # another process rolled: stand on the new segment
ROLL: Final = 2  # this segment is full, too old or has its records
SPACE: Final = 3  # no allocated blocks left ahead
POISONED: Final = 4  # a sync failed
DIRTY: Final = 5  # an append was cut short: its process died


STATE_KIND: Final = 1  # records of this kind say in which state a file begins
BLOCK_BYTES: Final = 512  # no file system has smaller blocks; after a power cut one may be zeros that was never written


@dataclass(slots=True)
class Scan:
    """What a walk over frames found: how many, where it stopped and why, and the positions it was asked for."""

    count: int
    position: int
    reason: int
    points: list[int]


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """How one record lies in a file: `head | [sum] | payload | [sum]`, the head a u32 of `length << shift | kind`.

    >>> FrameSpec(sum_bytes=8, sum_covers_head=True, zero_ends=True).overhead
    12
    """

    big_endian: bool = False
    shift: int = 0
    sum_bytes: int = 0
    sum_first: bool = False
    sum_covers_head: bool = False
    zero_ends: bool = False
    state_bytes: int = 0  # if any: of a payload of kind 1 whose head says that it has none

    def __post_init__(self) -> None:
        if self.sum_bytes not in (0, 4, 8):
            raise ValueError(f"sum_bytes must be 0 (none), 4 (CRC-32) or 8 (CRC-64), not {self.sum_bytes}")
        if not 0 <= self.shift <= 16:
            raise ValueError(f"shift must be 0 to 16, not {self.shift}")
        if not 0 <= self.state_bytes <= 0xFFFF:
            raise ValueError(f"state_bytes must be 0 to 65535, not {self.state_bytes}")
        if self.state_bytes and not self.shift:
            raise ValueError("state_bytes is for a kind, and without a shift there are none")

    @property
    def overhead(self) -> int:
        """Bytes a frame takes beside its payload."""
        return 4 + self.sum_bytes

    @property
    def max_payload(self) -> int:
        """The longest payload whose length the head can say."""
        return 0xFFFFFFFF >> self.shift
