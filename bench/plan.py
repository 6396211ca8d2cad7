"""How much work a run does: the sizes of everything, decided once by the CLI and handed to every worker.

The counts live here and not in the scenarios, so that `--quick` is another `Budget` and not a second suite.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

MIB = 1 << 20
BATCH = 500
"""Messages per batch in every batch scenario: the same for everybody, so that the rows can be compared."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on one measurement. Time rules; the caps only keep the fastest rows from filling the disk."""

    seconds: float = 1.0
    warmup_seconds: float = 0.15
    fill_seconds: float = 2.0
    max_messages: int = 3_000_000
    max_bytes: int = 256 * MIB
    tail_messages: int = 2000
    tail_rate: float = 1000.0
    latency_rate: float = 200_000.0
    latency_seconds: float = 2.0
    open_records: int = 10_000_000
    open_max_bytes: int = 2048 * MIB
    recovery_bytes: int = 1024 * MIB

    def messages(self, size: int) -> int:
        """The most messages of `size` bytes that one measurement may write."""
        return max(BATCH, min(self.max_messages, self.max_bytes // size))

    def burst(self, size: int) -> int:
        """The most messages of `size` bytes in one burst."""
        return max(BATCH, self.messages(size) // 16)

    def ballast(self) -> int:
        """Memory to hold for a measurement: several times its files, as the kernel reuses only part of it."""
        return 5 * self.max_bytes

    def open_count(self, size: int) -> int:
        """How many records the log of the `open-clean` scenario holds."""
        return max(BATCH, min(self.open_records, self.open_max_bytes // size))

    def with_records(self, records: int) -> Self:
        """The same budget with another number of records to open (the CLI's `--open-records`)."""
        return replace(self, open_records=records)


FULL = Budget()
QUICK = Budget(
    seconds=0.12,
    warmup_seconds=0.03,
    fill_seconds=0.25,
    max_messages=700_000,
    max_bytes=64 * MIB,
    tail_messages=500,
    latency_seconds=0.5,
    open_records=1_000_000,
    recovery_bytes=256 * MIB,
)


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work for a worker process. Plain data, because it travels as one line of JSON."""

    op: str
    peer: str
    size: int
    directory: str
    budget: Budget
    messages: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(**{**data, "budget": Budget(**data["budget"])})
