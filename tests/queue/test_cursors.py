"""Named tailers: their position is exact, they go on where they last committed, and everybody sees the commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Queue, ReadOnly, Roll


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
