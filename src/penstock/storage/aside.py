"""What blocks, for coroutines: done in a thread.

The threads are our own: a loop has few of its own, whoever waits for records has one until some come, and what others ask of the loop's
would stand behind them.

asyncio is imported with the first of it: that takes a third as long again as importing all of this package, and many who use it
(commands, Spark's workers) never run a coroutine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

_MOST_THREADS: Final = 1024  # each is made when all there are have something to do
_threads: ThreadPoolExecutor | None = None


async def aside(act: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """What `act` returns."""
    import asyncio
    from contextvars import copy_context
    from functools import partial

    # Taken out, since the thread would have a hand on it for a moment after it has told what `act` returned.
    calls = [partial(copy_context().run, act, *args, **options)]
    return await asyncio.get_running_loop().run_in_executor(_ours(), lambda: calls.pop()())


def _ours() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        from concurrent.futures import ThreadPoolExecutor

        _threads = ThreadPoolExecutor(_MOST_THREADS, "penstock-aside")
    return _threads


def _after_fork_in_child() -> None:
    global _threads
    _threads = None  # its threads are the parent's


os.register_at_fork(after_in_child=_after_fork_in_child)
