"""What is seen of a run while it goes on: kept for the live line, the rates and the report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.demo.places import ALERTS, BARS, DEAD_LETTERS

QUERIES = (BARS, ALERTS, DEAD_LETTERS)


class Batch(NamedTuple):
    """A micro-batch that a driver has told of."""

    at_s: float
    query: str
    rows: int
    took_s: float
    offset: int


@dataclass(slots=True)
class Watch:
    """Times are seconds since the run began."""

    began: float = field(default_factory=time.monotonic)
    appends: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])  # when, and how many by then
    append_s: float = 0.0  # spent in appending, by all producers together
    batches: list[Batch] = field(default_factory=list)
    killed_s: float | None = None
    killed_at: dict[str, int] = field(default_factory=dict)  # how far each query was
    back_s: float | None = None  # when the driver that was started again was ready
    ready: bool = False  # whether there was ever a driver that was
    restarts: int = 0  # of drivers that ended unasked
    ended_s: float = 0.0

    def now_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def appended(self) -> int:
        return self.appends[-1][1]

    def saw_append(self, told: Mapping[str, Any]) -> None:
        self.appends.append((self.now_s(), self.appended + told["appended"]))
        self.append_s += told["took_s"]

    def saw_batch(self, told: Mapping[str, Any]) -> None:
        self.batches.append(Batch(self.now_s(), told["query"], told["rows"], told["took_s"], told["offset"]))

    def offsets(self) -> dict[str, int]:
        """How far each query is in the queue."""
        return {query: max((b.offset for b in self.batches if b.query == query), default=0) for query in QUERIES}

    def saw_kill(self) -> None:
        self.killed_s, self.killed_at = self.now_s(), self.offsets()

    def saw_ready(self) -> None:
        self.ready = True
        if self.killed_s is not None and self.back_s is None:
            self.back_s = self.now_s()

    # ---- rates, in records a second ----

    def append_rate(self) -> float:
        """Of appending alone."""
        return self.appended / self.append_s if self.append_s else 0.0

    def query_rate(self, query: str) -> float:
        """Of a query while its micro-batches ran, beside the others; the first of a driver is slow, until Java is warm."""
        mine = [b for b in self.batches if b.query == query]
        took_s = sum(b.took_s for b in mine)
        return sum(b.rows for b in mine) / took_s if took_s else 0.0

    def best_rate(self, query: str) -> float:
        """Of its fastest micro-batch."""
        return max((b.rows / b.took_s for b in self.batches if b.query == query and b.took_s), default=0.0)

    def overall_rate(self) -> float:
        """From the first append to the last micro-batch, with the kill in between."""
        first = self.appends[1][0] if len(self.appends) > 1 else 0.0
        last = max((b.at_s for b in self.batches), default=first)
        return self.appended / (last - first) if last > first else 0.0
