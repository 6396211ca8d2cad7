"""Processes that stand still for a while (SIGSTOP) and then go on: what the campaigns of kills do between kills.

A process that stands still keeps all it has, whatever lock that is: others go on, or wait for it, however long it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import until
from tests.torture_table import Row, add

FAULT = "stopped, then continued"
ONE_IN = 8  # moments at which something is done to a process
MOMENT_S = 0.3
SECONDS_S = 5.0
LONGEST_S = 130.0
FIRST_LONG = 20  # the how-manieth stop is the first long one
LONG_EVERY = 200  # stops from one long one to the next
FREELY_S = 2.0
REST_S = 18.0  # in a long one the others stand for so long, between times at which they go on


def is_stopped(pid: int) -> bool:
    """Whether it stands still; also if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] in "TtZX"
    except FileNotFoundError:
        return True


def some_calls(step: int) -> Iterator[int]:
    """At which calls (or stores) one stands still: one in so many, others in each run; PENSTOCK_SWEEP=all takes all."""
    every = os.environ.get("PENSTOCK_SWEEP") == "all"
    return itertools.count(1) if every else itertools.count(1 + int(time.time()) % step, step)


@contextlib.contextmanager
def standing(pid: int) -> Iterator[None]:
    """It stands still meanwhile; it may be killed as it stands."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: is_stopped(pid), "it stops")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@dataclass
class Stops:
    """The stops of one campaign. Without `longest_s` none lasts longer than a moment: so it is in `make test`."""

    rng: random.Random
    longest_s: float = 0.0
    count: int = 0
    _asked: int = 0

    def due(self) -> bool:
        """Whether one is to be stopped at this moment."""
        self._asked += 1
        return self._asked % ONE_IN == 0

    def stop(self, pid: int, others: Iterable[int] = (), meanwhile: Callable[[], object] = lambda: None) -> None:
        """Have a process stand still. If that takes long the others do so too, most of the time: all that they write would have to be
        read. If what happens meanwhile is wrong it is killed, or all would wait for its end."""
        self.count += 1
        try:
            self._stand(pid, self._how_long(), list(others), meanwhile)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise

    @staticmethod
    def _stand(pid: int, seconds: float, others: Sequence[int], meanwhile: Callable[[], object]) -> None:
        with standing(pid):
            meanwhile()
            if seconds <= SECONDS_S:
                time.sleep(seconds)
                return
            ends_s = time.monotonic() + seconds - FREELY_S
            time.sleep(FREELY_S)
            while (left_s := ends_s - time.monotonic()) > 0:
                with contextlib.ExitStack() as stack:
                    for other in others:
                        stack.enter_context(standing(other))
                    time.sleep(min(left_s, REST_S))
                time.sleep(FREELY_S)

    def _how_long(self) -> float:
        if self.longest_s and self.count % LONG_EVERY == FIRST_LONG:
            return self.rng.uniform(self.longest_s / 2, self.longest_s)
        return self.rng.uniform(0, min(SECONDS_S, self.longest_s) if self.rng.random() < 0.1 else MOMENT_S)


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-s",
        type=float,
        default=LONGEST_S,
        help=f"the {FIRST_LONG}th process that is stopped, and one in {LONG_EVERY}, stands still for half this time to all of it",
    )


def add_row(use: str, stops: int, failures: int, records: int) -> None:
    """Which of kills and stops a failure is due to nobody can tell, so both say it."""
    add(Row(use, FAULT, stops, failures, records))
