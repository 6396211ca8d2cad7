"""What was taken and could not be returned comes again: to whoever is next, in order, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, LogClosed, SyncFailed, codecs
from penstock.storage import files
from tests.channel.conftest import SLOW, Ran, drain, name_of, offsets_of, payload
from tests.support import until

SENT = [payload(i) for i in range(1, 13)]  # none of them empty
AT = offsets_of(SENT)


@pytest.fixture
def filled(path: Path) -> Path:
    with Channel(path, segment_bytes=150) as ch:
        for message in SENT:
            ch.tx().send(message)
    return path


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("others", [0, 1, 5])
def test_one_that_is_given_back_is_the_next_one_and_no_other_comes_again(
    filled: Path, others: int, restart: bool
) -> None:
    with Channel(filled) as ch:
        ch.rx("holds-all")
        rx, other = (ch.rx("pool", shared=True) for _ in range(2))
        assert rx.recv_many(2) == SENT[:2]
        since = rx._taker.count
        assert rx.recv() == SENT[2]
        if rx._taker.count == since:
            pytest.fail("it was not had at once, so this proves nothing")
        assert [Ran(other.recv).result() for _ in range(others)] == SENT[3 : 3 + others]
        rx._group.undo(since)
        assert rx.offset == AT[2]
        assert ch.stats().receivers["pool"].offset == AT[2]
        if not restart:
            assert drain(other) == [SENT[2], *SENT[3 + others :]]
            assert rx.offset == AT[-1]
    with Channel(filled) as ch:
        assert drain(ch.rx("pool")) == ([SENT[2], *SENT[3 + others :]] if restart else [])


def test_one_whose_segment_is_gone_cannot_be_given_back_and_the_others_go_on(filled: Path) -> None:
    with Channel(filled) as ch:
        rx = ch.rx("worker")
        since = rx._taker.count
        assert [rx.recv() for _ in range(6)] == SENT[:6]
        first = rx._taker.mine(since)
        assert first is not None
        rx.recv_many(100)
        until(lambda: ch.stats().first_offset > AT[6], "the segments are removed")
        low = rx.offset
        rx._group.undo(since)
        assert rx.offset == low
        ch.tx().send(b"more")
        assert [rx.recv(), rx.try_recv()] == [b"more", None]


def test_undoing_a_call_that_took_nothing_changes_nothing(filled: Path) -> None:
    with Channel(filled) as ch:
        rx = ch.rx("worker")
        assert [rx.recv() for _ in range(4)] == SENT[:4]
        rx._group.undo(rx._taker.count)
        assert rx.offset == AT[4]
        assert drain(rx) == SENT[4:]


@pytest.mark.parametrize("way", ["recv", "try_recv", "recv_many"])
def test_one_whose_receiving_cannot_be_put_on_the_disk_is_not_received(
    filled: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(fd: int) -> None:
        if name_of(fd) == "offset":
            raise OSError(5, "broken")
        real(fd)

    real = files.sync
    with Channel(filled, crash_consistent=True) as ch:
        rx = ch.rx("worker")
        assert rx.recv() == SENT[0]
        with monkeypatch.context() as patch, contextlib.suppress(SyncFailed):
            patch.setattr(files, "sync", sync)
            with pytest.raises(SyncFailed):
                rx.recv_many(3) if way == "recv_many" else getattr(rx, way)()
            assert rx.offset == AT[1]
    with Channel(filled) as ch:
        assert drain(ch.rx("worker")) == SENT[1:]


def test_an_async_loop_that_is_cancelled_loses_nothing(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release, real = threading.Event(), threading.Event(), files.sync

    def sync(fd: int) -> None:
        if name_of(fd) == "offset":
            entered.set()
            assert release.wait(30)
        real(fd)

    async def first(rx: Any) -> Any:
        async for obj in rx:
            return obj
        return None

    async def run() -> None:
        async with Channel(filled, crash_consistent=True) as ch:
            rx = ch.rx("worker")
            assert await first(rx) == SENT[0]
            with monkeypatch.context() as patch:
                patch.setattr(files, "sync", sync)
                task = asyncio.create_task(first(rx))
                await asyncio.to_thread(entered.wait, 30)
                task.cancel()
                while rx.offset != AT[1]:  # the event loop goes on meanwhile
                    await asyncio.sleep(0)
                assert not task.done(), "what is given back is on the disk first"
                release.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert rx.offset == AT[1]
            assert await first(rx) == SENT[1]

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["recv", "try_recv", "recv_many", "async"])
def test_a_segment_is_kept_until_the_call_that_received_its_last_message_returns(
    filled: Path, way: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background looks while what was received is put on the disk: that may fail, and then it comes again."""
    looked: list[int] = []
    armed, real = threading.Event(), Channel._sync_offsets

    def sync_offsets(self: Channel[bytes]) -> None:
        if armed.is_set() and not looked:
            self._tidy(self._open_log())
            looked.append(self.stats().first_offset)
            if fails:
                raise OSError(5, "planted")
        real(self)

    async def first(rx: Any) -> None:
        await anext(aiter(rx))

    monkeypatch.setattr(Channel, "_sync_offsets", sync_offsets)
    with Channel(filled, crash_consistent=True) as ch:
        rx, log = ch.rx("worker"), ch._open_log()
        log.seal_finished()
        end = ch._places.end_of(log.finished()[0])
        before = AT.index(end) - 1
        assert rx.recv_many(before) == SENT[:before]
        armed.set()
        with pytest.raises(OSError, match="planted") if fails else contextlib.nullcontext():
            if way == "async":
                asyncio.run(first(rx))
            elif way == "recv_many":
                rx.recv_many(1)
            else:
                getattr(rx, way)()
        assert looked == [0]
        if fails:
            assert drain(rx) == SENT[before:]
        until(lambda: ch.stats().first_offset >= end, "it is removed")


