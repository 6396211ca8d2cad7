"""`penstock tail`: every format, from anywhere, as it grows; and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

from penstock import Channel, Journal, Queue, Retention, Topics
from penstock.formats.channel import Method
from penstock.inspect import find
from penstock.inspect.rows import Rows
from penstock.storage import files, retention
from penstock.storage.shrink import compress_sealed
from tests.cli.conftest import COMMAND, FORMATS, Live, Terminal
from tests.spark.test_jobs_verify import flip, segments
from tests.support import until

Run = Callable[..., Result]


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return str(result.stdout).splitlines()


@pytest.mark.parametrize("format", FORMATS)
def test_the_last_ones(run: Run, live: Live, format: str) -> None:
    for i in range(15):
        live.append(format, f"line {i}")
    assert lines(run("tail", live.path(format))) == [f"line {i}" for i in range(5, 15)]
    assert lines(run("tail", live.path(format), "-n", 2)) == ["line 13", "line 14"]
    assert lines(run("tail", live.path(format), "-n", 0)) == []
    assert lines(run("tail", live.path(format), "--from", 0)) == [f"line {i}" for i in range(15)]


def test_from_a_time(run: Run, path: Path) -> None:
    with Queue(path) as q:
        q.append(b"before")
        appended_us = files.now_us()
        until(lambda: files.now_us() > appended_us, "the clock goes on")
        now = datetime.now(UTC)
        q.append(b"after")
    assert lines(run("tail", path, "--from", now.isoformat())) == ["after"]
    assert lines(run("tail", path, "--from", "1h")) == ["before", "after"]
    assert run("tail", path, "--from", "3").exit_code == 2
    assert run("tail", path, "--from", "yesterday").exit_code == 2


def test_what_is_no_longer_there_is_left_out(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 14) as q:
        for i in range(500):
            q.append(b"%0100d" % i)
        q._open_log().seal_finished()
        assert retention.apply(q._open_log(), Retention(max_bytes=1))
        first = q.first_sequence
    assert first > 0
    assert len(lines(run("tail", path, "--from", 0))) == 500 - first


def test_partitions_are_merged_by_time(run: Run, path: Path) -> None:
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=3)
        for i in range(30):
            topic.publish(b"%d" % i, partition=i * 7 % 3).wait()
    assert lines(run("tail", path / "orders", "-n", 30)) == [str(i) for i in range(30)]
    assert lines(run("tail", path, "--from", 0)) == [str(i) for i in range(30)]
    assert lines(run("tail", path, "--partition", 1, "-n", 2)) == ["25", "28"]
    assert run("tail", path, "--partition", 3).exit_code == 2


def test_compressed_segments(run: Run, path: Path) -> None:
    with Channel[bytes](path, segment_bytes=1000) as c:
        for i in range(100):
            c.tx().send(b"%040d" % i)
    with Channel[bytes](path) as c:
        assert compress_sealed(c._open_log(), Method.ZSTD)
    assert [int(line) for line in lines(run("tail", path, "--from", 0))] == list(range(100))
    assert int(lines(run("tail", path, "-n", 90))[0]) == 10


def test_what_payloads_are(run: Run, path: Path) -> None:
    with Queue(path) as q:
        q.append(msgspec.msgpack.encode({"a": b"\xff"}))
    assert lines(run("tail", path, "--as", "hex")) == ["81a161c401ff"]
    assert lines(run("tail", path, "--as", "msgpack")) == ['{"a": "/w=="}']
    assert lines(run("tail", path)) == ["\\x81\\xa1a\\xc4\x01\\xff"]
    told = run("tail", path, "--as", "json")
    assert told.exit_code == 1
    assert told.stderr.startswith(f"penstock: {path}: partition 0: offset 0: a payload that is no json: ")
    assert told.stderr.endswith("; look at it with `--as hex`\n")
    assert json.loads(lines(run("tail", path, "--json"))[0])["value_base64"] == "gaFhxAH/"


def test_damage_is_told_or_stepped_over(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch([b"record %d" % i for i in range(5)])
    flip(segments(path)[0].paths().data, 4096 + 2 * (12 + 8) + 6)
    stopped = run("tail", path, "--from", 0)
    assert (stopped.exit_code, stopped.stdout.splitlines()) == (1, ["record 0", "record 1"])
    assert "(sequence 2)" in stopped.stderr
    told = run("tail", path, "--from", 0, "--skip-damaged")
    assert told.exit_code == 1
    assert told.stdout.splitlines() == ["record 0", "record 1", "record 3", "record 4"]
    assert "offsets 2 to 2 are lost" in told.stderr
    told = run("tail", path, "-n", 4, "--skip-damaged")  # it looks back once, and then further
    assert told.stdout.splitlines() == ["record 0", "record 1", "record 3", "record 4"]
    assert told.stderr.count("are lost") == 1


def test_a_time_that_is_damaged_is_not_known(run: Run, path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append(b"x")
    times = segments(path)[0].paths().times
    data = bytearray(times.read_bytes())
    data[71] ^= 0x40
    times.write_bytes(data)
    told = run("tail", path, "-n", 1, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["timestamp"] is None
    assert run("info", path).exit_code == 0
    with Queue(path, read_only=True) as q:
        assert [m.timestamp for m in q.tailer()] == [None]


@pytest.mark.parametrize("format", FORMATS)
def test_a_line_of_another_process_is_there_in_100_ms(
    live: Live, terminal: Callable[..., Terminal], format: str
) -> None:
    live.append(format, f"first {format}")
    shown = terminal("tail", "-f", live.path(format))
    shown.until(f"first {format}")
    took = []
    for i in range(5):  # the machine may be busy
        live.append(format, f"news {i} {format}")
        appended = time.monotonic()
        took.append(shown.until(f"news {i} {format}") - appended)
    assert min(took) < 0.1
    shown.type("\x03")
    assert shown.ended() == 0
    assert "Traceback" not in shown.shown
    assert "Aborted" not in shown.shown


def test_a_journal_is_followed_into_its_next_session(path: Path) -> None:
    with Journal(path) as j:
        j.append(b"one").result()
    with Rows(find(path)) as rows:
        assert [row.payload for row in rows.now()] == [b"one"]
        with Journal(path) as j:
            list(j.recovered())
            j.append(b"two").result()
            assert [row.payload for row in next(rows.follow())] == [b"two"]


def by_a_queue(path: Path, payload: bytes) -> None:
    with Queue(path) as q:
        q.append(payload)


def by_a_channel(path: Path, payload: bytes) -> None:
    with Channel[bytes](path) as c:
        c.tx().send(payload)


def by_a_topic(path: Path, payload: bytes) -> None:
    with Topics(path.parent, linger_s=0) as topics:
        topics.topic(path.name).publish(payload).wait()


OPENED = {"queue": by_a_queue, "channel": by_a_channel, "topic": by_a_topic}


@pytest.mark.parametrize("format", list(OPENED))
def test_a_log_that_is_closed_and_opened_again_is_followed(path: Path, format: str) -> None:
    OPENED[format](path, b"one")
    with Rows(find(path)) as rows:
        assert [row.payload for row in rows.now()] == [b"one"]
        coming = rows.follow()
        for word in (b"two", b"three"):
            OPENED[format](path, word)
            assert [row.payload for row in next(coming)] == [word]


def test_a_partition_is_followed_from_its_first_message_on(path: Path) -> None:
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=2)
        topic.publish(b"one", partition=0).wait()
        with Rows(find(path)) as rows:
            assert [row.payload for row in rows.now()] == [b"one"]
            coming = rows.follow()
            for partition in (1, 0, 1):
                topic.publish(b"%d" % partition, partition=partition).wait()
                assert [(row.part.partition, row.payload) for row in next(coming)] == [(partition, b"%d" % partition)]


def test_partitions_and_topics_that_are_made_later_are_followed(path: Path) -> None:
    with Topics(path, linger_s=0) as topics:
        topic = topics.topic("orders", partitions=1)
        topic.publish(b"one").wait()
        with Rows(find(path)) as rows:
            assert [row.payload for row in rows.now()] == [b"one"]
            coming = rows.follow(lambda: find(path))
            topic.add_partitions(2)
            topic.publish(b"two", partition=1).wait()
            assert [(row.part.partition, row.payload) for row in next(coming)] == [(1, b"two")]
            topics.topic("returns").publish(b"three").wait()
            assert [(row.part.topic, row.payload) for row in next(coming)] == [("returns", b"three")]
            topic.publish(b"four", partition=0).wait()
            assert [row.payload for row in next(coming)] == [b"four"]


def test_what_would_do_something_to_a_terminal_is_escaped_there(path: Path, terminal: Callable[..., Terminal]) -> None:
    with Queue(path) as q:
        q.append(b"a\x1b[31mred\nb")
    shown = terminal("tail", path)
    assert shown.ended() == 0
    assert "a\\x1b[31mred\\nb" in shown.shown


def test_a_pipe_that_is_closed_is_no_trouble(path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"x" * 100] * 20_000)
    with subprocess.Popen(
        [*COMMAND, "tail", "-f", str(path), "--from", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"x" * 100 + b"\n"
        tail.stdout.close()
        assert tail.stderr.read() == b""
        assert tail.wait(20) == 0


def test_it_ends_by_an_interrupt_in_a_pipe_too(live: Live) -> None:
    live.append("queue", "piped")
    with subprocess.Popen([*COMMAND, "tail", "-f", str(live.path("queue"))], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        while tail.stdout.readline() != b"piped\n":
            pass
        tail.send_signal(signal.SIGINT)
        assert tail.wait(20) == 0


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock tail " in run("tail", "--help").stdout
