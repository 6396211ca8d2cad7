"""What a power cut may leave of one file: of each sector one of the versions that it had since the last sync, and one of its lengths.

What a length covers and nothing was written to reads as zeros. A length that a write made longer reaches the disk after what was
written, as the usual file systems have it, or, if so asked, before.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

SECTOR: Final = 512
_OFTEN: Final = 0.93
_MANY: Final = 5_000

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
class Versions:
    """What may be on the disk of one file. `synced` is, with what else its sectors and its length were since."""

    synced: bytes
    now: bytes
    sizes: tuple[int, ...]
    sectors: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    # By length: what was written when it grew to that, and where.
    grown: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    in_order: bool = True  # a length is on the disk after what it covers

    @classmethod
    def whole(cls, content: bytes) -> Versions:
        """All of it is on the disk."""
        return cls(content, content, (len(content),))

    def then(self, content: bytes) -> Versions:
        """It was changed, and not synced."""
        if content == self.now:
            return self
        sectors = dict(self.sectors)
        for i in range(-(-max(len(content), len(self.now)) // SECTOR)):
            new, old = _sector(content, i), _sector(self.now, i)
            if new != old:
                known = sectors.get(i) or (_sector(self.synced, i),)
                sectors[i] = known if new in known else (*known, new)
        sizes = self.sizes if len(content) in self.sizes else (*self.sizes, len(content))
        grown = dict(self.grown)
        if any(content[len(self.now) :]):  # else it was only made longer
            grown[len(content)] = len(self.now), content[len(self.now) :]
        return Versions(self.synced, content, sizes, sectors, grown, self.in_order)

    def newest_of(self, sector: int) -> Versions:
        """With the newest version of a sector only; and with its oldest, if that is nothing but zeros."""
        if sector not in self.sectors:
            return self
        oldest, newest = self.sectors[sector][0], _sector(self.now, sector)
        if not any(oldest):
            return replace(self, sectors={**self.sectors, sector: tuple(dict.fromkeys((oldest, newest)))})
        synced = bytearray(self.synced)
        synced[sector * SECTOR : (sector + 1) * SECTOR] = newest
        return replace(self, synced=bytes(synced[: len(self.synced)]), sectors={**self.sectors, sector: (newest,)})

    def includes(self, earlier: Versions) -> bool:
        """Whether all that may have been on the disk earlier may be now: it was not synced since."""
        return self is earlier or (
            self.synced == earlier.synced
            and set(self.sizes) >= set(earlier.sizes)
            and self.grown.items() >= earlier.grown.items()
            and all(length > max(earlier.sizes) for length in self.grown.keys() - earlier.grown.keys())
            and all(set(self.sectors.get(i, ())) >= set(versions) for i, versions in earlier.sectors.items())
        )

    @property
    def count(self) -> int:
        """How many contents there may be; if they are many, equal ones counted more than once."""
        most = sum(math.prod(len(v) for v in self._within(size).values()) for size in self.sizes)
        return most if most > _MANY else len(self.contents())

    def _within(self, size: int) -> dict[int, tuple[bytes, ...]]:
        return {i: versions for i, versions in self.sectors.items() if i * SECTOR < size}

    def contents(self) -> list[bytes]:
        """Each that there may be, once."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[bytes]:
        for size in self.sizes:
            within = self._within(size)
            for chosen in itertools.product(*within.values()):
                yield self._put(size, dict(zip(within, chosen, strict=True)))

    def some(self, pick: Pick, page: int = SECTOR) -> bytes:
        """One of them; torn only at multiples of `page`."""
        size = pick(self.sizes)
        within = self._within(size)
        if page == SECTOR:
            return self._put(size, {i: pick(versions) for i, versions in within.items()})
        kept = {at: pick((0, -1)) for at in {i * SECTOR // page for i in within}}
        return self._put(size, {i: v[kept[i * SECTOR // page]] for i, v in within.items()})

    def _put(self, size: int, chosen: dict[int, bytes]) -> bytes:
        out = bytearray(self.synced[:size].ljust(size, b"\0"))
        for i, data in chosen.items():
            out[i * SECTOR : (i + 1) * SECTOR] = data[: size - i * SECTOR]
        for length, (start, data) in self.grown.items() if self.in_order else ():
            if length <= size:
                out[start:length] = data
        return bytes(out)


def _sector(content: bytes, i: int) -> bytes:
    return content[i * SECTOR : (i + 1) * SECTOR].ljust(SECTOR, b"\0")
