"""Other processes: the one that may write, those that read beside it, forked children, and a writer that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, LogBusy, ReadOnly, RecordGone, codecs
from tests.channel.by_hand import names, packed, plain
from tests.channel.conftest import SLOW, Ran, offsets_of, payload
from tests.forking import Child
from tests.support import ROOT, until

SENT = [payload(i) for i in range(100)]
AT = offsets_of(SENT)


@contextlib.contextmanager
def started(function: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A function of this module in a process of its own, which talks by lines."""
    code = f"import sys; from tests.channel import test_processes as t; t.{function}(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "it ended"
    return json.loads(line)


def tell(process: subprocess.Popen[str], what: str = "go") -> None:
    assert process.stdin
    process.stdin.write(what + "\n")
    process.stdin.flush()


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


# ---- what the processes do ----


def hold(path: str) -> None:
    with Channel(path) as ch:
        ch.tx().send_many(SENT[:3])
        ch.rx("worker").recv()
        say(os.getpid())
        sys.stdin.readline()


def write_much(path: str, compression: str, count: str) -> None:
    """Send, receive and so roll, compress and remove, as long as it is told to."""
    with Channel(path, codecs.msgpack(int), segment_bytes=400, compression=compression or None) as ch:
        ahead, behind = ch.rx("ahead"), ch.rx("behind")
        say("open")
        sys.stdin.readline()
        for i in range(int(count)):
            ch.tx().send(i)
            ahead.recv()
            if i >= 300:
                behind.recv()
        say("sent")
        sys.stdin.readline()


def read_all(path: str, total: str) -> None:
    """All messages in order, whatever is removed meanwhile; then what was missed."""
    missed, wanted = 0, 0
    with Channel(path, codecs.msgpack(int), read_only=True) as ch:
        say("open")
        rx = ch.rx()
        while wanted < int(total):
            try:
                got = rx.recv(timeout_s=60)
            except RecordGone as gone:
                rx.seek(int(str(gone).split("seek(")[1].split(")")[0]))
                continue
            missed += got - wanted
            assert got >= wanted
            wanted = got + 1
    say(missed)


def write_until_killed(path: str) -> None:
    with Channel(path, codecs.msgpack(int), segment_bytes=2000, compression="snappy") as ch:
        rx, acked, i = ch.rx("worker"), ch.rx("acked", ack=True), 0
        tx = ch.tx()
        while True:
            tx.send(i)
            if i % 2:
                rx.recv()
            acked.recv()
            if i % 10 == 9:
                acked.ack(7)
            say([i, rx.offset, acked.offset])
            i += 1


# ---- who may write ----


def test_a_second_process_that_would_write_is_told_who_does(path: Path) -> None:
    with started("hold", path) as process:
        pid = heard(process)
        assert pid == process.pid
        for _ in range(2):
            with pytest.raises(LogBusy, match=rf"process {pid} has this channel open.*read_only=True"):
                Channel(path)
        tell(process)
        assert process.wait(60) == 0
    with Channel(path) as ch:
        assert ch.rx("worker").recv_many(5) == SENT[1:3]


