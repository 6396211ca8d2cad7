"""What fails when a partition goes on to its next file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock import SyncFailed
from penstock.storage import files
from tests.queue.crash import Yard, payload
from tests.topic_crash.wreck import found, open_topics


def test_names_that_could_not_be_synced_are_not_built_on(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells a failure once: to make the files again and sync again would succeed, and prove nothing."""
    path = yard.new()
    logs = open_topics(path)
    t = logs.topic("t")
    t.publish(payload(0, 100), partition=0)
    t.flush()
    with monkeypatch.context() as patch:

        def refuse(path: Path) -> None:
            raise OSError(errno.EIO, "the disk says no")

        patch.setattr(files, "sync_directory", refuse)
        made = t.publish(payload(1, 100), partition=0)
        with pytest.raises(SyncFailed):
            t.flush()
        with pytest.raises(SyncFailed):
            made.wait()
    with pytest.raises(SyncFailed):
        t.publish(payload(2, 10), partition=0)
        t.flush()
    logs.close()
    with open_topics(path) as logs:
        t = logs.topic("t")
        assert found(t)[0] == {0: payload(0, 100)}
        t.publish(payload(1, 10), partition=0)
        t.flush()
        assert list(found(t)[0]) == [0, 1]


def test_a_file_that_cannot_be_made_fails_one_batch(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as what it is, with its path: the disk has refused nothing, and the next batch is written."""
    path = yard.new()
    with open_topics(path) as logs:
        t = logs.topic("t")
        t.publish(payload(0, 100), partition=0)
        t.flush()
        with monkeypatch.context() as patch:

            def none_left(path: Path, *, exclusive: bool = True) -> int:
                raise OSError(errno.EMFILE, "too many open files", str(path))

            patch.setattr(files, "create", none_left)
            made = t.publish(payload(1, 100), partition=0)
            with pytest.raises(OSError, match="too many open files") as told:
                t.flush()
            assert not isinstance(told.value, SyncFailed)
            assert str(path) in str(told.value.filename)
            with pytest.raises(OSError, match="too many open files"):
                made.wait()
        t.publish(payload(1, 100), partition=0)
        t.flush()
        assert found(t)[0] == {0: payload(0, 100), 1: payload(1, 100)}
