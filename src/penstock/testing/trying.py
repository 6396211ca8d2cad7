"""Tries what a user's own code comes to after each crash and each fault: run, crash, run again, check.

Everything follows from a seed, so a failure can be had again, alone: its message says how.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.testing.crashes import kills, power_cuts
from penstock.testing.failing import KINDS, Fault, failing
from penstock.testing.recording import recorded
from penstock.testing.standing_in import standing_in

Act = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """The seed, at most how many cases of a kind, which one alone, if only that is to be tried, and which call of its test this is."""

    seed: int
    most: int
    only: int | None = None
    call: int = 1

    def wants(self, number: int) -> bool:
        return self.only is None or self.only == number

    def name(self, number: int) -> str:
        """What a case is asked for by. Where there is one call, its number is left out."""
        return f"{self.call}:{number}" if self.call > 1 else str(number)

    def check(self, chosen: Collection[int]) -> None:
        """A case that there is not would pass, having tried nothing."""
        if self.only is not None and self.only not in chosen:
            raise ValueError(
                f"case {self.only} is not among the {len(chosen)} of seed {self.seed}: give the seed it was told with"
            )


class Found(AssertionError):
    """After a crash or a fault it did not come out right."""


def try_crashes(run: Act, check: Act, prepare: Act, plan: Plan, again: str) -> int:
    """Record `run` on what `prepare` has made, both given a directory; then, for each crash: lay out what it leaves, run again, and
    check. How many crashes were tried. `again` is the command that tries the same test."""
    rng = random.Random(plan.seed)
    with _room() as top:
        _prepare(prepare, top)
        with recorded(top) as recording:
            run(top)
        crashes = [*kills(recording.moments).all, *power_cuts(recording.moments, rng, plan.most).all]
        chosen = set(rng.sample(range(len(crashes)), min(plan.most, len(crashes))))
        plan.check(chosen)
        tried = 0
        for number, crash in enumerate(crashes):
            if plan.wants(number) and number in chosen:
                with _told(str(crash), plan, number, again), _room() as left:
                    crash.lay(left)
                    run(left)
                    check(left)
                tried += 1
    return tried


def try_faults(run: Act, check: Act, prepare: Act, plan: Plan, again: str) -> int:
    """The same for calls that fail: `run` may raise an error of Penstock or of the system; run again on storage that works it must
    come out right."""
    rng = random.Random(plan.seed)
    faults: list[Fault] = []
    for kind in KINDS:
        with _room() as top:
            _prepare(prepare, top)
            with failing(Fault(kind, 0)) as counted:
                run(top)
        faults += [Fault(kind, nth, good) for nth in range(1, counted.calls + 1) for good in (False, True)]
    chosen = set(rng.sample(range(len(faults)), min(plan.most, len(faults))))
    plan.check(chosen)
    tried = 0
    for number, fault in enumerate(faults):
        if plan.wants(number) and number in chosen:
            with _told(str(fault), plan, number, again), _room() as top:
                _prepare(prepare, top)
                with failing(fault):
                    _may_fail(run, top)
                run(top)
                check(top)
            tried += 1
    return tried


def _prepare(prepare: Act, top: Path) -> None:
    """So that it makes the same each time, too."""
    with standing_in((), lambda name, real: real):
        prepare(top)


def _may_fail(run: Act, top: Path) -> None:
    try:
        run(top)
    except (PenstockError, OSError):
        return


@contextmanager
def _told(what: str, plan: Plan, number: int, again: str) -> Iterator[None]:
    """Also of what is no `Exception`: a test that calls `pytest.fail`, one that was given no more time, code that exits."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Found(
            f"{what}: {type(error).__name__}: {error}\n"
            f"seed {plan.seed}; again with: {again} --penstock-seed {plan.seed} --penstock-case {plan.name(number)}"
        ) from error


@contextmanager
def _room() -> Iterator[Path]:
    """A directory of its own, in memory where that can be: no real power is cut."""
    ram = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(prefix="penstock-", dir=ram if ram.is_dir() else None))
    try:
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)
