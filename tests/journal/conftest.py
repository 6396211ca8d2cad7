"""What the tests of the journal share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Journal, Record, journal, kernel
from penstock.storage import files
from penstock.storage.buffered import Buffered
from penstock.storage.growing import GrowingSegment
from penstock.storage.log import Log
from tests.channel.conftest import Ran
from tests.queue.crash import Yard, open_yard

SLOW = kernel.NAME == "reference" or files.PORTABLE

__all__ = ["SLOW", "Ran", "failing", "held", "log_of", "payloads", "small_files", "tree", "walked"]


def log_of(j: Journal) -> Log:
    assert j._log is not None
    return j._log


def walked(j: Journal, **options: Any) -> list[Record]:
    """The walk, to its end."""
    return list(j.recovered(**options))


def payloads(records: list[Record]) -> list[bytes]:
    return [record.payload for record in records]


def tree(top: Path, *without: str) -> dict[str, bytes]:
    """Every file below a directory, but for those named."""
    return {name: (top / name).read_bytes() for name in files.walk(top) if name not in without}


@contextmanager
def held(j: Journal) -> Iterator[None]:
    """No batch gets to the disk meanwhile: it waits for the log's lock."""
    with log_of(j).locked():
        yield


def small_files(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", size)


@contextmanager
def failing(j: Journal, device: str) -> Iterator[None]:
    """Data goes to a device instead: /dev/full takes no byte, /dev/null takes all and no sync."""
    fd = os.open(device, os.O_RDWR)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GrowingSegment, "data_fd", property(lambda self: fd))
            _stand_anew(j)
            yield
        _stand_anew(j)
    finally:
        os.close(fd)


def _stand_anew(j: Journal) -> None:
    path: Buffered = j._path
    if j.closed:
        return
    with log_of(j).locked():
        path.appends.detach()
        path._turn = -2  # of no segment: the next batch takes its place anew


@pytest.fixture(scope="session")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


@pytest.fixture
def path(yard: Yard) -> Iterator[Path]:
    """Where a test's journal goes, in memory: what is on the disk is asked of the kernel. (Kills over a real disk: the crash
    tests.)"""
    top = yard.keep()
    top.mkdir()
    yield top / "log"
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def new(path: Path) -> Iterator[Callable[..., Journal]]:
    """Opens journals, which are closed at the end if the test did not."""
    made: list[Journal] = []

    def make(at: Path = path, **options: Any) -> Journal:
        made.append(Journal(at, **options))
        return made[-1]

    yield make
    for j in made:
        j.close()
