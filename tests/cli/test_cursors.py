"""`penstock cursors`: named readers of every format, listed, set and forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Channel, Journal, Queue, Topics
from tests.cli.conftest import Live, Terminal, piped

Run = Callable[..., Result]


def listed(run: Run, path: Path) -> dict[str, tuple[int, int]]:
    told = run("cursors", path, "--json")
    assert told.exit_code == 0, told.output
    return {f"{c['name']}-{c['partition']}": (c["position"], c["lag"]) for c in json.loads(told.stdout)["cursors"]}


def test_a_queues(run: Run, path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"x"] * 10)
        q.tailer("billing")
        assert listed(run, path) == {"billing-0": (0, 10)}
        assert run("cursors", path, "set", "billing", 7).exit_code == 0
        assert q.tailer("billing").position == 7
        assert run("cursors", path, "set", "new", "end").exit_code == 0
        assert listed(run, path) == {"billing-0": (7, 3), "new-0": (10, 0)}
        assert run("cursors", path, "set", "new", "1h").exit_code == 0
        assert q.tailer("new").position == 0
        assert run("cursors", path, "forget", "billing").exit_code == 0
        assert q.cursors() == {"new": 0}
    assert run("cursors", path, "forget", "billing").exit_code == 2
    assert run("cursors", path, "set", "billing", 11).exit_code == 2
    assert run("cursors", path, "set", "../billing", 1).exit_code == 2
    assert run("cursors", path, "set", "billing").exit_code == 2
    assert run("cursors", path, "list", "billing").exit_code == 2


def test_a_channels(run: Run, path: Path) -> None:
    with Channel[bytes](path) as c:
        c.tx().send_many([b"%d" % i * 10 for i in range(100)])
        c.rx("worker").recv_many(50)
        assert run("cursors", path, "set", "worker", 5).exit_code == 1  # it is open
    assert listed(run, path) == {"worker-0": (50, 50)}
    moved = run("cursors", path, "set", "worker", 5, "--json")
    assert json.loads(moved.stdout)["cursors"][0] | {"log": ""} == {
        "log": "",
        "partition": 0,
        "name": "worker",
        "before": 50,
        "after": 5,
    }
    assert run("cursors", path, "set", "late", "end").exit_code == 0
    with Channel[bytes](path) as c:
        assert c.rx("worker").recv_many(1) == [b"5" * 10]
        assert c.rx("late").try_recv() is None
    assert run("cursors", path, "forget", "worker").exit_code == 0
    assert set(listed(run, path)) == {"late-0"}


def test_a_topics(run: Run, path: Path) -> None:
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=2)
        for p in (0, 1):
            topic.publish_many([b"x"] * 10, partition=p).wait()
    assert run("cursors", path, "set", "group", "start").exit_code == 0
    assert run("cursors", path / "orders", "set", "group", 4, "--partition", 1).exit_code == 0
    assert listed(run, path) == {"group-0": (0, 10), "group-1": (4, 6)}
    assert run("cursors", path / "orders", "set", "group", 4, "--partition", 2).exit_code == 2
    assert run("cursors", path, "forget", "group").exit_code == 0
    assert listed(run, path) == {}


def test_a_journal_has_none(run: Run, path: Path) -> None:
    Journal(path).close()
    assert listed(run, path) == {}
    assert run("cursors", path, "set", "x", "end").exit_code == 2


def test_beside_a_live_writer(live: Live, terminal: Callable[..., Terminal]) -> None:
    live.append("queue", "x")
    assert piped("cursors", live.path("queue"), "set", "billing", "start").returncode == 0
    live.append("queue", "y")
    shown = terminal("cursors", live.path("queue"))
    assert shown.ended() == 0
    assert "billing" in shown.shown
    assert piped("cursors", live.path("queue")).stdout.split()[-3:] == [b"tailer", b"0", b"2"]


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock cursors " in run("cursors", "--help").stdout


def test_in_the_topics_own_directory(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is above `.` is not `.` again."""
    with Topics(path, linger_s=0) as logs:
        logs.topic("orders").publish_many([b"x"] * 3, partition=0).wait()
    monkeypatch.chdir(path / "orders")
    assert run("cursors", ".", "set", "billing", 2).exit_code == 0
    assert listed(run, path / "orders") == {"billing-0": (2, 1)}
    assert not (path / "orders" / "orders").exists()
