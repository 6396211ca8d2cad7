"""Runs a workload of a use on recording storage, and has everything that a crash may leave of it judged."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.testing.crashes import Crash, kills, power_cuts
from penstock.testing.disk import Boot, Moment
from penstock.testing.recording import recorded
from tests.kit.uses import USES, Use
from tests.queue.crash import Yard


@dataclass
class Tried:
    """What was tried, and what came of it."""

    cases: int = 0
    records: int = 0
    complete: bool = True  # every state there is was among them
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tried) -> None:
        self.cases += other.cases
        self.records += other.records
        self.complete &= other.complete
        self.failures += other.failures


def workloads(use: str, longest: int) -> Iterator[tuple[str, ...]]:
    """All of up to so many operations. A shorter one is the beginning of a longer one, so the longest are enough."""
    yield from itertools.product(USES[use].ops, repeat=longest)


def replay(use: str, ops: Sequence[str], seed: int, most: int) -> str:
    """The command that tries a workload again."""
    return f"python -m tests.kit.campaign --use {use} --ops {','.join(ops)} --seed {seed} --most {most}"


def record(use: type[Use], ops: Sequence[str], top: Path) -> list[Moment]:
    """The moments of a workload, from before the log is made to after it is closed."""
    made = use(top / "log")
    with recorded(top, made.now, stores=True) as recording:
        made.open()
        recording.moment("open")
        for op in ops:
            made.do(op)
            recording.moment(op)
        made.close()
        recording.moment("close")
    return recording.moments


def try_workload(
    yard: Yard,
    use: str,
    ops: Sequence[str],
    seed: int,
    most: int,
    *,
    during_recovery: int = 0,
    once_open: bool = False,
    to_first: bool = False,
    lengths_in_order: bool = True,
) -> Tried:
    """Every crash of a workload, if there are no more than `most` states to look at; else so many. Of `during_recovery` of them the
    recovery is cut too, at each of its moments. `once_open` leaves out the making of the log; `to_first` ends with a failure."""
    kind, rng = USES[use], random.Random(f"{seed} {use} {ops}")
    moments = record(kind, ops, yard.keep())
    if once_open:
        moments = moments[next(i for i, m in enumerate(moments) if m.call == "open") :]
    found = power_cuts(moments, rng, most, lengths_in_order=lengths_in_order)
    crashes = [*kills(moments).all, *found.all]
    tried = Tried(complete=found.complete)
    for crash in crashes:
        tried.add(judge(yard, kind, crash, crash.moment.note, replay(use, ops, seed, most)))
        if tried.failures and to_first:
            return tried
    for crash in rng.sample(crashes, min(during_recovery, len(crashes))):
        tried.add(cut_recovery(yard, kind, crash, rng, replay(use, ops, seed, most)))
    return tried


def judge(yard: Yard, kind: type[Use], crash: Crash, note: Any, again: str, why: str = "") -> Tried:
    try:
        records = kind.judge(crash.lay(yard.new()) / "log", note, crash.boot)
    except Exception as error:
        told = f"{kind.name}: {why}{crash}: {type(error).__name__}: {error}\nagain with: {again}"
        return Tried(1, failures=[told])
    return Tried(1, records)


def cut_recovery(yard: Yard, kind: type[Use], crash: Crash, rng: random.Random, again: str) -> Tried:
    """The next open dies too, or the power goes again: what is left then must come to the same."""
    tried = Tried()
    top = crash.lay(yard.keep())
    try:
        with recorded(top, stores=True) as recording:
            kind.recover(top / "log")
    except Exception as error:
        return Tried(1, failures=[f"{kind.name}: {crash}: {type(error).__name__}: {error}\nagain with: {again}"])
    cuts = power_cuts(recording.moments, rng, len(recording.moments))
    for cut in [*kills(recording.moments).all, *cuts.all]:
        boot: Boot = "same" if cut.boot == crash.boot == "same" else "new"
        both = Crash(cut.moment, cut.state, boot)
        tried.add(judge(yard, kind, both, crash.moment.note, again, f"{crash}, and while that was opened "))
    return tried
