"""The crashes of a recorded run: at each moment a kill, which leaves everything, and each state that a power cut may leave.

Equal states are tried once, at the latest moment that has them: what was promised by then was promised by the earlier ones at most.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.testing.moment import Moment
from penstock.testing.state import Boot, State

_BARREN: Final = 20  # so many draws of each moment, and none gave another state: there are hardly any left


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
    """Crashes to be tried; `complete` when there are no others. `near` says how many files and directories may differ from all
    lost, or from all kept, in states that are all among them, and `together` how many sectors, lengths and changes of names are in some of
    them in each way that they can be."""

    all: tuple[Crash, ...]
    complete: bool
    near: int = 0
    together: int = 0


class _Found:
    """States, each at the latest moment that has it."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._latest: dict[Hashable, Crash] = {}

    def add(self, moment: Moment, states: Iterable[State]) -> None:
        for state in states:
            key = frozenset(state.items()), state.directories
            known = self._latest.get(key)
            if known is None or known.moment.number < moment.number:
                self._latest[key] = Crash(moment, state, self._boot)

    def draw(self, moments: Sequence[Moment], rng: random.Random, most: int) -> None:
        """By chance, of each moment in turn: so many more, or until that gives nothing new any more."""
        wanted, barren = len(self._latest) + most, 0
        for moment in itertools.cycle(moments):
            if len(self._latest) >= wanted or barren >= _BARREN * len(moments):
                return
            before = len(self._latest)
            self.add(moment, [_drawn(moment, rng)])
            barren = 0 if len(self._latest) > before else barren + 1

    def all(self) -> tuple[Crash, ...]:
        return tuple(self._latest.values())


def _drawn(moment: Moment, rng: random.Random) -> State:
    return moment.some(rng, rng.choice((512, 4096)))


def kills(moments: Sequence[Moment]) -> Crashes:
    """A kill at each moment."""
    found = _Found("same")
    for moment in moments:
        found.add(moment, [moment.now()])
    return Crashes(found.all(), True)


def kills_before_syncs(moments: Sequence[Moment]) -> Crashes:
    """A kill right before each sync. It leaves what one after it does; but if the power fails when the log is opened again, that takes more."""
    return Crashes(tuple(Crash(moment, moment.now(), "same") for moment in _last(moments)), False)


def power_cuts(
    moments: Sequence[Moment],
    rng: random.Random,
    most: int,
    *,
    sample: int | None = None,
    most_near: int = 0,
    together: int = 0,
    names_in_order: bool = True,
    lengths_in_order: bool = True,
) -> Crashes:
    """Every state that a power cut may leave, if that takes a look at no more than `most`. Else those in which so few files and
    directories differ from all lost, or all kept, that there are no more than `most_near` of them; those of `Moment.covering` with so many
    `together`, if that is not 0; and `sample` draws by chance, or draws until `most` more are found or nothing new is. What was synced and nothing else, and everything, are always
    among them. See `moment` and `versions` for the two orders."""
    moments = [moment.with_orders(names=names_in_order, lengths=lengths_in_order) for moment in moments]
    last = [moment.told_apart() for moment in _last(moments)]
    total = 0
    for moment in last:
        total += moment.count(most)
        if total > most:
            break
    near = 0
    found = _Found("new")
    for moment in moments:
        found.add(moment, [moment.least(), moment.now()])
    if total <= most:
        for moment in last:
            found.add(moment, moment.all())
    else:
        while sum(moment.count_near(near + 1) for moment in last) <= min(most, most_near):
            near += 1
        for moment in last if near else ():
            found.add(moment, moment.near(near))
        for moment in last if together else ():
            found.add(moment, moment.covering(together, rng))
        if sample is None:
            found.draw(moments, rng, most)
        else:
            for moment in moments:
                found.add(moment, (_drawn(moment, rng) for _ in range(max(1, sample // len(moments)))))
    return Crashes(found.all(), total <= most, near, together if total > most else 0)


def _last(moments: Sequence[Moment]) -> list[Moment]:
    """Those without which some state would be missing: between two syncs a later one has all that an earlier one has."""
    return [one for one, then in itertools.zip_longest(moments, moments[1:]) if then is None or not then.includes(one)]
