"""`penstock convert`: among all formats and back, whole or not there."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import Result

from penstock import Channel, Journal, Queue, Topics
from penstock.converting import convert
from penstock.errors import InvalidOption
from penstock.inspect import Part, detect, find
from penstock.inspect.rows import Rows
from penstock.spark.jobs.convert import convert as by_spark
from tests.cli.conftest import FORMATS, Live, Terminal, piped
from tests.spark.conftest import write
from tests.spark.test_jobs_verify import flip, segments

Run = Callable[..., Result]
SENT = [b"%d" % i * (i % 50 + 1) for i in range(30_000)]


def rows(path: Path) -> list[tuple[int | None, bytes]]:
    with Rows(find(path)) as found:
        return [(row.timestamp_us, row.payload) for row in found.now()]


@pytest.mark.parametrize("source", FORMATS)
def test_there_and_on_and_back(run: Run, tmp_path: Path, source: str) -> None:
    """To every format in turn, and to the first again: payloads, their order and their times stay."""
    at = tmp_path / "first"
    write(at, source, SENT)
    before = rows(at)
    assert [payload for _, payload in before] == SENT
    others = [format for format in FORMATS if format != source]
    for i, format in enumerate([*others, source]):
        target = tmp_path / str(i)
        told = run("convert", at, target, "--to", format, "--json")
        assert told.exit_code == 0, told.output
        assert sum(log["records"] for log in json.loads(told.stdout)["logs"]) == len(SENT)
        assert rows(target) == before
        assert {part.format for part in find(target)} == {format}
        at = target


def test_times_of_long_ago_are_kept_by_more_than_a_batch(tmp_path: Path) -> None:
    """Every batch has its own, though each is appended now."""
    with Queue(tmp_path / "q") as q:
        for i in range(40):
            q.append_batch([b"%d" % i * 1000] * 100)
    before = rows(tmp_path / "q")
    assert len({us for us, _ in before}) == 40
    for format in FORMATS:
        convert(tmp_path / "q", tmp_path / format, format)  # type: ignore[arg-type]
        assert rows(tmp_path / format) == before


def test_what_was_made_is_appended_to_and_read_as_any_other(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as q:
        q.append_batch(SENT[:1000])
    convert(tmp_path / "q", tmp_path / "c", "channel")
    with Channel[bytes](tmp_path / "c") as c:
        c.tx().send(b"more")
        assert c.rx("x").recv_many(2000) == [*SENT[:1000], b"more"]
    convert(tmp_path / "q", tmp_path / "j", "journal")
    with Journal(tmp_path / "j") as j:
        found = list(j.recovered())
        assert [r.payload for r in found] == SENT[:1000]
        assert {(r.group, r.complete) for r in found} == {(1, True)}
    convert(tmp_path / "q", tmp_path / "t", "topic")
    with Topics(tmp_path / "t", linger_s=0) as topics:
        assert topics.topic("q").publish(b"more").wait() == 1000
    times = [us or 0 for us, _ in rows(tmp_path / "t")]
    assert all(a <= b for a, b in pairwise(times))


def test_a_topic_with_partitions(tmp_path: Path) -> None:
    with Topics(tmp_path / "topics", linger_s=0) as topics:
        topic = topics.topic("orders", partitions=2)
        for p in (0, 1):
            topic.publish_many([b"%d" % p] * 10, partition=p).wait()
    report = convert(tmp_path / "topics", tmp_path / "queues", "queue")
    assert [(one.target, one.records) for one in report.logs] == [
        (str(tmp_path / "queues" / f"orders-{p}"), 10) for p in (0, 1)
    ]
    assert [payload for _, payload in rows(tmp_path / "queues" / "orders-1")] == [b"1"] * 10
    convert(tmp_path / "topics", tmp_path / "again", "topic")
    assert [part.partition for part in find(tmp_path / "again")] == [0, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.converting import convert
convert(sys.argv[1], sys.argv[2], sys.argv[3], lambda records: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize("format", FORMATS)
def test_one_that_is_killed_leaves_no_log_and_is_run_again(tmp_path: Path, format: str) -> None:
    write(tmp_path / "q", "queue", SENT)
    target = tmp_path / "out" / "made"
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "q"), str(target), format], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert os.listdir(tmp_path / "out") == [".made.converting"]  # noqa: PTH208
    convert(tmp_path / "q", target, format)  # type: ignore[arg-type]
    assert [payload for _, payload in rows(target)] == SENT
    assert os.listdir(tmp_path / "out") == ["made"]  # noqa: PTH208


def test_damage_ends_it_with_nothing_left(run: Run, tmp_path: Path) -> None:
    with Queue(tmp_path / "q", file_size=1 << 20) as q:
        q.append_batch([b"record"] * 5000)
    flip(segments(tmp_path / "q")[0].paths().data, 4096 + 3000 * 18 + 5)
    told = run("convert", tmp_path / "q", tmp_path / "out", "--to", "channel")
    assert told.exit_code == 1
    assert "(sequence 3000)" in told.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["q"]


def test_what_does_not_fit_is_told(run: Run, tmp_path: Path) -> None:
    with Channel[bytes](tmp_path / "c") as c:
        c.tx().send_many([b"x", b"", b"y" * (1 << 20)])
    told = run("convert", tmp_path / "c", tmp_path / "q", "--to", "queue")
    assert (told.exit_code, "offset 1: 0 bytes; a queue holds" in told.stderr) == (1, True)
    told = run("convert", tmp_path / "c", tmp_path / "j", "--to", "journal")
    assert (told.exit_code, "offset 2: 1048576 bytes; a journal holds" in told.stderr) == (1, True)
    assert detect(tmp_path) is None


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    Queue(tmp_path / "q").close()
    assert run("convert", tmp_path / "q", tmp_path / "q", "--to", "topic").exit_code == 2
    assert run("convert", tmp_path / "none", tmp_path / "x", "--to", "topic").exit_code == 2
    assert run("convert", tmp_path / "q", tmp_path / "x").exit_code == 2
    assert "Example: penstock convert " in run("convert", "--help").stdout


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("all/q", "all/q/inside"),
        ("all/q", "all/q/far/inside"),
        ("all/q", "link/inside"),
        ("all/q", "all/q/../q/inside"),
        ("link", "all/q/inside"),
        ("all", "all/q/inside"),
        ("all", "all"),
        ("links", "all/q/inside"),
        ("links", "all"),
        ("all/q", "all"),
        ("all/q", "all/q"),
        (".out.converting", "out"),  # where it would be made, which is emptied first
        (".links", "out"),
    ],
)
def test_neither_lies_in_the_other(run: Run, tmp_path: Path, source: str, target: str) -> None:
    for name in ("all/q", ".out.converting"):
        with Queue(tmp_path / name, file_size=8192) as q:
            q.append(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "all" / "q")
    for name, to in (("links/a", "all/q"), (".links/a", ".out.converting")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(tmp_path / to)
    before = sorted(tmp_path.rglob("*"))
    told = run("convert", tmp_path / source, tmp_path / target, "--to", "queue")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "or within it; give a directory that is beside it" in told.stderr
    if source[0] != ".":  # by Spark it is made elsewhere
        with pytest.raises(InvalidOption, match="or within it"):
            by_spark(cast(Any, None), tmp_path / source, tmp_path / target, to="queue")
    assert sorted(tmp_path.rglob("*")) == before
    assert rows(tmp_path / "all" / "q")[0][1] == rows(tmp_path / ".out.converting")[0][1] == b"x"


def test_a_link_that_leads_to_itself_is_no_place_for_a_log(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "q", "queue", SENT[:10])
    (tmp_path / "loop").symlink_to("loop")
    told = run("convert", tmp_path / "q", tmp_path / "loop", "--to", "topic")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "give a directory that is not there yet" in told.stderr


@pytest.mark.parametrize("source", ["all", "links"])
def test_beside_the_logs_in_their_directory(run: Run, tmp_path: Path, source: str) -> None:
    for name in ("a", "b"):
        write(tmp_path / "all" / name, "queue", SENT[:10])
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a").symlink_to(tmp_path / "all" / "a")
    told = run("convert", tmp_path / source, tmp_path / source / "new", "--to", "topic")
    assert told.exit_code == 0, told.output
    names = ["a", "b"] if source == "all" else ["a"]
    assert [part.topic for part in find(tmp_path / source / "new")] == names
    assert [payload for _, payload in rows(tmp_path / source / "new")] == SENT[:10] * len(names)


def test_by_spark_what_was_cut_short_there_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call goes on with it, and does not take it for one more log."""
    made: list[str] = []

    def cut_short(spark: object, part: Part, place: Path, to: str) -> None:
        Queue(place).close()
        made.append(part.topic)
        if len(made) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("penstock.spark.jobs.convert"), "_run", cut_short)
    write(tmp_path / "all" / "a", "channel", SENT[:10])
    top, new = tmp_path / "all", tmp_path / "all" / "new"
    with pytest.raises(KeyboardInterrupt):
        by_spark(cast(Any, None), top, new, to="queue")
    assert [part.topic for part in find(top)] == ["a", "new"]
    report = by_spark(cast(Any, None), top, new, to="queue")
    assert ([log.source for log in report.logs], made) == ([str(top / "a")], ["a", "a"])
    with pytest.raises(InvalidOption, match="the same as"):
        by_spark(cast(Any, None), top, new, to="queue")


@pytest.mark.parametrize("format", FORMATS)
def test_beside_a_live_writer(live: Live, tmp_path: Path, format: str) -> None:
    live.append(format, "one")
    told = piped("convert", live.path(format), tmp_path / "out", "--to", "queue")
    assert (told.returncode, told.stderr) == (0, b"")
    live.append(format, "two")


def test_on_a_terminal(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    write(tmp_path / "q", "queue", SENT)
    shown = terminal("convert", tmp_path / "q", tmp_path / "c", "--to", "channel")
    assert shown.ended() == 0
    assert "convert" in shown.shown
    assert "30,000 records" in shown.shown
