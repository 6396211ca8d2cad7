"""What the crash tests of topics share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queue.crash import Yard, open_yard
from tests.topic_crash.wreck import by_hand


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background does nothing by itself."""
    by_hand(monkeypatch)
