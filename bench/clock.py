"""Timing loops and what to make of the times."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

LONG_ENOUGH = 0.005
"""Seconds between two looks at the clock: long for the looking not to count, short to stop in time."""


LONGEST_BURST = 0.05
PAUSE = 0.03


class Lap(NamedTuple):
    """How much was done in which time, and the step the loop had found to be long enough."""

    done: int
    seconds: float
    step: int


def quiet() -> None:
    """Collect garbage now, and leave what exists now alone later. Collection stays on, as it is for users."""
    gc.collect()
    gc.freeze()


def run_for(work: Callable[[int], None], seconds: float, limit: int, step: int = 1) -> Lap:
    """Call `work(n)` with growing n until `seconds` are over or `limit` is done: slow peers do less."""
    count = 0
    spent = 0.0
    while spent < seconds and count < limit:
        part = min(step, limit - count)
        start = perf_counter()
        work(part)
        took = perf_counter() - start
        count += part
        spent += took
        if took < LONG_ENOUGH:
            step *= 2
    return Lap(count, spent, step)


def run_bursts(
    work: Callable[[int], None],
    end: Callable[[], None],
    seconds: float,
    limit: int,
    burst: int,
    step: int = 1,
) -> Lap:
    """Like `run_for`, in bursts with pauses between them that do not count; `end` closes each burst and does.

    A log is written in bursts, and whoever has work to do in the background gets the time to do it.
    """
    count = 0
    spent = 0.0
    while spent < seconds and count < limit:
        time.sleep(PAUSE)
        lap = run_for(work, LONGEST_BURST, min(burst, limit - count), step)
        start = perf_counter()
        end()
        count += lap.done
        spent += lap.seconds + perf_counter() - start
        step = lap.step
    return Lap(count, spent, step)


def percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """The usual percentiles (nearest rank) in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1

    def at(share: float) -> float:
        return ordered[min(last, int(share * len(ordered)))] / 1000

    return {
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": ordered[last] / 1000,
        "samples": float(len(ordered)),
    }
