"""Fixtures for pytest: `crash_states` and `failing_storage`. See docs/testing.md.

Loaded by every run of pytest where Penstock is installed, so what they need is imported by the fixtures.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Callable
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
    group.addoption("--penstock-case", type=int, help="try this one of them alone")


@pytest.fixture
def crash_states(request: pytest.FixtureRequest) -> Try:
    """`crash_states(run, check, prepare=..., most=500)`: run, crash in every state there is (or so many of them), run again, check."""
    from penstock.testing.trying import try_crashes

    return partial(_try, try_crashes, request)


@pytest.fixture
def failing_storage(request: pytest.FixtureRequest) -> Try:
    """`failing_storage(run, check, prepare=..., most=500)`: run while a call fails, run again when none does, check."""
    from penstock.testing.trying import try_faults

    return partial(_try, try_faults, request)


def _try(
    how: Callable[..., int],
    request: pytest.FixtureRequest,
    run: Act,
    check: Act,
    *,
    prepare: Act = lambda top: None,
    most: int = _MOST,
) -> int:
    """How many were tried."""
    from penstock.testing.trying import Plan

    seed = request.config.getoption("--penstock-seed")
    plan = Plan(random.randrange(1 << 31) if seed is None else seed, most, request.config.getoption("--penstock-case"))
    return how(run, check, prepare, plan, f"pytest {shlex.quote(_id(request))}")


def _id(request: pytest.FixtureRequest) -> str:
    """The test as pytest takes it where it was started: the ids that it has itself are by the root, which may be elsewhere."""
    path = os.path.relpath(request.node.path, request.config.invocation_params.dir)
    return "::".join([path, *request.node.nodeid.split("::")[1:]])
