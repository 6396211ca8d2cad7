"""Publishing: where messages go, when they are there, what is refused, and how long anything waits."""

from __future__ import annotations

import array
import asyncio
import pickle
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import (
    BufferFull,
    InvalidPayload,
    PayloadTypeError,
    Publication,
    Publications,
    ReadOnly,
    Topics,
    formats,
)
from tests.support import until
from tests.topic.conftest import (
    FOREVER_S,
    SLOW,
    Ran,
    batches,
    held_up,
    messages,
    on_disk,
    open_topics,
    payload,
    segments,
)


def test_a_message_has_its_partition_at_once_and_its_offset_when_it_is_on_the_disk(path: Path) -> None:
    with open_topics(path, linger_s=FOREVER_S) as logs:
        t = logs.topic("t", partitions=3)
        first, second = t.publish(b"one", partition=2), t.publish(b"two", partition=2)
        assert (first.partition, first.offset, first.done(), first.exception()) == (2, None, False, None)
        assert repr(second) == "Publication(partition=2, offset=None)"
        assert t.read(2, 0, 10) == [], "readers see a message when its batch is on the disk"
        assert t.ends() == {0: 0, 1: 0, 2: 0}
        assert on_disk(t.path, 2) == []
        t.flush()
        assert (first.offset, second.offset, first.done()) == (0, 1, True)
        assert (first.wait(), second.wait(0)) == (0, 1)
        assert messages(t, 2) == [b"one", b"two"]
        assert on_disk(t.path, 2) == [b"one", b"two"]
        assert t.stats()[2].durable_offset == 2


def test_a_batch_is_written_when_it_is_full(path: Path) -> None:
    with open_topics(path, linger_s=FOREVER_S, batch=5) as logs:
        t = logs.topic("t")
        with held_up(t):
            made = [t.publish(payload(i)) for i in range(4)]
            assert t.stats()[0].buffered_messages == 4
        assert t.read(0, 0, 10) == []
        made.append(t.publish(payload(4)))
        assert [p.wait() for p in made] == [0, 1, 2, 3, 4]
        more = [t.publish(payload(i)) for i in range(5, 9)]
        assert not any(p.done() for p in more)
        assert batches(t.path) == [5], "one write and one sync for all of them"


def test_the_batch_is_500_and_the_linger_a_tenth_of_a_second_unless_told_otherwise(path: Path) -> None:
    with Topics(path) as logs:
        assert (logs.buffering.batch_records, logs.buffering.linger_s, logs.segment_bytes) == (500, 0.1, 1 << 20)
        assert logs.buffering.sync
        t = logs.topic("t")
        began = time.monotonic()
        t.publish(b"alone").wait()
        assert 0.1 <= time.monotonic() - began < 5
    with Topics(path, linger_s=FOREVER_S) as logs:
        t = logs.topic("t")
        made = [t.publish(b"x") for _ in range(500)]
        assert made[-1].wait(60) == 500
        assert batches(t.path) == [1, 500]


