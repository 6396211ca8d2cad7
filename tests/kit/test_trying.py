"""What `run`, `check` and `prepare` are given when users' own code is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Queue
from penstock.testing.trying import Plan, try_crashes, try_faults


def append(top: Path) -> None:
    with Queue(top / "q", file_size=8192) as q:
        q.append(b"x")


@pytest.mark.parametrize("how", [try_crashes, try_faults])
def test_all_are_given_a_directory_that_is_there(how: Callable[..., int]) -> None:
    """`prepare`, too: it may put a file of its own there."""
    given = []

    def there(top: Path) -> None:
        (top / "own").write_bytes(b"x")

    def is_there(top: Path) -> None:
        given.append((top / "own").read_bytes())

    assert how(append, is_there, there, Plan(1, 3), "pytest") == 3
    assert given == [b"x"] * 3
