"""Fixtures for pytest: `crash_states` and `failing_storage`. See docs/testing.md.

Loaded by every run of pytest where Penstock is installed, so what they need is imported by the fixtures.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.trying import Act

Try = Callable[..., int]
_MOST = 500


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption("--penstock-seed", type=int, help="choose the same crashes and faults again (else by chance)")
    group.addoption(
        "--penstock-case",
        type=_case,
        metavar="[CALL:]CASE",
        help="try this one alone: of the first call, if no other is given",
    )


def _case(text: str) -> tuple[int, int]:
    call, _, case = text.rpartition(":")
    return int(call or 1), int(case)


class _Calls:
    """The calls of both fixtures in one test. A seed has cases for each, so the number of a case alone does not say which it is."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._made = 0
        self._wanted: tuple[int, int] | None = request.config.getoption("--penstock-case")

    def check(self) -> None:
        """A call that there is not would pass, having tried nothing."""
        if self._wanted and not 1 <= self._wanted[0] <= self._made:
            raise ValueError(f"case {self._wanted[1]} of call {self._wanted[0]}: there were {self._made} calls")

    def attempt(
        self,
        how: Callable[..., int],
        run: Act,
        check: Act,
        *,
        prepare: Act = lambda top: None,
        most: int = _MOST,
    ) -> int:
        """How many were tried: none, if a case of another call is wanted."""
        from penstock.testing.trying import Plan

        self._made += 1
        if self._wanted and self._wanted[0] != self._made:
            return 0
        seed = self._request.config.getoption("--penstock-seed")
        plan = Plan(
            random.randrange(1 << 31) if seed is None else seed,
            most,
            self._wanted[1] if self._wanted else None,
            self._made,
        )
        return how(run, check, prepare, plan, f"pytest {shlex.quote(_id(self._request))}")


@pytest.fixture
def _penstock_calls(request: pytest.FixtureRequest) -> Iterator[_Calls]:
    calls = _Calls(request)
    yield calls
    calls.check()


@pytest.fixture
def crash_states(_penstock_calls: _Calls) -> Try:
    """`crash_states(run, check, prepare=..., most=500)`: run, crash in every state there is (or so many of them), run again, check."""
    from penstock.testing.trying import try_crashes

    return partial(_penstock_calls.attempt, try_crashes)


@pytest.fixture
def failing_storage(_penstock_calls: _Calls) -> Try:
    """`failing_storage(run, check, prepare=..., most=500)`: run while a call fails, run again when none does, check."""
    from penstock.testing.trying import try_faults

    return partial(_penstock_calls.attempt, try_faults)


def _id(request: pytest.FixtureRequest) -> str:
    """The test as pytest takes it where it was started: the ids that it has itself are by the root, which may be elsewhere."""
    path = os.path.relpath(request.node.path, request.config.invocation_params.dir)
    return "::".join([path, *request.node.nodeid.split("::")[1:]])
