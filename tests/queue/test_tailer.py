"""Reading: every way of reading agrees, positions are exact, nothing is missed at a roll, waiting ends when it should."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import LogClosed, Message, Queue, ReadOnly, RecordGone, Roll, Tailer
from penstock.kernel import NAME
from penstock.storage import files

SLOW = NAME == "reference"
SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=True),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def payload(i: int) -> bytes:
    return b"%d" % i * (1 + i * 7 % 11)


@pytest.fixture
def many(path: Path) -> Iterator[Queue]:
    """200 records in files of 23, with a batch over several files among them."""
    with Queue(path, file_size=8192, roll=Roll.count(23), index_interval=3) as q:
        for i in range(100):
            q.append(payload(i))
        q.append_batch([payload(i).ljust(800, b".") for i in range(100, 120)])
        for i in range(120, 200):
            q.append(payload(i))
        yield q


def rows(batch: pa.RecordBatch) -> list[tuple[int, datetime | None, bytes]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def row(m: Message) -> tuple[int, datetime | None, bytes]:
    return m.sequence, m.timestamp, m.payload


# ---- the ways of reading ----


def test_all_ways_of_reading_agree(many: Queue) -> None:
    one_by_one = list(iter(many.tailer().read, None))
    assert [m.sequence for m in one_by_one] == list(range(200))
    assert [m.payload for m in one_by_one[:100]] == [payload(i) for i in range(100)]
    assert list(many.tailer()) == one_by_one
    assert many.tailer().read_batch(1000) == one_by_one
    assert [row(m) for m in one_by_one] == rows(many.tailer().read_arrow(1000))
    assert list(many.tailer(direction="backward")) == one_by_one[::-1]
    assert many.tailer(direction="backward").read_batch(1000) == one_by_one[::-1]
    views = list(iter(many.tailer().read_view, None))
    assert views == [m.payload for m in one_by_one]
    follow = many.tailer().follow()
    assert [next(follow) for _ in range(200)] == one_by_one

    async def collect() -> list[Message]:
        out = []
        async for m in many.tailer().afollow():
            out.append(m)
            if len(out) == 200:
                break
        return out

    assert asyncio.run(collect()) == one_by_one


def test_ways_of_reading_can_be_mixed_on_one_tailer(many: Queue) -> None:
    wanted = [m.payload for m in many.tailer()]
    t, got, draw = many.tailer(), list[bytes](), random.Random(1)
    while t.position < 200:
        assert t.position == len(got)
        way = draw.randrange(5)
        n = draw.randrange(1, 12)
        if way == 0:
            got += [m.payload for m in [t.read()] if m]
        elif way == 1:
            got += [m.payload for m in t.read_batch(n)]
        elif way == 2:
            got += t.read_arrow(n).column("payload").to_pylist()
        elif way == 3:
            got += [bytes(v) for v in [t.read_view()] if v is not None]
        else:
            got += [m.payload for _, m in zip(range(n), t, strict=False)]
    assert got == wanted


def test_reading_the_end_gives_nothing_and_goes_on_when_there_is_more(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(2)) as q:
        t = q.tailer()
        for i in range(7):
            assert t.read() is None
            assert list(t) == []
            assert t.read_batch(5) == []
            assert t.read_view() is None
            assert t.read_arrow(5).num_rows == 0
            assert t.position == i
            q.append(b"%d" % i)
            m = t.read()
            assert m is not None
            assert m.payload == b"%d" % i


def test_read_batch_gives_at_most_n_and_fewer_only_at_the_end(many: Queue) -> None:
    t = many.tailer()
    assert [len(t.read_batch(n)) for n in (0, 1, 50, 148, 5, 5)] == [0, 1, 50, 148, 1, 0]
    b = many.tailer(direction="backward")
    assert [len(b.read_batch(n)) for n in (0, 1, 50, 148, 5, 5)] == [0, 1, 50, 148, 1, 0]
    assert b.position == -1


def test_read_arrow_has_a_fixed_schema_and_crosses_segments(many: Queue) -> None:
    t = many.tailer()
    sizes = []
    while True:
        batch = t.read_arrow(64)
        assert batch.schema.equals(SCHEMA)
        batch.validate(full=True)
        if not batch.num_rows:
            break
        sizes.append(batch.num_rows)
    assert sizes == [64, 64, 64, 8]
    assert many.tailer().read_arrow(0).schema.equals(SCHEMA)
    assert many.tailer(at=150).read_arrow(3).column("sequence").to_pylist() == [150, 151, 152]


def test_arrow_batches_outlive_the_queue(path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"a", b"bb"])
        batch = q.tailer().read_arrow(10)
    assert batch.column("payload").to_pylist() == [b"a", b"bb"]


# ---- where a tailer starts ----


@pytest.mark.parametrize(
    ("at", "first"), [(None, 0), ("start", 0), ("end", None), (0, 0), (7, 7), (113, 113), (199, 199), (200, None)]
)
def test_a_tailer_starts_where_it_is_told(many: Queue, at: Any, first: int | None) -> None:
    t = many.tailer(at=at)
    assert t.position == (200 if first is None else first)
    m = t.read()
    assert (m and m.sequence) == first


@pytest.mark.parametrize(
    ("at", "first"), [(None, 199), ("end", 199), ("start", 0), (50, 50), (0, 0), (199, 199), (200, 199), (-1, -1)]
)
def test_a_backward_tailer_starts_where_it_is_told(many: Queue, at: Any, first: int) -> None:
    t = many.tailer(at=at, direction="backward")
    assert t.position == first
    assert [m.sequence for m in t] == list(range(first, -1, -1))
    assert t.read() is None


def test_a_tailer_of_an_empty_queue_waits_at_its_start(path: Path) -> None:
    with Queue(path) as q:
        tailers = [q.tailer(at=at) for at in (None, "start", "end", 0, datetime.now(UTC))]
        back = q.tailer(direction="backward")
        assert [t.read() for t in tailers] == [None] * 5
        assert back.read() is None
        q.append(b"a")
        for t in tailers:
            m = t.read()
            assert m is not None
            assert m.sequence == 0


def test_beyond_the_log_there_is_no_record(many: Queue) -> None:
    t = many.tailer(at=5)
    for sequence in (201, 10**9, 1 << 63, 1 << 70, -1, -5):
        with pytest.raises(RecordGone):
            t.seek(sequence)
        with pytest.raises(RecordGone):
            many.tailer(at=sequence)
    for sequence in (201, 1 << 70, -2):
        with pytest.raises(RecordGone):
            many.tailer(at=sequence, direction="backward")
    m = t.read()
    assert m is not None
    assert m.sequence == 5  # a seek that failed moved nothing


# ---- seeking ----


@pytest.mark.parametrize("interval", [1, 3, 1024])
def test_seek_reaches_every_sequence(path: Path, interval: int) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(11), index_interval=interval) as q:
        for i in range(100):
            q.append(payload(i))
        t, back = q.tailer(), q.tailer(direction="backward")
        order = list(range(100))
        random.Random(interval).shuffle(order)
        for i in order:
            t.seek(i)
            assert t.position == i
            m = t.read()
            assert m is not None
            assert (m.sequence, m.payload, t.position) == (i, payload(i), i + 1)
            back.seek(i)
            m = back.read()
            assert m is not None
            assert (m.sequence, m.payload, back.position) == (i, payload(i), i - 1)
        t.seek(100)
        assert t.read() is None
        t.to_start()
        assert t.position == 0
        t.to_end()
        assert t.position == 100
        back.to_start()
        assert [m.sequence for m in back] == [0]
        back.to_end()
        assert back.position == 99


@pytest.mark.parametrize("reopened", [False, True])
def test_seek_works_with_any_size_of_record(path: Path, reopened: bool) -> None:
    wanted = [os.urandom(1 + i * 37 % 4000) for i in range(60)]
    with Queue(path, file_size=8192, index_interval=2) as q:
        for p in wanted:
            q.append(p)
    with Queue(path) if reopened else Queue(path, read_only=True) as q:
        t = q.tailer()
        for i in range(59, -1, -1):
            t.seek(i)
            m = t.read()
            assert m is not None
            assert m.payload == wanted[i]


def test_one_iterator_goes_on_after_a_seek(many: Queue) -> None:
    t = many.tailer()
    it = iter(t)
    assert next(it).sequence == 0
    t.seek(150)
    assert next(it).sequence == 150
    assert t.position == 151


# ---- by time ----


def spaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A log whose times are known: batches over several files take theirs from `files.now_us`."""
    start = time.time_ns() // 1000
    times = []
    with Queue(path, file_size=8192, roll=Roll.count(9), index_interval=2) as q:
        for n in range(6):
            us = start + 1_000_000 * (n + 1)
            monkeypatch.setattr(files, "now_us", lambda us=us: us)
            times += [us] * len(q.append_batch([b"%d" % n * 900] * 10))
            monkeypatch.undo()
        assert [m.timestamp_us for m in q.tailer()] == times
    return times


