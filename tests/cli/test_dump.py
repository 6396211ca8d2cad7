"""`penstock dump`: lines of JSON and Parquet, whole or not there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from penstock import Queue, Topics
from tests.cli.conftest import FORMATS, Live, Terminal, piped
from tests.spark.test_jobs_verify import flip, segments

Run = Callable[..., Result]


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("format", FORMATS)
def test_beside_a_live_writer(run: Run, live: Live, format: str) -> None:
    for i in range(3):
        live.append(format, f"dump {i}")
    done = run("dump", live.path(format))
    assert done.exit_code == 0, done.output
    found = rows(done.stdout)
    assert [row["value"] for row in found] == ["dump 0", "dump 1", "dump 2"]
    assert set(found[0]) == {"partition", "offset", "timestamp", "value"}


def test_a_selection(run: Run, path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"%d" % i for i in range(1000)])
    told = run("dump", path, "--from", 100, "--until", 900, "-n", 3)
    assert [row["value"] for row in rows(told.stdout)] == ["897", "898", "899"]
    told = run("dump", path, "--from", 998, "--as", "json")
    assert [row["value"] for row in rows(told.stdout)] == [998, 999]
    assert run("dump", path, "--until", "2001-01-01").stdout == ""
    assert len(rows(run("dump", path, "--from", "1h").stdout)) == 1000


def test_parquet(run: Run, path: Path, tmp_path: Path) -> None:
    sent = [b"\xff%d" % i * 50 for i in range(40_000)]
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=2)
        topic.publish_many(sent[:30_000], partition=0).wait()
        topic.publish_many(sent[30_000:], partition=1).wait()
    done = run("dump", path, "--to", "parquet", "--output", tmp_path / "orders.parquet", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 40_000
    file = pq.ParquetFile(tmp_path / "orders.parquet")
    assert file.num_row_groups > 1  # it was written a piece at a time
    table = file.read()
    assert table.column("value").to_pylist() == sent
    assert table.column("partition").to_pylist() == [0] * 30_000 + [1] * 10_000
    assert table.column("offset").to_pylist() == [*range(30_000), *range(10_000)]
    assert run("dump", path, "--to", "parquet").exit_code == 2


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_a_file_is_whole_or_not_there(run: Run, path: Path, tmp_path: Path, to: str) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch([b"record %d" % i for i in range(5)])
    flip(segments(path)[0].paths().data, 4096 + 4 * (12 + 8) + 6)
    target = tmp_path / "out"
    target.write_text("older")
    before = set(tmp_path.iterdir())
    assert run("dump", path, "--to", to, "--output", target).exit_code == 1
    assert target.read_text() == "older"
    assert set(tmp_path.iterdir()) == before
    told = run("dump", path, "--output", target, "--skip-damaged")
    assert (told.exit_code, len(rows(target.read_text()))) == (1, 4)


def test_what_is_no_file_is_not_replaced_by_one(run: Run, path: Path, tmp_path: Path) -> None:
    with Queue(path) as q:
        q.append(b"x")
    os.mkfifo(tmp_path / "fifo")
    told = run("dump", path, "--output", tmp_path / "fifo")
    assert (told.exit_code, "no regular file" in told.stderr) == (2, True)
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


@pytest.mark.parametrize("name", ["manifest", "new"])
def test_no_file_of_the_log_is_replaced(run: Run, path: Path, name: str) -> None:
    with Queue(path) as q:
        q.append(b"x")
    before = (path / "manifest").read_bytes()
    told = run("dump", path, "--output", path / name)
    assert (told.exit_code, "lies in the log" in told.stderr) == (2, True), told.output
    assert (path / "manifest").read_bytes() == before
    assert not (path / "new").exists()


def test_a_directory_that_is_not_there_is_named(run: Run, path: Path, tmp_path: Path) -> None:
    with Queue(path) as q:
        q.append(b"x")
    told = run("dump", path, "--output", tmp_path / "none" / "out")
    assert told.exit_code == 2
    assert f"there is no directory {tmp_path / 'none'}; " in told.stderr


def test_several_logs_are_named(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with Queue(tmp_path / "logs" / name) as q:
            q.append(name.encode())
    found = rows(run("dump", tmp_path / "logs").stdout)
    assert [(row["log"], row["value"]) for row in found] == [("a", "a"), ("b", "b")]


def test_on_a_terminal_and_in_a_pipe(live: Live, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    live.append("queue", "seen")
    shown = terminal("dump", live.path("queue"), "-o", tmp_path / "out")
    assert shown.ended() == 0
    assert "dump" in shown.shown  # the bar
    assert rows((tmp_path / "out").read_text())[-1]["value"] == "seen"
    told = piped("dump", live.path("queue"), "-n", "1")
    assert (told.returncode, told.stderr) == (0, b"")
    assert rows(told.stdout.decode())[0]["value"] == "seen"


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock dump " in run("dump", "--help").stdout
