"""A directory, watched: what its files and names are now, and what of that is on the disk."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.storage import files
from penstock.testing.moment import Change, Moment, Names
from penstock.testing.versions import Versions


class Disk:
    """The files below a directory, watched: what they are now, and what of that is on the disk."""

    def __init__(self, top: Path, left_by: Moment | None = None) -> None:
        """What lies there now is on the disk; or it was written down as a kill at a moment left it, and of that is on the disk what was then."""
        self.path = top
        # Of all that was seen, so that no number comes again; what is removed may come back.
        self._fds: dict[int, int] = {}
        self._files: dict[int, Versions] = {}
        self._now: dict[int, Names] = {}
        self._synced: dict[int, Names] = {}
        self._changes: list[Change] = []
        self._top = top.stat().st_ino
        if left_by is not None:
            self._go_on(left_by)
            self.look()
            return
        self.look()
        self._files = {inode: Versions.whole(versions.now) for inode, versions in self._files.items()}
        self._synced, self._changes = dict(self._now), []

    def _go_on(self, moment: Moment) -> None:
        """By the numbers that files and directories have here. What has no name any more may get it back by a power cut."""
        tree = self._scan()
        numbers = dict(zip(itertools.chain(moment.files, moment.synced, moment.named()), itertools.count(-1, -1)))
        numbers.update(_same(moment.now_tree(), moment.top, tree, self._top))
        self._files = {numbers[inode]: versions for inode, versions in moment.files.items()}
        self._now = tree
        self._synced = {numbers[d]: {n: numbers[i] for n, i in names.items()} for d, names in moment.synced.items()}
        self._changes = [change.renumbered(numbers) for change in moment.changes]

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def look(self) -> bool:
        """Take in what was changed since the last look; whether anything was."""
        tree = self._scan()
        changed: dict[int, dict[str, int | None]] = {}
        for directory in dict.fromkeys((*tree, *self._now)):
            new, old = tree.get(directory, {}), self._now.get(directory, {})
            if new != old:
                names: dict[str, int | None] = {name: inode for name, inode in new.items() if old.get(name) != inode}
                changed[directory] = names | dict.fromkeys(old.keys() - new.keys())
        if changed:
            self._changes.append(Change(changed))
            self._now = tree
        return self._look_into_files() or bool(changed)

    def _scan(self) -> dict[int, Names]:
        """By name: numbers, and the order that the system has them in, are others in each run, and a seed is to choose the same. What is
        neither a file nor a directory is left out: a link may lead anywhere, and a pipe has no content."""
        tree: dict[int, Names] = {}
        stack = [(self._top, self.path)]
        while stack:
            inode, path = stack.pop()
            names = tree[inode] = {}
            with os.scandir(path) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if not (is_directory or entry.is_file(follow_symlinks=False)):
                        continue
                    names[entry.name] = number = entry.inode()
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
            if inode < 0:
                continue  # it was gone when a kill left the rest
            content = _content(self._fds[inode])
            if content != versions.now:
                self._files[inode] = versions.then(content)
                changed = True
        return changed

    def syncing(self, inode: int) -> Callable[[], None]:
        """A sync of a file or directory begins; call what this returns when it is done. On the disk is then what was there at the last
        look before it: of a file its content; of a directory its names, and so the other's that a change of two changed."""
        content = self._files[inode].now if inode in self._files else None
        changes = [change for change in self._changes if inode in change.names]

        def done() -> None:
            if content is not None:
                self._files[inode] = Versions.whole(content).then(self._files[inode].now)
            left: list[Change] = []
            later: dict[int, set[str]] = {}
            for change in reversed(self._changes):
                if any(change is one for one in changes):  # equal ones may have been made since
                    for directory, names in change.names.items():
                        later.setdefault(directory, set()).update(names)
                elif (rest := change.without(later)).names:
                    left.insert(0, rest)
            for change in changes:
                change.apply(self._synced)
            self._changes = left

        return done

    def moment(self, number: int, call: str, note: object) -> Moment:
        return Moment(number, call, note, self._top, dict(self._files), _copied(self._synced), tuple(self._changes))


def _same(then: Mapping[int, Names], top_then: int, now: Mapping[int, Names], top_now: int) -> dict[int, int]:
    """Which number what had one then has now, by path."""
    numbers, stack = {top_then: top_now}, [(top_then, top_now)]
    while stack:
        old, new = stack.pop()
        for name, inode in then.get(old, {}).items():
            numbers[inode] = now[new][name]
            if numbers[inode] in now:
                stack.append((inode, numbers[inode]))
    return numbers


def _copied(tree: Mapping[int, Names]) -> dict[int, Names]:
    return {inode: dict(names) for inode, names in tree.items()}


def _content(fd: int) -> bytes:
    return files.read(fd, 0, os.fstat(fd).st_size)
