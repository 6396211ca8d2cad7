"""Where a tailer starts and where it can be sent: by sequence, by time, to either end; also while the log rolls."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock import DiskFull, Queue, RecordGone, Retention, Roll
from penstock.kernel import NAME
from penstock.storage import files, retention
from penstock.storage.manifest import SegmentInfo
from penstock.storage.reader import LogReader
from tests.queue.conftest import payload
from tests.support import data_files, until

SLOW = NAME == "reference"


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


@pytest.mark.parametrize("when", ["now", None, 1.5, 0, date(2026, 1, 1)])
def test_a_time_that_is_none(many: Queue, when: Any) -> None:
    t = many.tailer(at=7)
    with pytest.raises(TypeError, match=r"when must be a datetime, such as datetime.now\(UTC\), not "):
        t.seek_time(when)
    assert t.position == 7


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


# ---- by sequence ----


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
                until(lambda before=before: time.time_ns() > before + 5000, "5 µs pass")  # type: ignore[misc]
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


def test_an_index_that_cannot_be_made_anew_is_done_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk readers go on."""
    with Queue(path, file_size=65536, index_interval=4) as q:
        for i in range(400):
            q.append(b"%04d" % i + bytes(400))
        q.sync()
        data_files(path)[0].with_suffix(".index").unlink()

        def full(fd: int, data: bytes, offset: int) -> None:
            raise DiskFull(path, len(data))

        t = q.tailer()
        with monkeypatch.context() as patch:
            patch.setattr(files, "write", full)
            for at in (100, 50, 120):
                t.seek(at)
                assert t.read(0).payload[:4] == b"%04d" % at
        assert not list(path.rglob("*.tmp"))


def test_a_time_is_sought_though_the_file_that_was_written_is_left_and_removed_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(5)) as q:
        q.append_batch([b"old"] * 5)
        q.append(b"old")
        t, log = q.tailer(), q._log
        assert log is not None
        look = LogReader._ordered

        def look_and_lose(reader: LogReader) -> list[SegmentInfo]:
            found = look(reader)
            monkeypatch.setattr(LogReader, "_ordered", look)
            q.append_batch([b"old"] * 4)
            q.append(b"new")
            log.seal_finished()
            gone = retention.apply(log, Retention(max_bytes=1))
            return [info for info in found if info not in gone and info.id in log.finished()]

        monkeypatch.setattr(LogReader, "_ordered", look_and_lose)
        t.seek_time(datetime(2020, 1, 1, tzinfo=UTC))
        assert [m.payload for m in t] == [b"new"]


def test_a_time_is_sought_in_a_log_that_is_only_read_and_whose_last_header_is_broken(path: Path) -> None:
    """Its records are read by what the companion says, and so they are found."""
    with Queue(path) as q:
        q.append_batch([b"0", b"1", b"2"])
    with data_files(path)[0].open("r+b") as file:
        file.seek(9)
        file.write(b"\xff")
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer(at=datetime(2020, 1, 1, tzinfo=UTC))] == [b"0", b"1", b"2"]
