"""A log's directory is moved away while it is open, and perhaps another log begun in its place: nothing is done to that one by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Channel, FilesMissing, Journal, Queue, Retention, Roll, Topics
from penstock.storage.janitor import Janitor
from penstock.storage.reader import OnCorrupt


@pytest.fixture(autouse=True)
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would do is done when a test says so."""
    monkeypatch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))


def queue_at(path: Path) -> Queue:
    return Queue(path, file_size=8192, roll=Roll.count(4), retention=Retention(max_bytes=1))


def payloads(path: Path) -> list[bytes]:
    with queue_at(path) as q, q.tailer() as tailer:
        assert q.recovery.damage == []
        return [m.payload for m in tailer]


def turn(q: Queue) -> None:
    assert q._janitor is not None
    q._janitor._turn()


ACTS: dict[str, Callable[[Queue], object]] = {
    "roll": lambda q: [q.append(b"more") for _ in range(4)],
    "sync": lambda q: q.sync(),
    "background": turn,
    "close": lambda q: q.close(),
}


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("act", ACTS)
def test_of_a_queue(tmp_path: Path, act: str, replaced: bool) -> None:
    path, away = tmp_path / "log", tmp_path / "away"
    old = queue_at(path)
    old.append_batch([b"%d" % i for i in range(4)])
    old.append(b"4")  # in a second file: the first is to be sealed, and then to go
    path.rename(away)
    new = [b"another %d" % i for i in range(7)]
    if replaced:
        with queue_at(path) as q:
            q.append_batch(new[:4])
            q.append_batch(new[4:])
        left = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(FilesMissing, match="moved, replaced or removed"):
        ACTS[act](old)
    if act != "close":
        with pytest.raises(FilesMissing, match="moved, replaced or removed"):
            old.close()
    if replaced:
        assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == left
    else:
        assert not path.exists()
    assert payloads(away)[:5] == [b"%d" % i for i in range(5)]


def test_of_a_topic(tmp_path: Path) -> None:
    """Its files grow, and are written by the kernel's thread."""
    path, away = tmp_path / "events", tmp_path / "away"
    old = Topics(path, segment_bytes=64)
    old.topic("orders").publish(b"first").wait()
    path.rename(away)
    with Topics(path, segment_bytes=64) as new:
        new.topic("orders").publish(b"another").wait()
    with pytest.raises(FilesMissing, match="moved, replaced or removed"):
        for _ in range(5):
            old.topic("orders").publish(b"x" * 40).wait()
    with pytest.raises(FilesMissing, match="moved, replaced or removed"):
        old.close()
    with Topics(path) as new:
        assert [m.payload for m in new.topic("orders").tailer()] == [b"another"]
    with Topics(away) as moved:
        assert [m.payload for m in moved.topic("orders").tailer()][:1] == [b"first"]


def test_who_comes_back_goes_on(tmp_path: Path) -> None:
    """It was moved, and moved back: nothing was lost by that."""
    path, away = tmp_path / "log", tmp_path / "away"
    with queue_at(path) as q:
        q.append_batch([b"0"] * 4)
        path.rename(away)
        with pytest.raises(FilesMissing):
            q.append(b"1")
        shutil.move(away, path)
        assert q.append(b"1") == 4
    assert payloads(path) == [b"0"] * 4 + [b"1"]


def test_the_process_changes_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path says where the log was when it was opened, and goes on to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with (
        queue_at(Path("queue")) as q,
        Channel[bytes]("channel", segment_bytes=100) as ch,
        Journal("journal") as j,
        Topics("topics", segment_bytes=4096) as topics,
    ):
        topic = topics.topic("orders", 1)
        monkeypatch.chdir(elsewhere)
        for i in range(10):
            q.append(b"%d" % i)
            ch.tx().send(b"%d" % i * 50)
            j.append(b"%d" % i).result()
            topic.publish(b"%d" % i * 1000).wait()
        assert [m.payload for m in q.tailer()] == [b"%d" % i for i in range(10)]
        assert ch.rx("all").recv_many(100) == [b"%d" % i * 50 for i in range(10)]
        assert [m.payload for m in topic.tailer()] == [b"%d" % i * 1000 for i in range(10)]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_tailer_does_not_take_what_was_moved_for_damage(tmp_path: Path, on_corrupt: OnCorrupt) -> None:
    here, there = tmp_path / "log", tmp_path / "moved"
    with queue_at(here) as q:
        q.append_batch([b"0", b"1", b"2", b"3"])
        q.append(b"4")
        t = q.tailer(on_corrupt=on_corrupt)
        assert len(t.read_batch(2)) == 2
        here.rename(there)
        assert [m.payload for m in t.read_batch(2)] == [b"2", b"3"]
        with pytest.raises(FilesMissing, match="moved"):
            t.read()
        there.rename(here)
        assert [m.payload for m in t] == [b"4"]
        assert t.losses == []
