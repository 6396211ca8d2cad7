"""Choices such that any few places, in every way that they can be together, are so in one of them.

Of what has too many states to look at each, most mistakes show when two or three places are as they should not be together, whatever
the others are. So many choices that all of these come up are few: they grow with the ways of a few places, not with those of all.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

_LOOKS: Final = 500  # at what is still to come, for what a choice has room for

Chosen = Mapping[int, int]  # of a part's places, by their numbers, which of their options
Made = Sequence[int]  # of each of a part's places the option
_Some = tuple[tuple[int, int], ...]  # places, by their numbers among all, and of each an option


class Part(Protocol):
    """Some places that depend on each other, and on none of another part."""

    @property
    def options(self) -> Sequence[int]:
        """How many each place has."""

    def completed(self, chosen: Chosen, rng: random.Random) -> Made | None:
        """An option of every place, with these among them; None, if they cannot be together."""


def covering(parts: Sequence[Part], together: int, rng: random.Random) -> Iterator[list[Made]]:
    """Of each part the options of its places, again and again, until any so many options that can be together were."""
    places = _Places(parts, rng)
    together = min(together, len(places.all))
    missing = dict.fromkeys(places.combined(together))
    while missing:
        chosen: dict[int, dict[int, int]] = {}
        for some in itertools.islice(missing, _LOOKS):
            places.take(chosen, some)
        made = places.completed(chosen)
        yield made
        before = len(missing)
        for some in itertools.combinations(places.seen_in(made), together):
            missing.pop(some, None)
        assert len(missing) < before, "the first of them was taken"


class _Places:
    """The places of all parts that have a choice, with a number each."""

    def __init__(self, parts: Sequence[Part], rng: random.Random) -> None:
        self._parts, self._rng = parts, rng
        self.all = [(p, i) for p, part in enumerate(parts) for i, count in enumerate(part.options) if count > 1]
        self._each = [
            [(number, option) for option in range(parts[p].options[i]) if self.take({}, ((number, option),))]
            for number, (p, i) in enumerate(self.all)
        ]

    def combined(self, together: int) -> list[_Some]:
        """All that can be together, in any order."""
        found: list[_Some] = []
        for numbers in itertools.combinations(range(len(self.all)), together):
            alone = len({self.all[number][0] for number in numbers}) == together
            for some in itertools.product(*(self._each[number] for number in numbers)):
                if alone or self.take({}, some):
                    found.append(some)
        self._rng.shuffle(found)
        return found

    def take(self, chosen: dict[int, dict[int, int]], some: _Some) -> bool:
        """Add these options to what was chosen, if they can be together with it."""
        new: dict[int, dict[int, int]] = defaultdict(dict)
        for number, option in some:
            part, place = self.all[number]
            known = chosen.get(part, {}).get(place)
            if known is None:
                new[part][place] = option
            elif known != option:
                return False
        wanted = {part: chosen.get(part, {}) | options for part, options in new.items()}
        if any(self._parts[part].completed(options, self._rng) is None for part, options in wanted.items()):
            return False
        chosen.update(wanted)
        return True

    def completed(self, chosen: Mapping[int, Chosen]) -> list[Made]:
        made = [part.completed(chosen.get(i, {}), self._rng) for i, part in enumerate(self._parts)]
        assert None not in made, "what was chosen can be together"
        return [one for one in made if one is not None]

    def seen_in(self, made: Sequence[Made]) -> _Some:
        return tuple((number, made[part][place]) for number, (part, place) in enumerate(self.all))
