"""What a crash may leave of a directory: every version of every sector, length and name since it was last synced.

A `Moment` is what is known at one moment of a run. A power cut then leaves, of each file, for each sector one of the versions that
it had since the file's last sync, and one of its lengths; what a length covers and nothing was written to reads as zeros. A length
that a write made longer reaches the disk after what was written, as the usual file systems have it, or, if so asked, before. Of the
changes of names since a directory's last sync (a rename is one) it leaves some, and loses the others: as file systems with a journal
do, the later ones, each directory for itself; or, if the order is not kept, any. A `State` is one of these.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar

from penstock.storage import files

SECTOR: Final = 512
_PAGE: Final = ".lock"  # a control page: its first sector counts in its own boot, the others after that, too
_BOOT_AT, _PLACE_AT = 16, 32  # in it: boot id; device and inode

_OFTEN: Final = 0.93

T = TypeVar("T")
Boot = Literal["same", "new"]
Names = dict[str, int]  # of a directory, and which file or directory (by inode) each is


class State(dict[str, bytes]):
    """Files by their path within a directory, as a crash leaves them; `directories` are those without any file too."""

    directories: frozenset[str] = frozenset()

    def lay(self, top: Path, boot: Boot) -> Path:
        """Write them down: as this boot's, where control pages are exact (a kill), or as an earlier one's (a power cut)."""
        top.mkdir(parents=True, exist_ok=True)
        made = {top}
        for name in self.directories:
            (top / name).mkdir(parents=True, exist_ok=True)
        for name, data in self.items():
            path = top / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(data)
            if _is_page(name, data):
                settle_page(path, boot)
        return top

    def digest(self, boot: Boot) -> bytes:
        """Equal for states that are the same when written down."""
        digest = blake2b(repr(sorted(self.directories)).encode(), digest_size=16)
        for name, data in sorted(self.items()):
            if _is_page(name, data):
                data = data[:_PLACE_AT] + bytes(16) + data[_PLACE_AT + 16 :]
                data = data[:_BOOT_AT] + bytes(16) + data[_BOOT_AT + 16 :] if boot == "new" else data
            digest.update(f"{boot} {name} {len(data)} ".encode())
            digest.update(data)
        return digest.digest()


def _is_page(name: str, data: bytes) -> bool:
    return name.rpartition("/")[2] == _PAGE and len(data) >= _PLACE_AT + 16


def settle_page(path: Path, boot: Boot) -> None:
    """A copied control page is nobody's: make it this boot's, or an earlier one's."""
    with path.open("r+b") as page:
        st = os.fstat(page.fileno())
        page.seek(_PLACE_AT)
        page.write(struct.pack("<QQ", st.st_dev, st.st_ino))
        if boot == "new":
            page.seek(_BOOT_AT)
            page.write(bytes(16))


class Pick(Protocol):
    """Chooses one of what something was, in order."""

    def __call__(self, versions: Sequence[T], /) -> T: ...


