"""Ctrl-C, or any signal whose handler raises, at any moment of a receiver's call."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Flush, Receiver, codecs
from penstock.storage.janitor import Janitor
from tests.channel.conftest import Ran
from tests.support import AWhile, until

# It comes in finalizers too, and there it can only be told.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
    """What a signal's handler raises."""


@pytest.fixture(autouse=True)
def _files_that_stay_open() -> Iterator[None]:
    """An interrupt between the opening of a file and the note of its number leaves it open, and Python knows no way around
    that. Here it comes thousands of times, and other tests need low numbers."""
    numbers = Path("/proc/self/fd")
    before = set(numbers.iterdir()) if numbers.exists() else set()
    yield
    gc.collect()
    for number in set(numbers.iterdir()) - before if before else ():
        with contextlib.suppress(OSError):
            os.close(int(number.name))


@pytest.mark.parametrize("way", ["take", "ack", "seek"])
def test_a_call_that_a_signal_interrupts_loses_no_message(
    path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between any two steps: what a receiver has and what comes next are always all that is not done."""
    monkeypatch.setattr(Janitor, "look_again", lambda self: None)  # of its own: see the next test
    armed = False

    def handler(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    count = 400
    with Channel(path, codecs.msgpack(int), segment_bytes=300) as ch:
        ch.tx().send_many(range(count))  # type: ignore[arg-type]
        for i in range(count, 2 * count):
            ch.tx().send(i)
        ch.rx("holds-all")
        rx = ch.rx("worker", ack=True)
        log = ch._log
        assert log is not None
        until(lambda: all(s.sealed for s in log.finished().values()), "the background is done")
        every = _boundaries(ch, 2 * count)
        before = signal.signal(signal.SIGALRM, handler)
        times, delay_us = 0, 20
        try:
            a_while = AWhile(0.3)
            while a_while.goes_on(enough=times > 20):
                delay_us = delay_us % 400 + 3
                armed = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay_us / 1e6)
                    while armed:
                        if way == "take":
                            if rx.try_recv() is None:
                                rx.seek(0)
                        elif way == "ack":
                            if rx.try_recv() is None:
                                rx.ack(rx.unacked)
                                rx.seek(0)
                            elif rx.unacked > 3:
                                rx.ack(2)
                        else:
                            rx.seek(every[(delay_us * 7) % len(every)])
                            rx.try_recv()
                except Interrupted:
                    times += 1
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                # What is left: acknowledged up to an offset, then what it has, then what comes next, without a gap.
                mine = [taken.offset for taken in rx._member.unacked]
                low = rx.offset
                first = every.index(low) if low in every else -1
                assert first >= 0
                done = rx._group._done
                have = [o for o in every[first:-1] if done.end_of(o) is None][: len(mine)]
                assert mine == have
                following = rx.peek(1)
                assert following == ([first + len(mine)] if first + len(mine) < 2 * count else [])
        finally:
            signal.signal(signal.SIGALRM, before)
        assert times > 20


@pytest.mark.parametrize("ack", [False, True])
@pytest.mark.parametrize("way", ["recv", "try_recv", "recv_many", "iterate"])
@pytest.mark.parametrize("codec", [None, codecs.json(int)], ids=["bytes", "json"])
def test_what_an_interrupted_call_did_not_return_comes_again(path: Path, codec: Any, way: str, ack: bool) -> None:
    """And what it did return does not."""
    armed, count, times = False, 5000, 0

    def handler(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    ways: dict[str, Callable[[Receiver[Any]], Any]] = {
        "recv": lambda rx: rx.recv(0),
        "try_recv": lambda rx: rx.try_recv(),
        "recv_many": lambda rx: rx.recv_many(3, 0)[-1],
        "iterate": first,
    }
    receive = ways[way]
    with Channel(path, codec, segment_bytes=3000) as ch:
        ch.rx("holds-all")
        for i in range(0, count, 100):
            ch.tx().send_many([i + k if codec else b"%d" % (i + k) for k in range(100)])
        rx = ch.rx("worker", ack=ack)
        before = signal.signal(signal.SIGALRM, handler)
        got: Any = -1
        delay_us = 20
        try:
            a_while = AWhile(0.3)
            while a_while.goes_on(enough=times > 20):
                delay_us = delay_us % 400 + 3
                armed = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay_us / 1e6)
                    while armed:
                        got = receive(rx)
                        if int(got) > count - 10:
                            break
                except Interrupted:
                    times += 1
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                (following,) = rx.peek(1)
                assert int(following) == int(got) + 1
                if int(got) > count - 100:
                    rx.seek(0)
                    got = -1
        finally:
            signal.signal(signal.SIGALRM, before)
    assert times > 20


def test_waking_the_background_leaves_no_lock_behind_when_it_is_interrupted() -> None:
    """Receivers and senders wake it. A lock left behind there would make `close` wait for ever."""

    def handler(*_: object) -> None:
        raise Interrupted

    janitor = Janitor(Flush.none())
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 50e-6 + i * 1e-6)
                while True:
                    janitor.wake()
            except Interrupted:
                signal.setitimer(signal.ITIMER_REAL, 0)
            Ran(janitor.wake).result(seconds=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def first(rx: Receiver[Any]) -> Any:
    """By a loop: after a call of `next`, which is C, the exception would come here and not in there."""
    for obj in rx:
        return obj
    return None


def _boundaries(ch: Channel[int], count: int) -> list[int]:
    rx = ch.rx()
    out = [0]
    for _ in range(count):
        rx.recv(timeout_s=5)
        out.append(rx.offset)
    return out
