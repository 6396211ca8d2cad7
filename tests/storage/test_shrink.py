"""Two at one compression: a task that stalls is given to another, and goes on when that one is done. And what was compressed on a full disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, DiskFull
from penstock.compressing import Plain, compress, pack_here
from penstock.storage import compressed, files

SENT = [b"%04d" % i * 20 for i in range(60)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A channel of several plain segments."""
    with Channel[bytes](tmp_path / "channel", segment_bytes=1000) as ch:
        for message in SENT:
            ch.tx().send(message)
    return tmp_path / "channel"


def received(path: Path) -> list[bytes]:
    with Channel[bytes](path, read_only=True) as ch:
        return ch.rx().recv_many(100)


def test_what_one_who_goes_on_late_writes_is_not_in_what_was_adopted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stalled, go_on = compressed.compress, threading.Event(), threading.Event()

    def late(method: Any, source: int, start: int, end: int, out: int, at: int, name: str) -> int:
        if threading.current_thread() is threading.main_thread():
            return real(method, source, start, end, out, at, name)
        stalled.set()
        assert go_on.wait(30)
        files.write(out, bytes(100), at)
        return at + 100

    def pack(items: Sequence[Plain]) -> Iterator[bool]:
        slow = threading.Thread(target=items[0].pack)
        slow.start()
        assert stalled.wait(30)
        done = list(pack_here(items))
        yield done[0]
        assert Path(items[0].top, "segment.0.z").exists()
        go_on.set()
        slow.join()
        yield from done[1:]

    monkeypatch.setattr(compressed, "compress", late)
    report = compress(path, pack=pack)
    assert report.segments > 3
    assert report.left == ()
    assert received(path) == SENT


def test_half_of_what_one_who_begins_late_writes_is_not_adopted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He dies over it, after another was done and before that is adopted."""
    real = compressed.compress

    def half(method: Any, source: int, start: int, end: int, out: int, at: int, name: str) -> int:
        real(method, source, start, end, out, at, name)
        files.truncate(out, at + 5)
        raise SystemExit

    def pack(items: Sequence[Plain]) -> Iterator[bool]:
        done = list(pack_here(items))
        monkeypatch.setattr(compressed, "compress", half)
        monkeypatch.setattr(files, "remove", lambda path: None)  # he was killed: nothing is cleared away
        with pytest.raises(SystemExit):
            items[0].pack()
        monkeypatch.undo()
        yield from done

    assert compress(path, pack=pack).left == ()
    assert list(path.glob("*.tmp"))
    assert received(path) == SENT
    with Channel[bytes](path):
        assert not list(path.glob("*.tmp"))


def test_what_one_who_begins_late_takes_away_stays_plain(path: Path) -> None:
    def pack(items: Sequence[Plain]) -> Iterator[bool]:
        done = list(pack_here(items))
        Path(items[1].top, "segment.1.z.ing").unlink()
        yield from done

    report = compress(path, pack=pack)
    assert report.left == (str(path / "segment.1"),)
    assert received(path) == SENT
    assert compress(path).segments == 1
    assert received(path) == SENT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("everywhere", [False, True])
def test_it_is_read_on_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch, everywhere: bool) -> None:
    """It is inflated elsewhere; if that is full, too, that is said."""
    assert compress(path).segments > 3
    real = files.create_unnamed
    places: set[Path] = set()

    def create(directory: Path) -> int:
        places.add(directory)
        return os.open("/dev/full", os.O_RDWR) if everywhere or directory == path else real(directory)

    monkeypatch.setattr(files, "create_unnamed", create)
    with Channel[bytes](path, read_only=True) as ch:
        if everywhere:
            with pytest.raises(DiskFull, match=r"segment\.0\.z"):
                ch.rx().recv_many(100)
        else:
            assert ch.rx().recv_many(100) == SENT
    assert places == {path, files.temporary_directory()}
