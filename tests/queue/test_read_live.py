"""Reading a log while it is written: nothing is missed at a roll, and a read-only queue sees a writer that comes later."""

from __future__ import annotations

import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from penstock import LogNotFound, Queue, Roll, SyncFailed, Tailer
from penstock.kernel import NAME
from penstock.storage import files

SLOW = NAME == "reference"


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


@pytest.mark.parametrize("size", [0, 100])
def test_a_control_page_that_is_cut_short_or_just_being_made_says_nothing(path: Path, size: int) -> None:
    with Queue(path) as q:
        q.append(b"there")
    (path / ".lock").write_bytes(bytes(size))
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == [b"there"]
    for file in path.rglob("*.*"):
        if file.is_file() and file.name not in (".lock", "metadata.json"):
            file.unlink()
    with pytest.raises(LogNotFound):
        Queue(path, read_only=True)


def unsynced(path: Path) -> None:
    """60 records of a process that died, the first 20 of them synced."""
    if (child := os.fork()) == 0:
        q = Queue(path, file_size=1 << 20)
        q.append_batch([b"record %d" % i for i in range(20)])
        q.sync()
        q.append_batch([b"record %d" % i for i in range(20, 60)])
        t = q.tailer("worker")
        t.to_end()
        t.commit()
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_records_that_were_moved_after_a_failed_sync_are_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, on_corrupt: Literal["raise", "skip"]
) -> None:
    unsynced(path)
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path, read_only=True) as reader:
        t = reader.tailer(on_corrupt=on_corrupt)
        assert len(t.read_batch(100)) == 60

        def fail(fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".data":
                raise OSError(errno.EIO, "planted")
            sync(fd)

        sync = files.sync
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", fail)
            with pytest.raises(SyncFailed):
                Queue(path)
        with Queue(path) as q:
            assert q.recovery.moved_bytes > 0
            own = q.tailer(at=60)
            assert t.read() is None
            q.append(b"new")
            assert [m.sequence for m in t] == [m.sequence for m in own] == [60]
            assert t.losses == []
            assert len(list(q.tailer())) == len(list(reader.tailer())) == 61


def test_a_named_tailer_beyond_what_a_power_cut_left_reads_from_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsynced(path)
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    (data,) = path.rglob("*.data")
    with data.open("r+b") as file:
        file.seek(data.read_bytes().index(b"record 30"))
        file.write(bytes(4096))
    with Queue(path, read_only=True) as reader:
        end = reader.next_sequence
        assert 20 <= end < 60
        t = reader.tailer("worker")
        assert t.position == end
        assert t.read() is None
        with Queue(path) as q:
            assert q.tailer("worker").position == end
            q.append(b"new")
            assert [m.sequence for m in t] == [end]
            ahead = q.tailer("worker")
            ahead.to_end()
            ahead.commit()
            assert reader.tailer("worker").position == end + 1
