"""Runs a workload of a use on recording storage, and has everything that a crash may leave of it judged."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

from penstock.testing.crashes import Crash, kills, kills_before_syncs, power_cuts
from penstock.testing.moment import Moment
from penstock.testing.recording import recorded
from tests.kit.limit import case
from tests.kit.uses import USES
from tests.kit.uses.base import Use
from tests.queue.crash import Yard

_NOW_NS = 1_790_000_000 * 10**9  # the same for all: what comes to the same bytes is looked at once


@dataclass
class Tried:
    """What was tried, and what came of it."""

    cases: int = 0
    records: int = 0
    workloads: int = 0
    whole: int = 0  # of so many of them every state there is was among the cases
    # Of the others: of how many all states with so many differences from all lost or all kept, and so many places together in every way.
    near: Counter[tuple[int, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tried) -> None:
        self.cases += other.cases
        self.records += other.records
        self.workloads += other.workloads
        self.whole += other.whole
        self.near += other.near
        self.failures += other.failures


Saw = Callable[[Tried], None]  # is told of cases as they are tried


def workloads(use: str, longest: int) -> Iterator[tuple[str, ...]]:
    """All of up to so many operations, the shorter ones first."""
    ops, at_end = USES[use].ops, USES[use].at_end
    for length in range(longest + 1):
        yield from itertools.product(ops, repeat=length)
        if length:
            yield from ((*before, last) for before in itertools.product(ops, repeat=length - 1) for last in at_end)


def replay(use: str, ops: Sequence[str], seed: int, **limits: int | None) -> str:
    """The command that tries a workload again, with the same crashes to choose from."""
    given = "".join(f" --{name.replace('_', '-')} {value}" for name, value in limits.items() if value is not None)
    return f"python -m tests.kit.campaign --use {use} --ops '{','.join(ops)}' --seed {seed}{given}"


def record(use: type[Use], ops: Sequence[str], top: Path, done: int | None = None) -> list[Moment]:
    """The moments of a workload, from before the log is made, or from when so many operations are done, to after it is closed."""
    made = use(top / "log")
    with mock.patch.object(time, "time_ns", lambda: _NOW_NS), recorded(top, made.now, stores=True) as recording:
        made.open()
        recording.moment("open")
        marks = [len(recording.moments) - 1]
        for op in ops:
            made.do(op)
            recording.moment(op)
            marks.append(len(recording.moments) - 1)
        made.close()
        recording.moment("close")
    return recording.moments if done is None else recording.moments[marks[done] :]


def try_workload(
    yard: Yard,
    use: str,
    ops: Sequence[str],
    seed: int,
    most: int,
    *,
    sample: int | None = None,
    most_near: int = 0,
    together: int = 0,
    most_kills: int | None = None,
    during_recovery: int = 0,
    most_cuts: int | None = None,
    done: int | None = None,
    seen: set[bytes] | None = None,
    only: int | None = None,
    to_first: bool = False,
    lengths_in_order: bool = True,
    again: str | None = None,
    saw: Saw = lambda tried: None,
) -> Tried:
    """Every crash of a workload, if there are no more than `most` states to look at; else `sample` of them, or as many, and those
    near to all lost and all kept, if they are no more than `most_near`, and so many that any few places are `together` in every way. Of kills `most_kills`, or all. Of
    `during_recovery` of them, and of as many power cuts, the recovery is cut too, at each of its moments, or `most_cuts` times in all. What comes before so many operations are `done` is left out, and what was `seen` before,
    or all but the one of number `only`; `to_first` ends with a failure. `saw` is told of each. `again` is the command for a failure, if
    it is not that of the campaign."""
    kind, rng = USES[use], random.Random(f"{seed} {use} {','.join(ops)}")
    limits = {
        "most": most,
        "near": most_near,
        "together": together,
        "sample": sample or most,
        "most_kills": most_kills,
        "cuts": during_recovery,
    }
    whole = again or replay(use, ops, seed, **limits, done=done)
    again = again or f"{whole} --case {{}}"
    with case(whole):
        moments = record(kind, ops, yard.keep(), done)
    found = power_cuts(
        moments,
        rng,
        most,
        sample=sample or most,
        most_near=most_near,
        together=together,
        lengths_in_order=lengths_in_order,
    )
    every_kill = kills(moments).all
    killed = rng.sample(every_kill, min(most_kills or len(every_kill), len(every_kill)))
    at = {crash.moment.number for crash in killed}
    unsynced = [crash for crash in kills_before_syncs(moments).all if crash.moment.number not in at]
    crashes = [*killed, *unsynced, *found.all]
    kinds = range(len(killed) + len(unsynced)), range(len(killed) + len(unsynced), len(crashes))
    # Which are cut is chosen of all: what was seen before depends on which workloads came before.
    cut = sorted(i for numbers in kinds for i in rng.sample(numbers, min(during_recovery, len(numbers))))
    numbered = [
        (i, crash) for i, crash in enumerate(crashes) if i < len(killed) or i in kinds[1]
    ]  # others leave nothing else
    if only is not None:
        if only not in range(len(crashes)):
            raise ValueError(f"case {only}: there are {len(crashes)}")
        numbered, cut = [(only, crashes[only])], [only] if only in cut else []
    if seen is not None:
        numbered = [(i, crash) for i, crash in numbered if is_new(crash, kind, seen)]
    near = Counter([(found.near, found.together)] if not found.complete else [])
    tried = Tried(workloads=1, whole=int(found.complete), near=near)
    for i, crash in numbered:
        judged = judge(yard, kind, crash, crash.moment.note, again.format(i))
        saw(judged)
        tried.add(judged)
        if tried.failures and to_first:
            return tried
    for i in cut:
        tried.add(cut_recovery(yard, kind, crashes[i], random.Random(f"{seed} {i}"), again.format(i), most_cuts))
        if tried.failures and to_first:
            break
    return tried


def is_new(crash: Crash, kind: type[Use], seen: set[bytes]) -> bool:
    """Whether neither this state was seen before, nor with what had been promised."""
    key = blake2b(repr(kind.promised(crash.moment.note)).encode(), key=crash.digest(), digest_size=16).digest()
    new = key not in seen
    seen.add(key)
    return new


def judge(yard: Yard, kind: type[Use], crash: Crash, note: Any, again: str, why: str = "") -> Tried:
    try:
        with case(again):
            records = kind.judge(crash.lay(yard.new()) / "log", note, crash.boot)
    except Exception as error:
        told = f"{kind.name}: {why}{crash}: {type(error).__name__}: {error}\nagain with: {again}"
        return Tried(1, failures=[told])
    return Tried(1, records)


def cut_recovery(
    yard: Yard, kind: type[Use], crash: Crash, rng: random.Random, again: str, most: int | None = None
) -> Tried:
    """The next open dies too, or the power goes (again): what is left then must come to the same. Of what a kill left, a power cut takes
    what nobody has synced, which is nothing once that process has closed it. At each of its moments, or `most` times."""
    tried, told = Tried(), kind.going_on(crash.moment.note, crash.boot)
    top, killed = crash.lay(yard.keep()), crash.boot == "same"
    try:
        left_by = crash.moment if killed else None
        with case(again), recorded(top, lambda: told, stores=True, left_by=left_by) as recording:
            kind.recover(top / "log")
            told = kind.settled(told) if killed else told
            recording.moment("close")
    except Exception as error:
        return Tried(1, failures=[f"{kind.name}: {crash}: {type(error).__name__}: {error}\nagain with: {again}"])
    cuts = [*kills(recording.moments).all, *power_cuts(recording.moments, rng, len(recording.moments)).all]
    cuts += [Crash(moment, state, "new") for moment in recording.moments for state in moment.of_one_directory()]
    seen = set[bytes]()
    cuts = [cut for cut in cuts if is_new(cut, kind, seen)]
    for cut in rng.sample(cuts, min(len(cuts), most or len(cuts))):
        both = Crash(cut.moment, cut.state, "same" if killed and cut.boot == "same" else "new")
        tried.add(judge(yard, kind, both, cut.moment.note, again, f"{crash}, and while that was opened "))
    return tried
