"""Topics: their names and partitions, what is fixed, opening, closing, forks, retention, what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    InvalidTopic,
    LogClosed,
    NotALog,
    PartitionStats,
    Queue,
    Retention,
    SettingsMismatch,
    Topic,
    Topics,
)
from penstock.topic import topics
from penstock.topic.group import GroupMember
from penstock.topic.partition import OpenPartition
from tests.forking import Child
from tests.support import until, until_collected
from tests.topic.conftest import (
    FOREVER_S,
    Other,
    Ran,
    held_up,
    messages,
    open_topics,
    payload,
    segment,
    segments,
)

# ---- names ----

ESCAPES = [
    "..",
    ".",
    "",
    "/",
    "../x",
    "a/b",
    "a/../../b",
    "/etc",
    "a\0b",
    "x" * 250,
    "ä",
    "a b",
    "a\n",
    "x/",
    "\\",
    "~",
    None,
    5,
    b"t",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_no_topic_can_have(path: Path, name: Any) -> None:
    with open_topics(path) as logs:
        with pytest.raises(InvalidTopic, match="use 1 to 249 of A-Z a-z 0-9"):
            logs.topic(name)
        with pytest.raises(ValueError, match="topic name"):
            logs.topic(name, partitions=2)
    assert not path.exists()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["a", "x" * 249, "...", "..a", "-", "_", "0", "A.b-C_9", ".hidden", "partition_0_segment_0.log"]
)
def test_names_that_topics_have(path: Path, name: str) -> None:
    for _ in range(2):
        with open_topics(path) as logs:
            logs.topic(name).publish(b"x").wait()
            assert logs.topics() == [name]
            assert logs.topic(name).path == path / name
    with open_topics(path) as logs:
        assert messages(logs.topic(name)) == [b"x", b"x"]


def test_the_topics_of_a_directory(path: Path) -> None:
    with open_topics(path) as logs:
        assert logs.topics() == []
        for name in ("b", "a"):
            logs.topic(name)
        Queue(path / "queue").close()
        (path / "file").touch()
        (path / "empty").mkdir()
        (path / "with space").mkdir()
        (path / "with space" / "partition_0_segment_0.log").touch()
        (path / "broken").mkdir()
        (path / "broken" / "metadata.json").write_text("no JSON")
        (path / "foreign").mkdir()
        (path / "foreign" / "partition_3_segment_0.log").touch()
        assert logs.topics() == ["a", "b", "foreign"]
        assert logs.topic("foreign").partitions == 4
        assert logs.topic("a") is logs.topic("a") is logs.topic("a", partitions=1)
    assert repr(logs) == f"Topics({str(path)!r}, closed)"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_of_topics_is_no_file(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(NotALog, match="file: a file, not a directory; topics lie in a directory"):
        Topics(tmp_path / "file", read_only=read_only)
    with pytest.raises(NotALog, match=r"file: a file, so .*/below cannot be a directory"):
        Topics(tmp_path / "file" / "below", read_only=read_only)
    assert (tmp_path / "file").read_text() == "hello"


def test_a_time_to_linger_may_be_any_real_number(path: Path) -> None:
    with Topics(path, linger_s=Decimal("0.001")) as logs:  # type: ignore[arg-type]
        assert logs.topic("t").publish(b"x").wait(20) == 0


@pytest.mark.parametrize("linger_s", ["1", None, -1, float("nan")])
def test_a_time_to_linger_that_is_none(path: Path, linger_s: Any) -> None:
    with pytest.raises(ValueError, match="linger_s must be a number from 0 on, not "):
        Topics(path, linger_s=linger_s)


# ---- partitions ----


def test_the_number_of_partitions_is_fixed(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=3)
        assert (t.partitions, repr(t)) == (3, f"Topic({str(path / 't')!r}, partitions=3)")
        with pytest.raises(SettingsMismatch, match=r"log/t: made with partitions=3.*leave partitions out.*Topic.add_"):
            logs.topic("t", partitions=4)
        assert logs.topic("one").partitions == 1
    with open_topics(path) as logs:
        with pytest.raises(SettingsMismatch):
            logs.topic("t", partitions=2)
        assert logs.topic("t").partitions == 3


@pytest.mark.parametrize("wrong", [True, False, 2, -1, 1.0, "1"])
def test_partitions_that_are_none(path: Path, wrong: Any) -> None:
    """A bool would have files of its own, of a name that nobody looks for."""
    with open_topics(path) as logs:
        with pytest.raises(ValueError, match="there are 0 to 1"):
            logs.topic("t", partitions=2).publish(b"x", partition=wrong)
        assert not list(path.glob("t/*True*")) + list(path.glob("t/*False*"))


@pytest.mark.parametrize("wrong", [0, -1, 4097, True, 1.0, "2"])
def test_numbers_of_partitions_that_cannot_be(path: Path, wrong: Any) -> None:
    with open_topics(path) as logs:
        with pytest.raises(ValueError, match="partitions must be 1 to 4096"):
            logs.topic("t", partitions=wrong)
        assert not path.exists()
        with pytest.raises(ValueError, match=r"which is 1 and can only grow"):
            logs.topic("t").add_partitions(wrong)
        assert logs.topic("t").partitions == 1


def test_partitions_can_be_added(path: Path) -> None:
    with open_topics(path) as logs, open_topics(path) as others:
        t, other = logs.topic("t", partitions=2), others.topic("t")
        t.publish(b"old", partition=1).wait()
        t.add_partitions(5)
        assert t.partitions == 5
        assert t.publish(b"new", partition=4).wait() == 0
        assert t.ends() == {0: 0, 1: 1, 2: 0, 3: 0, 4: 1}
        for fewer in (5, 4, 1):
            with pytest.raises(ValueError, match="which is 5 and can only grow"):
                t.add_partitions(fewer)
        with pytest.raises(ValueError, match="which is 5 and can only grow"):
            other.add_partitions(3)  # it knows of two: those it does not must not be lost
        assert logs.topic("t").partitions == 5
        assert other.partitions == 2
        other.add_partitions(5)
        assert messages(other, 4) == [b"new"]
        t.add_partitions(6)
        assert others.topic("t", partitions=6).partitions == 6
        assert messages(other, 4) == [b"new"]
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=6)
        assert [messages(t, p) for p in range(6)] == [[], [b"old"], [], [], [b"new"], []]


def test_processes_that_add_partitions_at_once_lose_none(path: Path) -> None:
    """One that asks for fewer than another has just made is refused: those must not go again."""
    with open_topics(path) as logs:
        logs.topic("t")
        with Other(path) as one, Other(path) as two:
            for have in range(1, 60, 2):
                at = time.monotonic() + 0.01
                for other, wanted in ((one, have + 2), (two, have + 1)):
                    other.tell(f"while time.monotonic() < {at}: pass\nt.add_partitions({wanted})")
                assert one.answer() == "None"
                assert two.answer() in ("None", "ValueError")
                assert json.loads((path / "t" / "metadata.json").read_text())["partitions"] == have + 2


# ---- options ----


@pytest.mark.parametrize("name", ["segment_bytes", "batch", "buffer_messages", "buffer_bytes"])
@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "1", None, 1 << 63])
def test_options_that_cannot_be(path: Path, name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Topics(path, **{name: wrong})


def test_the_largest_numbers_that_can_be(path: Path) -> None:
    most = (1 << 63) - 1
    with Topics(path, segment_bytes=most, batch=most, buffer_messages=most, buffer_bytes=most, linger_s=0) as logs:
        t = logs.topic("a")
        t.publish(b"x").wait()
        assert len(t.read(0, 0, 1 << 70)) == 1
        assert len(t.tailer().read_batch(1 << 70)) == 1


def test_other_options_that_cannot_be(path: Path) -> None:
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="linger_s"):
            Topics(path, linger_s=wrong)
    with pytest.raises(ValueError, match=r'"fsync" or "none"'):
        Topics(path, flush="often")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Retention"):
        Topics(path, retention=5)  # type: ignore[arg-type]
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=r"segment_bytes must be at least 4"):
            Topics(path, segment_bytes=wrong)
    assert not path.exists()


def test_segments_of_the_least_size(path: Path) -> None:
    for count in (1, 2):
        with open_topics(path, segment_bytes=4) as logs:
            t = logs.topic("t")
            t.publish(b"").wait()
            assert messages(t) == [b""] * count


def test_other_segment_sizes_than_before(path: Path) -> None:
    expected = []
    for i, size in enumerate((300, 100, 1000, 50, 400)):
        with open_topics(path, segment_bytes=size) as logs:
            t = logs.topic("t")
            more = [payload(j)[:46] for j in range(40)]
            t.publish_many(more).wait()
            expected += more
            assert messages(t) == expected, i
            assert segments(t.path)[-1].stat().st_size <= size


# ---- what is there already ----


def test_something_else_of_that_name(path: Path) -> None:
    path.mkdir()
    (path / "t").write_text("a file")
    with open_topics(path) as logs, pytest.raises(NotALog, match=r"log/t: a file, not a directory"):
        logs.topic("t")
    (path / "t").unlink()
    Queue(path / "t").close()
    with open_topics(path) as logs, pytest.raises(NotALog, match=r"log/t: a queue, not a topic"):
        logs.topic("t")
    with pytest.raises(NotALog, match="a file"):
        open_topics(path / "t" / "metadata.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "topic", "version": 1, "partitions": 0, "index_interval": 5}',
        '{"format": "topic", "version": 1}',
        "[]",
        "{",
    ],
)
def test_settings_that_cannot_be(path: Path, text: str) -> None:
    with open_topics(path) as logs:
        logs.topic("t").publish(b"x").wait()
    (path / "t" / "metadata.json").write_text(text)
    whole = '"version": 1}' not in text  # what is left out can be told from the files, if nothing is to be written
    for read_only in (False, True) if whole else (False,):
        with (
            open_topics(path, read_only=read_only) as logs,
            pytest.raises(NotALog, match=r"metadata.json: .*restore it"),
        ):
            logs.topic("t")
    (path / "t" / "metadata.json").unlink()
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == [b"x"]


def test_a_partition_of_another_implementation_that_we_would_not_have(path: Path) -> None:
    (path / "t").mkdir(parents=True)
    far = path / "t" / "partition_123456_segment_0.log"
    far.touch()
    for _ in range(2):
        with open_topics(path) as logs, pytest.raises(NotALog, match=r"partition_123456_segment_0.log: .*at most 4096"):
            logs.topic("t")
    far.unlink()
    with open_topics(path) as logs:
        assert logs.topic("t").partitions == 1


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_something_else_where_the_next_file_goes(path: Path, kind: str, tmp_path: Path) -> None:
    with open_topics(path, segment_bytes=100) as logs:
        t = logs.topic("t")
        t.publish(b"x" * 60).wait()
        file, elsewhere = segment(t.path, 0, 1), tmp_path / "elsewhere"
        elsewhere.write_bytes(b"precious")
        {"directory": file.mkdir, "link": lambda: file.symlink_to(elsewhere), "fifo": lambda: os.mkfifo(file)}[kind]()
        with pytest.raises(NotALog, match=r"segment_1.log: the next file's name, and no regular file; move it away"):
            t.publish(b"y" * 60).wait()
        assert elsewhere.read_bytes() == b"precious"
        assert messages(t) == [b"x" * 60]
        file.rmdir() if kind == "directory" else file.unlink()
        assert t.publish(b"z" * 60).wait() == 1
        assert messages(t) == [b"x" * 60, b"z" * 60]


# ---- what is told ----


def test_stats(path: Path) -> None:
    with open_topics(path, segment_bytes=100, linger_s=FOREVER_S) as logs:
        t = logs.topic("t", partitions=2)
        t.publish_many([b"x" * 46] * 5, partition=1)
        t.flush()
        with t.tailer("some", partitions=[1]) as tailer:
            tailer.read_batch(3)
            tailer.commit()
        t.publish_many([b"waits"] * 3, partition=1)
        assert t.stats() == {
            0: PartitionStats(0, 0, 0, 0, 0, 0, 1, 0, {}),
            1: PartitionStats(2, 0, 5, 5, 3, 27, 3, 250, {"some": 2}),
        }
        assert t.segments(1) == [0, 1, 2]
        assert t.recovery(1).how == "created"
    with open_topics(path) as logs:
        assert logs.topic("t").recovery(1).how == "clean"
        assert logs.topic("t").recovery(1).clean


# ---- retention ----


def test_retention_keeps_what_named_readers_have_not_passed(path: Path) -> None:
    with open_topics(path, segment_bytes=100, retention=Retention(max_bytes=300)) as logs:
        t = logs.topic("t", partitions=2)
        tailer = t.tailer("slow", partitions=[0])
        for p in (0, 1):
            t.publish_many([b"%05d" % i for i in range(200)], partition=p).wait()
        until(lambda: t.stats()[1].disk_bytes <= 300, "what nobody waits for is removed")
        assert t.stats()[0].first_offset == 0
        first = t.stats()[1].first_offset
        assert 150 < first < 200
        assert [m.payload for m in t.read(1, first, 1000)] == [b"%05d" % i for i in range(first, 200)]
        with t.tailer() as other:
            assert other.positions == {0: 0, 1: first}
        assert segments(t.path, 1)[0] == segment(t.path, 1, t.segments(1)[0])
        assert not segment(t.path, 1, 0).with_name("partition_1_segment_0.log.time").exists()
        for _ in range(150):
            assert tailer.read()
        tailer.commit()
        t.publish_many([b"%05d" % i for i in range(200, 250)], partition=0).wait()
        until(lambda: t.stats()[0].first_offset > 100, "what it has passed is removed")
        assert t.stats()[0].first_offset <= 150
        assert [m.offset for m in tailer] == list(range(150, 250))
    with open_topics(path) as logs:
        t = logs.topic("t")
        assert t.recovery(1).clean
        assert t.stats()[1].first_offset == first
        assert t.publish(b"x", partition=1).wait() == 200


def test_retention_and_groups(path: Path) -> None:
    with open_topics(path, segment_bytes=100, retention=Retention(max_bytes=300)) as logs:
        t = logs.topic("t")
        member = t.group("g")
        t.publish_many([b"%05d" % i for i in range(200)]).wait()
        got = member.poll_many(120)
        assert t.stats()[0].first_offset == 0, "given is not committed"
        member.commit()
        t.publish_many([b"%05d" % i for i in range(200, 250)]).wait()
        until(lambda: t.stats()[0].first_offset > 80, "what was committed is removed")
        got += list(member)
        assert [m.offset for m in got] == list(range(250))
        member.close()


# ---- closing ----


def calls(logs: Topics, t: Topic) -> list[Callable[[], object]]:
    return [
        lambda: t.publish(b"x"),
        lambda: t.publish_many([b"x"]),
        t.flush,
        logs.flush,
        lambda: t.read(0, 0, 1),
        t.ends,
        t.stats,
        t.tailer,
        lambda: t.group("g"),
        lambda: t.committed("g"),
        lambda: t.forget("g"),
        lambda: t.recovery(0),
        lambda: t.segments(0),
        lambda: t.add_partitions(9),
        lambda: t.send_segment(None, 0, 0),  # type: ignore[arg-type]
        lambda: logs.topic("t"),
        lambda: logs.topic("u"),
    ]


def test_what_was_closed_says_so(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        p = t.publish(b"x", partition=0)
        tailer, member = t.tailer(), t.group("g")
        assert tailer.read(60)
    for call in calls(logs, t):
        with pytest.raises(LogClosed, match=r"was closed; open it again"):
            call()
    for call in (tailer.read, lambda: tailer.read(1), lambda: next(tailer.follow())):
        with pytest.raises(LogClosed):
            call()
    for call in (member.poll, member.commit, lambda: member.poll(1)):
        with pytest.raises(LogClosed):
            call()
    assert p.wait() == 0
    logs.close()
    tailer.close()
    member.close()


def test_closing_beside_those_who_wait(path: Path) -> None:
    with open_topics(path, buffer_messages=1) as logs:
        t = logs.topic("t")
        sleeper = t.tailer(at="end")
        reads = Ran(lambda: sleeper.read(None))
        with held_up(t):
            first = t.publish(b"first")
            waits = Ran(first.wait)
            full = Ran(lambda: t.publish(b"second"))
            closes = Ran(logs.close)
            until(lambda: logs._closed, "it is being closed")
            with pytest.raises(LogClosed):
                full.result()
        closes.result()
        assert waits.result() == 0
        with contextlib.suppress(LogClosed):  # it may be told of the message or of the end
            assert reads.result().payload == b"first"
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == [b"first"]


def test_closing_in_an_event_loop(path: Path) -> None:
    async def main() -> None:
        logs = open_topics(path, linger_s=FOREVER_S)
        t = logs.topic("t")
        waiting = asyncio.ensure_future(_offset(t.publish(b"x")))
        await asyncio.sleep(0)
        await logs.aclose()
        assert await waiting == 0

    async def _offset(publication: Any) -> Any:
        return await publication

    asyncio.run(main())


def test_topics_that_are_forgotten_warn_and_are_closed(path: Path) -> None:
    logs = open_topics(path, linger_s=FOREVER_S)
    logs.topic("t").publish(b"x")
    whole = weakref.ref(logs)
    with pytest.warns(ResourceWarning, match="unclosed topics"):
        del logs
        until_collected(whole)
    logs = open_topics(path)
    assert messages(logs.topic("t")) == [b"x"]
    logs.close()
    del logs
    gc.collect()


def test_a_process_that_ends_without_closing_writes_what_it_published(path: Path) -> None:
    code = """if True:
        import sys
        from penstock import Topics
        logs = Topics(sys.argv[1], linger_s=3600)
        t = logs.topic("t")
        for i in range(100):
            t.publish(b"%d" % i)
    """
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], timeout=60).returncode == 0
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == [b"%d" % i for i in range(100)]


def test_a_second_close_returns_when_all_is_written(path: Path) -> None:
    logs = open_topics(path, linger_s=FOREVER_S)
    t = logs.topic("t")
    promise = t.publish(b"a")
    with held_up(t):
        first = Ran(logs.close)
        until(lambda: logs._closed, "it is at it")
        second = Ran(logs.close)
        second.join(0.2)
        assert second.is_alive()
    for closing in (first, second):
        closing.result()
    assert promise.done()


def test_a_close_that_is_interrupted_can_be_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_topics(path, linger_s=FOREVER_S)
    promises = [logs.topic(name, 2).publish(b"a", partition=p) for name in "ab" for p in range(2)]
    close, interrupts = OpenPartition.close, list[int]()

    def interrupted(self: OpenPartition) -> None:
        if len(interrupts) < 3:
            interrupts.append(0)
            raise KeyboardInterrupt
        close(self)

    monkeypatch.setattr(OpenPartition, "close", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            logs.close()
    logs.close()
    assert all(promise.done() for promise in promises)
    with open_topics(path) as logs:
        assert all(logs.topic(name).recovery(p).how == "clean" for name in "ab" for p in range(2))


def test_whoever_joins_a_group_while_topics_are_closed_is_in_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_topics(path)
    t = logs.topic("t")
    made = list[GroupMember]()

    def make(*args: Any) -> GroupMember:
        made.append(GroupMember(*args))
        logs.close()
        return made[0]

    monkeypatch.setattr(topics, "GroupMember", make)
    with pytest.raises(LogClosed):
        t.group("crew")
    assert made[0].partitions == []
    assert made[0]._claims._fds == {}


# ---- forks ----


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_to_open_it_anew(path: Path) -> None:
    with open_topics(path, linger_s=FOREVER_S) as logs:
        t = logs.topic("t", partitions=2)
        t.publish_many([payload(i) for i in range(20)], partition=0)
        t.flush()
        waiting = t.publish(b"waits", partition=0)
        tailer, member = t.tailer(), t.group("g")
        assert member.partitions == [0, 1]
        assert len(list(tailer)) == 20

        def in_child() -> str:
            for call in [
                *calls(logs, t),
                tailer.read,
                lambda: tailer.read(1),
                member.poll,
                member.commit,
                waiting.wait,
            ]:
                try:
                    call()
                except LogClosed as error:
                    assert "fork" in str(error), error
                else:
                    return f"no error from {call}"
            member.close()
            tailer.close()
            logs.close()
            with open_topics(path) as mine:
                assert mine.topic("t").publish(b"child", partition=1).wait() == 0
                assert len(messages(mine.topic("t"))) == 20
                with mine.topic("t").group("g") as theirs:
                    assert theirs.partitions == [], "they are the parent's"
            return "fine"

        with Child(in_child) as child:
            assert child.said() == "returned 'fine'"
            assert member.partitions == [0, 1]
            t.flush()
            assert waiting.wait(0) == 20
            assert messages(t, 1) == [b"child"]
            assert sorted(m.payload for m in tailer) == [b"child", b"waits"]
            assert len(list(member)) == 22
            member.commit()
            assert t.committed("g") == {0: 21, 1: 1}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_that_lives_on_holds_nothing(path: Path) -> None:
    """Its copies of the parent's locks must not outlive the parent's own."""
    with open_topics(path) as logs:
        t = logs.topic("t")
        member = t.group("g")
        with Child(lambda: "here") as child:
            assert child.said() == "returned 'here'"
            member.close()
            with t.group("g") as again:
                assert again.partitions == [0]
            logs.close()
            with open_topics(path) as alone:
                assert alone.topic("t").recovery(0).how == "clean", "the child has it not open"
