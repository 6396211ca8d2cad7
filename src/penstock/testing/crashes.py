"""The crashes of a recorded run: at each moment a kill, which leaves everything, and each state that a power cut may leave.

Equal states are tried once, at the latest moment that has them: what was promised by then was promised by the earlier ones at most.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.testing.moment import Moment
from penstock.testing.state import Boot, State


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash: the moment, what it leaves, and whether the machine went down with it."""

    moment: Moment
    state: State
    boot: Boot

    def lay(self, top: Path) -> Path:
        """Write down what it leaves."""
        return self.state.lay(top, self.boot)

    def digest(self) -> bytes:
        """The same for crashes that leave the same, if the machine went down with both or with neither."""
        return self.state.digest(self.boot)

    def __str__(self) -> str:
        how = "a power cut" if self.boot == "new" else "a kill"
        return f"{how} at moment {self.moment.number} (after {self.moment.call})"


@dataclass(frozen=True, slots=True)
class Crashes:
    """Crashes to be tried; `complete` when there are no others."""

    all: tuple[Crash, ...]
    complete: bool


def kills(moments: Sequence[Moment]) -> Crashes:
    """A kill at each moment."""
    latest: dict[Hashable, Crash] = {}
    for moment in moments:
        state = moment.now()
        latest[_key(state)] = Crash(moment, state, "same")
    return Crashes(tuple(latest.values()), True)


def power_cuts(
    moments: Sequence[Moment],
    rng: random.Random,
    most: int,
    *,
    sample: int | None = None,
    names_in_order: bool = True,
    lengths_in_order: bool = True,
) -> Crashes:
    """Every state that a power cut may leave, if that takes a look at no more than `most`; else `sample` of them, or as many as
    that, by chance. What was synced and nothing else, and everything, are always among them. See `disk` for the two orders."""
    moments = [moment.with_orders(names=names_in_order, lengths=lengths_in_order) for moment in moments]
    told_apart = [moment.told_apart() for moment in moments]
    latest: dict[Hashable, Crash] = {}
    share = max(1, (sample or most) // len(moments))
    total = 0
    for moment in told_apart:
        total += moment.count(most)
        if total > most:
            break
    for moment, apart in zip(moments, told_apart, strict=True):
        states = [moment.least(), moment.now()]
        states += apart.all() if total <= most else (moment.some(rng, rng.choice((512, 4096))) for _ in range(share))
        for state in states:
            latest[_key(state)] = Crash(moment, state, "new")
    return Crashes(tuple(latest.values()), total <= most)


def _key(state: State) -> Hashable:
    return frozenset(state.items()), state.directories
