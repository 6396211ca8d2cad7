"""Reading: by offset, by tailers, across segments, beside writers, over damage, and by sending files."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CorruptRecord,
    InvalidOffset,
    LogNotFound,
    Loss,
    ReadOnly,
    RecordGone,
    TopicMessage,
    Topics,
)
from penstock.storage import files
from penstock.storage.segment import ReadSegment
from penstock.topic import topics
from tests.support import until
from tests.topic.conftest import (
    AT_ONCE_S,
    Other,
    Ran,
    asleep,
    drained,
    held_up,
    messages,
    open_topics,
    part_of,
    payload,
    segment,
    segments,
)

MANY = 500


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry for every fourth message."""
    monkeypatch.setattr(topics, "INDEX_INTERVAL", 4)


def filled(path: Path, count: int = MANY, partitions: int = 1, **options: Any) -> Topics:
    """Segments of some ten messages each."""
    logs = open_topics(path, **{"segment_bytes": 250, **options})
    t = logs.topic("t", partitions=partitions)
    for p in range(partitions):
        t.publish_many([payload(i) for i in range(count)], partition=p)
    t.flush()
    return logs


# ---- by offset ----


def test_reading_goes_across_segments_from_any_offset(path: Path, small_index: None) -> None:
    with filled(path) as logs:
        t, rng = logs.topic("t"), random.Random(1)
        assert len(segments(t.path)) > 20
        before = datetime.now(UTC)
        for _ in range(300):
            at, most = rng.randrange(MANY + 1), rng.choice([0, 1, 7, 100, MANY])
            found = t.read(0, at, most)
            assert [m.payload for m in found] == [payload(i) for i in range(at, min(MANY, at + most))]
            assert [m.offset for m in found] == list(range(at, at + len(found)))
        for i in range(0, MANY, 10):  # one after another, by readers that were left where they stand
            assert [m.payload for m in t.read(0, i, 10)] == [payload(j) for j in range(i, i + 10)]
        (message,) = t.read(0, 17, 1)
        assert message == TopicMessage(0, 17, payload(17), message.timestamp_us)
        assert message.timestamp is not None
        assert abs((before - message.timestamp).total_seconds()) < 60
        assert t.read(0, MANY, 5) == []
        t.publish(b"more").wait()
        assert [m.payload for m in t.read(0, MANY, 5)] == [b"more"]


def test_offsets_that_are_not_there(path: Path) -> None:
    with filled(path, 20) as logs:
        t = logs.topic("t")
        with pytest.raises(RecordGone, match=r"log/t: sequence 21 is not written yet; the next one is 20"):
            t.read(0, 21, 1)
        with pytest.raises(RecordGone, match="the first one is 0"):
            t.read(0, -1, 1)
        with pytest.raises(ValueError, match="max_messages must not be negative, and is -1"):
            t.read(0, 0, -1)
        for wrong in ("0", 1.5, None):
            with pytest.raises(TypeError):
                t.read(0, wrong, 1)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="max_messages"):
                t.read(0, 0, wrong)  # type: ignore[arg-type]


