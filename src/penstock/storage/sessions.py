"""Logs that begin anew with every open: what earlier sessions left is set aside, to be read, and goes when that is done.

A session's files are moved to `recovery/<n>`, with all that tells where they end, so each such directory is a log that can be
read like any other. Data files go first, in ascending order, and the control page last: a directory without one is a move that
was cut short, and is finished before anything else happens. When all has been read, `recovery` is renamed, in one step, and
removed. Numbers of files go on from session to session.

Whoever only looks takes no lock that could keep the log from being opened: `stand` tells him whether files were moved meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import FilesMissing, PenstockError
from penstock.storage import files
from penstock.storage.control import Control
from penstock.storage.holder import is_held
from penstock.storage.segment import Format, SegmentPaths

_PLACE: Final = "recovery"
_DONE: Final = "recovery.done"
_LOCK: Final = ".lock"
_MISSING_SHOWN: Final = 10
_LOOK_S: Final = 0.001
_MOVING_S: Final = 5.0  # a move takes no longer, nor any step of it, unless its process was stopped over it

T = TypeVar("T")
Stand = tuple[tuple[str, tuple[int, int] | None], ...]


def segments(top: Path, fmt: Format) -> list[int]:
    """The numbers of the data files in a directory: regular ones with the right name."""
    names = [path.name for path in files.children(top) if files.is_regular(path)] if files.is_directory(top) else []
    return sorted(s for name in names if (s := fmt.parse(name)) is not None)


def earlier(top: Path) -> list[Path]:
    """What earlier sessions left and was not read to its end, oldest first."""
    place = top / _PLACE
    found = list[Path]()
    with suppress(FileNotFoundError):  # they may be forgotten just now
        found = (
            [path for path in files.children(place) if path.name.isdecimal() and files.is_directory(path)]
            if files.is_directory(place)
            else []
        )
    return sorted(found, key=lambda path: int(path.name))


def places(top: Path) -> list[Path]:
    """Where files of any session lie, oldest first."""
    return [*earlier(top), top]


def is_ahead(path: Path) -> bool:
    """Whether a file of the log in a directory, which is not there, was moved already, when the process died that was to move what it
    belongs to: opening the log goes on with that."""
    old = earlier(path.parent)
    return bool(old) and _page(old[-1]) is None and files.exists(old[-1] / path.name)


def stand(top: Path) -> Stand:
    """Each place, and which control page is there: another whenever files were moved or forgotten. Waits for a move to be done."""
    deadline_s = time.monotonic() + _MOVING_S
    while True:
        found = tuple((str(place), _page(place)) for place in places(top))
        moving = any(page is None and _is_new(Path(place)) for place, page in found[:-1])
        if not moving or not is_held(top) or time.monotonic() > deadline_s:
            return found
        time.sleep(_LOOK_S)


def _is_new(place: Path) -> bool:
    """Whether files may just be coming into it: who looks takes many looks, and is not to wait at each for one that stands still."""
    with suppress(FileNotFoundError):
        return time.time() < files.changed_at(place) + _MOVING_S
    return False


def _page(place: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        return files.identity(place / _LOCK)
    return None


def steadily(top: Path, look: Callable[[], T]) -> T:
    """What a look tells, or what it fails with: if files were moved or forgotten meanwhile, it is repeated."""
    while True:
        before = stand(top)
        try:
            seen = look()
        except (PenstockError, OSError):
            if stand(top) == before:
                raise
        else:
            if stand(top) == before:
                return seen


def set_aside(top: Path, fmt: Format) -> list[Path]:
    """Move what lies in a log's directory away; the directories that hold earlier sessions, oldest first.

    Nobody else may have it open. Raises FilesMissing, with nothing changed, when the numbers do not follow each other.
    """
    sweep(top)
    old = earlier(top)
    _check_numbers(top, [n for place in [*old, top] for n in segments(place, fmt)])
    if old and not files.children(old[-1]) and not segments(top, fmt):
        files.remove_tree(old.pop())  # nothing came into it: of what was to, a power cut took the names
    if old and not (old[-1] / _LOCK).exists():
        target = old[-1]
        for place in (top, target.parent):  # whoever made these may have died before he synced their names
            files.sync_directory(place)
    elif segments(top, fmt):
        target = top / _PLACE / str(int(old[-1].name) + 1 if old else 0)
        Control(top / _LOCK, fmt).close()  # so that it is there, and is moved last, also where files are another's
        files.sync_directory(top)  # so may whoever made these
        files.make_directories(target, top)
        old.append(target)
    else:
        return old
    for number in segments(top, fmt):
        paths = SegmentPaths(top, fmt, number)
        for path in (paths.times, paths.data):
            _move(path, target)
    for stray in _companions(top, fmt):
        files.remove(stray)  # of a file that was just made, or just deleted, when its process died
    for name in ("losses", "manifest"):
        _move(top / name, target)
    for place in (target, target.parent, top):
        files.sync_directory(place)
    _move(top / _LOCK, target)
    for place in (target, top):
        files.sync_directory(place)
    return old


def _companions(top: Path, fmt: Format) -> list[Path]:
    """Companions whose data files are not there."""
    names = [(path, path.name.removesuffix(".time")) for path in files.children(top) if path.name.endswith(".time")]
    ours = [path for path, name in names if fmt.parse(name) is not None and not files.exists(top / name)]
    return [path for path in ours if files.is_regular(path)]


def _move(path: Path, target: Path) -> None:
    if path.exists():
        files.rename(path, target / path.name)


def _check_numbers(top: Path, numbers: list[int]) -> None:
    twice = sorted({n for n in numbers if numbers.count(n) > 1}) if len(set(numbers)) < len(numbers) else []
    if twice:
        raise FilesMissing(
            f"{top}: the files {_shown(twice)} are there twice; remove the copies that do not belong here"
        )
    if numbers != sorted(numbers):
        raise FilesMissing(
            f"{top}: an earlier session has files with higher numbers than a later one; put them back in order"
        )
    if numbers and max(numbers) - min(numbers) + 1 != len(numbers):
        have = set(numbers)
        missing = [n for n in range(min(numbers), min(max(numbers), min(numbers) + 2 * len(numbers))) if n not in have]
        raise FilesMissing(
            f"{top}: the files {_shown(missing)} are missing between {min(numbers)} and {max(numbers)}; restore them from a "
            "copy, or take those on one side of the gap away"
        )


def _shown(numbers: list[int]) -> str:
    more = " and more" if len(numbers) > _MISSING_SHOWN else ""
    return ", ".join(map(str, numbers[:_MISSING_SHOWN])) + more


def forget(top: Path) -> None:
    """All earlier sessions were read, and nothing of them is needed any more: from now on they are not there."""
    if (top / _PLACE).exists():
        files.rename(top / _PLACE, top / _DONE)
        files.sync_directory(top)


def sweep(top: Path) -> None:
    """Delete what was forgotten. It may be much, so whoever waits for `forget` need not wait for this."""
    files.remove_tree(top / _DONE)
