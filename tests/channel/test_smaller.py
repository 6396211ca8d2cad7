"""A channel that is opened with smaller files than before, with something left to mend in a larger one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock import Channel, SyncFailed
from penstock.storage import files
from tests.channel_crash.wreck import small_files

SENT = [b"%03d" % i * 300 for i in range(60)]
LARGE, SMALL = 100_000, 300


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_files(monkeypatch)
    return tmp_path / "channel"


def goes_on(path: Path) -> None:
    with Channel[bytes](path, segment_bytes=SMALL) as ch:
        ch.tx().send(b"more")
    with Channel[bytes](path, segment_bytes=SMALL) as ch:
        assert ch.rx().recv_many(100) == [*SENT, b"more"]


def test_after_a_failed_sync_what_is_moved_has_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "refused")

    ch = Channel[bytes](path, segment_bytes=LARGE)
    ch.tx().send_many(SENT)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "sync", fail)
        with pytest.raises(SyncFailed):
            ch._open_log().sync()
        ch.close()
    goes_on(path)


def test_after_a_death_over_an_append(path: Path) -> None:
    with Channel[bytes](path, segment_bytes=LARGE) as ch:
        ch.tx().send_many(SENT)
        log = ch._open_log()
        assert log.control is not None
        now = log.control.active()
        log.control.announce(now.end + 500, now.next + 1)
        log._closing = log.closed = True  # as if its process had died: nothing is put in order
        log._let_go()
    goes_on(path)