def test_a_second_object_in_one_process_is_told_so(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
        with pytest.raises(LogBusy, match="this process has this channel open"):
            Channel(path)
        ch.tx().send(b"b")
    with Channel(path) as ch:
        assert ch.rx().recv_many(5) == [b"a", b"b"]


def test_the_right_to_write_ends_with_the_process_however_it_ends(path: Path) -> None:
    with started("hold", path) as process:
        heard(process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with Channel(path) as ch:
        assert ch.rx("worker").recv_many(5) == SENT[1:3]
        assert ch.recovery.clean


# ---- reading beside it ----


def test_read_only_reads_and_changes_nothing(path: Path) -> None:
    with Channel(path, segment_bytes=100) as ch:
        ch.rx("worker").recv_many(0)
        for message in SENT:
            ch.tx().send(message)
    before = {name: (path / name).read_bytes() for name in names(path)}
    with Channel(path, read_only=True) as ch:
        rx = ch.rx()
        assert rx.recv_many(500) == SENT
        rx.seek(AT[50])
        assert rx.recv() == SENT[50]
        acked = ch.rx(ack=True)
        acked.recv_many(3)
        acked.ack(2)
        assert ch.stats().receivers["worker"].lag_bytes == AT[-1]
        for call in (ch.tx, lambda: ch.rx("worker"), lambda: ch.forget("worker")):
            with pytest.raises(ReadOnly):
                call()
        with Channel(path, read_only=True) as other:
            assert other.rx().recv() == SENT[0]
    assert {name: (path / name).read_bytes() for name in names(path)} == before


def test_read_only_in_the_same_process_follows_the_writer(path: Path) -> None:
    with Channel(path, segment_bytes=300) as ch, Channel(path, read_only=True) as follower:
        rx = follower.rx()
        for message in SENT:
            ch.tx().send(message)
            assert rx.recv(timeout_s=5) == message
        waiting = Ran(lambda: rx.recv(timeout_s=30))
        ch.tx().send(b"more")
        assert waiting.result() == b"more"
        assert follower.stats().write_offset == ch.stats().write_offset


def test_read_only_goes_on_when_a_writer_comes(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
    with Channel(path, read_only=True) as follower:
        rx = follower.rx()
        assert rx.recv() == b"a"
        assert rx.try_recv() is None
        waiting = Ran(lambda: rx.recv_many(5, timeout_s=30))
        with Channel(path) as ch:
            ch.tx().send(b"b")
            assert waiting.result() == [b"b"]
            ch.tx().send(b"c")
            assert rx.recv(timeout_s=30) == b"c"


def test_a_channel_is_cut_to_size_when_closed_though_another_process_reads_it(path: Path) -> None:
    """Its readers only read: a plain directory is left, and a writer can go on with it."""
    with Channel(path) as ch:
        ch.tx().send(b"a")
        with Channel(path, read_only=True) as follower:
            rx = follower.rx()
            assert rx.recv(timeout_s=5) == b"a"
            ch.close()
            assert (path / "segment.0").stat().st_size == 64 + 9
            assert rx.try_recv() is None
            with Channel(path) as ch:
                ch.tx().send(b"b")
                assert rx.recv(timeout_s=30) == b"b"
            assert (path / "segment.0").stat().st_size == 64 + 18


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_read_only_beside_a_writer_that_rolls_compresses_and_removes(path: Path, compression: str) -> None:
    count = 600 if SLOW else 3000
    with started("write_much", path, compression, count) as writer:
        assert heard(writer) == "open"
        with started("read_all", path, count) as one, started("read_all", path, count) as two:
            assert [heard(one), heard(two)] == ["open", "open"]
            tell(writer)
            assert heard(writer) == "sent"
            # What was removed before it was read is told, and everything else was read, in order.
            for reader in (one, two):
                assert heard(reader) >= 0
                assert reader.wait(60) == 0
        with Channel(path, codecs.msgpack(int), read_only=True) as ch:
            offset = ch.stats().receivers["behind"].offset
            rx = ch.rx()
            rx.seek(offset)
            assert rx.recv_many(1000) == list(range(count - 300, count))
            if compression:
                until(lambda: len(plain(path)) == 1, "all but the last are compressed")
                assert packed(path)
        tell(writer)
        assert writer.wait(60) == 0


# ---- forks ----


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_to_open_it_anew_and_takes_nothing_from_its_parent(path: Path) -> None:
    with Channel(path) as ch:
        tx, rx, unnamed, acked = ch.tx(), ch.rx("worker"), ch.rx(), ch.rx("acked", ack=True)
        tx.send_many(SENT[:10])
        assert [rx.recv(), unnamed.recv(), acked.recv()] == [SENT[0]] * 3
        uses = [
            *(lambda: tx.send(b"child"), lambda: tx.send_many([b"child"]), ch.tx, ch.stats, ch.rx),
            *(lambda: ch.rx("worker"), lambda: ch.rx("new"), lambda: ch.forget("worker")),
            *(rx.recv, rx.try_recv, lambda: rx.recv_many(3), lambda: rx.seek(0), lambda: rx.peek(1)),
            *(unnamed.recv, unnamed.try_recv, acked.recv, acked.ack, lambda: acked.recv_many(2)),
        ]
        for use in uses:
            with Child(use) as child:
                said = child.said()
                assert said.startswith("LogClosed: "), said
                assert "open it again in the child process" in said
        with Child(lambda: [rx.close(), acked.close(), ch.close(), ch.close(), list(rx)]) as child:
            assert child.said() == "returned [None, None, None, None, []]"
        assert ch.stats().receivers["worker"].offset == AT[1]
        tx.send(b"parent")
        assert rx.recv_many(20) == [*SENT[1:10], b"parent"]
        assert acked.recv() == SENT[1]
        acked.ack(2)
    with Channel(path) as ch:
        assert ch.rx("worker").try_recv() is None
        assert ch.rx("acked", ack=True).recv() == SENT[2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_right_to_write(path: Path) -> None:
    ch = Channel(path)
    ch.tx().send(b"a")
    with Child(lambda: None) as child:
        child.said()
        with pytest.raises(LogBusy, match="this process"):
            Channel(path)
        ch.close()
        with Channel(path) as ch:  # the child is alive still
            ch.tx().send(b"b")
        with started("hold", path) as other:
            heard(other)
            tell(other)
            assert other.wait(60) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_that_closes_the_channel_leaves_its_parent_the_right_to_write(path: Path) -> None:
    with Channel(path) as ch:
        with Child(ch.close) as child:
            assert child.said() == "returned None"
            with Child(lambda: Channel(path)) as another:
                assert another.said().startswith("LogBusy: ")
        ch.tx().send(b"a")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_a_thread_receives_does_not_wait_for_it(path: Path) -> None:
    """A thread of the parent may hold the receiver's lock at that moment, and is not there in the child."""
    with Channel(path, codecs.msgpack(int), segment_bytes=2000) as ch:
        rx = ch.rx("worker")
        receiving = Ran(lambda: sum(1 for _ in rx))
        for i in range(20):
            ch.tx().send_many(list(range(200)))
            with Child(rx.try_recv) as child:
                assert child.said().startswith("LogClosed: "), i
        until(lambda: rx.offset == ch.stats().write_offset, "all is received")
        ch.close()
        assert receiving.result() == 4000


# ---- death ----


@pytest.mark.parametrize("lines", [1, 40, 150])
def test_what_was_sent_received_and_acknowledged_survives_a_kill(path: Path, lines: int) -> None:
    with started("write_until_killed", path) as process:
        said = [heard(process) for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        assert process.stdout
        said += [json.loads(line) for line in process.stdout if line.endswith("]\n")]
    sent, received, acked = said[-1]
    with Channel(path, codecs.msgpack(int), segment_bytes=2000) as ch:
        assert ch.recovery.damage == ch.recovery.torn == []
        frame = 8 + 3  # of a number from 256 on
        assert received <= ch.stats().receivers["worker"].offset <= received + frame
        assert acked <= ch.stats().receivers["acked"].offset <= acked + 7 * frame
        left = ch.rx("acked", ack=True).recv_many(10_000)
        assert left == list(range(left[0], left[-1] + 1))
        assert sent <= left[-1] <= sent + 1
        more = ch.rx("worker").recv_many(10_000)
        assert more == list(range(more[0], left[-1] + 1))