def _picking(rng: random.Random) -> Pick:
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
    grown: Mapping[int, tuple[int, bytes]] = field(
        default_factory=dict
    )  # by length: what was written when it grew, and where
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

    def ends_of(self, sector: int) -> Versions:
        """With the oldest and the newest version of a sector only."""
        versions = self.sectors.get(sector, ())
        few = {sector: tuple(dict.fromkeys((versions[0], versions[-1])))} if versions else {}
        return replace(self, sectors={**self.sectors, **few})

    @property
    def count(self) -> int:
        """How many contents there may be, equal ones counted more than once."""
        return sum(math.prod(len(v) for v in self._within(size).values()) for size in self.sizes)

    def _within(self, size: int) -> dict[int, tuple[bytes, ...]]:
        return {i: versions for i, versions in self.sectors.items() if i * SECTOR < size}

    def all(self) -> Iterator[bytes]:
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

    def with_orders(self, *, names: bool, lengths: bool) -> Moment:
        """The same on a file system that keeps these orders, or does not."""
        files = self.files if lengths else {i: replace(v, in_order=False) for i, v in self.files.items()}
        return replace(self, files=files, in_order=names)

    def told_apart(self) -> Moment:
        """The same without versions that a power cut makes equal: of what a control page holds for its own boot, the oldest and
        the newest stand for all."""
        changed = (names for change in self.changes for names in change.names.values())
        pages = {names.get(_PAGE) for names in (*self.synced.values(), *changed)}
        return replace(self, files={i: v.ends_of(0) if i in pages else v for i, v in self.files.items()})

    def now(self) -> State:
        """Everything as it is: what a kill leaves."""
        tree = self._tree(self.changes)
        return self._state(tree, {inode: self.files[inode].now for inode in self._reached(tree).values()})

    def contents(self) -> Iterator[tuple[str, Versions]]:
        """Of each file, as it is named now, what may be on the disk."""
        return ((path, self.files[inode]) for path, inode in self._reached(self._tree(self.changes)).items())

    def least(self) -> State:
        """What was synced, and nothing else."""
        tree = self._tree(())
        return self._state(tree, {inode: self.files[inode].synced for inode in self._reached(tree).values()})

    def some(self, rng: random.Random, page: int = SECTOR) -> State:
        """One of the states, by chance."""
        pick = _picking(rng)
        if self.in_order:
            kept = [change for group in self._groups() for change in group[: pick(range(len(group) + 1))]]
        else:
            kept = [change for change in self.changes if pick((False, True))]
        tree = self._tree(kept)
        return self._state(tree, {i: self.files[i].some(pick, page) for i in self._reached(tree).values()})

    def count(self, most: int) -> int:
        """How many states there are, equal ones counted more than once; if more than `most`, some number above that."""
        if not self.in_order and 2 ** len(self.changes) > most:
            return most + 1
        total = 0
        for tree in self._trees():
            total += math.prod(self.files[inode].count for inode in set(self._reached(tree).values()))
            if total > most:
                break
        return total

    def all(self) -> Iterator[State]:
        """Every one of them; equal ones may come again."""
        for tree in self._trees():
            inodes = sorted(set(self._reached(tree).values()))
            for contents in itertools.product(*(list(dict.fromkeys(self.files[i].all())) for i in inodes)):
                yield self._state(tree, dict(zip(inodes, contents, strict=True)))

    # ---- names ----

    def _trees(self) -> Iterator[dict[int, Names]]:
        seen = set()
        groups = self._groups() if self.in_order else [[change] for change in self.changes]
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


class Disk:
    """The files below a directory, watched: what they are now, and what of that is on the disk."""

    def __init__(self, top: Path) -> None:
        """What lies there now is on the disk."""
        self.path = top
        self._fds: dict[
            int, int
        ] = {}  # of all that was seen, so that no number comes again; what is removed may come back
        self._files: dict[int, Versions] = {}
        self._now: dict[int, Names] = {}
        self._synced: dict[int, Names] = {}
        self._changes: list[Change] = []
        self._top = top.stat().st_ino
        self.look()
        self._files = {inode: Versions.whole(versions.now) for inode, versions in self._files.items()}
        self._synced, self._changes = dict(self._now), []

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def look(self) -> bool:
        """Take in what was changed since the last look; whether anything was."""
        tree = self._scan()
        changed: dict[int, dict[str, int | None]] = {}
        for directory in tree.keys() | self._now.keys():
            new, old = tree.get(directory, {}), self._now.get(directory, {})
            if new != old:
                names: dict[str, int | None] = {name: inode for name, inode in new.items() if old.get(name) != inode}
                changed[directory] = names | dict.fromkeys(old.keys() - new.keys())
        if changed:
            self._changes.append(Change(changed))
            self._now = tree
        return self._look_into_files() or bool(changed)

    def _scan(self) -> dict[int, Names]:
        tree: dict[int, Names] = {}
        stack = [(self._top, self.path)]
        while stack:
            inode, path = stack.pop()
            names = tree[inode] = {}
            with os.scandir(path) as entries:
                for entry in entries:
                    names[entry.name] = number = entry.inode()
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if number not in self._fds:
                        self._fds[number] = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                        if not is_directory:
                            self._files[number] = Versions.whole(b"")
                    if is_directory:
                        stack.append((number, Path(entry.path)))
        return tree

    def _look_into_files(self) -> bool:
        changed = False
        for inode, versions in self._files.items():
            content = _content(self._fds[inode])
            if content != versions.now:
                self._files[inode] = versions.then(content)
                changed = True
        return changed

    def sync(self, inode: int) -> None:
        """A file's content is on the disk, as it was at the last look."""
        if inode in self._files:
            self._files[inode] = Versions.whole(self._files[inode].now)

    def sync_names(self, inode: int) -> None:
        """So are the names in a directory; a change of two directories' names is on the disk with either's."""
        left = []
        for change in self._changes:
            if inode in change.names:
                change.apply(self._synced)
            else:
                left.append(change)
        self._changes = left

    def moment(self, number: int, call: str, note: object) -> Moment:
        return Moment(number, call, note, self._top, dict(self._files), _copied(self._synced), tuple(self._changes))


def _copied(tree: Mapping[int, Names]) -> dict[int, Names]:
    return {inode: dict(names) for inode, names in tree.items()}


def _content(fd: int) -> bytes:
    return files.read(fd, 0, os.fstat(fd).st_size)
