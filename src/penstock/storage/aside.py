"""What blocks, for coroutines: done in a thread.

asyncio is imported with the first of it: that takes a third as long again as importing all of this package, and many who use it
(commands, Spark's workers) never run a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def aside(act: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """What `act` returns."""
    import asyncio

    return await asyncio.to_thread(act, *args, **options)
