"""The same from coroutines: nothing blocks the event loop, and any number of loops, threads and waiters may be at it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import DiskFull, Journal, RecordsLost, RecoveryUnfinished, SyncFailed
from tests.journal import by_hand
from tests.journal.conftest import Ran, failing, held, payloads, walked

New = Callable[..., Journal]
SOON_S = 30.0


def stored(path: Path) -> list[bytes]:
    return [item.payload for item in by_hand.items(path)[0]]


def run(coroutine: object, seconds: float = SOON_S) -> object:
    async def main() -> object:
        return await asyncio.wait_for(coroutine, seconds)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_an_append_a_checkpoint_and_a_check_can_be_awaited(path: Path) -> None:
    async def main() -> None:
        async with Journal(path) as j:
            assert await j.append(b"a") is None
            assert stored(path) == [b"a"]
            number = await j.checkpoint()
            assert number == 1
            assert type(number) is int
            assert await j.checkpoint() == 1
            assert await j.append_many([b"b", b"c"]) is None
            assert await j.append_nowait(b"d") is None
            assert await j.check() == 1
            assert by_hand.items(path)[1:] == (1, 1)
            done = j.append(b"e")
            await done
            await done  # any number of times
        assert j.closed

    run(main())


def test_gather_of_a_thousand(new: New, path: Path) -> None:
    j = new()

    async def main() -> None:
        await asyncio.gather(*(j.append(b"%d" % i) for i in range(1000)))
        assert stored(path) == [b"%d" % i for i in range(1000)]

    run(main())


def test_a_thousand_tasks_one_after_the_other(new: New, path: Path) -> None:
    j = new()

    async def one(i: int) -> None:
        await j.append(b"%d" % i)
        if i % 100 == 0:
            await j.checkpoint()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(1000):
                group.create_task(one(i))

    run(main())
    assert sorted(stored(path)) == sorted(b"%d" % i for i in range(1000))
    assert 1 <= j.current <= 10


def test_the_loop_goes_on_while_the_disk_is_busy(new: New, path: Path) -> None:
    j = new()

    async def main() -> None:
        with held(j):
            waiting = asyncio.ensure_future(_await(j.append(b"x")))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    run(main())
    assert stored(path) == [b"x"]


async def _await(awaitable: object) -> object:
    return await awaitable  # type: ignore[misc]


def test_an_await_that_is_cancelled_takes_nothing_back(new: New, path: Path) -> None:
    j = new()

    async def main() -> None:
        with held(j):
            appended = j.append(b"x")
            tasks = [asyncio.ensure_future(_await(appended)) for _ in range(10)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_await(j.append(b"y")), 0.01)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in found] == [asyncio.CancelledError, type(None)] * 5
        await j.append(b"z")
        assert stored(path) == [b"x", b"y", b"z"]

    run(main())


def test_what_fails_is_raised_from_the_await(new: New) -> None:
    j = new()

    async def main() -> None:
        with failing(j, "/dev/full"):
            for awaitable in (j.append(b"x"), j.append_many([b"x"])):
                with pytest.raises(DiskFull):
                    await awaitable
            found = await asyncio.gather(*(j.append(b"%d" % i) for i in range(100)), return_exceptions=True)
            assert {type(result) for result in found} == {DiskFull}
        with pytest.raises(RecordsLost):
            await j.checkpoint()
        await j.append(b"x")
        assert await j.checkpoint() == 1
        with failing(j, "/dev/null"), pytest.raises(SyncFailed):
            await j.check()

    run(main())
    j.close()


def test_loops_in_threads_wait_at_the_same_time(new: New, path: Path) -> None:
    j = new()

    async def main(me: int) -> None:
        for i in range(30):
            await asyncio.gather(*(j.append(b"%d.%d.%d" % (me, i, n)) for n in range(5)))
            await asyncio.wait_for(_await(j.checkpoint()), SOON_S)

    threads = [Ran(lambda me=me: run(main(me))) for me in range(3)]  # type: ignore[misc]
    for i in range(100):  # and one without a loop
        j.append(b"t.%d" % i).result()
    for thread in threads:
        thread.result()
    found = stored(path)
    assert len(found) == 3 * 150 + 100
    for me in range(3):
        mine = [p for p in found if p.startswith(b"%d." % me)]
        assert mine == [b"%d.%d.%d" % (me, i, n) for i in range(30) for n in range(5)]


def test_two_loops_await_the_same_promise(new: New) -> None:
    j = new()
    waiting = threading.Barrier(3)

    async def main() -> bool:
        task = asyncio.ensure_future(_await(appended))
        await asyncio.sleep(0)
        waiting.wait()
        await asyncio.wait_for(task, SOON_S)
        return appended.done()

    with held(j):
        appended = j.append(b"x")
        threads = [Ran(lambda: run(main())) for _ in range(2)]
        waiting.wait()
    assert [thread.result() for thread in threads] == [True, True]


def test_a_loop_that_is_closed_while_others_wait(new: New, path: Path) -> None:
    """It had the descriptor that tells of batches; whoever comes next takes it."""
    j = new()

    tasks: list[asyncio.Future[object]] = []

    async def begin() -> None:
        tasks.append(asyncio.ensure_future(_await(j.append(b"first"))))
        await asyncio.sleep(0)

    with held(j):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        other = Ran(lambda: run(_await(j.append(b"other"))))
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        third = Ran(lambda: run(_await(j.append(b"third"))))
    other.result()
    third.result()
    run(_await(j.append(b"fourth")))
    j.flush()
    assert sorted(stored(path)) == [b"first", b"fourth", b"other", b"third"]


def test_a_batch_that_is_done_before_its_future_is_made_leaves_nobody_waiting(new: New) -> None:
    """Another loop may have read the descriptor empty by then."""
    j = new()
    appended = j.append(b"x")
    appended.result()

    async def main() -> None:
        j._path.appends.drain()
        future = j._bell.future(appended._batch)
        assert future.done()

    run(main())


def test_loops_one_after_the_other(new: New, path: Path) -> None:
    j = new()
    for i in range(20):
        run(_await(j.append(b"%d" % i)))
    assert len(stored(path)) == 20


def test_an_async_walk(new: New, path: Path) -> None:
    with new() as j:
        for i in range(9000):
            j.append(b"%d" % i)
        j.checkpoint()
        j.append(b"open")

    async def main() -> None:
        async with Journal(path) as j:
            n = 0
            async for record in j.recovered():
                assert record.payload == (b"%d" % n if n < 9000 else b"open")
                assert record.complete == (n < 9000)
                if n % 1000 == 0:
                    await j.append(b"again %d" % n)
                n += 1
            assert n == 9001
            assert not (path / "recovery").exists()

    run(main())
    assert payloads(walked(new())) == [b"again %d" % n for n in range(0, 9001, 1000)]


def test_an_async_walk_that_is_cancelled_can_begin_again(new: New, path: Path) -> None:
    with new() as j:
        for i in range(9000):
            j.append(b"%d" % i)
    j = new()

    async def some(most: int) -> list[bytes]:
        out: list[bytes] = []
        async for record in j.recovered():
            out.append(record.payload)
            if len(out) >= most:
                await asyncio.sleep(60)
        return out

    async def main() -> None:
        for most in (1, 5000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(some(most), 0.05)
        assert (path / "recovery").exists()
        assert await some(1 << 30) == [b"%d" % i for i in range(9000)]

    run(main())
    assert not (path / "recovery").exists()


def test_leaving_an_async_walk_is_told(path: Path, new: New) -> None:
    with new() as j:
        j.append(b"x")

    async def main() -> None:
        async with Journal(path) as j:
            async for _ in j.recovered():
                break

    with pytest.warns(RecoveryUnfinished):
        run(main())


def test_closing_does_not_block_the_loop(new: New) -> None:
    j = new()
    j.append(b"x").result()
    ticks = 0

    async def main() -> None:
        nonlocal ticks
        lock = Ran(lambda: _hold(j, taken, go))
        await asyncio.to_thread(taken.wait)
        closing = asyncio.ensure_future(j.aclose())
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not closing.done()
        go.set()
        await closing
        lock.result()

    taken, go = threading.Event(), threading.Event()
    run(main())
    assert ticks == 20
    assert j.closed


def _hold(j: Journal, taken: threading.Event, go: threading.Event) -> None:
    with held(j):
        taken.set()
        assert go.wait(SOON_S)


def test_many_awaits_cost_one_wake_up_each_batch(new: New) -> None:
    """And no thread: a loop that has the descriptor waits for nothing else."""
    j = new()
    j.append(b"first").result()

    async def main() -> float:
        before = threading.active_count()
        began = time.monotonic()
        with held(j):
            tasks = [asyncio.ensure_future(_await(j.append(b"%d" % i))) for i in range(1000)]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert threading.active_count() <= before
        return time.monotonic() - began

    run(main())
