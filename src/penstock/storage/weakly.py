"""Callbacks that do not keep alive whose method they call, and sets of what is not kept alive: else it, and the files it has open,
would wait for the collector of garbage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from penstock.errors import LogClosed

R = TypeVar("R")
T = TypeVar("T")


def weakly(method: Callable[..., R]) -> Callable[..., R]:
    """Calls a bound method. When its object is gone it raises LogClosed."""
    function = method.__func__  # type: ignore[attr-defined]
    ref = weakref.ref(method.__self__)  # type: ignore[attr-defined]

    def call(*args: object) -> R:
        alive = ref()
        if alive is None:
            raise LogClosed("what this was done for was dropped")
        found: R = function(alive, *args)
        return found

    return call


def all_of(some: weakref.WeakSet[T]) -> list[T]:
    """Each of them: another thread may add to them meanwhile, which ends a look at them."""
    while True:
        with suppress(RuntimeError):
            return list(some)


def taken_out(some: weakref.WeakSet[T]) -> Iterator[T]:
    """Each of them, one by one: another thread may add to them meanwhile."""
    with suppress(KeyError):
        while True:
            yield some.pop()
