"""Failing storage: the n-th call of a kind fails, once or from then on."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from penstock.kernel.reference import buffered
from penstock.storage import files
from penstock.testing.standing_in import CHANGING, Janitors, Real, System, standing_in

# Of what changes nothing, that takes a descriptor: a map has one of its own of its file, and a directory is open while it is listed.
_OPENING: Final = ("open_read", "open_write", "open_to_lock", "duplicate", "map_read", "map_write", "children", "walk")
_CREATING: Final = ("create", "create_unnamed")
_NAMING: Final = ("make_directory", "link", "rename")  # a name may need a block, too
_WRITING: Final = ("write", "allocate", "reserve", "reserve_beyond")

# What fails, by the functions of `files` that it is asked of, and how.
KINDS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "ENOSPC": ((*_WRITING, *_CREATING, *_NAMING), errno.ENOSPC),
    "EIO on write": ((*_WRITING, "truncate", "give_back"), errno.EIO),
    "EIO on sync": (("sync", "sync_directory"), errno.EIO),
    "EINTR": ((*_WRITING, "sync"), errno.EINTR),
    "EMFILE": ((*_OPENING, *_CREATING, "sync_directory"), errno.EMFILE),
    "EACCES on rename": (("rename", "exchange"), errno.EACCES),
    "EACCES on remove": (("remove", "remove_tree"), errno.EACCES),
    "short write": ((), 0),  # the system takes half of what it is given, and says so
}


@dataclass(frozen=True, slots=True)
class Fault:
    """The n-th call of a kind (the first is 1; 0 is none) fails, or with `for_good` that and all later ones."""

    kind: str
    nth: int
    for_good: bool = False

    def __str__(self) -> str:
        return f"{self.kind} at call {self.nth}{' and from then on' if self.for_good else ''}"


class Failing:
    """Counts the calls of a fault's kind, and fails them."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.calls = 0
        self.failed = 0
        self._janitors = Janitors()

    def work(self) -> None:
        """All that the background of the open logs has to do."""
        self._janitors.work()

    def _is_due(self) -> bool:
        self.calls += 1
        due = self.calls == self.fault.nth or (self.fault.for_good and self.calls > self.fault.nth > 0)
        self.failed += due
        return due

    def _called(self, name: str, real: Real) -> Real:
        functions, code = KINDS[self.fault.kind]

        def call(*args: Any, **options: Any) -> Any:
            if name in functions and self._is_due():
                raise _error(code, real, *args)
            return real(*args, **options)

        return call

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        view = memoryview(data)
        return os.pwrite(fd, view[: len(view) // 2] if len(view) > 1 and self._is_due() else view, offset)


def _error(code: int, real: Real, *args: Any) -> OSError:
    """As the real function would say it: an error of ours, but where the kernel asks the system for itself."""
    error = OSError(code, os.strerror(code))
    return files.told(error, args[0]) if inspect.getmodule(real) is files else error


@contextmanager
def failing(fault: Fault) -> Iterator[Failing]:
    """What is done meanwhile meets a fault."""
    made = Failing(fault)
    with ExitStack() as stack:
        made._janitors = stack.enter_context(standing_in((*CHANGING, *_OPENING), made._called))
        if fault.kind == "short write":
            for module in (files, buffered):  # the kernel asks the system for itself where files grow
                stack.enter_context(mock.patch.object(module, "os", System({"pwrite": made._pwrite})))
        yield made
