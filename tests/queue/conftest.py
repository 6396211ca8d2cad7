"""What the tests of the queue share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Queue, Roll
from tests.queue.crash import Yard, open_yard


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


def payload(i: int) -> bytes:
    """A payload that no other record has; they are of different sizes."""
    return b"%d" % i * (1 + i * 7 % 11)


@pytest.fixture
def many(path: Path) -> Iterator[Queue]:
    """200 records in files of 23, with a batch over several files among them."""
    with Queue(path, file_size=8192, roll=Roll.count(23), index_interval=3) as q:
        for i in range(100):
            q.append(payload(i))
        q.append_batch([payload(i).ljust(800, b".") for i in range(100, 120)])
        for i in range(120, 200):
            q.append(payload(i))
        yield q