def utc(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def test_seek_time_finds_the_first_record_not_older(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = spaced(path, monkeypatch)
    with Queue(path, read_only=True) as q:
        t, back = q.tailer(), q.tailer(direction="backward")
        for us in {u + d for u in times for d in (-500_000, -1, 0, 1, 500_000)} | {1, times[0] - 1, times[-1] + 1}:
            wanted = next((i for i, u in enumerate(times) if u >= us), len(times))
            t.seek_time(utc(us))
            assert t.position == wanted, us - times[0]
            assert q.tailer(at=utc(us)).position == wanted
            back.seek_time(utc(us))
            assert back.position == wanted - 1
        eastern = timezone(timedelta(hours=9))
        t.seek_time(utc(times[25]).astimezone(eastern))
        assert t.position == 20


def test_seek_time_with_ordinary_appends(path: Path) -> None:
    with Queue(path, file_size=65536, roll=Roll.count(13), index_interval=4) as q:
        for i in range(150):
            q.append(b"%d" % i)
            if i % 10 == 0:
                before = time.time_ns()
                until(lambda before=before: time.time_ns() > before + 5000)  # type: ignore[misc]
        messages = list(q.tailer())
        stamps = [m.timestamp for m in messages]
        t = q.tailer()
        for m in messages:
            assert m.timestamp is not None
            t.seek_time(m.timestamp)
            assert t.position == stamps.index(m.timestamp)
        assert messages[0].timestamp is not None
        assert messages[-1].timestamp is not None
        t.seek_time(messages[0].timestamp - timedelta(days=400))
        assert t.position == 0
        t.seek_time(messages[-1].timestamp + timedelta(seconds=1))
        assert t.position == 150
        assert t.read() is None


def test_a_naive_datetime_is_refused(many: Queue) -> None:
    naive = datetime(2026, 11, 15, 12, 0)
    with pytest.raises(ValueError, match="time zone"):
        many.tailer(at=naive)
    t = many.tailer(at=5)
    with pytest.raises(ValueError, match="time zone"):
        t.seek_time(naive)
    assert t.position == 5


# ---- names and positions ----


def test_the_position_is_exact_in_the_middle_of_iteration(many: Queue) -> None:
    t = many.tailer("worker")
    for m in t:
        assert t.position == m.sequence + 1
        t.commit()
        assert many.cursors() == {"worker": m.sequence + 1}
        if m.sequence == 57:
            break
    follow = t.follow()
    assert next(follow).sequence == 58
    assert t.position == 59
    t.read_arrow(10)
    assert t.position == 69
    t.commit()
    assert many.tailer("worker").position == 69


def test_a_named_tailer_goes_on_after_a_reopen(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(3)) as q:
        q.append_batch([b"%d" % i for i in range(10)])
        t = q.tailer("a")
        t.read_batch(4)
        t.commit()
        t.read_batch(4)  # not committed
        q.tailer("b", at="end")
    with Queue(path) as q:
        assert q.cursors() == {"a": 4, "b": 10}
        assert q.tailer("a").position == 4
        assert q.tailer("a", at="end").position == 4  # `at` is for a new one
        assert q.tailer("b").position == 10
        assert q.tailer("c", at=7).position == 7
        assert q.tailer().position == 0


def test_named_tailers_of_other_objects_see_the_commit(path: Path) -> None:
    with Queue(path) as a, Queue(path) as b, Queue(path, read_only=True) as c:
        a.append_batch([b"x"] * 10)
        t = a.tailer("n")
        t.read_batch(3)
        t.commit()
        assert b.tailer("n").position == 3
        assert c.tailer("n").position == 3
        assert c.cursors() == {"n": 3}
        with pytest.raises(ReadOnly):
            c.tailer("n").commit()
        b.forget("n")
        assert a.cursors() == {}
        assert c.tailer("n").position == 0


def test_threads_commit_the_same_name(many: Queue) -> None:
    def work(n: int) -> None:
        t = many.tailer("shared")
        for i in range(n, 200, 8):
            t.seek(i)
            t.commit()

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(work, n) for n in range(4)]:
            job.result(60)
    assert many.cursors()["shared"] in {192, 193, 194, 195}


def test_a_seek_back_can_be_committed(many: Queue) -> None:
    t = many.tailer("n", at=100)
    t.commit()
    t.seek(3)
    t.commit()
    assert many.tailer("n").position == 3


def test_a_tailer_without_a_name_cannot_commit(many: Queue) -> None:
    with pytest.raises(ValueError, match="name"):
        many.tailer().commit()


def test_a_backward_tailer_has_no_name_and_no_forward_ways(many: Queue) -> None:
    with pytest.raises(ValueError, match="forward"):
        many.tailer("n", direction="backward")
    t = many.tailer(direction="backward")
    for call in (t.read_view, lambda: t.read_arrow(1), lambda: next(t.follow())):
        with pytest.raises(ValueError, match="forward"):
            call()
    with pytest.raises(ValueError, match="forward"):
        asyncio.run(anext(t.afollow()))  # type: ignore[arg-type]
    assert t.position == 199


def test_backward_reading_takes_in_what_is_appended_meanwhile(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(4)) as q:
        for i in range(10):
            q.append(b"%d" % i)
        t = q.tailer(direction="backward")
        assert [m.sequence for m in t.read_batch(3)] == [9, 8, 7]
        for i in range(10, 20):
            q.append(b"%d" % i)
        assert [m.sequence for m in t.read_batch(3)] == [6, 5, 4]
        t.to_end()
        assert [m.sequence for m in t] == list(range(19, -1, -1))


# ---- waiting ----


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
            until(lambda i=i: len(got) == i)  # type: ignore[misc]
            q.append(b"%d" % i)
        until(lambda: len(got) == 20)
        q.close()
        with pytest.raises(LogClosed):
            job.result(20)
    assert [m.payload for m in got] == [b"%d" % i for i in range(20)]


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


# ---- views ----


def test_views_stay_valid_after_appends_rolls_and_close(path: Path) -> None:
    q = Queue(path, file_size=8192, roll=Roll.count(5))
    for i in range(20):
        q.append(payload(i))
    t = q.tailer()
    views = list(iter(t.read_view, None))
    assert all(v.readonly for v in views)
    assert views[3].obj is not None
    with pytest.raises(TypeError):
        views[3][0] = 1
    for i in range(200):
        q.append(payload(i))
    assert list(iter(t.read_view, None)) == [payload(i) for i in range(200)]
    t.close()
    assert views == [payload(i) for i in range(20)]
    q.close()
    del t, q
    gc.collect()
    for file in path.rglob("*.data"):
        file.unlink()
    assert views == [payload(i) for i in range(20)]


def test_views_are_not_copies(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a" * 100)
        q.append(b"b" * 100)
        t = q.tailer()
        a, b = t.read_view(), t.read_view()
        assert a is not None
        assert b is not None
        assert a.obj is b.obj


# ---- rolls ----


@pytest.mark.parametrize("way", ["read", "iterate", "batch", "arrow", "view", "wait"])
def test_nothing_is_missed_while_the_log_rolls(path: Path, way: str) -> None:
    count = 100 if SLOW else 300
    with Queue(path, file_size=8192, roll=Roll.count(3), index_interval=2) as q, Queue(path, read_only=True) as other:
        done = threading.Event()

        def write() -> None:
            draw = random.Random(3)
            i = 0
            while i < count:
                n = draw.choice([1, 1, 1, 2, 5])
                if n == 1:
                    q.append(b"%d" % i)
                else:
                    q.append_batch([b"%d" % j for j in range(i, i + n)])
                i += n
            done.set()

        def step(t: Tailer) -> list[bytes]:
            if way == "read":
                m = t.read()
                return [m.payload] if m else []
            if way == "iterate":
                return [m.payload for m in t]
            if way == "batch":
                return [m.payload for m in t.read_batch(10)]
            if way == "arrow":
                return t.read_arrow(10).column("payload").to_pylist()  # type: ignore[no-any-return]
            if way == "view":
                v = t.read_view()
                return [bytes(v)] if v is not None else []
            try:
                m = t.read(timeout_s=0.01)
            except TimeoutError:
                m = None
            return [m.payload] if m else []

        def follow(source: Queue) -> list[bytes]:
            t = source.tailer()
            got: list[bytes] = []
            while True:
                ended = done.is_set()
                part = step(t)
                got += part
                if ended and not part:
                    return got
                if not part:
                    os.sched_yield()

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(follow, source) for source in (q, other)]
            pool.submit(write).result(120)
            results = [r.result(120) for r in readers]
        wanted = [b"%d" % i for i in range(q.next_sequence)]
        assert results[0] == wanted
        assert results[1] == wanted


def test_seeks_are_right_while_the_log_rolls(path: Path) -> None:
    count = 100 if SLOW else 300
    with Queue(path, file_size=8192, roll=Roll.count(3), index_interval=2) as q:
        q.append(b"0")
        done = threading.Event()

        def seek(seed: int) -> int:
            draw, t, back = random.Random(seed), q.tailer(), q.tailer(direction="backward")
            checked = 0
            while not done.is_set():
                i = draw.randrange(q.next_sequence)
                t.seek(i)
                m = t.read()
                assert m is not None
                assert m.payload == b"%d" % i
                back.seek(i)
                m = back.read()
                assert m is not None
                assert m.payload == b"%d" % i
                assert q.first_sequence == 0
                t.to_end()
                back.to_end()
                checked += 1
            return checked

        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(seek, n) for n in range(2)]
            for i in range(1, count):
                q.append(b"%d" % i)
            done.set()
            assert all(job.result(60) > 0 for job in jobs)