@pytest.mark.parametrize("codec", [codecs.bytes_(), codecs.pickle()], ids=lambda codec: codec.name)
def test_threads_that_share_a_receiver_in_all_ways_get_each_message_once(path: Path, codec: Any) -> None:
    """Among them one whose calls are undone, as an interrupt would."""
    count = 800 if SLOW else 6000
    with Channel(path, codec, segment_bytes=4000) as ch:
        rx = ch.rx("worker")
        ch.rx("holds-all")  # what is given back must not be gone with its segment by then

        got: list[list[bytes]] = []

        def receive(kind: int) -> None:
            out: list[bytes] = []
            got.append(out)
            try:
                while True:
                    if kind == 0:
                        out.append(rx.recv())
                    elif kind == 1:
                        out += rx.recv_many(3)
                    elif kind == 2:
                        rx.peek(2)
                        out += [obj for obj in [rx.try_recv()] if obj is not None]
                    else:
                        since = rx._taker.count
                        obj = rx.recv()
                        if rx._taker.mine(since) is not None:
                            rx._group.undo(since)
                        else:
                            out.append(obj)
            except LogClosed:
                return

        threads = [Ran(lambda kind=kind: receive(kind)) for kind in (0, 1, 2, 3, 0)]  # type: ignore[misc]
        for i in range(count):
            ch.tx().send(b"%d" % i)
        until(lambda: sum(map(len, got)) >= count, "all is received")
        ch.close()
        for thread in threads:
            thread.result()
    assert sorted(int(data) for part in got for data in part) == list(range(count))


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """The next syncs of offsets do these, one each, and then go on."""
    acts: list[Callable[[], object]] = []
    real = Channel._sync_offsets

    def sync_offsets(self: Channel[bytes]) -> None:
        if acts:
            acts.pop(0)()
        real(self)

    monkeypatch.setattr(Channel, "_sync_offsets", sync_offsets)
    return acts


def interrupt() -> None:
    raise KeyboardInterrupt


def test_what_is_given_back_on_a_full_disk_comes_again_and_the_interrupt_is_what_is_raised(
    path: Path, interrupted: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for the file that would say what another member has beyond it: that comes again, too."""
    with Channel(path, crash_consistent=True) as ch:
        ch.tx().send_many(SENT[:3])
        rx, other = (ch.rx("team", shared=True) for _ in range(2))
        real, full = files.replace, threading.Event()

        def replace(to: Path, *args: Any, **options: Any) -> None:
            if full.is_set():
                raise OSError(errno.ENOSPC, "planted", str(to))
            real(to, *args, **options)

        def no_room() -> None:
            assert other.recv() == SENT[1]
            full.set()
            interrupt()

        monkeypatch.setattr(files, "replace", replace)
        interrupted.append(no_room)
        with pytest.raises(KeyboardInterrupt):
            rx.recv()
        full.clear()
        rx.close(), other.close()
        assert drain(ch.rx("team", shared=True)) == SENT[:3]


def test_what_is_given_back_comes_again_though_that_is_interrupted_too(
    path: Path, interrupted: list[Callable[[], object]]
) -> None:
    with Channel(path, crash_consistent=True) as ch:
        ch.tx().send_many(SENT)
        rx, other = (ch.rx("team", shared=True) for _ in range(2))

        def other_goes_on() -> None:
            assert other.recv() == SENT[1]
            interrupted.append(interrupt)
            interrupt()

        interrupted.append(other_goes_on)
        with pytest.raises(KeyboardInterrupt):
            rx.recv()
        assert interrupted == []
        assert drain(other) == [SENT[0], *SENT[2:]]
