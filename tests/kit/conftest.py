"""What the tests of the crash kit share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.uses.scale import small
from tests.queue.crash import Yard, open_yard


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield
