"""How the places of named receivers are kept: in the `offset` file, and what is done beyond a gap in a file of its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, DiskFull, Receiver, SyncFailed
from penstock.storage import files
from penstock.storage.group import NEVER, Group
from penstock.storage.janitor import Janitor
from penstock.storage.offsets import Offsets
from penstock.storage.ranges import Ranges
from tests.channel.conftest import drain, name_of, offsets_of, payload
from tests.support import until

SENT = [payload(i) for i in range(1, 13)]  # none of them empty
AT = offsets_of(SENT)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were put in place of others; a `full` among them refuses all that follow."""
    names: list[str] = []
    real = files.replace

    def replace(path: Path, data: bytes, **options: Any) -> None:
        if "full" in names:
            raise DiskFull(path, 0)
        names.append(path.name)
        real(path, data, **options)

    monkeypatch.setattr(files, "replace", replace)
    return names


@pytest.fixture
def ch(path: Path) -> Iterator[Channel[bytes]]:
    with Channel(path) as channel:
        channel.tx().send_many(SENT)
        yield channel


# ---- beyond a gap ----


def test_closing_a_gap_is_one_store_and_changes_no_file(ch: Channel[bytes], replaced: list[str]) -> None:
    one, two = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
    one.recv_many(2)
    two.recv_many(2)
    replaced.clear()
    two.ack(2)
    assert replaced == ["pool"]
    replaced.append("full")
    one.ack(2)
    assert (one.offset, ch.stats().receivers["pool"].offset) == (AT[4], AT[4])
    two.recv_many(2)
    two.ack(2)
    assert ch.stats().receivers["pool"].offset == AT[6]


@pytest.mark.parametrize("closed", [False, True])
def test_what_was_done_beyond_a_gap_is_void_once_it_is_passed(path: Path, closed: bool) -> None:
    """After a step back nothing counts as done, though it once was: also after a restart, and after a crash."""
    with Channel(path) as ch:
        ch.tx().send_many(SENT)
        one, two = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        one.recv_many(2)
        two.recv_many(2)
        two.ack(2)
        if closed:
            one.ack(2)
        one.seek(AT[1])
    with Channel(path) as ch:
        assert drain(ch.rx("pool")) == SENT[1:]


