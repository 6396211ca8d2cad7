"""The control page among processes that come at the same moment: who makes it, and who recovers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock import Queue
from penstock.formats.topic import Partition
from penstock.storage import files
from penstock.storage.control import Control
from penstock.storage.segment import WriteSegment
from penstock.storage.span import finish_appends


def test_one_who_found_it_empty_a_while_ago_wipes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He looked, was not scheduled, and meanwhile another has made the page and written to it."""
    with Queue(tmp_path / "q", file_size=65536) as q:
        q.append(b"x")
        page = tmp_path / "q" / ".lock"
        before = page.read_bytes()
        seen = [0]  # what he saw
        real = files.size
        monkeypatch.setattr(files, "size", lambda fd: seen.pop() if seen else real(fd))
        Control(page, Partition(0)).close()
        assert seen == []
        assert page.read_bytes() == before
        assert q.append(b"y") == 1


def test_nothing_is_believed_of_a_page_that_was_cut_short(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", file_size=65536) as q:
        q.append(b"x")
    page = tmp_path / "q" / ".lock"
    page.write_bytes(page.read_bytes()[:1000])
    with Queue(tmp_path / "q") as q:
        assert [m.payload for m in q.tailer()] == [b"x"]
        assert q.recovery.how == "new boot"


def test_of_two_who_find_a_page_of_another_boot_one_recovers_and_the_other_joins(tmp_path: Path) -> None:
    """While somebody else looks at it, so that neither is alone at once. Each with his share in hand, neither ever would be."""
    with Queue(tmp_path / "q", file_size=65536) as q:
        q.append(b"x")
    page = tmp_path / "q" / ".lock"
    with page.open("r+b") as f:
        f.seek(16)
        f.write(b"another boot....")
    reader = Control(page, Partition(0), read_only=True)
    reader.share()
    opened: list[Queue] = []
    comers = [threading.Thread(target=lambda: opened.append(Queue(tmp_path / "q"))) for _ in range(3)]
    for comer in comers:
        comer.start()
    reader.close()
    for comer in comers:
        comer.join(20)
    try:
        assert len(opened) == len(comers)
        assert sum(q.recovery.how == "joined" for q in opened) == len(comers) - 1
    finally:
        for q in opened:
            q.close()


def test_an_open_that_fails_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(tmp_path / "q", file_size=65536) as q:
        q.append(b"x")
    real, made = files.create, []

    def create(path: Path, *, exclusive: bool = True) -> int:
        if path.name == ".grow":
            made.append(path)
            if len(made) % 2 == 0:
                raise OSError(24, "too many open files")
        return real(path, exclusive=exclusive)

    monkeypatch.setattr(files, "create", create)
    before = sorted(p.name for p in Path("/proc/self/fd").iterdir())
    for _ in range(5):
        with pytest.raises(OSError, match="too many open files"):
            Queue(tmp_path / "q")
    assert sorted(p.name for p in Path("/proc/self/fd").iterdir()) == before


def test_only_what_has_blocks_is_wiped_of_an_append_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is announced before there are any; to touch a map where there are none kills on a full disk."""
    wiped: list[tuple[int, ...]] = []
    with Queue(tmp_path / "q", file_size=1 << 20) as q:
        q.append(b"x")
        log = q._open_log()
        assert log.control is not None
        now, have = log.control.active(), log.control.allocated
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(WriteSegment, "zero", lambda self, *given: wiped.append(given))
            log.control.announce(1 << 20, now.next + 100_000)
            finish_appends(log.directory, log.control, log.manifest)
        assert wiped == [(now.end, have[0], now.next, have[1])]
        assert log.control.dirty is None