def test_an_offset_is_found_by_the_index_and_not_by_a_scan_from_the_start(
    path: Path, small_index: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []
    real = ReadSegment.scan

    def scan(self: ReadSegment, start: int, *args: Any, **options: Any) -> Any:
        found = real(self, start, *args, **options)
        walked.append(found.position - start)
        return found

    with open_topics(path) as logs:
        t = logs.topic("t")
        t.publish_many([b"%06d" % i for i in range(5000)]).wait()
        monkeypatch.setattr(ReadSegment, "scan", scan)
        for at in (4999, 3, 2500, 4997, 1):
            walked.clear()
            assert t.read(0, at, 1)[0].payload == b"%06d" % at
            assert sum(walked) <= 3 * 4 * 10, f"{sum(walked)} bytes were walked over"


@pytest.mark.parametrize("harm", ["missing", "empty", "zeros", "garbled", "shifted", "short", "other interval"])
@pytest.mark.parametrize("which", [3, -1], ids=["finished", "active"])
def test_an_index_that_is_lost_or_lies_is_not_believed_and_made_anew(
    path: Path, small_index: None, harm: str, which: int
) -> None:
    with filled(path, 200):
        pass
    data = segments(path / "t")[which]
    index = data.with_name(data.name + ".index")
    good = index.read_bytes()
    if harm == "missing":
        index.unlink()
    elif harm == "garbled":
        index.write_bytes(random.Random(1).randbytes(len(good)))
    else:
        index.write_bytes(
            {
                "empty": b"",
                "zeros": bytes(len(good)),
                "short": good[:270],
                "shifted": good[:256] + bytes(b ^ (i % 16 == 8) for i, b in enumerate(good[256:])),
                "other interval": (5).to_bytes(8, "little") + good[8:],
            }[harm]
        )
    for again in range(2):
        count = 200 + again
        with open_topics(path, segment_bytes=250) as logs:
            t = logs.topic("t")
            assert t.recovery(0).damage == []
            for at in range(count - 1, -1, -1):
                assert t.read(0, at, 1)[0].payload == payload(at)
            assert messages(t) == [payload(i) for i in range(count)]
            if which == 3:
                assert index.read_bytes() == good
            t.publish(payload(count)).wait()
            assert t.read(0, count, 1)[0].payload == payload(count)


# ---- tailers ----


def test_a_tailer_reads_partitions_in_turn_each_in_its_order(path: Path) -> None:
    with filled(path, 60, 3) as logs:
        t = logs.topic("t")
        with t.tailer() as tailer:
            assert tailer.positions == {0: 0, 1: 0, 2: 0}
            first = [tailer.read() for _ in range(6)]
            assert [(m.partition, m.offset) for m in first if m] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
            assert drained(tailer) == {p: [payload(i) for i in range(2, 60)] for p in range(3)}
            assert tailer.read() is None
            assert tailer.read_batch(5) == []
            assert tailer.positions == {0: 60, 1: 60, 2: 60}
            t.publish(b"late", partition=1).wait()
            assert [m.payload for m in tailer] == [b"late"]
            tailer.seek(2, 58)
            batch = tailer.read_batch(10)
            assert [(m.partition, m.offset, m.payload) for m in batch] == [(2, i, payload(i)) for i in (58, 59)]
            tailer.seek(2, 60)
            assert tailer.read() is None
            with pytest.raises(RecordGone):
                tailer.seek(2, 61)
            with pytest.raises(ValueError, match="reads the partitions"):
                tailer.seek(3, 0)
        with t.tailer(partitions=[2, 0, 2]) as tailer:
            assert sorted(drained(tailer)) == [0, 2]
            assert repr(tailer).startswith("TopicTailer(")


def test_a_named_tailer_goes_on_where_it_committed(path: Path) -> None:
    with filled(path, 30, 2) as logs:
        t = logs.topic("t")
        with t.tailer("audit") as tailer:
            for _ in range(20):
                tailer.read()
            tailer.commit()
            for _ in range(5):
                tailer.read()
        assert t.committed("audit") == {0: 10, 1: 10}
    with open_topics(path) as logs:
        t = logs.topic("t")
        assert t.committed("audit") == {0: 10, 1: 10}
        with t.tailer("audit", partitions=[1]) as tailer:
            assert [m.payload for m in tailer] == [payload(i) for i in range(10, 30)]
            tailer.commit()
        assert t.committed("audit") == {0: 10, 1: 30}
        assert t.stats()[0].lag == {"audit": 20}
        assert t.committed("nobody") == {}
        t.forget("audit")
        assert t.committed("audit") == {}
        with t.tailer("audit") as tailer:
            assert tailer.positions == {0: 0, 1: 0}


def test_a_tailer_may_begin_at_the_end(path: Path) -> None:
    with filled(path, 30, 2) as logs:
        t = logs.topic("t")
        with t.tailer("new", at="end") as tailer, t.tailer(at="end") as other:
            assert t.committed("new") == {0: 30, 1: 30}, "retention keeps what it has not passed from now on"
            assert tailer.read() is None
            t.publish(b"late", partition=1).wait()
            assert [m.payload for m in tailer] == [m.payload for m in other] == [b"late"]
        with t.tailer("new") as tailer:
            assert [m.payload for m in tailer] == [b"late"]


def test_what_makes_no_tailer(path: Path) -> None:
    with filled(path, 5) as logs:
        t = logs.topic("t")
        for wrong in ("../x", "", ".", "a/b", ".hidden", "x" * 129, "x.tmp"):
            with pytest.raises(ValueError, match="cursor name"):
                t.tailer(wrong)
        with pytest.raises(ValueError, match='"start" or "end"'):
            t.tailer(at="middle")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no partitions"):
            t.tailer(partitions=[])
        with pytest.raises(ValueError, match='"raise" or "skip"'):
            t.tailer(on_corrupt="ignore")  # type: ignore[arg-type]
        with t.tailer() as tailer, pytest.raises(ValueError, match="give it one"):
            tailer.commit()


def test_waiting(path: Path) -> None:
    with filled(path, 1, 3) as logs:
        t = logs.topic("t")
        with t.tailer(at="end") as tailer:
            assert tailer.read(0) is None
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"log/t: nothing was published for 0\.05 s"):
                tailer.read(0.05)
            assert time.monotonic() - began >= 0.05
            for seconds in (None, 60.0):
                waits = Ran(lambda seconds=seconds: tailer.read(seconds))  # type: ignore[misc]
                until(lambda: all(asleep(t, p) for p in range(3)), "it sleeps")
                t.publish(b"x", partition=2).wait()
                woken = time.monotonic()
                assert waits.result().payload == b"x"
                assert time.monotonic() - woken < AT_ONCE_S