def test_an_ack_that_finds_the_disk_full_has_done_nothing(path: Path, replaced: list[str]) -> None:
    with Channel(path) as ch:
        ch.tx().send_many(SENT)
        one, two = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        one.recv_many(2)
        two.recv_many(2)
        replaced.append("full")
        with pytest.raises(DiskFull):
            two.ack(1)
        assert (two.unacked, two.offset) == (2, 0)
        replaced.clear()
        two.ack(1)
        replaced.append("full")
        with pytest.raises(DiskFull):
            two.ack(1)
        assert (two.unacked, two.offset) == (1, 0)
        one.ack(2)
        assert two.offset == AT[3]
        replaced.clear()
    with Channel(path) as ch:
        assert drain(ch.rx("pool")) == SENT[3:]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_ack_that_is_interrupted_over_its_file_has_done_nothing(
    path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.rename

    def rename(source: Path, target: Path) -> None:
        patch.undo()
        if after:
            real(source, target)
        raise KeyboardInterrupt

    with Channel(path) as ch:
        ch.tx().send_many(SENT)
        one, two = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        one.recv_many(2)
        two.recv_many(2)
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", rename)
            with pytest.raises(KeyboardInterrupt):
                two.ack(1)
        assert (two.unacked, two.offset) == (2, 0)
    with Channel(path) as ch:
        assert drain(ch.rx("pool")) == SENT


@pytest.mark.parametrize(
    ("done", "removed", "left"),
    [
        ((30, []), (10, 20), (10, [(20, 30)])),
        ((30, []), (20, 30), (20, [])),
        ((30, []), (0, 30), (0, [])),
        ((30, []), (40, 50), (30, [])),
        ((30, [(40, 60), (70, 80)]), (45, 50), (30, [(40, 45), (50, 60), (70, 80)])),
        ((30, [(40, 60), (70, 80)]), (20, 75), (20, [(75, 80)])),
    ],
)
def test_what_is_not_done_after_all(done: Any, removed: tuple[int, int], left: Any) -> None:
    ranges = Ranges(*done)
    ranges.remove(*removed)
    assert (ranges.low, ranges.beyond) == left


# ---- the file ----


def test_after_a_sync_of_the_offsets_that_failed_none_succeeds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of it once, and then has nothing left to write: a second one would promise what is not so."""
    real = files.sync

    def sync(fd: int) -> None:
        if name_of(fd) == "offset":
            patch.undo()
            raise OSError(5, "broken")
        real(fd)

    path.mkdir()
    offsets = Offsets(path / "offset")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", sync)
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                offsets.sync()
    offsets.close()


def test_a_receiver_whose_place_cannot_be_put_on_the_disk_is_not_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.sync

    def sync(fd: int) -> None:
        if name_of(fd) == "offset":
            raise OSError(5, "broken")
        real(fd)

    ch = Channel[bytes](path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", sync)
        with pytest.raises(SyncFailed):
            ch.rx("worker")
    assert ch.stats().receivers == {}
    with pytest.raises(SyncFailed):
        ch.tx().send(b"a")
    ch.close()


def test_one_who_only_reads_sees_the_offsets_file_grow(path: Path) -> None:
    path.mkdir()
    offsets = Offsets(path / "offset")
    reader = Offsets(path / "offset", read_only=True)
    offsets.grow()
    offsets.store(600, 77)
    assert reader.load(600) == 77
    assert reader.load(6000) == 0
    for one in (offsets, reader):
        one.close()


# ---- what holds segments ----


def test_one_that_went_back_is_waited_for_again(path: Path) -> None:
    """Or a segment that nobody needs any more would stay until something else happens."""
    with Channel(path, segment_bytes=100) as ch:
        for message in SENT:
            ch.tx().send(message)
        fast, slow = ch.rx("fast"), ch.rx("slow")
        drain(fast)
        group = fast._group
        until(lambda: ch._look_at < NEVER and group.taker.until == NEVER, "it is known that it has passed")
        fast.seek(0)
        assert group.taker.until < NEVER
        drain(slow)
        drain(fast)
        until(lambda: ch.stats().first_offset > AT[6], "the segments are removed")


def test_it_is_told_once_that_an_offset_is_reached(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(Channel, "_tidy", lambda self, log: None)  # it would watch for something else
    monkeypatch.setattr(Janitor, "look_again", lambda self: told.append(rx.offset))
    with Channel(path) as ch:
        ch.tx().send_many(SENT)
        rx = ch.rx("worker")
        _watch_again_and_again(rx, told)


def _watch_again_and_again(rx: Receiver[bytes], told: list[int]) -> None:
    for way in (rx.recv, lambda: rx.recv_many(1), lambda: rx.seek(AT[4])):
        rx.seek(AT[3])
        rx._group.watch(AT[4])
        way()
        assert told == [AT[4]]
        rx.recv()
        assert told == [AT[4]]
        rx.seek(AT[3])
        drain(rx)
        assert len(told) == 2, "it was passed again"
        told.clear()
    rx._group.watch(AT[2])
    rx.seek(AT[5])
    drain(rx)
    assert told == []


def test_a_name_whose_first_receiver_was_interrupted_in_the_making_can_be_had(
    ch: Channel[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(self: Group) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Group, "join", join)
        for name in ("worker", "other"):
            with pytest.raises(KeyboardInterrupt):
                ch.rx(name)
    with ch.rx("worker") as rx:
        assert rx.recv() == SENT[0]
    ch.forget("other")
    assert set(ch.stats().receivers) == {"worker"}
