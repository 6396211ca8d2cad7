"""Several processes at one topic: all publish, all read, and what one of them does is the others' too."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import LogBusy, Topics
from tests.support import until
from tests.topic.conftest import SLOW, Other, held_up, messages, on_disk, open_topics, segments

EACH = 300 if SLOW else 2000

PUBLISH = """
made = []
for i in range({count}):
    if i % 7 == 3:
        some = [b'{me}:%d' % j for j in range(i, i + 5)]
        made.append((i, t.publish_many([b'{me}:%d.%d' % (i, j) for j in range(5)], partition={partition})))
    else:
        made.append((i, t.publish(b'{me}:%d' % i, partition={partition})))
t.flush()
told = []
for i, p in made:
    if i % 7 == 3:
        told += [(b'{me}:%d.%d' % (i, j), o) for j, o in enumerate(o for r in p.wait() for o in r)]
    else:
        told.append((b'{me}:%d' % i, p.wait()))
"""


@pytest.mark.parametrize("partitions", [1, 2])
def test_processes_publish_to_one_partition_at_once(path: Path, partitions: int) -> None:
    """Every acknowledged message is there once, where it was said to be, in the order of its publisher; one who reads sees
    them in that order while it happens."""
    with open_topics(path, segment_bytes=5000) as logs:
        t = logs.topic("t", partitions=partitions)
        others = [Other(path, segment_bytes=5000, batch=20 * n + 5) for n in range(3)]
        reader = Topics(path, read_only=True)
        tailer = reader.topic("t").tailer()
        seen: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        for me, other in enumerate(others):
            other.tell(PUBLISH.format(me=me, count=EACH // 3, partition=me % partitions))
        answers = []
        for other in others:
            answers.append(other.answer())
            for message in tailer:
                seen[message.partition].append(message.payload)
        assert answers == ["None"] * 3
        told = [eval(other.ask("told")) for other in others]
        for message in tailer:
            seen[message.partition].append(message.payload)
        assert (
            seen == {p: messages(t, p) for p in range(partitions)} == {p: on_disk(t.path, p) for p in range(partitions)}
        )
        for me, mine in enumerate(told):
            read = seen[me % partitions]
            assert [read[offset] for _, offset in mine] == [message for message, _ in mine]
            assert [offset for _, offset in mine] == sorted(offset for _, offset in mine)
        assert sum(map(len, seen.values())) == sum(map(len, told))
        assert all(f.stat().st_size <= 5000 for p in range(partitions) for f in segments(t.path, p))
        reader.close()
        for other in others:
            with other:
                pass


def test_one_that_dies_holds_nobody_up(path: Path) -> None:
    """With the lock in hand, or with messages that it had not written."""
    with open_topics(path) as logs, Other(path) as other, Other(path, linger_s=3600.0) as waiting:
        t = logs.topic("t")
        t.publish(b"before").wait()
        waiting.ask("p = [t.publish(b'never') for _ in range(100)]")
        other.ask("control = t._here(0).log.control; control.page.lock()")
        mine = t.publish(b"mine")
        assert not mine.done()
        other.kill()
        waiting.kill()
        assert mine.wait(10) == 1
        assert messages(t) == [b"before", b"mine"]
        with t.group("g") as member:
            assert [m.payload for m in member] == [b"before", b"mine"]


def test_a_process_that_joins_sees_all_and_goes_on(path: Path) -> None:
    expected = []
    with open_topics(path, segment_bytes=100) as logs:
        t = logs.topic("t", partitions=2)
        assert t.ends() == {0: 0, 1: 0}
        for i in range(4):
            with Other(path, segment_bytes=100) as other:
                assert other.ask("t.partitions") == "2"
                assert other.ask("t.recovery(0).how") == "'joined'"
                assert eval(other.ask("[m.payload for m in t.read(0, 0, 1000)]")) == expected
                more = [b"%d.%d" % (i, j) * 5 for j in range(10)]
                other.ask(f"t.publish_many({more}, partition=0).wait()")
                expected += [*more, b"own %d" % i]
                t.publish(b"own %d" % i, partition=0).wait()
                assert eval(other.ask("[m.payload for m in t.read(0, 0, 1000)]")) == expected
        assert messages(t) == expected


def test_who_waits_for_a_batch_is_not_kept_by_another_process_that_reads(path: Path) -> None:
    with open_topics(path) as logs, Other(path) as other:
        t = logs.topic("t")
        with held_up(t):
            p = t.publish(b"x")
            assert other.ask("t.read(0, 0, 10)") == "[]"
            assert other.ask("t.ends()") == "{0: 0}"
            assert other.ask("t.publish(b'y').wait(0.05)") == "TimeoutError"
        assert p.wait() in (0, 1)
        until(lambda: t.ends() == {0: 2}, "the other one is not held up any more")


def test_all_processes_use_one_kind_of_lock(path: Path) -> None:
    with open_topics(path) as logs:
        logs.topic("t").publish(b"x").wait()
        with Other(path) as same:
            assert same.ask("t.ends()") == "{0: 1}"
            control = logs.topic("t")._here(0).log.control
            assert control is not None
            control._map[12] ^= 3  # type: ignore[index]  # as one that locks in another way has it
            with Other(path) as other:
                assert other.ask("t.ends()") == LogBusy.__name__
            control._map[12] ^= 3  # type: ignore[index]