def fds(under: Path) -> list[str]:
    out = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(f"{under}/") and ".data" in target:
            out.append(target)
    return out


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_reader_holds_only_the_file_it_stands_in(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        for i in range(60):
            q.append(b"%d" % i)
    gc.collect()
    with Queue(path, read_only=True) as q:
        assert fds(path) == []
        t, back = q.tailer(), q.tailer(direction="backward")
        for way in (t.read, t.read_view, lambda: t.read_arrow(1), lambda: t.read_batch(1)):
            for _ in range(50):
                way()
            assert len(fds(path)) <= 1
            t.to_start()
        assert len(t.read_arrow(60)) == 60
        assert len(fds(path)) <= 1
        t.close()
        assert fds(path) == []
        assert len(list(back)) == 60
        assert len(fds(path)) <= 1


def test_a_closed_tailer_reads_again_after_a_seek(many: Queue) -> None:
    with many.tailer() as t:
        t.read_batch(10)
    assert t.read() is None
    t.seek(10)
    m = t.read()
    assert m is not None
    assert m.sequence == 10


# ---- read-only ----


def test_a_read_only_tailer_sees_a_writer_that_comes_later(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(4)) as q:
        q.append(b"0")
    with Queue(path, read_only=True) as reader:
        t, back = reader.tailer(), reader.tailer(direction="backward")
        assert [m.payload for m in t] == [b"0"]
        assert [m.payload for m in back] == [b"0"]
        with Queue(path) as q:
            for i in range(1, 10):
                q.append(b"%d" % i)
                m = t.read(timeout_s=20)
                assert m is not None
                assert m.payload == b"%d" % i
                assert m.timestamp is not None
            back.to_end()
            assert all(m.timestamp for m in back)
        assert t.read() is None


@pytest.mark.parametrize("boot", ["same boot", "new boot"])
def test_a_read_only_queue_of_another_boot_becomes_live(path: Path, monkeypatch: pytest.MonkeyPatch, boot: str) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(4)) as q:
        q.append_batch([b"0", b"1"])
    if boot == "new boot":
        monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path, read_only=True) as reader:
        assert (reader.first_sequence, reader.next_sequence, reader.durable_sequence) == (0, 2, 2)
        t = reader.tailer()
        assert [m.payload for m in t] == [b"0", b"1"]
        with Queue(path) as q:
            for i in range(2, 12):
                q.append(b"%d" % i)
            assert [m.payload for m in t] == [b"%d" % i for i in range(2, 12)]
            assert reader.next_sequence == 12
            assert all(m.timestamp for m in reader.tailer())
        assert reader.tailer().read_arrow(100).num_rows == 12
