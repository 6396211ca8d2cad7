"""What is on the disk before a call returns, and what happens when the disk is full or slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Channel, DiskFull
from penstock.storage import files
from tests.channel.conftest import Ran, name_of


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were synced by the thread of the test."""
    names: list[str] = []
    here, real = threading.get_ident(), files.sync

    def sync(fd: int) -> None:
        if threading.get_ident() == here:
            names.append(name_of(fd))
        real(fd)

    monkeypatch.setattr(files, "sync", sync)
    return names


def test_with_crash_consistency_everything_is_on_the_disk_before_it_returns(path: Path, synced: list[str]) -> None:
    with Channel(path, crash_consistent=True) as ch:
        tx, rx, acked, unnamed = ch.tx(), ch.rx("worker"), ch.rx("acked", ack=True), ch.rx()

        def of(call: Callable[[], object]) -> set[str]:
            synced.clear()
            call()
            return set(synced) - {".lock"}

        assert of(lambda: tx.send(b"a")) == {"segment.0", "offset"}
        assert ch.stats().durable_offset == ch.stats().write_offset == 9
        assert of(lambda: tx.send_many([b"b", b"c", b"d"])) == {"segment.0", "offset"}
        assert ch.stats().durable_offset == 36
        for call in (rx.recv, rx.try_recv, lambda: rx.recv_many(5), lambda: rx.seek(0), lambda: next(iter(rx))):
            assert of(call) == {"offset"}
        assert of(lambda: acked.recv_many(2)) == set()
        assert of(acked.ack) == {"offset"}
        assert of(unnamed.recv) == set()
        assert of(lambda: rx.try_recv() and rx.recv_many(5)) == {"offset"}
        assert of(rx.try_recv) == set()


def test_without_crash_consistency_nothing_is_synced(path: Path, synced: list[str]) -> None:
    with Channel(path) as ch:
        tx, rx, acked = ch.tx(), ch.rx("worker"), ch.rx("acked", ack=True)
        synced.clear()
        tx.send(b"a")
        tx.send_many([b"b", b"c"])
        rx.recv()
        rx.recv_many(5)
        acked.recv()
        acked.ack()
        assert synced == []


def test_a_send_waits_for_the_disk_no_longer_than_it_may(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release, real = threading.Event(), threading.Event(), files.sync

    def sync(fd: int) -> None:
        if name_of(fd) == "segment.0":
            entered.set()
            release.wait(30)
        real(fd)

    with Channel(path, crash_consistent=True) as ch:
        monkeypatch.setattr(files, "sync", sync)
        slow = Ran(lambda: ch.tx().send(b"a"))
        assert entered.wait(30)
        with pytest.raises(TimeoutError, match="what was appended stays"):
            ch.tx().send(b"b", timeout_s=0.01)
        with pytest.raises(TimeoutError):
            ch.tx().send_many([b"c", b"d"], timeout_s=0.01)
        release.set()
        slow.result()
        assert ch.rx().recv_many(10) == [b"a", b"b", b"c", b"d"]


def test_a_sync_of_the_offsets_is_shared_by_those_who_wait_for_it_and_skipped_by_nobody(path: Path) -> None:
    """Each caller's sync begins after its call: what it stored before that is on the disk when it returns."""
    with Channel(path, crash_consistent=True) as ch:
        offsets = ch._offsets
        assert offsets is not None
        stored, failures = [0] * 4, list[str]()
        real = files.sync

        def sync(fd: int) -> None:
            seen = list(stored)
            real(fd)
            for i, value in enumerate(seen):
                durable[i] = max(durable[i], value)

        durable = [0] * 4

        def run(i: int) -> Callable[[], None]:
            def work() -> None:
                for n in range(1, 200):
                    stored[i] = n
                    offsets.sync()
                    if durable[i] < n:
                        failures.append(f"{i}: {n} was not synced")

            return work

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "sync", sync)
            for thread in [Ran(run(i)) for i in range(4)]:
                thread.result()
        assert failures == []


def test_a_full_disk_says_so_when_a_receiver_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFull("planted", 0)

    with Channel(path) as ch:
        ch.tx().send(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", full)
            with pytest.raises(DiskFull):
                ch.rx("worker")
        assert ch.stats().receivers == {}
        assert ch.rx("worker").recv() == b"a"


def test_a_full_disk_when_the_offset_file_is_made_leaves_none_that_would_kill(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of that length without blocks would be mapped the next time, and a store to it is a bus error."""
    real = files.allocate

    def full(fd: int, offset: int, length: int) -> None:
        if name_of(fd) == "offset":
            files.truncate(fd, offset + length)
            raise DiskFull("planted", 0)
        real(fd, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(files, "allocate", full)
        with pytest.raises(DiskFull):
            Channel(path)
    assert (path / "offset").stat().st_size == 0
    with Channel(path) as ch:
        assert (path / "offset").stat().st_size >= 4096
        assert (path / "offset").stat().st_blocks > 0
        ch.tx().send(b"a")
