"""The order of things: rounds over all peers, so that whatever else the machine does hits everybody alike."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic

from bench.ballast import Ballast
from bench.peers import PEERS
from bench.plan import Budget, Request
from bench.process import Worker, WorkerFailed
from bench.results import Results, Row
from bench.scenarios import SCENARIOS, Scenario, Values

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    scenarios: Sequence[str]
    peers: Sequence[str]
    sizes: Sequence[int]
    repeats: int
    budget: Budget
    directory: Path

    def rows_of(self, scenario: str) -> list[str]:
        """The peers that take part in a scenario."""
        return [name for name in self.peers if scenario in PEERS[name].supports]

    def planned(self) -> list[tuple[str, int, str]]:
        """All rows (scenario, size, peer), in the order in which they begin."""
        return [
            (scenario, size, peer)
            for size in self.sizes
            for scenario in self.scenarios
            for peer in self.rows_of(scenario)
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """What is being measured now, for the progress line. `left` is in seconds, none while nobody can know."""

    number: int
    total: int
    scenario: str
    size: int
    peer: str
    stage: str
    left: float | None


OnStep = Callable[[Step], None]


@contextmanager
def workspace(directory: Path) -> Iterator[Path]:
    """A directory for the logs of this run, removed afterwards with all that was made for it."""
    existed = directory.exists()
    run = directory / f"run-{os.getpid()}"
    run.mkdir(parents=True)
    try:
        yield run
    finally:
        shutil.rmtree(run, ignore_errors=True)
        if not existed:
            with suppress(OSError):  # somebody else uses it too
                directory.rmdir()


class Runner:
    """Runs scenarios and collects rows in `results`; `on_round` is called after every round over the peers."""

    def __init__(
        self,
        options: Options,
        run: Path,
        ballast: Ballast,
        results: Results,
        on_step: OnStep,
        on_round: Callable[[], None],
    ) -> None:
        self.options = options
        self.ballast = ballast
        self.run = run
        self.results = results
        self.on_step = on_step
        self.on_round = on_round
        self._numbers = count()
        self._done = 0
        self._total = len(options.planned()) * options.repeats
        self._measured = 0
        self._seconds = 0.0
        self._logs: dict[tuple[str, str], tuple[Path, int]] = {}

    def __call__(self) -> None:
        """Run everything. Logs are kept only as long as a later scenario of the same size reads them."""
        for size in self.options.sizes:
            for position, name in enumerate(self.options.scenarios):
                scenario = SCENARIOS[name]
                self._scenario(scenario, size)
                later = {SCENARIOS[other].log for other in self.options.scenarios[position + 1 :]}
                if scenario.log not in later:
                    self._drop_logs(scenario.log)

    def _scenario(self, scenario: Scenario, size: int) -> None:
        peers = self.options.rows_of(scenario.name)
        rows = {peer: self.results.row(scenario.name, size, peer) for peer in peers}
        for peer in peers:
            self._prepare(scenario, rows[peer])
        for turn in range(self.options.repeats):
            # Each round starts with another peer: being first after a pause is an advantage.
            shift = turn % len(peers) if peers else 0
            for peer in [*peers[shift:], *peers[:shift]]:
                row = rows[peer]
                if not row.error:
                    self._announce(row, f"round {turn + 1}/{self.options.repeats}")
                    start = monotonic()
                    self._measure(scenario, row)
                    self._seconds += monotonic() - start
                    self._measured += 1
                self._done += 1
            self.on_round()

    def _announce(self, row: Row, stage: str) -> None:
        # As long as those so far, on the average. Logs to be written later come on top; they are few.
        left = self._seconds / self._measured * (self._total - self._done) if self._measured else None
        self.on_step(Step(self._done + 1, self._total, row.scenario, row.size, row.peer, stage, left))

    def _ask(self, op: str, row: Row, directory: Path, messages: int = 0) -> Values:
        directory.parent.mkdir(parents=True, exist_ok=True)
        request = Request(op, row.peer, row.size, str(directory), self.options.budget, messages)
        with Worker(request, leader=True) as worker:
            return worker.result(TIMEOUT_SECONDS)

    def _place(self) -> Path:
        """A fresh place for one store, with room beside it for what a peer keeps there."""
        return self.run / str(next(self._numbers)) / "store"

    def _prepare(self, scenario: Scenario, row: Row) -> None:
        """Write the log a scenario reads, unless an earlier one did or every round needs its own."""
        key = (scenario.log, row.peer)
        if not scenario.log or key in self._logs or scenario.name in PEERS[row.peer].consumes:
            return
        self._announce(row, "writing the log")
        messages = self.options.budget.open_count(row.size) if scenario.log == "open" else 0
        directory = self._place()
        try:
            done = self._ask("fill", row, directory, messages)
        except WorkerFailed as error:
            row.error = str(error)
            shutil.rmtree(directory.parent, ignore_errors=True)
            return
        _to_disk(directory)
        self._logs[key] = (directory, int(done["messages"]))

    def _measure(self, scenario: Scenario, row: Row) -> None:
        kept = self._logs.get((scenario.log, row.peer))
        directory, messages = kept or (self._place(), 0)
        self.ballast.release()
        try:
            row.samples.append(self._ask(scenario.name, row, directory, messages))
        except WorkerFailed as error:
            row.error = str(error)
        if kept is None:
            # At once: what is deleted need not be written back while the next peer is being measured.
            shutil.rmtree(directory.parent, ignore_errors=True)
        self.ballast.take()

    def _drop_logs(self, log: str) -> None:
        for key in [key for key in self._logs if key[0] == log]:
            directory, _ = self._logs.pop(key)
            shutil.rmtree(directory.parent, ignore_errors=True)


def _to_disk(directory: Path) -> None:
    """Write a finished log back now, so that the kernel does not do it while something is being measured."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
