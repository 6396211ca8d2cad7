"""`penstock retain`: what goes, what stays, and who holds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

from penstock import Channel, Journal, Queue, Topics
from tests.cli.conftest import Live, Terminal, piped

Run = Callable[..., Result]


def done(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    [one] = json.loads(result.stdout)["logs"]
    return dict(one)


def test_a_queue_and_its_reader(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 14) as q:
        for _ in range(40):
            q.append_batch([b"x" * 100] * 100)
        tailer = q.tailer("billing")
        tailer.read_batch(1000)
        tailer.commit()
        one = done(run("retain", path, "--max-bytes", "20KiB", "--json"))
        assert one["files"] > 0
        assert one["first"] == q.first_sequence <= 1000
        [held] = one["held_back"]
        assert (held["name"], held["position"]) == ("billing", 1000)
        assert held["files"] > 0
        assert "held back by billing" in run("retain", path, "--max-bytes", "20KiB").stdout
        one = done(run("retain", path, "--max-bytes", "20KiB", "--force", "--json"))
        assert (one["first"], one["held_back"]) == (q.first_sequence, [])
        assert q.first_sequence > 3000


def test_an_age(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 14) as q:
        for _ in range(10):
            q.append_batch([b"x" * 100] * 100)
    assert done(run("retain", path, "--max-age", "1h", "--json"))["files"] == 0
    assert done(run("retain", path, "--max-age", "0.001s", "--json"))["files"] > 0


def test_a_channel_goes_by_bytes(run: Run, path: Path) -> None:
    with Channel[bytes](path, segment_bytes=1000) as c:
        receiver = c.rx("worker", ack=True)
        c.rx("other").close()
        for i in range(100):
            c.tx().send(b"%092d" % i)
        receiver.recv_many(45)
        receiver.ack(45)
        assert run("retain", path, "--max-bytes", 1).exit_code == 1  # it is open
    with Channel[bytes](path) as c:
        other = c.rx("other")
        other.recv_many(100)
        before = c.stats().first_offset
    one = done(run("retain", path, "--max-bytes", 1, "--json"))
    assert before <= one["first"] * 100 <= 4500
    assert [(h["name"], h["position"]) for h in one["held_back"]] == [("worker", 45)]
    with Channel[bytes](path) as c:
        assert c.rx("worker").recv_many(100) == [b"%092d" % i for i in range(45, 100)]
    assert done(run("retain", path, "--max-bytes", 1, "--force", "--json"))["first"] >= 90


def test_what_a_receiver_has_not_read_stays_whatever_its_slot(run: Run, path: Path) -> None:
    with Channel[bytes](path, segment_bytes=1) as c:  # a segment for each message
        c.rx("worker")
        for i in range(10):
            c.tx().send(b"%d" % i)
    assert done(run("retain", path, "--max-bytes", 1, "--json"))["files"] == 0
    with Channel[bytes](path) as c:
        assert c.rx("worker").recv() == b"0"


def test_a_topic(run: Run, path: Path) -> None:
    with Topics(path, segment_bytes=2000, linger_s=0) as topics:
        topic = topics.topic("orders")
        for _ in range(20):
            topic.publish_many([b"x" * 96] * 10).wait()
    assert done(run("retain", path, "--max-bytes", "3000", "--json"))["records"] > 100


def test_one_that_is_open_does_not_stop_the_others(run: Run, path: Path) -> None:
    for name in ("a", "b", "c"):
        with Channel[bytes](path / name, segment_bytes=1000) as c:
            for i in range(100):
                c.tx().send(b"%092d" % i)
    with Channel[bytes](path / "b"):
        told = run("retain", path, "--max-bytes", 1, "--json")
        assert told.exit_code == 1
        report = json.loads(told.stdout)
        assert [(one["topic"], one["files"] > 0) for one in report["logs"]] == [("a", True), ("c", True)]
        assert [error.startswith(f"{path / 'b'}: ") for error in report["failed"]] == [True]
        told = run("retain", path, "--max-bytes", 1)
        assert told.exit_code == 1
        assert "a, partition 0: 0 files removed" in told.stdout
        assert told.stderr.startswith(f"penstock: {path / 'b'}: ")


def test_wrong_use(run: Run, path: Path) -> None:
    Journal(path).close()
    assert run("retain", path, "--max-bytes", "1GiB").exit_code == 2
    Queue(path.parent / "also").close()
    assert run("retain", path.parent, "--max-bytes", "1GiB").exit_code == 2
    assert run("retain", path).exit_code == 2
    assert run("retain", path, "--max-bytes", "much").exit_code == 2
    assert run("retain", path, "--max-age", "old").exit_code == 2
    assert "Example: penstock retain " in run("retain", "--help").stdout


def test_beside_a_live_writer(live: Live, terminal: Callable[..., Terminal]) -> None:
    for format in ("queue", "topic"):
        live.append(format, "x")
        told = piped("retain", live.path(format), "--max-age", "7d")
        assert told.returncode == 0, told.stderr
        assert b"0 files removed" in told.stdout
        live.append(format, "y")
    shown = terminal("retain", live.path("queue"), "--max-bytes", "1GiB")
    assert shown.ended() == 0
    assert "0 files removed" in shown.shown
