"""Puts functions in place of those of `storage.files`, and of what the kernel asks the system for by itself.

Meanwhile the process works on the reference kernel, whose writes and syncs of growing files can be seen, and without a background:
what that would do is done by `Janitors.work`. Records of a journal or topic go to the disk when somebody waits for them, or late: how many
share a batch would depend on how fast it is. And members of a group have names in the order in which they joined. So a run is the same
each time.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest import mock

from penstock import kernel
from penstock.kernel import reference
from penstock.kernel.reference import Buffered, buffered
from penstock.storage import claims, files, syncing
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.storage.promise import Bell

if TYPE_CHECKING:
    import asyncio

# The functions of `files` that change anything; all others are made of these.
CHANGING: Final = (
    *("create", "create_unnamed", "write", "truncate", "allocate", "reserve", "reserve_beyond", "give_back"),
    *("sync", "sync_directory", "make_directory", "link", "rename", "exchange", "remove", "remove_tree"),
)
_SYSTEM: Final = {"pwrite": "write", "ftruncate": "truncate", "fdatasync": "sync"}  # what the kernel calls itself
_LONG_S: Final = 86_400.0
_LATE_S: Final = 1.0  # for what nobody waits for in a way that is seen here, as who reads until it is there
_ROUNDS: Final = 10  # of an event loop: of a task's end others hear some later, as they do of a whole `gather`
_joined = itertools.count()  # of this process: what was left by a crash that is tried bears these names, too

T = TypeVar("T")
Real = Callable[..., Any]
Wrap = Callable[[str, Real], Real]  # (name, the real function): what is called in its place


class Janitors:
    """The background of every log that is open, which does nothing by itself."""

    def __init__(self) -> None:
        self._all: list[Janitor] = []

    def serve(self, janitor: Janitor, served: Log) -> None:
        janitor._log = served
        self._all.append(janitor)

    def work(self) -> None:
        """All that there is to do: seal, compress, retire, make the next files."""
        for janitor in self._all:
            if janitor._log is not None and not janitor._log.closed:
                janitor.look_again()
                janitor._turn()


@contextmanager
def standing_in(names: Iterable[str], wrap: Wrap) -> Iterator[Janitors]:
    """Have `wrap` stand in for functions of `files`."""
    janitors = Janitors()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(files, name, wrap(name, getattr(files, name))))
        system = vars(buffered)["os"]  # or what stands in for it: storage that is recorded may fail, too
        called = {ours: wrap(name, getattr(system, ours)) for ours, name in _SYSTEM.items() if name in names}
        stack.enter_context(mock.patch.object(buffered, "os", System(called)))
        stack.enter_context(
            mock.patch.object(Janitor, "serve", lambda janitor, served: janitors.serve(janitor, served))
        )
        stack.enter_context(reference_kernel())
        # Marks are persisted once a second: how often in a run would depend on how fast it is.
        stack.enter_context(mock.patch.object(syncing, "_PERSIST_MARK_S", _LONG_S))
        stack.enter_context(mock.patch.object(buffered, "_PERSIST_S", _LONG_S))
        stack.enter_context(mock.patch.object(Buffered, "_due_in", _due_in))
        stack.enter_context(mock.patch.object(Buffered, "wait", _hurried(Buffered.wait)))
        stack.enter_context(mock.patch.object(Bell, "future", _hurried_soon(Bell.future)))
        stack.enter_context(mock.patch.object(claims, "os", System({"urandom": _in_order})))
        yield janitors


def _due_in(self: Buffered) -> float:
    """Seconds until the first batch is to be written: when nothing more fits, or somebody waits for it; else it is late, as long as
    more may come its `linger_s` if that is longer."""
    if not self._piles:
        return math.inf
    pile = self._piles[0]
    if pile is not self._filling or pile.urgent or self._stop or self._broken:
        return 0.0
    full = len(pile.sums) >= self._batch_records
    return pile.born_s + (_LATE_S if full else max(self._linger_s, _LATE_S)) - time.monotonic()


def _hurried(real: Callable[..., T]) -> Callable[..., T]:
    """Who calls this waits."""

    def call(self: Buffered, *args: Any) -> T:
        _hurry(self)
        return real(self, *args)

    return call


def _hurried_soon(real: Callable[..., asyncio.Future[Any]]) -> Callable[..., asyncio.Future[Any]]:
    """Who awaits waits, too. Tasks that can go on do so first: else which of them share a batch would depend on how fast it is."""

    def call(self: Bell, *args: Any) -> asyncio.Future[Any]:
        future = real(self, *args)
        loop = future.get_loop()
        appends: Any = self._path.appends

        def soon(rounds: int) -> None:
            if rounds:
                loop.call_soon(soon, rounds - 1)
            else:
                _hurry(appends)

        if isinstance(appends, Buffered):  # not of a log that was open before
            soon(_ROUNDS)
        return future

    return call


def _hurry(appends: Buffered) -> None:
    if not appends._forked:
        with appends._progress:
            appends._hurry()


def _in_order(size: int) -> bytes:
    return next(_joined).to_bytes(size, "big")


class System:
    """The module `os`, but for a few of its functions."""

    def __init__(self, replaced: dict[str, Real]) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def reference_kernel() -> Iterator[None]:
    """What is opened meanwhile works on the reference kernel."""
    if kernel.NAME == "reference":
        yield
        return
    swapped = {
        id(getattr(kernel, name)): getattr(reference, name)
        for name in ("Batch", "Buffered", "ControlPage", "Reader", "Taker", "Writer", "wait_any")
    }
    native = "penstock.kernel._native"
    loaded = [module for name, module in sys.modules.items() if name.split(".")[0] == "penstock" and name != native]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(kernel, "ROBUST", False))
        for module in loaded:
            for name, value in list(vars(module).items()):
                if id(value) in swapped:
                    stack.enter_context(mock.patch.object(module, name, swapped[id(value)]))
        yield
