"""What a power cut may leave of one file: of each sector one of the versions that it had since the last sync, and one of its lengths.

What a length covers and nothing was written to reads as zeros. A length that a write made longer reaches the disk after what was
written, as the usual file systems have it, or, if so asked, before; and so does each on the way to it, sector by sector.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

SECTOR: Final = 512
_OFTEN: Final = 0.93
_MANY: Final = 5_000
_CUTS: Final = 64  # of one write
_STILL: Final = sys.maxsize  # of what a sector is now

T = TypeVar("T")


class Pick(Protocol):
    """Chooses one of what something was, in order."""

    def __call__(self, versions: Sequence[T], /) -> T: ...


def picking(rng: random.Random) -> Pick:
    """Any; or mostly the oldest, or mostly the newest: a crash that loses little of much, or keeps little, is rare by chance."""
    often = rng.choice((None, 0, -1))

    def pick(versions: Sequence[T], /) -> T:
        return versions[often] if often is not None and rng.random() < _OFTEN else rng.choice(versions)

    return pick


@dataclass(frozen=True, slots=True)
class Growth:
    """A write that made a file longer: from where to where, and at which step, that is, change of the file since its sync."""

    start: int
    end: int
    step: int


@dataclass(frozen=True, slots=True)
class Length:
    """One of the lengths of a file, and the writes that made it so long, which are on the disk before it."""

    size: int
    growths: tuple[Growth, ...] = ()
    torn: bool = False  # within the last of them

    def least(self) -> dict[int, int]:
        """By sector the step that it is on the disk of, or a later one."""
        return {i: growth.step for growth in self.growths for i in _covering(growth.start, growth.end)}


@dataclass(frozen=True, slots=True)
class Versions:
    """What may be on the disk of one file. `synced` is, with what else its sectors and its length were since."""

    synced: bytes
    now: bytes
    lengths: tuple[Length, ...]  # in order: the first was synced, the last is now
    # Of each that was changed: all that it was, the oldest first, and the last step at which it was that.
    sectors: Mapping[int, Mapping[bytes, int]] = field(default_factory=dict)
    steps: int = 0  # so many changes since the sync
    in_order: bool = True  # a length is on the disk after what it covers

    @classmethod
    def whole(cls, content: bytes) -> Versions:
        """All of it is on the disk."""
        return cls(content, content, (Length(len(content)),))

    def then(self, content: bytes) -> Versions:
        """It was changed, and not synced."""
        if content == self.now:
            return self
        step = self.steps + 1
        sectors = dict(self.sectors)
        for i in _covering(0, max(len(content), len(self.now))):
            new, old = _sector(content, i), _sector(self.now, i)
            if new != old:
                known = sectors.get(i, {_sector(self.synced, i): _STILL})
                sectors[i] = {**known, old: self.steps, new: _STILL}
        lengths = (*self.lengths, *self._lengths(content, step))
        return Versions(self.synced, content, lengths, sectors, step, self.in_order)

    def _lengths(self, content: bytes, step: int) -> Iterator[Length]:
        """Those of what it is changed to, if it is another. A write that makes it longer may be there up to a sector. What was written
        before beyond where it now ends is no matter any more."""
        start, end = len(self.now), len(content)
        growths = tuple(growth for growth in self.lengths[-1].growths if growth.end <= end)
        if any(content[start:]):
            for cut in (*_cuts(start, end), end):
                yield Length(cut, (*growths, Growth(start, cut, step)), torn=cut != end)
        elif start != end:  # it was only made longer, or cut
            yield Length(end, growths)

    def newest_of(self, sector: int) -> Versions:
        """With the newest version of a sector only; and with its oldest, if that is nothing but zeros."""
        if sector not in self.sectors:
            return self
        versions = self.sectors[sector]
        oldest, newest = next(iter(versions)), _sector(self.now, sector)
        if not any(oldest):
            return replace(self, sectors={**self.sectors, sector: {oldest: versions[oldest], newest: _STILL}})
        synced = bytearray(self.synced)
        synced[sector * SECTOR : (sector + 1) * SECTOR] = newest
        sectors = {**self.sectors, sector: {newest: _STILL}}
        return replace(self, synced=bytes(synced[: len(self.synced)]), sectors=sectors)

    def includes(self, earlier: Versions) -> bool:
        """Whether all that may have been on the disk earlier may be now: it was not synced since."""
        return self is earlier or (
            self.synced == earlier.synced
            and set(self.lengths) >= set(earlier.lengths)
            and all(self._includes(i, earlier) for i in {*self.sectors, *earlier.sectors})
        )

    def _includes(self, sector: int, earlier: Versions) -> bool:
        """Whether it may be all that it may have been earlier, with each length that there was."""
        then = earlier.sectors.get(sector, {_sector(earlier.synced, sector): _STILL})
        now = self.sectors.get(sector, {_sector(self.synced, sector): _STILL})
        return all(now.get(data, -1) >= min(last, earlier.steps) for data, last in then.items())

    @property
    def count(self) -> int:
        """How many contents there may be; if they are many, equal ones counted more than once."""
        most = sum(math.prod(map(len, within.values())) for _, within in self._lengthwise())
        return most if most > _MANY else len(self.contents())

    def _lengthwise(self) -> Iterator[tuple[int, dict[int, list[bytes]]]]:
        """Each length that there may be, and with it the versions of each sector."""
        return ((length.size, self._within(length)) for length in dict.fromkeys(self.lengths))

    def _within(self, length: Length) -> dict[int, list[bytes]]:
        least = length.least() if self.in_order else {}
        return {
            i: [data for data, last in versions.items() if last >= least.get(i, 0)]
            for i, versions in self.sectors.items()
            if i * SECTOR < length.size
        }

    def contents(self) -> list[bytes]:
        """Each that there may be, once."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[bytes]:
        for size, within in self._lengthwise():
            for chosen in itertools.product(*within.values()):
                yield self._put(size, dict(zip(within, chosen, strict=True)))

    def some(self, pick: Pick, page: int = SECTOR) -> bytes:
        """One of them; torn only at multiples of `page`."""
        length = pick([length for length in self.lengths if not length.torn or length.size % page == 0])
        within = self._within(length)
        if page == SECTOR:
            return self._put(length.size, {i: pick(versions) for i, versions in within.items()})
        kept = {at: pick((0, -1)) for at in {i * SECTOR // page for i in within}}
        return self._put(length.size, {i: v[kept[i * SECTOR // page]] for i, v in within.items()})

    def _put(self, size: int, chosen: dict[int, bytes]) -> bytes:
        out = bytearray(self.synced[:size].ljust(size, b"\0"))
        for i, data in chosen.items():
            out[i * SECTOR : (i + 1) * SECTOR] = data[: size - i * SECTOR]
        return bytes(out)


class Contents:
    """What may be on the disk of one file, chosen by its places: its length, and each sector that was changed."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._lengths = list(dict.fromkeys(versions.lengths))
        self._sectors = {i: list(some) for i, some in versions.sectors.items()}
        self._with = [self._beside(length) for length in self._lengths]
        self.options = [len(self._lengths), *(1 + max(map(max, each)) for each in zip(*self._with, strict=True))]

    def _beside(self, length: Length) -> list[list[int]]:
        """Of each sector which of its versions may be there with this length; one that lies behind it is not, which is another."""
        within = self._versions._within(length)
        return [
            [k for k, data in enumerate(some) if data in within[i]] if i in within else [len(some)]
            for i, some in self._sectors.items()
        ]

    def completed(self, chosen: Mapping[int, int], rng: random.Random) -> list[int] | None:
        """One of them, with these options of the places, if there is one."""
        every = range(len(self._lengths))
        for length in [chosen[0]] if 0 in chosen else rng.sample(every, len(every)):
            may = self._with[length]
            if all(option in may[place - 1] for place, option in chosen.items() if place):
                return [length, *(chosen.get(place, rng.choice(some)) for place, some in enumerate(may, 1))]
        return None

    def content(self, made: Sequence[int]) -> bytes:
        """The file of what `completed` gave."""
        sectors = zip(self._sectors.items(), made[1:], strict=True)
        there = {i: some[option] for (i, some), option in sectors if option < len(some)}
        return self._versions._put(self._lengths[made[0]].size, there)


def _covering(start: int, end: int) -> range:
    """The sectors of a part of a file."""
    return range(start // SECTOR, -(-end // SECTOR))


def _cuts(start: int, end: int) -> range:
    """Where sectors meet in a part of a file; if it is long, at some of these places."""
    first = (start // SECTOR + 1) * SECTOR
    apart = -(-(end - first) // (_CUTS * SECTOR)) * SECTOR
    return range(first, end, max(SECTOR, apart))


def _sector(content: bytes, i: int) -> bytes:
    return content[i * SECTOR : (i + 1) * SECTOR].ljust(SECTOR, b"\0")