def test_following(path: Path) -> None:
    with filled(path, 3, 2) as logs:
        t = logs.topic("t")
        seen: list[bytes] = []

        def follow() -> None:
            with t.tailer() as tailer:
                for message in tailer.follow():
                    seen.append(message.payload)
                    if message.payload == b"stop":
                        return

        follower = Ran(follow)
        until(lambda: len(seen) == 6, "it has read all there is")
        for i in range(10):
            t.publish(b"%d" % i).wait()
        t.publish(b"stop").wait()
        follower.result()
        assert seen[6:] == [*[b"%d" % i for i in range(10)], b"stop"]


def test_following_in_an_event_loop(path: Path) -> None:
    async def main() -> list[bytes]:
        async with filled(path, 3, 2) as logs:
            t, seen = logs.topic("t"), []
            with t.tailer() as tailer:
                async for message in tailer.afollow():
                    seen.append(message.payload)
                    if len(seen) in (6, 7):
                        await t.publish(b"late %d" % len(seen))
                    if len(seen) == 8:
                        return seen
            raise AssertionError("unreachable")

    assert asyncio.run(main())[6:] == [b"late 6", b"late 7"]


def test_readers_take_no_lock(path: Path) -> None:
    """Who writes holds the lock over its sync: whatever that takes, nobody who reads notices."""
    with filled(path, 40, 2) as logs:
        t = logs.topic("t")
        tailer = t.tailer("known")
        with held_up(t), held_up(t, 1):
            published = t.publish(b"late", partition=0)

            def read() -> dict[int, list[bytes]]:
                assert [m.payload for m in t.read(0, 3, 10)] == [payload(i) for i in range(3, 13)]
                assert t.ends() == {0: 40, 1: 40}
                assert t.stats()[0].buffered_messages == 1
                out = drained(tailer)
                tailer.commit()
                assert t.committed("known") == {0: 40, 1: 40}
                with t.tailer("known") as again, t.tailer() as other, pytest.raises(TimeoutError):
                    again.read(0.01)
                    other.read(0.01)
                with Topics(path, read_only=True) as others:
                    assert others.topic("t").ends() == {0: 40, 1: 40}
                return out

            assert Ran(read).result(20) == {p: [payload(i) for i in range(40)] for p in (0, 1)}
            assert not published.done()
        assert published.wait() == 40
        assert [m.payload for m in tailer] == [b"late"]


# ---- damage ----


def harmed(path: Path, offset: int, count: int = 30) -> Path:
    """A closed topic whose n-th message has a wrong byte; which file that is."""
    with open_topics(path) as logs:
        logs.topic("t").publish_many([b"%06d" % i for i in range(count)]).wait()
    data = segment(path / "t", 0, 0)
    content = bytearray(data.read_bytes())
    content[10 * offset + 4] ^= 0x40
    data.write_bytes(content)
    return data


