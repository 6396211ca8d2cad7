"""`penstock info`: what it tells of each format, that it finds trouble, and that it changes nothing."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Channel, Journal, Queue, SyncFailed, Topics
from penstock.cli.drawing import draw
from penstock.formats.channel import Method
from penstock.inspect.facts import LogFacts, look
from penstock.storage import files
from penstock.storage.shrink import compress_sealed
from tests.cli.conftest import FORMATS, Live, Terminal, piped
from tests.spark.test_jobs_verify import flip, segments

Run = Callable[..., Result]


def only(path: Path) -> LogFacts:
    [found] = look(path)
    return found


def test_a_queue(path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        for _ in range(10):
            q.append_batch([b"x" * 100] * 2000)
        tailer = q.tailer("billing")
        tailer.read_batch(1234)
        tailer.commit()
        q.sync()
        found = only(path)
        assert (found.state, [p.pid for p in found.processes if p.writes]) == ("open", [os.getpid()])
        assert found.segments[-1].reserved_bytes > 0
    assert (found.format, found.first, found.next, found.durable) == ("queue", 0, 20_000, 20_000)
    assert [(r.name, r.kind, r.position, r.lag) for r in found.readers] == [("billing", "tailer", 1234, 18_766)]
    assert len(found.segments) > 1
    assert found.rates[0].records == pytest.approx(20_000 / 60)
    assert 0 < found.last_us - found.first_us < 60_000_000
    closed = only(path)
    assert (closed.state, closed.processes, closed.problems) == ("closed", (), ())
    assert closed.segments[-1].reserved_bytes == 0 or files.PORTABLE  # where no hole can be punched
    assert [s.state for s in closed.segments] == ["sealed"] * (len(closed.segments) - 1) + ["active"]


def test_a_channel(path: Path) -> None:
    with Channel[bytes](path, segment_bytes=20_000) as c:
        done, half = c.rx("done"), c.rx("half", ack=True, shared=True)
        other = c.rx("half", ack=True, shared=True)
        for _ in range(20):
            c.tx().send_many([b"y" * 92] * 50)
        done.recv_many(1000)
        half.recv_many(300)
        other.recv_many(100)
        other.ack(100)
        readers = {r.name: r for r in only(path).readers}
    assert (readers["done"].position, readers["done"].lag, readers["done"].offset) == (1000, 0, 100_000)
    assert (readers["half"].position, readers["half"].lag_bytes, readers["half"].offset) == (0, 90_000, 0)
    assert readers["half"].lag == 900  # about, since what was done lies beyond a gap


def test_a_place_in_a_compressed_file_is_told_without_inflating_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Channel[bytes](path, segment_bytes=20_000) as c:
        receiver = c.rx("slow")
        for _ in range(20):
            c.tx().send_many([b"y" * 92] * 50)
        receiver.recv_many(30)
    with Channel[bytes](path) as c:
        assert compress_sealed(c._open_log(), Method.ZSTD)

    def refuse(directory: Path) -> int:
        raise AssertionError(f"inflated in {directory}")

    monkeypatch.setattr(files, "create_unnamed", refuse)
    found = only(path)
    assert found.segments[0].compressed
    assert [(r.position, r.lag, r.exact) for r in found.readers] == [(30, 970, False)]


def test_a_journal_and_its_earlier_session(path: Path) -> None:
    with Journal(path) as j:
        for _ in range(3):
            j.append(b"record")
            j.checkpoint()
        j.check()
    assert only(path).to_dict()["first_unchecked"] == 2
    assert only(path).to_dict()["current"] == 3


def test_a_topic_and_its_groups(path: Path) -> None:
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=2)
        topic.publish_many([b"z"] * 100, partition=1).wait()
        with topic.group("workers") as member:
            member.poll_many(10)
            member.commit()
    empty, full = look(path)
    assert (empty.partition, empty.records, full.partition, full.records) == (0, 0, 1, 100)
    assert [(r.name, r.kind, r.position, r.lag) for r in full.readers] == [("workers", "group", 10, 90)]


def test_a_process_that_died_left_it_unclosed(run: Run, path: Path) -> None:
    if not (pid := os.fork()):
        Queue(path).append(b"x")
        os._exit(0)
    os.waitpid(pid, 0)
    told = run("info", path)
    assert told.exit_code == 1
    assert "did not close it" in told.stdout
    with Queue(path):
        pass
    assert run("info", path).exit_code == 0


def test_a_reader_that_had_it_open_is_no_trouble(run: Run, path: Path) -> None:
    """A writer that closes beside a reader leaves the tidying to the next one, with everything on the disk."""
    with Queue(path) as q:
        q.append(b"x")
        reader = Queue(path, read_only=True)
    told = run("info", path)
    reader.close()
    assert (told.exit_code, "not closed; all of it is on the disk" in told.stdout) == (0, True)


def test_damage_at_either_end_is_found(path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch([b"record"] * 5000)
    seg = segments(path)[0].read()
    flip(seg.paths.data, seg.start + 5)
    assert "byte 4096 (sequence 0)" in only(path).problems[0]
    flip(seg.paths.data, seg.start + 5)
    flip(seg.paths.data, segments(path)[0].end - 3)
    assert "(sequence 4999): its checksum does not match" in only(path).problems[0]


def test_what_repair_listed_as_lost_is_told_and_is_no_trouble(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch([b"first", b"second", b"last"])
    (file,) = path.rglob("*.data")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"first", b"FIRST").replace(b"last", b"LAST"))
    assert run("info", path).exit_code == 1
    assert run("repair", path, "--apply").exit_code == 0
    told = run("info", path)
    assert told.exit_code == 0
    assert re.findall(r"lost +(\d+) to (\d+)", told.stdout) == [("0", "0"), ("2", "2")]
    facts = only(path)
    assert [(loss.first, loss.last) for loss in facts.losses] == [(0, 0), (2, 2)]


def test_a_failed_sync_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q = Queue(path)
    q.append(b"x")
    assert q._open_log().control is not None
    q._open_log().control.set_poison(5)  # type: ignore[union-attr]
    assert "a sync failed" in only(path).problems[0]
    with pytest.raises(SyncFailed):
        q.close()


def test_nothing_is_written_and_a_read_only_directory_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(path) as q:
        q.append_batch([b"x"] * 10)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")}

    def refuse(*args: object, **named: object) -> int:
        raise AssertionError("opened for writing")

    for name in ("create", "open_write", "write", "replace", "remove", "rename", "truncate"):
        monkeypatch.setattr(files, name, refuse)
    assert only(path).records == 10
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in path.rglob("*")} == before


def test_it_is_quick_whatever_the_length(path: Path) -> None:
    with Queue(path, file_size=1 << 16) as q:
        for _ in range(200):
            q.append_batch([b"x" * 100] * 500)
        started = time.monotonic()
        assert len(only(path).segments) >= 200
        assert time.monotonic() - started < 1.0


@pytest.mark.parametrize("width", [12, 40, 80, 200])
def test_the_drawing_fits(path: Path, width: int) -> None:
    with Queue(path, file_size=1 << 14) as q:
        for _ in range(300):
            q.append_batch([b"x" * 100] * 10)
        for i in range(12):
            tailer = q.tailer(f"reader-with-a-long-name-{i}")
            tailer.seek(i * 250)
            tailer.commit()
        lines = draw(only(path), width)
    assert len(lines) == 2 + 8 + 1
    assert all(len(line.plain) <= width for line in lines)
    assert len(lines[1].plain) == width
    assert [line.plain.index("▲") for line in lines[2:-1]] == [i * 250 * width // 3000 for i in range(8)]


@pytest.mark.parametrize("format", FORMATS)
def test_beside_a_live_writer(run: Run, live: Live, format: str) -> None:
    live.append(format, "hello")
    told = run("info", live.path(format), "--json")
    assert told.exit_code == 0, told.output
    logs = json.loads(told.stdout)["logs"]
    assert sum(log["records"] for log in logs) >= 1
    assert {log["state"] for log in logs} == {"open"} if format != "topic" else {"open", "closed"}
    assert live.process.pid in [process["pid"] for log in logs for process in log["processes"]]


def test_on_a_terminal_and_in_a_pipe(live: Live, terminal: Callable[..., Terminal]) -> None:
    live.append("queue", "hello")
    shown = terminal("info", live.path("queue"), columns=60)
    assert shown.ended() == 0
    assert "\x1b[32m▐" in shown.shown
    drawn = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.shown.splitlines() if "▐" in line]
    assert [len(line.rstrip()) for line in drawn] == [58]
    told = piped("info", live.path("queue"))
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"\x1b" not in told.stdout
    assert b"open" in told.stdout


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    assert run("info", tmp_path / "nothing").exit_code == 2
    assert run("info").exit_code == 2
    assert "Example: penstock info " in run("info", "--help").stdout


def test_names_in_brackets_are_names(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "[/red]" / "orders[old]"
    with Queue(path) as q:
        q.append(b"x")
        q.tailer("billing")
    told = run("info", path)
    assert told.exit_code == 0, told.output
    assert "[/red]/orders[old]" in told.output.replace("\n", "")
    assert "orders[old]" in run("cursors", path).output


@pytest.mark.parametrize("command", ["info", "tail", "append"])
def test_damaged_settings_are_damage(run: Run, path: Path, command: str) -> None:
    with Queue(path) as q:
        q.append(b"x")
    (path / "metadata.json").write_text("{")
    told = run(command, path, input=b"y\n") if command == "append" else run(command, path)
    assert (told.exit_code, "metadata.json: not JSON" in told.stderr, "penstock repair" in told.stderr) == (
        1,
        True,
        True,
    )
    assert run("repair", path, "--apply").exit_code == 0
    assert run("info", path).exit_code == 0
