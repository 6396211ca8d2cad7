"""What is known at one moment of a run, and so every state that a crash then may leave.

A power cut leaves of each file one of its `Versions`. Of the changes of names since a directory's last sync (a rename is one) it leaves
some, and loses the others: as file systems with a journal do, the later ones, each directory for itself; or, if the order is not kept, any.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.testing.covering import Chosen, Made, Part, covering
from penstock.testing.state import PAGE, State, temporaries
from penstock.testing.versions import SECTOR, Contents, Versions, picking

_MOST_WAYS = 10  # to one that differs from all others, in nearly every run
Names = dict[str, int]  # of a directory, and which file or directory (by inode) each is


@dataclass(frozen=True, slots=True)
class Change:
    """Names that were changed by one call, by directory: what each is now; None, if it is gone."""

    names: Mapping[int, Mapping[str, int | None]]

    def apply(self, tree: dict[int, Names]) -> None:
        for directory, changed in self.names.items():
            here = tree[directory] = dict(tree.get(directory, {}))
            for name, inode in changed.items():
                if inode is None:
                    here.pop(name, None)
                else:
                    here[name] = inode

    def without(self, later: Mapping[int, Collection[str]]) -> Change:
        """But for names of which a later change is on the disk: what they were before is over."""
        rest = {d: {n: i for n, i in names.items() if n not in later.get(d, ())} for d, names in self.names.items()}
        return Change({directory: names for directory, names in rest.items() if names})

    def renumbered(self, numbers: Mapping[int, int]) -> Change:
        """The same where files and directories have other numbers."""
        return Change(
            {
                numbers[d]: {n: i if i is None else numbers[i] for n, i in names.items()}
                for d, names in self.names.items()
            }
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """What may be on the disk at one moment. `note` is what the run had to say then."""

    number: int
    call: str  # what was done last
    note: object
    top: int
    files: Mapping[int, Versions]
    synced: Mapping[int, Names]  # names on the disk, by directory
    changes: tuple[Change, ...]  # of names since, in order
    in_order: bool = True  # those of a directory reach the disk in their order
    alike: bool = False  # what a file holds that has a temporary name is no matter

    def with_orders(self, *, names: bool, lengths: bool) -> Moment:
        """The same on a file system that keeps these orders, or does not."""
        files = self.files if lengths else {i: replace(v, in_order=False) for i, v in self.files.items()}
        return replace(self, files=files, in_order=names)

    def told_apart(self) -> Moment:
        """The same without versions that a power cut makes equal: of what a control page holds for its own boot, the newest stands
        for all, and zeros, if it may not have been written; of what was being made under a temporary name, which is removed unread, an
        empty file does."""
        changed = (names for change in self.changes for names in change.names.values())
        pages = {names.get(PAGE) for names in (*self.synced.values(), *changed)}
        return replace(self, files={i: v.newest_of(0) if i in pages else v for i, v in self.files.items()}, alike=True)

    def includes(self, earlier: Moment) -> bool:
        """Whether a power cut now may leave all that one could earlier: nothing was synced since."""
        groups = self._groups()
        return (
            self.synced == earlier.synced
            and self.changes[: len(earlier.changes)] == earlier.changes
            and all(any(now[: len(then)] == then for now in groups) for then in earlier._groups())
            and all(self.files[i].includes(versions) for i, versions in earlier.files.items())
        )

    def now(self) -> State:
        """Everything as it is: what a kill leaves."""
        tree = self._tree(self.changes)
        return self._state(tree, {inode: self.files[inode].now for inode in self._reached(tree).values()})

    def now_tree(self) -> dict[int, Names]:
        """All names as they are."""
        return self._tree(self.changes)

    def named(self) -> Iterator[int]:
        """Every file and directory that has a name, or had one that may be on the disk; some more than once."""
        trees = [*self.synced.items(), *(item for change in self.changes for item in change.names.items())]
        return (inode for top, names in trees for inode in (top, *names.values()) if inode is not None)

    def contents(self) -> Iterator[tuple[str, Versions]]:
        """Of each file, as it is named now, what may be on the disk."""
        return ((path, self.files[inode]) for path, inode in self._reached(self._tree(self.changes)).items())

    def least(self) -> State:
        """What was synced, and nothing else."""
        return self._synced_but(())

    def of_one_directory(self) -> Iterator[State]:
        """What was synced, and of one directory each, or of some that a rename has tied together, all changes of names: what was removed is
        gone, and nothing is there that was written before."""
        return map(self._synced_but, self._groups())

    def some(self, rng: random.Random, page: int = SECTOR) -> State:
        """One of the states, by chance."""
        pick = picking(rng)
        tree = self._tree([change for group in self._ordered() for change in group[: pick(range(len(group) + 1))]])
        return self._state(tree, {i: self.files[i].some(pick, page) for i in self._reached(tree).values()})

    def count(self, most: int) -> int:
        """How many states there are, equal ones counted more than once; if more than `most`, or if the ways to keep and lose names are
        too many to look how many of them are equal, some number above that."""
        ways = math.prod(len(group) + 1 for group in self._ordered())
        if ways > (_MOST_WAYS * (most + 1000) if self.in_order else most):
            return most + 1
        total = 0
        for tree in self._trees():
            total += math.prod(versions.count for versions in self._versions(tree).values())
            if total > most:
                break
        return total

    def all(self) -> Iterator[State]:
        """Every one of them; equal ones may come again."""
        for tree in self._trees():
            files = self._versions(tree)
            for contents in itertools.product(*(versions.contents() for versions in files.values())):
                yield self._state(tree, dict(zip(files, contents, strict=True)))

    def _versions(self, tree: Mapping[int, Names]) -> dict[int, Versions]:
        """Of the files that have a name."""
        reached = self._reached(tree)
        unread = temporaries(reached) if self.alike else set()
        read = {inode for path, inode in reached.items() if path not in unread}
        return {i: self.files[i] if i in read else Versions.whole(b"") for i in dict.fromkeys(reached.values())}

    def count_near(self, distance: int) -> int:
        """How many states `near` gives."""
        sums = [1] + [0] * distance  # over all choices of 0, 1, 2, ... of the places: in how many ways these may differ
        for options in (*(len(group) + 1 for group in self._ordered()), *(v.count for v in self.files.values())):
            for k in range(distance, 0, -1):
                sums[k] += sums[k - 1] * (options - 1)
        return 2 * sum(sums)

    def near(self, distance: int) -> Iterator[State]:
        """Every one with no more than so many directories and files that are not as they were synced, or not as they are now; equal
        ones may come again."""
        groups, files = self._ordered(), self.files.values()
        options = [*(range(len(group) + 1) for group in groups), *(versions.contents() for versions in files)]
        lost = [*(0 for _ in groups), *(versions.synced for versions in files)]
        kept = [*(len(group) for group in groups), *(versions.now for versions in files)]
        for chosen in itertools.chain(_near(lost, options, distance), _near(kept, options, distance)):
            ends, contents = chosen[: len(groups)], chosen[len(groups) :]
            tree = self._tree([change for group, end in zip(groups, ends, strict=True) for change in group[:end]])
            yield self._state(tree, dict(zip(self.files, contents, strict=True)))

    def covering(self, together: int, rng: random.Random) -> Iterator[State]:
        """So many that any `together` of these, in any way that they can be, are so in one of them: the sectors and lengths of files, and
        how many changes of names a directory has kept."""
        groups, files = self._ordered(), {inode: Contents(versions) for inode, versions in self.files.items()}
        parts: list[Part] = [*(_Kept(len(group)) for group in groups), *files.values()]
        for made in covering(parts, together, rng):
            ends, contents = made[: len(groups)], dict(zip(files, made[len(groups) :], strict=True))
            tree = self._tree([c for group, (end,) in zip(groups, ends, strict=True) for c in group[:end]])
            read = self._versions(tree).items()  # of what has a temporary name, an empty one: that is not chosen
            yield self._state(
                tree,
                {
                    i: files[i].content(contents[i]) if versions is self.files[i] else versions.now
                    for i, versions in read
                },
            )

    # ---- names ----

    def _ordered(self) -> list[list[Change]]:
        """The changes, in groups of which a power cut leaves the first ones."""
        return self._groups() if self.in_order else [[change] for change in self.changes]

    def _trees(self) -> Iterator[dict[int, Names]]:
        seen = set()
        groups = self._ordered()
        for ends in itertools.product(*(range(len(group) + 1) for group in groups)):
            tree = self._tree([c for group, end in zip(groups, ends, strict=True) for c in group[:end]])
            key = frozenset(self._reached(tree).items()) | frozenset((d, -1) for d in self._directories(tree))
            if key not in seen:
                seen.add(key)
                yield tree

    def _groups(self) -> list[list[Change]]:
        """The changes, by directory; those of directories that a rename has tied together are one group."""
        groups: list[tuple[set[int], list[Change]]] = []
        for change in self.changes:
            tied = [group for group in groups if group[0] & change.names.keys()]
            groups = [group for group in groups if group not in tied]
            groups.append((set(change.names).union(*(g[0] for g in tied)), [*(c for g in tied for c in g[1]), change]))
        order = {id(change): i for i, change in enumerate(self.changes)}
        return [sorted(group[1], key=lambda change: order[id(change)]) for group in groups]

    def _synced_but(self, kept: Sequence[Change]) -> State:
        tree = self._tree(kept)
        return self._state(tree, {inode: self.files[inode].synced for inode in self._reached(tree).values()})

    def _tree(self, kept: Sequence[Change]) -> dict[int, Names]:
        tree = dict(self.synced)
        for change in kept:
            change.apply(tree)
        return tree

    def _reached(self, tree: Mapping[int, Names]) -> dict[str, int]:
        """The files that have a name, by path."""
        return {path: inode for path, inode in self._walk(tree) if inode in self.files}

    def _directories(self, tree: Mapping[int, Names]) -> frozenset[str]:
        return frozenset(path for path, inode in self._walk(tree) if inode not in self.files)

    def _walk(self, tree: Mapping[int, Names]) -> Iterator[tuple[str, int]]:
        stack, seen = [("", self.top)], {self.top}
        while stack:
            above, directory = stack.pop()
            for name, inode in tree.get(directory, {}).items():
                yield above + name, inode
                if inode not in self.files and inode not in seen:  # a directory that is in two has its names in one
                    seen.add(inode)
                    stack.append((f"{above}{name}/", inode))

    def _state(self, tree: Mapping[int, Names], contents: Mapping[int, bytes]) -> State:
        state = State({path: contents[inode] for path, inode in self._reached(tree).items()})
        state.directories = self._directories(tree)
        return state


@dataclass(frozen=True, slots=True)
class _Kept:
    """How many of the changes of a group are kept."""

    changes: int

    @property
    def options(self) -> list[int]:
        return [self.changes + 1]

    def completed(self, chosen: Chosen, rng: random.Random) -> Made:
        return [chosen[0] if chosen else rng.randint(0, self.changes)]


def _near(base: Sequence[Any], options: Sequence[Sequence[Any]], distance: int) -> Iterator[list[Any]]:
    """The base, and what it becomes with others of the options at so many places at most."""
    for k in range(distance + 1):
        for places in itertools.combinations([i for i, some in enumerate(options) if len(some) > 1], k):
            for others in itertools.product(*([other for other in options[i] if other != base[i]] for i in places)):
                chosen = list(base)
                for i, other in zip(places, others, strict=True):
                    chosen[i] = other
                yield chosen