@pytest.mark.parametrize("way", ["read", "tailer", "batch"])
def test_damage_is_told_and_costs_no_message_before_it(path: Path, way: str) -> None:
    data = harmed(path, 7)
    with open_topics(path) as logs:
        t = logs.topic("t")
        tailer = t.tailer()
        at = 0

        def some() -> list[TopicMessage]:
            nonlocal at
            if way == "read":
                found = t.read(0, at, 20)
            elif way == "batch":
                found = tailer.read_batch(20)
            else:
                found = [message] if (message := tailer.read()) else []
            at += len(found)
            return found

        got: list[TopicMessage] = []
        with pytest.raises(CorruptRecord, match=r"on_corrupt=.skip") as error:
            while True:
                got += some()
        assert [m.payload for m in got] == [b"%06d" % i for i in range(7)]
        assert (error.value.sequence, error.value.position, error.value.path) == (7, 70, str(data))
        with pytest.raises(CorruptRecord):
            some()
        at = 8
        tailer.seek(0, 8)
        while found := some():
            got += found
        assert [m.offset for m in got] == [*range(7), *range(8, 30)]
        t.publish(b"goes on").wait()
        assert [m.payload for m in some()] == [b"goes on"]


def test_damage_can_be_stepped_over(path: Path) -> None:
    harmed(path, 7)
    with open_topics(path) as logs:
        t = logs.topic("t")
        with t.tailer(on_corrupt="skip") as tailer:
            assert [m.offset for m in tailer] == [*range(7), *range(8, 30)]
            assert tailer.losses == {0: [Loss(7, 7, "its checksum does not match")]}


# ---- beside writers ----


def test_a_read_only_one_follows_a_writer(path: Path) -> None:
    with filled(path, 40, 2) as logs, Topics(path, read_only=True) as others:
        t, r = logs.topic("t"), others.topic("t")
        assert others.topics() == ["t"]
        assert r.partitions == 2
        tailer = r.tailer("audit")
        assert drained(tailer) == {p: [payload(i) for i in range(40)] for p in (0, 1)}
        with pytest.raises(ReadOnly):
            tailer.commit()
        assert r.committed("audit") == {}
        waits = Ran(lambda: tailer.read(60))
        t.publish_many([payload(i) for i in range(40, 200)], partition=1).wait()
        assert waits.result().payload == payload(40)
        assert [m.payload for m in tailer] == [payload(i) for i in range(41, 200)]
        assert r.read(1, 100, 50) == t.read(1, 100, 50)
        assert r.stats()[1].end_offset == 200
        assert r.stats()[1].segment == t.stats()[1].segment


def test_a_read_only_one_sees_partitions_that_nobody_has_opened_yet(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=3)
        t.publish(b"x", partition=1).wait()
        with Topics(path, read_only=True) as others:
            r = others.topic("t")
            assert r.ends() == {0: 0, 1: 1, 2: 0}
            assert r.read(2, 0, 10) == []
            assert [s.segment for s in r.stats().values()] == [0, 0, 0]
            with r.tailer() as tailer:
                assert [m.payload for m in tailer] == [b"x"]
                waits = Ran(lambda: tailer.read(60))
                t.publish(b"y", partition=2).wait()
                assert waits.result().payload == b"y"
                t.publish_many([b"z"] * 3, partition=2).wait()
                assert [m.offset for m in tailer] == [1, 2, 3]
            assert not (t.path / ".partition_0").exists()


def test_a_read_only_one_follows_a_writer_that_comes_and_goes(path: Path) -> None:
    with filled(path, 5):
        pass
    with Topics(path, read_only=True) as others, others.topic("t").tailer() as tailer:
        assert len(list(tailer)) == 5
        for i in range(3):
            with open_topics(path, segment_bytes=250) as logs:
                logs.topic("t").publish_many([b"%d" % i * 100] * 4).wait()
                got: list[bytes] = []
                until(lambda got=got: got.extend(m.payload for m in tailer) or len(got) == 4, "it sees them")  # type: ignore[misc]
                assert got == [b"%d" % i * 100] * 4


def test_read_only_where_there_is_nothing(path: Path) -> None:
    with Topics(path, read_only=True) as logs:
        assert logs.topics() == []
        with pytest.raises(LogNotFound, match=r"log/t: no such topic; there are none"):
            logs.topic("t")
    with filled(path, 5):
        pass
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with Topics(path, read_only=True) as logs:
        with pytest.raises(LogNotFound, match="there are t"):
            logs.topic("u")
        assert messages(logs.topic("t")) == [payload(i) for i in range(5)]
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before, "nothing is changed"


