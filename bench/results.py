"""The figures of one run, and questions to them that the table, the plot and the held figures share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench import units
from bench.peers import PEERS
from bench.scenarios import SCENARIOS, Scenario, Values


@dataclass(slots=True)
class Row:
    """One peer in one scenario at one size: a sample per round, or the reason why there is none."""

    scenario: str
    size: int
    peer: str
    samples: list[Values] = field(default_factory=list)
    error: str = ""

    @property
    def label(self) -> str:
        """What the table calls it."""
        return PEERS[self.peer].label or self.peer

    @property
    def group(self) -> str:
        """ "penstock", "peer" or "limit"."""
        return PEERS[self.peer].group

    @property
    def note(self) -> str:
        """What the reader must know about this row."""
        return PEERS[self.peer].notes.get(self.scenario, "")

    def value(self, key: str) -> float | None:
        """The median over the rounds; none if the row was not measured."""
        if self.error or not self.samples:
            return None
        return median(sample[key] for sample in self.samples)

    def headline(self) -> float | None:
        """The value rows of this scenario are compared by."""
        return self.value(SCENARIOS[self.scenario].headline)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: medians first, then every round for those who distrust medians."""
        keys = self.samples[0].keys() if self.samples and not self.error else ()
        medians = {key: self.value(key) for key in keys}
        if rate := medians.get("rate"):
            medians["ns_per_message"] = 1e9 / rate
        return {
            "scenario": self.scenario,
            "size": self.size,
            "peer": self.peer,
            "label": self.label,
            "group": self.group,
            "note": self.note,
            "error": self.error or None,
            "median": medians,
            "rounds": self.samples,
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """A scenario at one size that a run did not finish: how many rounds all its rows have, and how many they should."""

    scenario: str
    size: int
    rounds: int
    planned: int

    def __str__(self) -> str:
        name = f"{self.scenario}, {units.size(self.size)}"
        return f"{name} (has {self.rounds} of {self.planned} rounds)" if self.rounds else name

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Results:
    """All rows of a run."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str], Row] = {}

    def row(self, scenario: str, size: int, peer: str) -> Row:
        """The row, made if it is not there."""
        return self.rows.setdefault((scenario, size, peer), Row(scenario, size, peer))

    def value(self, scenario: str, size: int, peer: str, key: str) -> float | None:
        """The median of one value, or none if it was not measured."""
        row = self.rows.get((scenario, size, peer))
        return None if row is None else row.value(key)

    def known(self) -> list[Row]:
        """The rows that have something to show, be it the reason why there is no figure."""
        return [row for row in self.rows.values() if row.samples or row.error]

    def missing(self, planned: Iterable[tuple[str, int, str]], rounds: int) -> list[Gap]:
        """What is not there of the `planned` rows (scenario, size, peer) of `rounds` each."""
        least: dict[tuple[str, int], int] = {}
        for scenario, size, peer in planned:
            row = self.rows.get((scenario, size, peer))
            has = 0 if row is None else rounds if row.error else len(row.samples)
            least[scenario, size] = min(has, least.get((scenario, size), rounds))
        return [Gap(scenario, size, has, rounds) for (scenario, size), has in least.items() if has < rounds]

    def sizes(self) -> list[int]:
        """The sizes measured, smallest first."""
        return sorted({size for _, size, _ in self.rows})

    def of(self, scenario: str, size: int) -> list[Row]:
        """The rows of one table, best first, the unmeasured ones last."""
        rows = [row for row in self.rows.values() if (row.scenario, row.size) == (scenario, size)]
        sign = -1 if SCENARIOS[scenario].higher_is_better else 1

        def order(row: Row) -> tuple[int, float]:
            value = row.headline()
            return (1, 0.0) if value is None else (0, sign * value)

        return sorted(rows, key=order)

    def best_peer(self, scenario: str, size: int) -> Row | None:
        """The best row that is neither Penstock nor a limit; none before all of them had their turn."""
        rows = [row for row in self.of(scenario, size) if row.group == "peer"]
        if not all(row.samples or row.error for row in rows):
            return None
        return next((row for row in rows if row.headline() is not None), None)


def times_as_good(scenario: Scenario, value: float | None, other: float | None) -> float | None:
    """How many times as fast as `other`: above 1 is faster, whether the values are rates or times."""
    if not value or not other:
        return None
    return value / other if scenario.higher_is_better else other / value


def present(scenarios: Iterable[str], results: Results) -> list[tuple[Scenario, int]]:
    """The (scenario, size) pairs that have something to show, in the order of the scenarios."""
    known = {(row.scenario, row.size) for row in results.known()}
    return [(SCENARIOS[name], size) for name in scenarios for size in results.sizes() if (name, size) in known]
