"""Waiting for what is appended later: it ends in time, wakes at once, and ends with the queue; `follow` and `afollow`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import LogClosed, Message, Queue, Roll
from penstock.storage import files
from tests.support import until

# ---- how long ----


def test_timeout_zero_never_waits(path: Path) -> None:
    with Queue(path) as q:
        started = time.monotonic()
        t = q.tailer()
        assert t.read() is None
        assert t.read(timeout_s=0) is None
        assert t.read(0.0) is None
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("read_only", [False, True])
def test_read_raises_timeout_error_after_its_time_and_not_before(path: Path, read_only: bool) -> None:
    with Queue(path) as q:
        q.append(b"a")
    with Queue(path, read_only=read_only) as q:
        t = q.tailer(at="end")
        for timeout_s in (0.05, 0.3):
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                t.read(timeout_s=timeout_s)
            took = time.monotonic() - started
            assert timeout_s <= took < timeout_s + 5


def test_read_times_out_also_when_it_is_woken_for_nothing(path: Path) -> None:
    with Queue(path) as q:
        t = q.tailer()
        stop = threading.Event()

        def ring() -> None:
            assert q._log is not None
            assert q._log.control is not None
            while not stop.wait(0.02):
                q._log.control.page.ring()

        ringer = threading.Thread(target=ring)
        ringer.start()
        try:
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                t.read(timeout_s=0.2)
            assert time.monotonic() - started < 5
        finally:
            stop.set()
            ringer.join()


def test_read_times_out_on_a_log_that_nobody_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(path) as q:
        q.append(b"a")
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path, read_only=True) as q:
        t = q.tailer()
        assert t.read(timeout_s=1) is not None
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            t.read(timeout_s=0.2)
        assert 0.2 <= time.monotonic() - started < 5


# ---- what wakes ----


@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize("roll", [None, Roll.count(1)])
def test_a_waiting_read_wakes_when_another_thread_appends(
    path: Path, timeout_s: float | None, roll: Roll | None
) -> None:
    with Queue(path, file_size=65536, roll=roll) as q, ThreadPoolExecutor(1) as pool:
        t = q.tailer()
        for i in range(20):
            started = threading.Event()

            def wait(started: threading.Event = started) -> Message | None:
                started.set()
                return t.read(timeout_s=timeout_s)

            job = pool.submit(wait)
            started.wait()
            if i % 2:
                assert not job.done()
            q.append(b"%d" % i)
            m = job.result(20)
            assert m is not None
            assert m.payload == b"%d" % i


@pytest.mark.parametrize("read_only", [False, True])
def test_a_waiting_read_of_another_object_wakes(path: Path, read_only: bool) -> None:
    with Queue(path) as q, Queue(path, read_only=read_only) as other, ThreadPoolExecutor(1) as pool:
        t = other.tailer()
        job = pool.submit(t.read, None)
        q.append(b"a")
        m = job.result(20)
        assert m is not None
        assert m.payload == b"a"


@pytest.mark.parametrize("read_only", [False, True])
def test_closing_wakes_a_waiting_read(path: Path, read_only: bool) -> None:
    with Queue(path) as q:
        q.append(b"a")
    q = Queue(path, read_only=read_only)
    t = q.tailer(at="end")
    with ThreadPoolExecutor(1) as pool:
        started = threading.Event()

        def wait() -> Message | None:
            started.set()
            return t.read(timeout_s=None)

        job: Future[Message | None] = pool.submit(wait)
        started.wait()
        q.close()
        with pytest.raises(LogClosed):
            job.result(20)


# ---- follow and afollow ----


def collector(items: Iterator[Message], into: list[Message]) -> Callable[[], None]:
    def run() -> None:
        for m in items:
            into.append(m)

    return run


def test_follow_gets_what_is_appended_later_and_ends_with_the_queue(path: Path) -> None:
    q = Queue(path, file_size=8192, roll=Roll.count(3))
    q.append(b"0")
    got: list[Message] = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(collector(q.tailer().follow(), got))
        for i in range(1, 20):
            until(lambda i=i: len(got) == i, f"{i} messages")  # type: ignore[misc]
            q.append(b"%d" % i)
        until(lambda: len(got) == 20, "20 messages")
        q.close()
        with pytest.raises(LogClosed):
            job.result(20)
    assert [m.payload for m in got] == [b"%d" % i for i in range(20)]


def test_afollow_gets_what_is_appended_later_and_ends_with_the_queue(path: Path) -> None:
    async def main() -> list[bytes]:
        q = Queue(path, file_size=8192, roll=Roll.count(3))
        q.append(b"0")
        got: list[bytes] = []
        ticks = 0

        async def follow() -> None:
            async for m in q.tailer().afollow():
                got.append(m.payload)

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        task, ticking = asyncio.create_task(follow()), asyncio.create_task(tick())
        async with asyncio.timeout(60):
            for i in range(1, 10):
                while len(got) < i:
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(q.append, b"%d" % i)
            while len(got) < 10:
                await asyncio.sleep(0.001)
            assert ticks > 5  # the loop was never blocked
            ticking.cancel()
            await q.aclose()
            with pytest.raises(LogClosed):
                await task
        return got

    assert asyncio.run(main()) == [b"%d" % i for i in range(10)]


def test_afollow_can_be_cancelled(path: Path) -> None:
    async def main() -> None:
        with Queue(path) as q:
            followers: list[AsyncIterator[Message]] = [q.tailer().afollow() for _ in range(3)]
            tasks = [asyncio.ensure_future(anext(f)) for f in followers]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True)
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    "sleep",
    [
        "next(Queue(path).tailer().follow())",
        "Channel(path).rx('worker').recv()",
        "next(Topics(path).topic('t').tailer().follow())",
        "held(Journal(path), lambda j: j.append(b'x').result())",
        "held(Journal(path, buffer_bytes=10), lambda j: (j.append(b'x' * 9), j.append(b'y' * 9)))",
    ],
)
def test_a_signal_that_another_thread_takes_ends_a_sleep_too(tmp_path: Path, sleep: str) -> None:
    """As one does that comes in the moment before: it interrupts nothing, so whoever sleeps must look by itself."""
    code = f"""
import signal, sys, threading, warnings
from penstock import Channel, Journal, Queue, Topics
warnings.simplefilter("ignore")
path = sys.argv[1]

def held(journal, call):
    with journal._log.locked():
        call(journal)

other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
threading.Timer(0.5, signal.pthread_kill, (other.ident, signal.SIGINT)).start()
try:
    {sleep}
except KeyboardInterrupt:
    print("interrupted")
"""
    ran = subprocess.run([sys.executable, "-c", code, tmp_path / "log"], capture_output=True, text=True, timeout=30)
    assert ran.stdout == "interrupted\n", ran.stderr


def test_many_who_wait_leave_the_loop_its_threads(path: Path) -> None:
    """Each waits in a thread: more of them than a loop has must not keep another from being told, or what others do in threads."""

    async def main() -> None:
        with Queue(path / "idle") as idle, Queue(path / "live") as live:
            waiting = [asyncio.ensure_future(anext(idle.tailer().afollow())) for _ in range(100)]
            followed: AsyncIterator[Message] = live.tailer().afollow()
            started = time.monotonic()
            for i in range(5):
                told = asyncio.ensure_future(anext(followed))
                await asyncio.to_thread(live.append, b"%d" % i)
                assert (await told).payload == b"%d" % i
            assert time.monotonic() - started < 5
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())
