"""SIGKILL at every single store of the slower things: a process runs the real code with a fuse under every store that it makes
to a file, a map or the control page.
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Queue, kernel
from penstock.storage import files
from penstock.testing.standing_in import CHANGING
from tests.queue.crash import NATIVE, Yard
from tests.queue.dying import (
    BEFORE,
    LATE,
    SPAN,
    Zygote,
    append_at_once,
    assert_nothing_beyond,
    assert_whole_after_reopening,
    die,
    open_queue,
    open_zygote,
    payloads,
    roll,
)
from tests.queue.test_kill_points import POINTS, die_at

# ---- dying: everything here runs in children of the zygote ----


class Fuse:
    """Burns at every store; when it is burnt down the process dies there, or does what else is to be done."""

    def __init__(self, stores: int, there: Callable[[], object] = die) -> None:
        self.stores = stores
        self._there = there
        self.left = 0  # 0: not lit

    def light(self) -> None:
        self.left = self.stores

    def burn(self) -> None:
        if self.left:
            self.left -= 1
            if self.left == 0:
                self._there()

    def halves(self, store: Callable[[int, int], Any], length: int) -> None:
        """Die before, in the midst of, or after a store of so many bytes."""
        self.burn()
        if length > 1 and self.left:
            store(0, length // 2)
            self.burn()
            store(length // 2, length)
        else:
            store(0, length)

    def lay(self) -> None:
        """Under files, maps and the control page, before a log is opened."""
        fuse = self

        class Map(mmap.mmap):
            def __setitem__(self, key: Any, value: Any) -> None:
                if not isinstance(key, slice):
                    fuse.burn()
                    super().__setitem__(key, value)
                    return
                start, put = key.indices(len(self))[0], super().__setitem__
                view = memoryview(value)
                fuse.halves(lambda a, b: put(slice(start + a, start + b), view[a:b]), len(view))

        class Page:
            def __init__(self, *arguments: Any) -> None:
                self.real = real_page(*arguments)

            def store(self, offset: int, value: int) -> None:
                fuse.burn()
                self.real.store(offset, value)

            def __enter__(self) -> Any:
                return self.real.__enter__()

            def __exit__(self, *error: object) -> None:
                self.real.__exit__(*error)

            def __setattr__(self, name: str, value: Any) -> None:
                setattr(self.real, name, value) if name == "on_locked" else super().__setattr__(name, value)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.real, name)

        real_page, real_writer, real_write = kernel.ControlPage, kernel.Writer, files.write

        def write(fd: int, data: Any, offset: int) -> None:
            view = memoryview(data)
            fuse.halves(lambda a, b: real_write(fd, view[a:b], offset + a), len(view))

        kernel.ControlPage = Page  # type: ignore[misc, assignment]
        kernel.Writer = lambda page, *a: real_writer(page.real, *a)  # type: ignore[misc, assignment]
        files.write = write
        files.map_write = lambda fd, length: Map(fd, length)
        for name in set(CHANGING) - {"write"}:
            self._under(name)

    def _under(self, name: str) -> None:
        real = getattr(files, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.burn()
            return real(*arguments, **options)

        setattr(files, name, call)


def _still(q: Queue) -> None:
    """Without the background, which would burn the fuse at moments of its own."""
    assert q._janitor is not None
    q._janitor.stop()


def _sweep_roll(path: str, light: Callable[[], None]) -> Queue:
    q = open_queue(path)
    _still(q)
    light()
    roll(q)
    q.append(LATE)
    return q


def _sweep_append(path: str, light: Callable[[], None]) -> Queue:
    q = open_queue(path)
    _still(q)
    light()
    q.append(LATE)
    return q


def _sweep_span(path: str, light: Callable[[], None]) -> Queue:
    q = open_queue(path)
    _still(q)
    light()
    q.append_batch(SPAN)
    return q


def _sweep_seal(path: str, light: Callable[[], None]) -> Queue:
    q = open_queue(path)
    _still(q)
    roll(q)
    light()
    assert q._log is not None
    q._log.seal_finished()
    return q


def _sweep_close(path: str, light: Callable[[], None]) -> Queue:
    q = open_queue(path)
    _still(q)
    light()
    q.close()
    return q


def _sweep_open(path: str, light: Callable[[], None]) -> Queue:
    light()
    q = open_queue(path)
    _still(q)
    return q


SWEEPS: dict[str, tuple[Callable[[str, Callable[[], None]], Queue], list[list[bytes]]]] = {
    # what is done, and what it may have appended
    "roll": (_sweep_roll, [[], [LATE]]),
    "span": (_sweep_span, [[], SPAN]),
    "seal": (_sweep_seal, [[]]),
    "close": (_sweep_close, [[]]),
    "open": (_sweep_open, [[]]),
}


def die_at_store(path: str, what: str, stores: int) -> None:
    fuse = Fuse(stores)
    fuse.lay()
    q = (SWEEPS[what][0] if what in SWEEPS else _sweep_append)(path, fuse.light)
    fuse.left = 0
    del q  # which closes it: not before


# ---- the tests ----


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(die_at_store) as made:
        yield made


@pytest.mark.parametrize("someone_has_it_open", [True, False])
@pytest.mark.parametrize("what", SWEEPS)
def test_death_at_any_store(yard: Yard, dies: Zygote, what: str, someone_has_it_open: bool) -> None:
    """Every store in turn is the last one. A batch over several files is there whole or not at all, nothing else changes.

    Such a batch has some 250 stores: each run takes every eighth, another eighth each time; PENSTOCK_SWEEP=all takes all.
    """
    endings = SWEEPS[what][1]
    seen = set()
    step = 1 if what != "span" or os.environ.get("PENSTOCK_SWEEP") == "all" else 8
    for stores in itertools.count(1 + int(time.time()) % step, step):
        path = yard.new()
        q = open_queue(path)
        q.append_batch(BEFORE)
        if not someone_has_it_open:
            q.close()
        ended = dies(path, what, stores)
        if not someone_has_it_open:
            q = open_queue(path)
            assert q.recovery.damage == []
        append_at_once(q, b"x")
        found = payloads(q)
        possible = [[*BEFORE, *ending, b"x"] for ending in endings]
        assert found in possible, f"after {stores} stores"
        seen.add(possible.index(found))
        assert_nothing_beyond(q)
        q.close()
        assert_whole_after_reopening(path, found)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert stores > 4
    assert len(seen) == len(endings)


def test_death_at_any_store_of_making_a_queue(yard: Yard, dies: Zygote) -> None:
    for stores in itertools.count(1):
        path = yard.new()
        ended = dies(path, "open", stores)
        with open_queue(path) as q:
            append_at_once(q, b"x")
            assert payloads(q) == [b"x"]
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert stores > 20


@pytest.fixture(scope="module")
def dies_at() -> Iterator[Zygote]:
    with open_zygote(die_at) as made:
        yield made


@pytest.mark.parametrize(
    "point", ["payload half written", "batch half written", "span before its commit word", "span after its commit word"]
)
def test_death_at_any_store_of_what_is_done_about_a_death(
    yard: Yard, dies: Zygote, dies_at: Zygote, point: str
) -> None:
    """The next writer wipes or finishes what the dead one left, and dies over that; the one after it comes to the same."""
    committed = POINTS[point][1]
    step = (3 if point.startswith("span") else 1) if NATIVE else 7
    for stores in itertools.count(1, step):
        path = yard.new()
        with open_queue(path) as q:
            q.append_batch(BEFORE)
            assert dies_at(path, point) == -signal.SIGKILL
            ended = dies(path, "append", stores)
            append_at_once(q, b"x")
            found = payloads(q)
            assert found in ([*BEFORE, *committed, *late, b"x"] for late in ([], [LATE])), f"after {stores} stores"
            assert ended or LATE in found
            assert_nothing_beyond(q)
        assert_whole_after_reopening(path, found)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert stores > 3
