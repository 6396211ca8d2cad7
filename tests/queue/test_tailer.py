"""Reading: every way of reading agrees, forward and backward; what a reader holds, and what outlives it."""

from __future__ import annotations

import asyncio
import gc
import random
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Message, Queue, Roll
from tests.queue.conftest import payload

SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=True),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


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


# ---- backward ----


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


# ---- what a reader holds ----


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