def test_a_reader_in_another_process_is_woken(path: Path) -> None:
    with filled(path, 1, 3) as logs, Other(path) as other:
        t = logs.topic("t")
        other.ask("tailer = t.tailer(at='end')")
        for p in (2, 0, 1):
            other.tell("(tailer.read(60).payload, time.clock_gettime(time.CLOCK_MONOTONIC))")
            until(lambda: asleep(t, 0) and asleep(t, 1) and asleep(t, 2), "it sleeps")
            t.publish(b"wake up", partition=p).wait()
            published = time.clock_gettime(time.CLOCK_MONOTONIC)
            got, woken = eval(other.answer())
            assert got == b"wake up"
            assert woken - published < AT_ONCE_S


# ---- files ----


def received(sock: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size and (part := sock.recv(1 << 16)):
        out += part
    return out


class Scrambling(socket.socket):
    """Stands for one that encrypts what goes through its methods."""

    def send(self, data: Any, *flags: int) -> int:
        return super().send(bytes(b ^ 0x55 for b in data), *flags)

    def sendall(self, data: Any, *flags: int) -> None:
        super().sendall(bytes(b ^ 0x55 for b in data), *flags)


@pytest.mark.parametrize("way", ["blocking", "with a timeout", "not blocking"])
def test_segments_are_sent_as_they_lie(path: Path, way: str) -> None:
    with filled(path, 200, segment_bytes=30_000) as logs:
        t = logs.topic("t")
        t.publish_many([b"%05d" % i * 1000 for i in range(12)]).wait()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if way != "blocking":
                ours.settimeout(60.0 if way == "with a timeout" else 0)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            numbers = t.segments(0)
            assert len(numbers) > 2
            for number in numbers:
                content = segment(t.path, 0, number).read_bytes()
                receiver = Ran(lambda content=content: received(theirs, len(content)))  # type: ignore[misc]
                assert t.send_segment(ours, 0, number) == len(content)
                assert receiver.result() == content
        with pytest.raises(InvalidOffset, match=r"log/t: partition 0 has no segment 99; it has \[0, 1"):
            t.send_segment(ours, 0, 99)
        with pytest.raises(InvalidOffset):
            t.send_segment(ours, 0, -1)


def test_of_the_segment_being_written_whole_messages_are_sent(path: Path) -> None:
    """Also if a batch is just being written to it: what is beyond the published end is not there."""
    with filled(path, 10, segment_bytes=1 << 20) as logs:
        t = logs.topic("t")
        whole = segment(t.path, 0, 0).read_bytes()
        with held_up(t), segment(t.path, 0, 0).open("ab") as f:
            f.write(b"\0\0\0\x09half")
            f.flush()
            ours, theirs = socket.socketpair()
            with ours, theirs:
                assert t.send_segment(ours, 0, 0) == len(whole)
                ours.close()
                assert received(theirs, 1 << 20) == whole
            os.truncate(segment(t.path, 0, 0), len(whole))


def test_what_goes_through_a_socket_of_its_own_kind_is_not_sent_past_it(path: Path) -> None:
    with filled(path, 100) as logs:
        t = logs.topic("t")
        ours, theirs = socket.socketpair()
        with Scrambling(fileno=ours.detach()) as scrambling, theirs:
            content = segment(t.path, 0, 1).read_bytes()
            assert t.send_segment(scrambling, 0, 1) == len(content)
            assert bytes(b ^ 0x55 for b in received(theirs, len(content))) == content


def test_sendfile_where_there_is_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = os.sendfile

    def sendfile(out: int, fd: int, offset: int, count: int) -> int:
        calls.append(count)
        return real(out, fd, offset, count)

    monkeypatch.setattr(os, "sendfile", sendfile)
    with filled(path, 100) as logs:
        t = logs.topic("t")
        for portable in (files.PORTABLE, True):
            monkeypatch.setattr(files, "PORTABLE", portable)
            calls.clear()
            ours, theirs = socket.socketpair()
            with ours, theirs:
                content = segment(t.path, 0, 1).read_bytes()
                assert t.send_segment(ours, 0, 1) == len(content)
                assert received(theirs, len(content)) == content
            assert sum(calls) == (0 if portable else len(content))


def test_a_segment_that_retention_was_faster_with(path: Path) -> None:
    with filled(path, 100) as logs:
        t = logs.topic("t")
        part_of(t).log.seal_finished()  # else the background may miss it
        segment(t.path, 0, 1).unlink()
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(InvalidOffset, match="was just removed"):
            t.send_segment(ours, 0, 1)
