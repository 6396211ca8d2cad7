"""Where everything of one run lies: one directory, nothing outside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ALERTS: Final = "alerts"
DEAD_LETTERS: Final = "dead-letters"
BARS: Final = "bars"


@dataclass(frozen=True, slots=True)
class Places:
    """The paths in the work directory."""

    top: Path

    @property
    def orders(self) -> Path:
        """The queue that producers append to."""
        return self.top / "orders"

    @property
    def topics(self) -> Path:
        """Alerts and dead letters."""
        return self.top / "topics"

    @property
    def bars(self) -> Path:
        """Parquet, with Spark's list of the files that count."""
        return self.top / BARS

    def checkpoint(self, query: str) -> Path:
        """What a query goes on from."""
        return self.top / "checkpoints" / query

    @property
    def scratch(self) -> Path:
        """Spark's own files. A killed driver leaves them."""
        return self.top / "scratch"

    @property
    def driver_log(self) -> Path:
        """What drivers say on standard error."""
        return self.top / "driver.log"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.top / "report.html"
