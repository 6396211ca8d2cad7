"""How far behind streaming queries are: a listener that reads it from Spark's own progress reports.

Spark reports for each source where the last batch ended and what the log's end was; the difference is the lag. It needs nothing
but that report, so it works for every query of the session, whatever it writes to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What one batch of one query did, and what is left."""

    query: str  # its name, or its id if it has none
    batch: int
    rows: int
    rows_per_s: float
    lag: dict[str, dict[int, int]] = field(default_factory=dict)  # of each log, by partition: records not yet read

    @property
    def behind(self) -> int:
        """Records that are in the logs and not yet read."""
        return sum(n for by in self.lag.values() for n in by.values())


def lag_of(source: dict[str, Any]) -> dict[str, dict[int, int]]:
    """The lag that one source's part of a progress report tells of, by log and partition."""
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return {
        log: {int(p): max(0, int(end) - int(ends.get(log, {}).get(p, 0))) for p, end in by.items()}
        for log, by in latest.items()
    }


def _offsets(told: Any) -> dict[str, dict[str, int]]:
    """Offsets as our source has them; the report does not name sources, and other ones have others."""
    found = told if isinstance(told, dict) else {}
    logs = {log: by for log, by in found.items() if isinstance(by, dict)}
    return {log: {p: offset for p, offset in by.items() if p.isdecimal()} for log, by in logs.items()}


def progress_of(report: dict[str, Any]) -> Progress:
    """What a query's progress report says of its Penstock sources."""
    lag: dict[str, dict[int, int]] = {}
    for source in report.get("sources", []):
        for log, by in lag_of(source).items():
            lag.setdefault(log, {}).update(by)
    return Progress(
        query=report.get("name") or report["id"],
        batch=report["batchId"],
        rows=report.get("numInputRows", 0),
        rows_per_s=report.get("processedRowsPerSecond") or 0.0,
        lag=lag,
    )


class Listener(StreamingQueryListener):
    """Keeps the last progress of each query: `spark.streams.addListener(listener)`, then `listener.last`.

    `on_progress` is called with each, in a thread of Spark's.
    """

    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._last: dict[str, Progress] = {}

    @property
    def last(self) -> dict[str, Progress]:
        """By query."""
        with self._lock:
            return dict(self._last)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        made = progress_of(json.loads(event.progress.json))
        with self._lock:
            self._last[made.query] = made
        if self._on_progress is not None:
            self._on_progress(made)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came: the last progress holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last progress stays, for whoever asks afterwards."""
