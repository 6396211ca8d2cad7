"""States in which any few places are together in every way that they can be."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from penstock.testing.covering import covering
from penstock.testing.crashes import power_cuts
from penstock.testing.versions import SECTOR, Contents, Versions
from tests.kit.driver import record
from tests.kit.test_moments import FEW, key, states
from tests.kit.uses import USES
from tests.queue.crash import Yard


@dataclass(frozen=True)
class Sum:
    """Places whose options come to no more than a sum."""

    options: Sequence[int]
    most: int

    def every(self) -> list[tuple[int, ...]]:
        choices = itertools.product(*(range(count) for count in self.options))
        return [some for some in choices if sum(some) <= self.most]

    def completed(self, chosen: Mapping[int, int], rng: random.Random) -> tuple[int, ...] | None:
        may = [some for some in self.every() if all(some[place] == option for place, option in chosen.items())]
        return rng.choice(may) if may else None


def combinations(made: Sequence[Sequence[int]], together: int) -> set[object]:
    """All that are together there."""
    places = [(part, place, option) for part, some in enumerate(made) for place, option in enumerate(some)]
    return set(itertools.combinations(places, together))


@pytest.mark.parametrize("together", [1, 2, 3])
def test_all_that_can_be_together_are(together: int) -> None:
    parts = [Sum([3], 9), Sum([2, 3, 4], 4), Sum([1], 9), Sum([2, 2], 1), Sum([5], 9)]
    every = set().union(*(combinations(some, together) for some in itertools.product(*(p.every() for p in parts))))
    found = list(covering(parts, together, random.Random(1)))
    assert set().union(*(combinations(made, together) for made in found)) == every
    assert len(found) < math.prod(len(part.every()) for part in parts) / 3


def test_with_less_places_than_that_it_is_every_choice() -> None:
    assert len(list(covering([Sum([3], 9), Sum([1], 9), Sum([4], 9)], 3, random.Random(1)))) == 12
    assert list(covering([Sum([1], 9)], 3, random.Random(1))) == [[(0,)]]
    assert list(covering([], 3, random.Random(1))) == [[]]


def test_they_follow_from_the_seed() -> None:
    parts = [Sum([4], 9)] * 5
    one, same, other = (list(covering(parts, 2, random.Random(seed))) for seed in (1, 1, 2))
    assert one == same != other


def test_a_file_is_chosen_by_its_places() -> None:
    """What may be with one length may not be with another, and what no length may be with, never."""
    a, b, c = (letter * SECTOR for letter in (b"A", b"B", b"C"))
    versions = Versions.whole(a).then(b).then(b + c).then(a).then(a + a + b)
    every = set(versions.contents())
    contents = Contents(versions)
    places = len(contents.options)
    found = [{contents.content(made) for (made,) in covering([contents], k, random.Random(1))} for k in (1, 2, places)]
    assert found[0] | found[1] <= found[2] == every


@pytest.mark.parametrize("use", USES)
def test_with_all_places_together_it_is_every_state(yard: Yard, use: str) -> None:
    """And with some of them only such as there are."""
    moments = [m.told_apart() for m in record(USES[use], USES[use].ops[:1], yard.keep())]
    moment = max((m for m in moments if m.count(FEW // 10) <= FEW // 10), key=lambda m: m.count(FEW))
    every = states(moment)
    found = [{key(state) for state in moment.covering(k, random.Random(1))} for k in (1, 2, 99)]
    assert found[0] | found[1] <= found[2] == every


def test_of_too_many_states_those_are_looked_at(yard: Yard) -> None:
    moments = record(USES["queue"], ["span"], yard.keep(), done=0)
    some = power_cuts(moments, random.Random(1), FEW, sample=10)
    more = power_cuts(moments, random.Random(1), FEW, sample=10, together=2)
    assert (some.complete, some.together, more.complete, more.together) == (False, 0, False, 2)
    assert len(more.all) > len(some.all) + 100
