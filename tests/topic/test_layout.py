"""The bytes on disk, in both directions: what others read of ours, and what we read of theirs and go on with."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from penstock import Topics
from penstock.formats import topic as fmt
from tests.topic.conftest import batches, messages, on_disk, open_topics, parse, payload, segment, segments

GOLDEN = bytes.fromhex("0000000548656c6c6f00000006576f726c6421")


def frames(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(p)) + p for p in payloads)


def test_the_golden_file(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("events")
        t.publish(b"Hello").wait()
        assert segment(path / "events", 0, 0).read_bytes() == GOLDEN[:9], "there, and nothing behind it, at any time"
        t.publish(b"World!").wait()
        assert segment(path / "events", 0, 0).read_bytes() == GOLDEN
    assert segment(path / "events", 0, 0).read_bytes() == GOLDEN


@pytest.mark.parametrize("read_only", [False, True])
def test_a_golden_file_is_read_with_nothing_beside_it(path: Path, read_only: bool) -> None:
    (path / "events").mkdir(parents=True)
    segment(path / "events", 0, 0).write_bytes(GOLDEN)
    with Topics(path, read_only=read_only) as logs:
        t = logs.topic("events")
        found = t.read(0, 0, 10)
        assert [(m.offset, m.payload, m.timestamp_us, m.timestamp) for m in found] == [
            (0, b"Hello", None, None),
            (1, b"World!", None, None),
        ]
        assert t.partitions == 1
    if read_only:
        assert [p.name for p in (path / "events").iterdir()] == ["partition_0_segment_0.log"]
    assert segment(path / "events", 0, 0).read_bytes() == GOLDEN


def test_files_are_named_by_partition_and_number_and_hold_whole_messages(path: Path) -> None:
    many = [payload(i) for i in range(100)]
    with open_topics(path, segment_bytes=200) as logs:
        t = logs.topic("orders", partitions=2)
        for p in (0, 1):
            t.publish_many(many, partition=p).wait()
    found = sorted(p.name for p in (path / "orders").glob("*.log"))
    for p in (0, 1):
        count = len(segments(path / "orders", p))
        assert count > 5
        assert [f.name for f in segments(path / "orders", p)] == [
            f"partition_{p}_segment_{n}.log" for n in range(count)
        ]
        assert on_disk(path / "orders", p) == many
        for n, file in enumerate(segments(path / "orders", p)):
            data = file.read_bytes()
            assert frames(parse(data)) == data
            assert 0 < len(data) <= 200
            if n + 1 < count:  # the next message would not have fitted
                later = parse(segment(path / "orders", p, n + 1).read_bytes())
                assert len(data) + 4 + len(later[0]) > 200
    assert len(found) == sum(len(segments(path / "orders", p)) for p in (0, 1))


def test_what_lies_beside(path: Path) -> None:
    with open_topics(path, linger_s=3600) as logs:
        t = logs.topic("orders", partitions=2)
        t.publish_many([b"a", b"bb", b""], partition=1)
        t.flush()
        t.publish(b"c", partition=1)
        t.flush()
        with t.tailer("audit", partitions=[1]) as tailer:
            tailer.read()
            tailer.commit()
    top = path / "orders"
    assert json.loads((top / "metadata.json").read_text()) == {
        "format": "topic",
        "version": 1,
        "partitions": 2,
        "index_interval": 1024,
    }
    ours = {p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()} - {".partition_1/.append"}
    assert ours == {
        "metadata.json",
        "partition_1_segment_0.log",
        "partition_1_segment_0.log.time",
        "partition_1_segment_0.log.index",
        ".partition_1/.lock",
        ".partition_1/manifest",
        ".partition_1/cursors/audit",
    }
    assert batches(top, 0, 1) == [3, 1]
    index = (top / "partition_1_segment_0.log.index").read_bytes()
    assert index == struct.pack("<QQ", 1024, 1).ljust(256, b"\0") + struct.pack("<QQ", 0, 0)
    cursor = (top / ".partition_1/cursors/audit").read_bytes()
    assert struct.unpack_from("<8sIIQ", cursor) == (b"PENSCURS", 1, 0, 1)
    assert len((top / ".partition_1/.lock").read_bytes()) == 4096


def test_a_directory_of_another_implementation_is_opened_read_and_appended_to(path: Path) -> None:
    top, theirs = path / "orders", {}
    top.mkdir(parents=True)
    for p in range(3):
        theirs[p] = [b"%d:%d" % (p, i) * (i % 5) for i in range(40)]
        for n in range(4):
            segment(top, p, n).write_bytes(frames(theirs[p][10 * n : 10 * n + 10]))
    with Topics(path, read_only=True) as logs:
        t = logs.topic("orders")
        assert [messages(t, p) for p in range(3)] == list(theirs.values())
    kept = {f.name: f.read_bytes() for f in top.iterdir()}
    for again in range(3):
        with open_topics(path, segment_bytes=400) as logs:
            t = logs.topic("orders")
            assert t.partitions == 3
            assert t.recovery(0).damage == []
            for p in range(3):
                assert messages(t, p) == theirs[p]
                for at in range(len(theirs[p])):
                    assert t.read(p, at, 1)[0].payload == theirs[p][at]
                theirs[p].append(b"ours %d" % again)
                assert t.publish(theirs[p][-1], partition=p).wait() == len(theirs[p]) - 1
                theirs[p] += [payload(i) for i in range(30)]
                t.publish_many(theirs[p][-30:], partition=p).wait()
                assert on_disk(top, p) == theirs[p]
        for name, data in kept.items():
            assert (top / name).read_bytes().startswith(data)


def test_a_file_of_another_implementation_that_was_being_written(path: Path) -> None:
    """What follows the last whole message is copied aside, and appending goes on behind that message."""
    (path / "t").mkdir(parents=True)
    segment(path / "t", 0, 0).write_bytes(frames([b"one", b"two"]) + b"\0\0\0\x05thr")
    with Topics(path, read_only=True) as logs:
        assert messages(logs.topic("t")) == [b"one", b"two"]
    with open_topics(path) as logs:
        t = logs.topic("t")
        assert messages(t) == [b"one", b"two"]
        (torn,) = t.recovery(0).torn
        assert "partition_0_segment_0.log: byte 14: 7 bytes of a torn tail, copied to" in torn
        assert t.publish(b"three").wait() == 2
    assert on_disk(path / "t") == [b"one", b"two", b"three"]
    assert (path / "t" / "partition_0_segment_0.log.torn").read_bytes() == b"\0\0\0\x05thr"


def test_empty_files_and_empty_messages_of_another_implementation(path: Path) -> None:
    (path / "t").mkdir(parents=True)
    segment(path / "t", 0, 0).write_bytes(frames([b"", b"x", b"", b""]))
    segment(path / "t", 0, 1).write_bytes(b"")
    segment(path / "t", 1, 0).write_bytes(b"")
    for count in range(2):
        with open_topics(path) as logs:
            t = logs.topic("t")
            assert messages(t) == [b"", b"x", b"", b"", *[b"y"] * count]
            assert messages(t, 1) == [b"y"] * count
            for p in (0, 1):
                t.publish(b"y", partition=p).wait()


def test_numbers_are_not_ordered_by_name(path: Path) -> None:
    many = [b"%d" % i * 20 for i in range(120)]
    with open_topics(path, segment_bytes=100) as logs:
        logs.topic("t").publish_many(many).wait()
    assert len(segments(path / "t")) > 30
    for name in [p for p in (path / "t").rglob("*") if p.is_file() and not p.name.endswith(".log")]:
        name.unlink()
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == many


@pytest.mark.parametrize(
    "name",
    [
        "partition_00_segment_0.log",
        "partition_0_segment_01.log",
        "partition_0_segment_0.log.bak",
        "Partition_0_segment_0.log",
    ],
)
def test_other_names_are_no_segments(path: Path, name: str) -> None:
    (path / "t").mkdir(parents=True)
    (path / "t" / name).write_bytes(GOLDEN)
    with open_topics(path) as logs:
        t = logs.topic("t")
        t.publish(b"x").wait()
        assert messages(t) == [b"x"]
    assert (path / "t" / name).read_bytes() == GOLDEN
    assert fmt.parse(name) is None