def test_what_arrives_while_a_batch_is_written_is_the_next_one(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")
        t.publish(b"first").wait()
        with held_up(t):
            begun = t.publish(b"begun")
            assert not begun.done()
            rest = [t.publish(payload(i)) for i in range(20)]
        assert [p.wait() for p in (begun, *rest)] == list(range(1, 22))
        assert len(batches(t.path)) in (2, 3)  # two, if the thread had not come to the one that was begun


def test_closing_drains(path: Path) -> None:
    with open_topics(path, linger_s=FOREVER_S) as logs:
        t = logs.topic("t", partitions=2)
        made = [t.publish(payload(i)) for i in range(100)]
        assert not any(p.done() for p in made)
    assert [p.offset for p in made] == [i // 2 for i in range(100)]
    assert [p.wait() for p in made] == [i // 2 for i in range(100)]
    with open_topics(path) as logs:
        assert [messages(logs.topic("t"), p) for p in (0, 1)] == [
            [payload(i) for i in range(p, 100, 2)] for p in (0, 1)
        ]


def test_keys_and_turns(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=4)
        assert t.publish(b"x", key=b"customer-7").partition == 1
        for i in range(50):
            key = b"key-%d" % i
            went = {t.publish(b"x", key=key).partition for _ in range(3)}
            went.add(t.publish(b"x", key=bytearray(key)).partition)
            went.add(t.publish_many([b"x"], key=memoryview(key)).partition)
            assert went == {formats.topic.partition_of(key, 4)}
        assert [t.publish(b"x").partition for _ in range(10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
        assert [t.publish_many([b"x"] * 3).partition for _ in range(4)] == [2, 3, 0, 1]
        assert t.publish(b"x", key=b"").partition == formats.topic.partition_of(b"", 4)


def test_order_is_kept_within_a_partition(path: Path) -> None:
    with open_topics(path, segment_bytes=500) as logs:
        t = logs.topic("t", partitions=3)
        made = [t.publish(payload(i), key=b"%d" % (i % 5)) for i in range(400)]
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for i, p in enumerate(made):
            assert p.wait() == len(expected[p.partition])
            expected[p.partition].append(payload(i))
        for p in range(3):
            assert messages(t, p) == expected[p] == on_disk(t.path, p)
            assert all(file.stat().st_size <= 500 for file in segments(t.path, p))


# ---- what is refused ----


@pytest.mark.parametrize("wrong", [-1, 2, 99, "0", 1.5, 10**30])
def test_a_partition_that_is_not_there(path: Path, wrong: Any) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        for call in (
            lambda: t.publish(b"x", partition=wrong),
            lambda: t.publish_many([b"x"], partition=wrong),
            lambda: t.read(wrong, 0, 1),
            lambda: t.tailer(partitions=[0, wrong]),
            lambda: t.recovery(wrong),
            lambda: t.segments(wrong),
        ):
            with pytest.raises(ValueError, match=r"log/t: partition .* there are 0 to 1"):
                call()
        assert t.ends() == {0: 0, 1: 0}


def test_a_key_and_a_partition(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        with pytest.raises(ValueError, match="give one of them"):
            t.publish(b"x", key=b"k", partition=0)
        with pytest.raises(ValueError, match="give one of them"):
            t.publish_many([b"x"], key=b"k", partition=0)


@pytest.mark.parametrize("wrong", ["text", None, 5, ["x"], object()])
def test_what_is_not_bytes(path: Path, wrong: Any) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=1)
        with pytest.raises(PayloadTypeError, match="bytes-like"):
            t.publish(wrong)
        with pytest.raises(PayloadTypeError, match=r"message 2 .* bytes-like.*none was published"):
            t.publish_many([b"a", b"b", wrong])
        if wrong is not None:
            with pytest.raises(TypeError, match=r"key.*bytes-like"):
                t.publish(b"x", key=wrong)
        t.flush()
        assert t.ends() == {0: 0}


@pytest.mark.parametrize(
    "one",
    [b"bytes", "text", bytearray(b"x"), memoryview(b"x"), None, 7, iter([b"x"])],
    ids=lambda one: type(one).__name__,
)
def test_one_payload_is_no_list(path: Path, one: Any) -> None:
    with open_topics(path) as logs, pytest.raises(PayloadTypeError, match="takes a list"):
        logs.topic("t").publish_many(one)


def test_whatever_is_bytes_like(path: Path) -> None:
    given: list[Any] = [b"x", bytearray(b"yy"), memoryview(b"zzz"), array.array("I", [1, 2]), b"", memoryview(b"")]
    with open_topics(path) as logs:
        t = logs.topic("t")
        for payload_ in given:
            t.publish(payload_)
        t.publish_many(given)
        t.publish_many(deque(given))
        t.publish_many(tuple(given)).wait()
        assert messages(t) == [bytes(p) for p in given] * 4


def test_a_message_larger_than_a_segment(path: Path) -> None:
    with open_topics(path, segment_bytes=100) as logs:
        t = logs.topic("t")
        t.publish(b"x").wait()
        for call in (
            lambda: t.publish(b"y" * 97),
            lambda: t.publish_many([b"z", b"y" * 97]),
            lambda: t.publish_many([*[b"z" * 60] * 20, b"y" * 97]),
            lambda: t.publish_many([bytearray(b"y" * 97)]),
            lambda: t.publish_many(pa.array([*[b"z" * 60] * 20, b"y" * 97])),
        ):
            with pytest.raises(
                InvalidPayload,
                match=r"log/t: .*97.*at most 96 bytes.*larger segment_bytes|101 bytes with their heads .*\(100\); a message has at most 96 ",
            ):
                call()
        t.flush()
        assert t.ends() == {0: 1}, "nothing of a list is published when one of it cannot be"
        assert t.publish(b"y" * 96).wait() == 1
        assert t.publish_many([b"z" * 96] * 3).wait() == [range(2, 5)]
        assert messages(t) == [b"x", b"y" * 96, *[b"z" * 96] * 3]
        assert [f.stat().st_size for f in segments(t.path)] == [5, 100, 100, 100, 100]


# ---- lists ----


def test_a_list_goes_to_one_partition_in_order_over_as_many_segments_as_it_needs(path: Path) -> None:
    many = [payload(i) for i in range(300)]
    with open_topics(path, segment_bytes=400) as logs:
        t = logs.topic("t", partitions=2)
        made = t.publish_many(many, partition=1)
        assert isinstance(made, Publications)
        assert made.partition == 1
        assert made.wait() == made.offsets == [range(300)]
        assert made.done()
        assert t.publish_many([], partition=1).wait() == []
        assert t.publish_many([], partition=1).done()
        assert t.publish_many([b"more"], partition=1).wait(60) == [range(300, 301)]
        assert messages(t, 1) == [*many, b"more"]
        assert len(segments(t.path, 1)) > 10
        assert all(f.stat().st_size <= 400 for f in segments(t.path, 1))


def test_the_parts_of_a_list_have_ranges_of_their_own_when_others_come_between(path: Path) -> None:
    with open_topics(path, segment_bytes=100) as logs, open_topics(path, segment_bytes=100) as others:
        t, other = logs.topic("t"), others.topic("t")
        with held_up(t):
            mine, theirs = (x.publish_many([b"%d" % i * 30 for i in range(10)], partition=0) for x in (t, other))
            assert (mine.offsets, mine.done()) == (None, False)
            with pytest.raises(TimeoutError, match="still on the way"):
                mine.wait(0.01)
        ranges = [*mine.wait(), *theirs.wait()]
        assert sorted(i for r in ranges for i in r) == list(range(20))
        read = messages(t)
        for made in (mine, theirs):
            assert [read[i] for r in made.offsets or [] for i in r] == [b"%d" % i * 30 for i in range(10)]


ARROW = [payload(i) for i in range(60)]


@pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string"])
@pytest.mark.parametrize("cut", [(0, 60), (7, 40), (59, 1), (20, 0)])
def test_arrow_arrays(path: Path, kind: str, cut: tuple[int, int]) -> None:
    values = pa.array(ARROW, pa.binary()).cast(getattr(pa, kind)()).slice(*cut)
    expected = ARROW[cut[0] : cut[0] + cut[1]]
    with open_topics(path, segment_bytes=120) as logs:
        t = logs.topic("t")
        assert t.publish_many(values, timeout_s=60).wait() == ([range(len(expected))] if expected else [])
        t.publish_many(pa.chunked_array([values, values])).wait()
        t.publish_many(pa.chunked_array([values])).wait()
        assert messages(t) == expected * 4
        assert all(f.stat().st_size <= 120 for f in segments(t.path))


def test_arrow_arrays_that_hold_no_payloads(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")
        with pytest.raises(InvalidPayload, match="1 nulls"):
            t.publish_many(pa.array([b"x", None]))
        with pytest.raises(PayloadTypeError, match="int64"):
            t.publish_many(pa.array([1, 2]))
        t.flush()
        assert t.ends() == {0: 0}


# ---- a full buffer ----


@pytest.mark.parametrize("limit", [{"buffer_messages": 10}, {"buffer_bytes": 10 * (4 + 6)}])
def test_a_full_buffer_makes_publish_wait_and_then_raise(path: Path, limit: dict[str, int]) -> None:
    with open_topics(path, **limit) as logs:
        t = logs.topic("t", partitions=2)
        with held_up(t):
            made = [t.publish(b"%06d" % i, partition=0, timeout_s=0) for i in range(10)]
            assert t.stats()[0].buffered_messages == 10
            assert t.stats()[0].buffered_bytes == 100
            began = time.monotonic()
            with pytest.raises(BufferFull, match=r"log/t: partition 0: 10 records.*again when a batch is done"):
                t.publish(b"%06d" % 10, partition=0, timeout_s=0)
            assert time.monotonic() - began < 1
            with pytest.raises(TimeoutError):  # which it is
                t.publish(b"%06d" % 10, partition=0, timeout_s=0.05)
            assert time.monotonic() - began >= 0.05
            assert t.publish(b"other", partition=1, timeout_s=0).wait() == 0, "each partition has its own"
            waits = Ran(lambda: t.publish(b"%06d" % 10, partition=0).wait())
            assert t.read(0, 0, 100) == [], "readers wait for nobody"
        assert waits.result() == 10
        assert [p.wait() for p in made] == list(range(10))
        assert t.publish(b"x", partition=0, timeout_s=0).wait() == 11
        assert messages(t) == [b"%06d" % i for i in range(11)] + [b"x"]
        until(lambda: t.stats()[0].buffered_bytes == 0, "nothing is buffered any more")


def test_a_list_that_a_full_buffer_stops_says_how_many_were_taken(path: Path) -> None:
    with open_topics(path, segment_bytes=100, buffer_messages=7) as logs:
        t = logs.topic("t")
        with held_up(t):
            with pytest.raises(BufferFull, match=r"6 messages of the list were taken") as full:
                t.publish_many([b"%d" % i * 40 for i in range(9)], timeout_s=0.05)
            assert full.value.taken == 6
            assert pickle.loads(pickle.dumps(full.value)).taken == 6
            with pytest.raises(BufferFull) as full:
                t.publish_many([b"x" * 40] * 2, timeout_s=0)
            assert full.value.taken == 0
        t.flush()
        assert messages(t) == [b"%d" % i * 40 for i in range(6)]


def test_an_empty_buffer_takes_any_message(path: Path) -> None:
    with open_topics(path, buffer_bytes=10, buffer_messages=1) as logs:
        t = logs.topic("t")
        assert t.publish(b"x" * 100, timeout_s=0).wait() == 0
        assert t.publish_many([b"y"] * 5, timeout_s=0).wait() == [range(1, 6)]


# ---- waiting ----


def test_timeouts(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")
        with held_up(t):
            p = t.publish(b"x")
            for call in (
                lambda: p.wait(0),
                lambda: p.wait(0.05),
                lambda: t.flush(0),
                lambda: t.flush(0.05),
                lambda: logs.flush(0.05),
                lambda: t.publish_many([b"y"]).wait(0),
            ):
                with pytest.raises(TimeoutError):
                    call()
            assert not p.done()
        t.flush(60)
        assert p.done()
        t.flush(0)
        assert p.wait(0) == 0


def test_flush_none_leaves_syncing_to_the_system_until_it_is_asked(path: Path) -> None:
    with open_topics(path, flush="none", segment_bytes=300) as logs:
        t = logs.topic("t")
        made = t.publish_many([payload(i) for i in range(50)])
        assert made.wait() == [range(50)]
        assert on_disk(t.path) == [payload(i) for i in range(50)]
        assert t.stats()[0].durable_offset < 50
        t.flush()
        assert t.stats()[0].durable_offset == 50


def test_threads_share_a_topic(path: Path) -> None:
    each = 100 if SLOW else 400
    with open_topics(path, segment_bytes=3000, buffer_messages=50) as logs:
        t = logs.topic("t", partitions=2)

        def publish(me: int) -> list[Publication]:
            return [t.publish(b"%d:%d" % (me, i), key=b"%d" % me) for i in range(each)]

        made = [Ran(lambda me=me: publish(me)) for me in range(4)]  # type: ignore[misc]
        told = [m.result() for m in made]
        t.flush()
        read = {p: messages(t, p) for p in (0, 1)}
        for me, publications in enumerate(told):
            assert [read[p.partition][p.wait()] for p in publications] == [b"%d:%d" % (me, i) for i in range(each)]
            assert [p.offset for p in publications] == sorted(p.offset for p in publications)
        assert sum(map(len, read.values())) == 4 * each


# ---- coroutines ----


def test_publications_are_awaited(path: Path) -> None:
    async def main() -> None:
        async with open_topics(path, linger_s=0.01, segment_bytes=2000) as logs:
            t = logs.topic("t", partitions=2)
            assert await t.publish(b"one", partition=0) == 0
            assert await t.publish(b"two", partition=0) == 1
            got = await asyncio.gather(*(_offset(t.publish(b"%d" % i, partition=1)) for i in range(500)))
            assert got == list(range(500))
            assert await t.publish_many([b"x" * 30] * 200, partition=0) == [range(2, 202)]
            p = t.publish(b"again", partition=0)
            assert (await p, await p) == (202, 202)
        assert logs._closed

    asyncio.run(main())
    asyncio.run(main_again(path))


async def main_again(path: Path) -> None:
    async with open_topics(path) as logs:
        t = logs.topic("t")
        assert await t.publish(b"x", partition=1) == 500


async def _offset(publication: Publication) -> int:
    return await publication


def test_loops_of_several_threads_one_after_another_and_at_once(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")

        async def some() -> list[int]:
            return [await t.publish(b"x") for _ in range(20)]

        for _ in range(2):
            asyncio.run(some())
        at_once = [Ran(lambda: asyncio.run(some())) for _ in range(3)]
        got = [i for one in at_once for i in one.result()]
        assert sorted(got) == list(range(40, 100))


def test_one_that_is_cancelled_costs_no_other(path: Path) -> None:
    async def main() -> None:
        with open_topics(path) as logs:
            t = logs.topic("t")
            with held_up(t):
                tasks = [asyncio.ensure_future(_offset(t.publish(b"%d" % i))) for i in range(3)]
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(tasks[0]), 0.02)
                tasks[1].cancel()
                await asyncio.sleep(0)
            assert await tasks[0] == 0
            assert await tasks[2] == 2
            assert tasks[1].cancelled()
            assert messages(t) == [b"0", b"1", b"2"], "what was published stays so"

    asyncio.run(main())


def test_read_only_publishes_nothing(path: Path) -> None:
    with open_topics(path) as logs:
        logs.topic("t", partitions=2).publish(b"x").wait()
    with Topics(path, read_only=True) as logs:
        t = logs.topic("t")
        for call in (
            lambda: t.publish(b"x"),
            lambda: t.publish_many([b"x"]),
            t.flush,
            lambda: t.add_partitions(3),
            lambda: t.group("g"),
            lambda: t.forget("g"),
        ):
            with pytest.raises(ReadOnly, match=r"read_only=True; open it without"):
                call()
