"""The background of a log: what it could not do it tries again, though nothing else happens."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Queue, Retention
from penstock.errors import PenstockError, StorageFailed, SyncFailed
from penstock.options import Flush
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.storage.manifest import Manifest
from tests.support import data_files, until

FAILS = 3


def failing(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Have the first calls fail; a list of them, one by one."""
    real, failed = getattr(owner, name), list[int]()

    def call(*arguments: Any, **options: Any) -> Any:
        if len(failed) < FAILS:
            failed.append(len(failed))
            raise OSError(errno.EMFILE, "too many open files")
        return real(*arguments, **options)

    patch.setattr(owner, name, call)
    return failed


@pytest.mark.parametrize("owner, name", [(Log, "seal_finished"), (Manifest, "retired")])
def test_what_all_have_received_goes_though_that_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    received, turn = threading.Event(), Janitor._turn

    def turn_then(janitor: Janitor) -> None:
        """One that is under way when the last is received may see to all of it, in whichever step it is."""
        assert received.wait(60)
        turn(janitor)

    monkeypatch.setattr(Janitor, "_turn", turn_then)
    with Channel[bytes](tmp_path / "log", segment_bytes=1000) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        for _ in range(30):
            tx.send(bytes(100))
        failed = failing(monkeypatch, owner, name)
        assert len(rx.recv_many(30)) == 30
        received.set()
        until(lambda: ch.stats().segments == 1, "all but the last are removed")
        assert len(failed) == FAILS


def test_retention_goes_on_though_it_failed_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with Queue(path, file_size=8192, retention=Retention(max_bytes=8192)) as q:
        failed = failing(monkeypatch, Manifest, "retired")
        while len(data_files(path)) < 4:
            q.append(bytes(1000))
        until(lambda: len(data_files(path)) < 3, "what is too much is removed")
        assert len(failed) == FAILS


class Turns(Janitor):
    """A background whose turns end so, one after the other."""

    def __init__(self, *ends: PenstockError | None) -> None:
        super().__init__(Flush.none())
        self._ends = list(ends)
        self.waits_s: list[float | None] = []  # after each

    def _timeout_s(self) -> float | None:
        self.waits_s.append(super()._timeout_s())
        self._stopping = not self._ends
        return 0.0

    def _turn(self) -> None:
        error = self._ends.pop(0)
        if error is not None:
            raise error


def test_it_waits_longer_each_time_and_after_a_failed_sync_for_nothing() -> None:
    """No later one may succeed: a log that is poisoned stays so."""
    failed, poisoned = StorageFailed("log", errno.EMFILE), SyncFailed("log", errno.EIO)
    turns = Turns(None, failed, failed, None, failed, *[failed] * 20, poisoned)
    turns.run()
    assert turns.waits_s[:6] == [None, None, 0.1, 0.2, None, 0.1]
    assert turns.waits_s[-2:] == [60.0, None]
