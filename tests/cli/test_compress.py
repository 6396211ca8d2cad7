"""`penstock compress`: channels, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from penstock import Channel, Queue
from penstock.inspect import find
from penstock.inspect.facts import look
from penstock.inspect.rows import Rows
from tests.cli.conftest import Live, Terminal, piped
from tests.spark.test_jobs_mend import SENT, plain_channel
from tests.spark.test_jobs_verify import segments

Run = Callable[..., Result]


def test_it_is_smaller_and_the_same(run: Run, path: Path) -> None:
    plain_channel(path)
    told = run("compress", path, "--json")
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert report["bytes_after"] < report["bytes_before"]
    assert sum(segment.compressed for segment in look(path)[0].segments) == report["segments"] > 2
    with Rows(find(path)) as rows:
        assert [row.payload for row in rows.now()] == SENT
    assert run("compress", path).stdout.startswith("0 segments")


def test_a_damaged_one_is_left(run: Run, path: Path) -> None:
    plain_channel(path)
    damaged = segments(path)[1]
    file = damaged.paths().data
    file.write_bytes(file.read_bytes()[: damaged.end // 2])
    told = run("compress", path, "--method", "gzip")
    assert told.exit_code == 1
    assert f"{file}: cannot be compressed" in told.stderr.replace("\n", " ")


def test_one_that_is_open_does_not_stop_the_others(run: Run, path: Path) -> None:
    for name in ("a", "b", "c"):
        plain_channel(path / name)
    with Channel[bytes](path / "b"):
        told = run("compress", path)
        assert told.exit_code == 1
        assert " became " in told.stdout
        assert told.stderr.startswith(f"penstock: {path / 'b'}: ")
        assert json.loads(run("compress", path, "--json").stdout)["failed"][0].startswith(f"{path / 'b'}: ")
    found = {log.topic: any(segment.compressed for segment in log.segments) for log in look(path)}
    assert found == {"a": True, "b": False, "c": True}


def test_wrong_use(run: Run, path: Path) -> None:
    Queue(path).close()
    assert run("compress", path).exit_code == 2
    assert run("compress", path, "--method", "rar").exit_code == 2
    assert "Example: penstock compress " in run("compress", "--help").stdout


def test_one_that_is_open_is_refused(live: Live, path: Path, terminal: Callable[..., Terminal]) -> None:
    live.append("channel", "x")
    told = piped("compress", live.path("channel"))
    assert told.returncode == 1
    assert str(live.process.pid).encode() in told.stderr
    live.append("channel", "y")
    with Channel[bytes](path, segment_bytes=1000) as c:
        for i in range(100):
            c.tx().send(b"%040d" % i)
    shown = terminal("compress", path)
    assert shown.ended() == 0
    assert " became " in shown.shown
