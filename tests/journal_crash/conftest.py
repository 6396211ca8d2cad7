"""What the crash tests of the journal share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queue.crash import Yard, open_yard


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard
