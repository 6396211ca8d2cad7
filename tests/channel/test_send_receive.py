"""Sending and receiving: codecs, fan-out, waiting, iterating, offsets and seeking, messages that do not decode, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Channel,
    EncodeError,
    InvalidOffset,
    InvalidPayload,
    LogBusy,
    LogClosed,
    PayloadTypeError,
    ReceiverStats,
    codecs,
)
from penstock.options import CHANNEL_MESSAGE_BYTES
from tests.channel.conftest import AT_ONCE_S, Ran, asleep, drain, offsets_of, payload
from tests.support import until


@dataclass
class Job:
    name: str
    size: int


CODECS: dict[str, tuple[Any, list[Any]]] = {
    "bytes": (codecs.bytes_(), [b"", b"a", bytes(range(256)), b"\0" * 8]),
    "json": (codecs.json(dict[str, int]), [{}, {"a": 1}, {"ä": -1, "": 0}]),
    "json of a class": (codecs.json(Job), [Job("a", 1), Job("", 0)]),
    "json of anything": (codecs.json(Any), [None, 0, "", [None], {"a": [1.5]}]),
    "msgpack": (codecs.msgpack(list[int]), [[], [1, 2], [-(2**63)]]),
    "pickle": (codecs.pickle(), [None, Job("a", 1), {1, 2}, ("x",)]),
}
WRONG: dict[str, tuple[Any, Any]] = {
    "bytes": (codecs.bytes_(), "text"),
    "bytes of a number": (codecs.bytes_(), 5),
    "json": (codecs.json(dict[str, int]), {"a": "one"}),
    "json of a class": (codecs.json(Job), {"name": "a", "size": 1}),
    "msgpack": (codecs.msgpack(int), "1"),
    "pickle": (codecs.pickle(), threading.Lock()),
}


# ---- what is sent is received ----


@pytest.mark.parametrize("name", CODECS)
def test_what_is_sent_is_received(path: Path, name: str) -> None:
    codec, objects = CODECS[name]
    with Channel(path, codec) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        for obj in objects:
            tx.send(obj)
        tx.send_many(objects)
        assert [rx.recv(timeout_s=5) for _ in range(2 * len(objects))] == objects * 2
        tx.send_many(objects)
    with Channel(path, codec) as ch, ch.rx("worker") as rx:
        assert rx.recv_many(100, timeout_s=5) == objects


@pytest.mark.parametrize("view", [bytearray(b"abc"), memoryview(b"xabcx")[1:4]])
def test_what_is_like_bytes_is_received_as_bytes(path: Path, view: Any) -> None:
    with Channel(path) as ch:
        ch.tx().send(view)
        got = ch.rx().recv(timeout_s=5)
        assert got == b"abc"
        assert type(got) is bytes


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_type_is_an_error_at_send_and_nothing_is_sent(path: Path, name: str) -> None:
    codec, wrong = WRONG[name]
    good: Any = {"bytes": b"", "json": {}, "msgpack": 1, "pickle": None}[name.split()[0]]
    if name == "json of a class":
        good = Job("a", 1)
    with Channel(path, codec) as ch:
        tx = ch.tx()
        for call in (lambda: tx.send(wrong), lambda: tx.send_many([good, wrong]), lambda: tx.send_many([wrong, good])):
            with pytest.raises((EncodeError, PayloadTypeError)):
                call()
            assert ch.stats().write_offset == 0
        tx.send(good)
        assert ch.rx().recv(timeout_s=5) == good


def test_a_codec_of_the_users_own_is_asked_whatever_its_name(path: Path) -> None:
    class Reversed:
        name = "bytes"

        def encode(self, obj: bytes) -> bytes:
            return obj[::-1]

        def decode(self, data: Any) -> bytes:
            return b"<" + bytes(data) + b">"

    with Channel(path, Reversed()) as ch:
        ch.tx().send(b"abc")
        assert ch.rx().recv(timeout_s=5) == b"<cba>"


def test_nothing_sent_at_once_is_nothing(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send_many([])
        assert ch.stats().write_offset == 0


@pytest.mark.parametrize("objects", [b"one", "text", None, 7, iter([b"a"])], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("durable", [False, True])
def test_many_are_a_list(path: Path, objects: Any, durable: bool) -> None:
    with Channel[bytes](path, crash_consistent=durable) as ch:
        rx, tx = ch.rx(), ch.tx()
        with pytest.raises(PayloadTypeError, match="takes a list of payloads, not one"):
            tx.send_many(objects)
        assert rx.try_recv() is None
        tx.send_many(deque([b"a", b"b"]))
        assert rx.recv_many(2) == [b"a", b"b"]


def test_many_that_do_not_fit_one_file_are_sent_as_one(path: Path) -> None:
    batch = [b"%d" % i * (1 << 20) for i in range(10, 45)]
    with Channel(path, segment_bytes=1000) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        tx.send(b"before")
        tx.send_many(batch)
        tx.send(b"after")
        assert rx.recv(timeout_s=5) == b"before"
        for sent in batch:
            assert rx.recv(timeout_s=5) == sent
        assert rx.recv(timeout_s=5) == b"after"
        assert rx.offset == ch.stats().write_offset == sum(8 + len(p) for p in (b"before", *batch, b"after"))


def test_a_message_that_is_too_long_is_refused(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        tx = ch.tx()
        for call in (
            lambda: tx.send(bytes(CHANNEL_MESSAGE_BYTES + 4096)),
            lambda: tx.send_many([b"a", bytes(CHANNEL_MESSAGE_BYTES + 4096)]),
        ):
            with pytest.raises(InvalidPayload, match="; open the channel with larger segment_bytes"):
                call()
        assert ch.stats().write_offset == 0
        longest = bytes(CHANNEL_MESSAGE_BYTES - 8)
        tx.send(longest)
        assert ch.rx().recv(timeout_s=30) == longest


def test_threads_send_at_once_and_everything_arrives_in_the_order_of_each(path: Path) -> None:
    count = 2000
    with Channel(path, codecs.msgpack(tuple[int, int]), segment_bytes=20_000) as ch:
        tx, rx = ch.tx(), ch.rx("worker")

        def send(me: int) -> Callable[[], None]:
            mine = tx if me % 2 else ch.tx()

            def run() -> None:
                for i in range(0, count, 4):
                    mine.send((me, i))
                    mine.send_many([(me, i + 1), (me, i + 2), (me, i + 3)])

            return run

        senders = [Ran(send(me)) for me in range(4)]
        got = [rx.recv(timeout_s=30) for _ in range(4 * count)]
        for sender in senders:
            sender.result()
        assert rx.try_recv() is None
    for me in range(4):
        assert [i for who, i in got if who == me] == list(range(count))
    for at, (who, i) in enumerate(got):
        if i % 4 == 1:
            assert got[at : at + 3] == [(who, i), (who, i + 1), (who, i + 2)], "something came into a batch"


# ---- receivers ----


def test_every_receiver_gets_every_message_and_has_an_offset_of_its_own(path: Path) -> None:
    sent = [payload(i) for i in range(30)]
    at = offsets_of(sent)
    with Channel(path) as ch:
        one, two = ch.rx("one"), ch.rx("two")
        for message in sent:
            ch.tx().send(message)
        assert [one.recv() for _ in range(20)] == sent[:20]
        assert [two.recv() for _ in range(7)] == sent[:7]
        assert (one.id, one.offset, two.id, two.offset) == ("one", at[20], "two", at[7])
        late = ch.rx("late")
        assert late.offset == 0
        assert late.recv() == sent[0]
        stats = ch.stats()
        assert (stats.first_offset, stats.write_offset, stats.segments) == (0, at[30], 1)
        assert stats.receivers == {
            "one": ReceiverStats(at[20], at[30] - at[20]),
            "two": ReceiverStats(at[7], at[30] - at[7]),
            "late": ReceiverStats(at[1], at[30] - at[1]),
        }
    with Channel(path) as ch:
        assert {name: r.offset for name, r in ch.stats().receivers.items()} == {
            "one": at[20],
            "two": at[7],
            "late": at[1],
        }
        assert drain(ch.rx("one")) == sent[20:]
        assert ch.rx("two").recv_many(100) == sent[7:]
        assert ch.rx("late").recv_many(100) == sent[1:]


def test_a_receiver_without_a_name_starts_at_the_first_and_is_not_kept(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send_many([b"a", b"b", b"c"])
        one, two = ch.rx(), ch.rx()
        assert (one.id, one.offset) == (None, 0)
        assert [one.recv(), one.recv()] == [b"a", b"b"]
        assert one.offset == 18
        assert two.recv() == b"a"
        assert ch.stats().receivers == {}
        assert not (path / "cursors").exists()
    with Channel(path) as ch:
        assert ch.rx().recv() == b"a"


def test_threads_share_a_receiver_and_each_message_goes_to_one(path: Path) -> None:
    count = 4000
    with Channel(path, codecs.msgpack(int), segment_bytes=3000) as ch:
        rx, tx = ch.rx("worker"), ch.tx()

        def receive(many: bool) -> Callable[[], list[int]]:
            def run() -> list[int]:
                out: list[int] = []
                while True:
                    try:
                        out += rx.recv_many(7) if many else [rx.recv()]
                    except LogClosed:
                        return out

            return run

        threads = [Ran(receive(i % 2 == 0)) for i in range(4)]
        for i in range(count):
            tx.send(i)
        until(lambda: rx.offset == ch.stats().write_offset, "all is received")
        ch.close()
        got = [thread.result() for thread in threads]
    assert sorted(i for part in got for i in part) == list(range(count))
    assert all(part == sorted(part) for part in got)


def test_a_name_that_is_open_is_busy_until_it_is_closed(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send_many([b"a", b"b"])
        rx = ch.rx("worker")
        assert rx.recv() == b"a"
        for shared in (False, True):
            with pytest.raises(LogBusy, match="'worker' is open already"):
                ch.rx("worker", shared=shared)
        with pytest.raises(LogBusy, match="'worker' is open"):
            ch.forget("worker")
        rx.close()
        assert ch.rx("worker").recv() == b"b"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "a" * 129, "x.tmp", "ä"])
def test_a_name_that_no_file_should_have_is_refused(path: Path, name: str) -> None:
    with Channel(path) as ch:
        with pytest.raises(ValueError, match="name"):
            ch.rx(name)
        with pytest.raises(ValueError, match="name"):
            ch.forget(name)
        assert ch.stats().receivers == {}


# ---- waiting ----


def test_recv_waits_and_goes_on_at_once_when_something_is_sent(path: Path) -> None:
    with Channel(path, codecs.json(float)) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        for how in (rx.recv, lambda: rx.recv(timeout_s=60), lambda: rx.recv_many(5)[0], lambda: next(iter(rx))):
            waiting = Ran(lambda how=how: (how(), time.monotonic()))  # type: ignore[misc]
            until(lambda: asleep(ch), "it sleeps")
            began = time.monotonic()
            tx.send(began)
            got, woken = waiting.result()
            assert got == began
            assert woken - began < AT_ONCE_S


def test_waits_of_several_receivers_end_with_one_message_each(path: Path) -> None:
    with Channel(path) as ch:
        receivers = [ch.rx(f"r{i}") for i in range(4)]
        waiting = [Ran(lambda rx=rx: rx.recv(timeout_s=30)) for rx in receivers]  # type: ignore[misc]
        until(lambda: asleep(ch), "they sleep")
        ch.tx().send(b"a")
        assert [w.result() for w in waiting] == [b"a"] * 4


@pytest.mark.parametrize("name", ["worker", None])
def test_a_timeout_says_so_and_takes_nothing(path: Path, name: str | None) -> None:
    with Channel(path) as ch:
        rx = ch.rx(name)
        for call in (rx.recv, lambda timeout_s: rx.recv_many(3, timeout_s)):
            for seconds in (0, 0.05, -1):
                began = time.monotonic()
                with pytest.raises(TimeoutError, match=rf"{path}.*{seconds} s"):
                    call(timeout_s=seconds)
                assert seconds <= time.monotonic() - began < seconds + 5
        assert rx.try_recv() is None
        ch.tx().send(b"a")
        assert rx.recv(timeout_s=0) == b"a"


def test_two_threads_wait_on_one_receiver_with_different_timeouts(path: Path) -> None:
    with Channel(path) as ch:
        rx = ch.rx("worker")
        patient = Ran(lambda: rx.recv(timeout_s=30))
        hasty = Ran(lambda: rx.recv(timeout_s=0.05))
        with pytest.raises(TimeoutError):
            hasty.result()
        assert patient.is_alive()
        ch.tx().send(b"a")
        assert patient.result() == b"a"


def test_recv_many_gives_what_there_is_up_to_so_many(path: Path) -> None:
    with Channel(path, segment_bytes=40) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        tx.send_many([b"%d" % i for i in range(3)])
        for i in range(3, 10):
            tx.send(b"%d" % i)
        assert rx.recv_many(0) == rx.recv_many(-1) == []
        assert rx.recv_many(4) == [b"0", b"1", b"2", b"3"]
        assert rx.recv_many(100) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        waiting = Ran(lambda: rx.recv_many(100, timeout_s=30))
        until(lambda: asleep(ch), "it sleeps")
        tx.send_many([b"a", b"b"])
        assert waiting.result() == [b"a", b"b"]


# ---- iterating ----


def test_iterating_waits_for_more_until_the_channel_is_closed(path: Path) -> None:
    with Channel(path, codecs.json(int)) as ch:
        rx, got = ch.rx("worker"), list[int]()
        ch.tx().send(1)

        def collect() -> None:
            for obj in rx:
                got.append(obj)

        collecting = Ran(collect)
        until(lambda: got == [1] and asleep(ch), "the first one came")
        ch.tx().send_many([2, 3])
        until(lambda: got == [1, 2, 3] and asleep(ch), "the others came")
        began = time.monotonic()
        ch.close()
        collecting.result()
        assert time.monotonic() - began < AT_ONCE_S + 1
    with Channel(path, codecs.json(int)) as ch:
        assert ch.rx("worker").try_recv() is None


def test_iterating_ends_when_the_receiver_is_closed(path: Path) -> None:
    with Channel(path) as ch:
        rx = ch.rx("worker")
        ch.tx().send(b"a")
        iterating = Ran(lambda: (list(rx), time.monotonic()))
        until(lambda: rx.offset == 9 and asleep(ch), "the first one came")
        began = time.monotonic()
        rx.close()
        got, ended = iterating.result()
        assert got == [b"a"]
        assert ended - began < AT_ONCE_S


def test_async_iteration_leaves_the_event_loop_free(path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        got, turns = list[int](), 0
        async with Channel(path, codecs.json(int)) as ch:
            rx = ch.rx("worker")

            async def collect() -> None:
                async for obj in rx:
                    got.append(obj)

            task = asyncio.create_task(collect())
            for i in range(5):
                ch.tx().send(i)
                while len(got) <= i:
                    turns += 1
                    await asyncio.sleep(0.001)
            await ch.aclose()
            await asyncio.wait_for(task, 10)
        return got, turns

    got, turns = asyncio.run(run())
    assert got == list(range(5))
    assert turns >= 5


# ---- offsets and seeking ----


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_seek_goes_to_every_boundary_and_to_nothing_else(path: Path, compression: Any) -> None:
    sent = [payload(i) for i in range(60)]
    at = offsets_of(sent)
    with Channel(path, segment_bytes=200, compression=compression) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        ch.rx("holds-all")
        for message in sent:
            tx.send(message)
        if compression:
            until(lambda: len(list(path.glob("*.z"))) > 5, "segments are compressed")
        for i in (*range(61), *range(60, -1, -1)):
            rx.seek(at[i])
            assert rx.offset == at[i]
            assert rx.try_recv() == (sent[i] if i < 60 else None)
        rx.seek(at[17])
        for offset in set(range(at[-1] + 20)) - set(at):
            with pytest.raises(InvalidOffset, match=rf"offset {offset}\b"):
                rx.seek(offset)
        for offset in (-1, 1 << 63, 1 << 70):
            with pytest.raises(InvalidOffset):
                rx.seek(offset)
        assert rx.offset == at[17]
        assert rx.recv_many(100) == sent[17:]
        rx.seek(at[30])
    with Channel(path) as ch:
        assert ch.rx("worker").recv_many(100) == sent[30:]


def test_a_refused_seek_names_the_boundary_before(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send_many([b"abc", b"abcdef"])
        with pytest.raises(InvalidOffset, match=r"offset 20: no record begins there.* is 11"):
            ch.rx().seek(20)


def test_seek_wakes_a_thread_that_waits_at_the_end(path: Path) -> None:
    with Channel(path) as ch:
        rx = ch.rx("worker")
        ch.tx().send(b"a")
        assert rx.recv() == b"a"
        waiting = Ran(lambda: (rx.recv(timeout_s=30), time.monotonic()))
        until(lambda: asleep(ch), "it sleeps")
        began = time.monotonic()
        rx.seek(0)
        got, woken = waiting.result()
        assert got == b"a"
        assert woken - began < AT_ONCE_S


def test_the_offset_at_the_end_of_a_segment_is_the_beginning_of_the_next(path: Path) -> None:
    with Channel(path, segment_bytes=18) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        tx.send_many([b"a", b"b"])
        assert [rx.recv(), rx.recv()] == [b"a", b"b"]
        assert rx.offset == 18
        tx.send(b"c")
        assert ch.stats().segments >= 1
    with Channel(path, segment_bytes=18) as ch:
        rx = ch.rx("worker")
        assert rx.offset == 18
        assert rx.recv() == b"c"
        ch.tx().send(b"d")
        rx.seek(18)
        assert rx.recv_many(5) == [b"c", b"d"]


# ---- making one ----


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("segment_bytes", value) for value in (0, -1, 1.5, 1 << 50)),
        *(("compression", value) for value in ("lz4", "", "Zstd")),
    ],
)
def test_an_option_that_cannot_be_is_refused_and_nothing_is_made(path: Path, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        Channel(path, **{option: value})
    assert not path.exists()


def test_a_shared_receiver_needs_a_name(path: Path) -> None:
    with Channel(path) as ch, pytest.raises(ValueError, match="give them one"):
        ch.rx(shared=True)


@pytest.mark.parametrize("codec", ["json", dict, codecs.json, 5])
def test_what_is_no_codec_is_refused_before_anything_is_made(path: Path, codec: Any) -> None:
    with pytest.raises(TypeError, match=r"codec must be a codec, such as codecs\.json\(dict\), not "):
        Channel(path, codec)
    assert not path.exists()
