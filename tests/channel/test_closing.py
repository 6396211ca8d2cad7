"""Closing a channel or a receiver: whoever waits is woken, nothing is received any more, and nothing is lost."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, LogClosed, SyncFailed, codecs
from penstock.storage import files
from penstock.storage.directory import Directory
from tests.channel.conftest import AT_ONCE_S, Ran, asleep
from tests.support import until, until_collected


def test_after_close_nothing_is_received_any_more_though_it_is_there(path: Path) -> None:
    ch = Channel(path)
    named, unnamed, acked, tx = ch.rx("worker"), ch.rx(), ch.rx("acked", ack=True), ch.tx()
    tx.send_many([b"a", b"b", b"c"])
    assert [named.recv(), unnamed.recv(), acked.recv()] == [b"a"] * 3
    ch.close()
    before = (path / "offset").read_bytes()
    calls: list[Callable[[], object]] = [
        *(lambda rx=rx: rx.recv() for rx in (named, unnamed, acked)),
        *(lambda rx=rx: rx.try_recv() for rx in (named, unnamed, acked)),
        *(lambda rx=rx: rx.recv_many(2) for rx in (named, unnamed, acked)),
        *(lambda rx=rx: rx.seek(0) for rx in (named, unnamed, acked)),
        *(lambda rx=rx: rx.peek(1) for rx in (named, unnamed, acked)),
        acked.ack,
        *(lambda: tx.send(b"d"), lambda: tx.send_many([b"d"]), ch.tx, ch.rx, ch.stats),
        *(lambda: ch.rx("other"), lambda: ch.forget("worker"), lambda: ch.recovery),
    ]
    for call in calls:
        with pytest.raises(LogClosed):
            call()
    assert list(named) == []
    assert ch.closed
    assert repr(ch) == f"Channel({str(path)!r}, closed)"
    for close in (named.close, named.close, unnamed.close, acked.close, ch.close, ch.close):
        close()
    assert (path / "offset").read_bytes() == before
    with Channel(path) as ch:
        assert ch.rx("worker").recv_many(5) == [b"b", b"c"]
        assert ch.rx("acked", ack=True).recv_many(5) == [b"a", b"b", b"c"]


def test_a_closed_receiver_says_so(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
        for rx in (ch.rx("worker"), ch.rx(), ch.rx("acked", ack=True)):
            with rx:
                rx.recv()
            rx.close()
            for call in (rx.recv, rx.try_recv, lambda rx=rx: rx.recv_many(1), lambda rx=rx: rx.seek(0), rx.ack):
                with pytest.raises(LogClosed, match="this receiver was closed; make a new one"):
                    call()
            assert list(rx) == []


def test_threads_that_wait_are_woken_when_the_channel_or_the_receiver_is_closed(path: Path) -> None:
    with Channel(path) as ch:
        one, two, many = ch.rx("one"), ch.rx("two"), ch.rx("many", ack=True)

        def waits(call: Callable[[], object]) -> Callable[[], float]:
            def run() -> float:
                with pytest.raises(LogClosed):
                    call()
                return time.monotonic()

            return run

        closing = [Ran(waits(one.recv)), Ran(waits(lambda: one.recv_many(4)))]
        staying = [Ran(waits(two.recv)), Ran(waits(lambda: two.recv(timeout_s=60))), Ran(waits(many.recv))]
        until(lambda: asleep(ch), "they sleep")
        began = time.monotonic()
        one.close()
        assert max(thread.result() for thread in closing) - began < AT_ONCE_S
        assert all(thread.is_alive() for thread in staying)
        until(lambda: asleep(ch), "they sleep")
        ch.close()
        ended = time.monotonic()
        assert max(thread.result() for thread in staying) - ended < AT_ONCE_S


def test_threads_that_receive_while_the_channel_is_closed_lose_nothing(path: Path) -> None:
    count, at = 3000, 0
    with Channel(path, codecs.msgpack(int)) as ch:
        ch.rx("worker")
        ch.tx().send_many(list(range(count)))
    got: list[int] = []
    while at < count:
        ch = Channel(path, codecs.msgpack(int), crash_consistent=at % 2 == 0)
        rx = ch.rx("worker")
        threads = [Ran(lambda rx=rx: list(rx)) for _ in range(2)]  # type: ignore[misc]
        wanted = min(count, at + 300)
        every = rx.offset
        until(lambda rx=rx, every=every: rx.offset > every + 200 or rx.offset == end(path), "some are received")  # type: ignore[misc]
        closers = [Ran(ch.close) for _ in range(2)]
        for closer in closers:
            closer.result()
        parts = [thread.result() for thread in threads]
        part = sorted(i for p in parts for i in p)
        assert part == list(range(at, at + len(part)))
        got += part
        at += len(part)
        assert part or at >= wanted
    assert got == list(range(count))


def end(path: Path) -> int:
    return int.from_bytes((path / "offset").read_bytes()[:8], "big")


def test_a_channel_that_nobody_holds_any_more_is_closed_with_a_warning(path: Path) -> None:
    ch = Channel(path)
    ch.rx("worker")
    ch.tx().send(b"a")
    whole = weakref.ref(ch)
    with pytest.warns(ResourceWarning, match="unclosed channel"):
        del ch
        until_collected(whole)
    assert (path / "segment.0").stat().st_size == 64 + 9, "it was not closed"
    with Channel(path) as ch:
        assert ch.rx("worker").recv() == b"a"


def test_a_channel_that_could_not_be_made_holds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "_set_back", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Channel(path)
    monkeypatch.undo()
    with Channel(path) as ch:
        ch.tx().send(b"a")


def test_close_lets_go_of_the_channel_also_when_the_disk_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(5, "refused")

    ch = Channel(path)
    ch.tx().send(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", refuse)
        with pytest.raises((OSError, SyncFailed)):
            ch.close()
    assert ch.closed
    ch.close()
    with Channel(path) as ch:
        assert ch.rx().recv() == b"a"


def test_a_death_over_giving_blocks_back_leaves_no_hole_that_is_said_to_have_some(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a reader the page stays valid: whoever writes next believes it, and on a full disk a store to a hole kills."""
    ch = Channel(path, segment_bytes=1 << 16)
    ch.tx().send(b"before")
    real = Directory.seal

    def seal(self: Directory, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        raise SystemExit

    with Channel(path, read_only=True):
        with monkeypatch.context() as dying:
            dying.setattr(Directory, "seal", seal)
            with pytest.raises(SystemExit):
                ch.close()
        with Channel(path, segment_bytes=1 << 16) as ch:
            assert ch.recovery.how == "joined"
            ch.tx().send(b"after")
            assert ch._log is not None
            assert ch._log.control is not None
            assert (path / "segment.0").stat().st_blocks * 512 >= ch._log.control.allocated[0]
            with ch.rx() as rx:
                assert rx.recv_many(3) == [b"before", b"after"]
