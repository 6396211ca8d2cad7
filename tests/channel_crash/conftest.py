"""What the crash tests of the channel share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.channel_crash.wreck import small_files
from tests.queue.crash import Yard, open_yard


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


@pytest.fixture(scope="package", autouse=True)
def _small() -> Iterator[None]:
    """A file has room for a segment and the longest message, 64 MiB: here that is 2 KiB, or images would be huge."""
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        yield
