"""Appending through memory: what is on the disk when, what stops it, who is told, and what a death leaves behind."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BufferFull, InvalidPayload, PayloadTypeError
from penstock.kernel import layout
from penstock.kernel.spec import REMAP, FrameSpec
from tests.support import until

from .buffering import Gate, NewRig, Rig, Slow, arrow, kit, now_us, put
from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC

# ---- what is written ----


@pytest.mark.parametrize("spec", [JOURNAL, TOPIC, CHANNEL, QUEUE], ids=["journal", "topic", "channel", "queue"])
def test_the_bytes_are_those_of_encode(new_rig: NewRig, spec: FrameSpec) -> None:
    rig = new_rig()
    buffered = rig.buffered(spec)
    payloads = [b"a", b"hello world", bytes(range(256)) * 40, b"x" * 104]
    before = now_us()
    places = [buffered.append(payload) for payload in payloads]
    assert rig.data() == b""
    assert put(buffered) == 100
    after = now_us()
    frames = [rig.kernel.encode(spec, payload) for payload in payloads]
    assert rig.data() == b"".join(frames)
    assert rig.page.active() == (3, 0, 100, 16 + sum(map(len, frames)), 104)
    assert rig.ends()[:2] == rig.ends()[2:]
    stamps, sums = zip(*rig.entries(), strict=True)
    assert list(sums) == [rig.kernel.crc64(frame) for frame in frames]
    assert [us > 0 for us in stamps] == [False, False, False, True]
    assert {abs(us) for us in stamps} == {rig.word("last_us")}
    assert before - 2000 <= stamps[-1] <= after + 2000  # native counts cycles between looks at the clock
    assert [place for _, place in places] == [0, 1, 2, 3]
    assert len({id(batch) for batch, _ in places}) == 1
    batch = places[0][0]
    assert (batch.first, batch.count, batch.done, batch.error, batch.exception) == (100, 4, True, 0, None)


def test_kinds_and_empty_records(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"state", 1)
    buffered.append(b"")
    buffered.append(bytearray(b"x"), kind=255)
    buffered.append_many([b"", b"y"], 7)
    put(buffered)
    wanted = [(b"state", 1), (b"", 0), (b"x", 255), (b"", 7), (b"y", 7)]
    assert rig.frames() == [rig.kernel.encode(JOURNAL, payload, kind) for payload, kind in wanted]
    assert [crc for _, crc in rig.entries()] == [rig.kernel.crc64(frame) for frame in rig.frames()]


def test_what_was_appended_is_a_copy(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    payload = bytearray(b"first")
    buffered.append(payload)
    payload[:] = b"other"
    payloads = [memoryview(payload), b"z"]
    buffered.append_many(payloads)
    payload[:] = b"third"
    payloads.clear()
    put(buffered)
    assert rig.payloads() == [b"first", b"other", b"z"]


def test_many_are_parts_of_one_batch(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    batch, place = buffered.append_many([b"a", b"b", b"c"])
    assert (place, batch.count, batch.done, batch.first) == (0, 3, False, None)
    assert buffered.append(b"d") == (batch, 3)
    assert buffered.append_many(iter([b"e"])) == (batch, 4)
    assert buffered.append_arrow(*arrow([b"f", b"g"], lead=2)) == (batch, 5)
    assert buffered.append_arrow(*arrow([b"h", b"ii"], wide=True)) == (batch, 7)
    assert batch.count == 9
    assert put(buffered) == 100
    assert rig.payloads() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"ii"]
    assert [us > 0 for us, _ in rig.entries()] == [False] * 8 + [True]
    assert [crc for _, crc in rig.entries()] == [rig.kernel.crc64(frame) for frame in rig.frames()]


def test_large_ones_keep_their_place(new_rig: NewRig) -> None:
    """More than a megabyte is copied without the GIL, as a batch of its own; the order is that of the calls."""
    rig = new_rig()
    buffered = rig.buffered()
    large = [bytes([i]) * (3 << 20) for i in range(2)]
    got = [buffered.append(b"before"), buffered.append(large[0]), buffered.append(b"between")]
    got += [buffered.append_many([large[1], b"with it"]), buffered.append_arrow(*arrow([large[0], b"last"]))]
    put(buffered)
    assert rig.payloads() == [b"before", large[0], b"between", large[1], b"with it", large[0], b"last"]
    assert [batch.first + place for batch, place in got] == [100, 101, 102, 103, 105]
    assert [crc for _, crc in rig.entries()] == [rig.kernel.crc64(frame) for frame in rig.frames()]


def test_time_never_runs_backwards(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    ahead = now_us() + 3_600_000_000
    rig.slot(last_us=ahead)
    buffered.append_many([b"x", b"y"])
    put(buffered)
    buffered.append(b"z")
    put(buffered)
    assert [us for us, _ in rig.entries()] == [-ahead, ahead, ahead]


@pytest.mark.parametrize("sync", [True, False])
def test_these_words_change_and_no_others(new_rig: NewRig, sync: bool) -> None:
    rig = new_rig()
    offsets = [o for o in range(0, layout.PAGE_BYTES, 8) if not layout.LOCK <= o < layout.TURN]
    before = {offset: rig.page.load(offset) for offset in offsets}
    rig.slot(segment=7)
    before[layout.SLOTS[1]] = 7
    buffered = rig.buffered(sync=sync)
    buffered.append_many([b"12345678", b""])
    put(buffered)
    slot = layout.SLOTS[1]
    mark = [7, 32, 102, zlib.crc32(struct.pack("<QQQ", 7, 32, 102))]
    assert {offset: rig.page.load(offset) for offset in offsets if rig.page.load(offset) != before[offset]} == {
        slot + layout.END: 32,
        slot + layout.NEXT: 102,
        slot + layout.DIRTY_END: 32,
        slot + layout.DIRTY_NEXT: 102,
        slot + layout.LAST_US: rig.entries()[-1][0],
        **({512 + 8 * i: word for i, word in enumerate(mark)} if sync else {}),
    }


def test_state_is_the_last_that_was_written(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(sync=False)
    assert buffered.state == b""
    buffered.append(b"one", 1)
    buffered.append(b"no state")
    assert buffered.state == b""
    put(buffered)
    assert buffered.state == b"one"
    buffered.append(b"two", 1)
    buffered.append_many([b"three", b"four"], 1)
    assert buffered.state == b"one"
    put(buffered)
    assert buffered.state == b"four"
    buffered.append(b"no state", 2)
    put(buffered)
    assert buffered.state == b"four"
    rig.slot(dirty_end=1)
    buffered.append(b"fails", 1)
    with pytest.raises(Slow):
        put(buffered)
    assert buffered.state == b"four"
    rig.slot(dirty_end=rig.word("end"))
    buffered.append(b"", 1)
    put(buffered)
    assert buffered.state == b""


# ---- when a batch is written ----


def test_by_count(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(batch_records=3)
    batch, _ = buffered.append(b"a")
    buffered.append(b"b")
    assert buffered.wait(batch, 0.1) is False
    assert rig.data() == b""
    buffered.append(b"c")
    assert buffered.wait(batch, 60)
    assert (batch.first, batch.count) == (100, 3)
    batch, _ = buffered.append_many([b"d", b"e", b"f", b"g"])  # they stay together
    assert buffered.wait(batch, 60)
    assert (batch.first, batch.count) == (103, 4)


def test_by_linger(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0.3)
    started = time.monotonic()
    batch, _ = buffered.append(b"a")
    while not batch.done:
        buffered.append(b"b")  # more records do not put it off
        time.sleep(0.001)
        assert time.monotonic() - started < 30
    assert time.monotonic() - started >= 0.3
    buffered.close()
    assert batch.first == 100
    assert rig.payloads()[: batch.count] == [b"a"] + [b"b"] * (batch.count - 1)
    assert [us > 0 for us, _ in rig.entries()][: batch.count] == [False] * (batch.count - 1) + [True]


def test_at_once(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0)
    for i in range(3):
        batch, place = buffered.append(b"%d" % i)
        assert buffered.wait(batch, 60)
        assert (batch.first, place) == (100 + i, 0)
    assert rig.payloads() == [b"0", b"1", b"2"]


def test_by_flush(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    assert buffered.flush() is None
    batch, _ = buffered.append(b"a")
    assert buffered.flush() is batch
    assert buffered.wait(batch)
    assert buffered.flush() is None


def test_what_arrives_meanwhile_is_the_next_batch(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0, attach=False)
    gate = Gate(rig, buffered)
    first, _ = buffered.append(b"a")
    gate.wait()
    got = [buffered.append(b"%d" % i) for i in range(5)]
    assert {id(batch) for batch, _ in got} == {id(got[0][0])} != {id(first)}
    assert [place for _, place in got] == [0, 1, 2, 3, 4]
    gate.open.set()
    assert buffered.wait(got[0][0], 60)
    assert (first.first, first.count, got[0][0].first, got[0][0].count) == (100, 1, 101, 5)
    assert [us > 0 for us, _ in rig.entries()] == [True, False, False, False, False, True]


def test_a_flush_does_not_cut_a_batch_that_waits_its_turn(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    gate = Gate(rig, buffered)
    buffered.append(b"a")
    buffered.flush()
    gate.wait()
    batches = []
    for _ in range(4):  # four that want to be sure share one sync
        buffered.append(b"b")
        batches.append(buffered.flush())
    assert len(set(map(id, batches))) == 1
    gate.open.set()
    assert buffered.wait(batches[0], 60)
    assert batches[0].count == 4


def test_threads_append_in_turns(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0, sync=False)
    got: list[list[tuple[Any, int, bytes]]] = [[] for _ in range(4)]

    def work(me: int) -> None:
        for i in range(150):
            payload = b"%d-%d" % (me, i)
            if i % 3:
                got[me].append((*buffered.append(payload), payload))
            else:
                batch, place = buffered.append_many([payload, payload + b"!"])
                got[me] += [(batch, place, payload), (batch, place + 1, payload + b"!")]
            if i % 10 == 0:
                assert buffered.wait(got[me][-1][0], 60)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffered.close()
    numbered = [(batch.first + place, payload) for mine in got for batch, place, payload in mine]
    assert sorted(numbered) == list(enumerate(rig.payloads(), 100))
    assert len(numbered) == 4 * 200
    for mine in got:
        assert [batch.first + place for batch, place, _ in mine] == sorted(
            batch.first + place for batch, place, _ in mine
        )


# ---- waiting ----


def test_waits_have_an_end(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    batch, _ = buffered.append(b"a")
    for timeout_s in (0, -1, 0.001, 0.1):
        before = time.monotonic()
        assert buffered.wait(batch, timeout_s) is False
        assert time.monotonic() - before >= timeout_s
    buffered.flush()
    assert buffered.wait(batch, float("inf")) is True
    assert buffered.wait(batch, 0) is True


def test_all_who_wait_are_woken(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    batch, _ = buffered.append(b"a")
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(buffered.wait(batch, 60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    started = time.monotonic()
    buffered.flush()
    for thread in threads:
        thread.join()
    assert woken == [True] * 3
    assert time.monotonic() - started < 30


def test_who_waits_is_woken_at_once(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0.01, sync=False)
    took = []
    while len(took) < 100 and min(took, default=1.0) >= 0.04:  # the machine may be busy
        batch, _ = buffered.append(b"a")
        before = time.monotonic()
        assert buffered.wait(batch)
        took.append(time.monotonic() - before)
    assert min(took) < 0.04  # it looks for signals every 50 ms, and would see it then


def test_another_ones_batch(new_rig: NewRig) -> None:
    rig = new_rig()
    one, other = rig.buffered(), rig.buffered()
    batch, _ = one.append(b"a")
    with pytest.raises(ValueError, match="another one's"):
        other.wait(batch)
    with pytest.raises(ValueError, match="another one's"):
        one.wait(rig.kernel.Batch())


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@contextlib.contextmanager
def alarm(after_s: float) -> Iterator[None]:
    def raise_it(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(most_bytes=10)
    batch, _ = buffered.append(b"12345678")
    started = time.monotonic()
    with alarm(0.1), pytest.raises(Interrupted):
        buffered.wait(batch)
    put(buffered)
    buffered.detach()
    gate = Gate(rig, buffered)
    buffered.append(b"12345678")
    with alarm(0.1), pytest.raises(Interrupted):
        buffered.append(b"12345678")  # full
    gate.open.set()
    put(buffered)
    assert time.monotonic() - started < 30
    assert rig.payloads() == [b"12345678"] * 2


def test_the_thread_takes_no_signals(new_rig: NewRig) -> None:
    """A handler that ran there would leave a sleeping main thread asleep."""
    rig = new_rig()
    tasks = Path("/proc/self/task")
    if not tasks.exists() or rig.kernel.NAME == "reference":
        pytest.skip("it cannot be seen here, or is Python's own affair")
    before = set(tasks.iterdir())
    rig.buffered().append(b"a")
    (mine,) = set(tasks.iterdir()) - before

    def blocked(number: int) -> bool:
        (line,) = [line for line in (mine / "status").read_text().splitlines() if line.startswith("SigBlk")]
        return bool(int(line.split()[1], 16) >> number - 1 & 1)

    until(lambda: not blocked(signal.SIGSEGV), "it has begun")
    assert all(map(blocked, (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)))


def test_a_signal_ends_a_close_which_can_be_tried_again(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    gate = Gate(rig, buffered)
    batch, _ = buffered.append(b"a")
    with alarm(0.1), pytest.raises(Interrupted):
        buffered.close()
    assert not batch.done
    gate.open.set()
    buffered.close()
    assert batch.first == 100


def test_a_readers_bell_is_rung(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"a")
    put(buffered)
    assert rig.page.load(layout.WAITERS) == 0  # nobody waits, no bell
    results: list[bool] = []
    end = rig.word("end")
    waiter = threading.Thread(target=lambda: results.append(rig.page.wait(0, end, 60.0)))
    waiter.start()
    if rig.robust:
        until(lambda: rig.page.load(layout.WAITERS) & 1, "the waiter sleeps")
    buffered.append(b"b")
    put(buffered)
    waiter.join(30)
    assert results == [True]


# ---- when there is too much ----


def test_a_full_buffer(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(most_bytes=36, attach=False)
    gate = Gate(rig, buffered)
    for _ in range(3):
        batch, _ = buffered.append(b"12345678", 0, 0)
    calls = [
        lambda timeout_s: buffered.append(b"", 0, timeout_s),
        lambda timeout_s: buffered.append_many([b"", b""], 0, timeout_s),
        lambda timeout_s: buffered.append_arrow(*arrow([b"x"]), timeout_s),
        lambda timeout_s: buffered.append(bytearray(3), timeout_s=timeout_s),
    ]
    for call in calls:
        for timeout_s in (0, 0.05):
            before = time.monotonic()
            with pytest.raises(BufferFull, match="36 bytes are not on the disk yet"):
                call(timeout_s)
            assert time.monotonic() - before >= timeout_s
    assert batch.count == 3
    gate.wait()  # being full was enough to have it written
    gate.open.set()
    assert buffered.wait(batch, 60)
    for call in calls:
        assert call(0)[0].count > 0


def test_an_append_waits_for_room(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(most_bytes=200, sync=False)
    for i in range(100):
        buffered.append(b"%036d" % i)  # five at a time; the linger alone would take for ever
    put(buffered)
    assert rig.payloads() == [b"%036d" % i for i in range(100)]


def test_what_is_larger_than_the_buffer_goes_into_an_empty_one(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(most_bytes=100)
    large, larger = bytes(1000), bytes(2 << 20)
    buffered.append(large, 0, 0)
    with pytest.raises(BufferFull):
        buffered.append(b"", 0, 0)
    for payload in (large, larger, b"small", larger, large):
        buffered.append(payload)  # waits for the one before
    put(buffered)
    assert rig.payloads() == [large, large, larger, b"small", larger, large]


def test_whoever_waits_for_room_is_told_of_the_end(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(most_bytes=10, attach=False)
    gate = Gate(rig, buffered)
    buffered.append(b"12345678")
    raised: list[Exception] = []

    def wait_for_room() -> None:
        try:
            buffered.append(b"12345678")
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait_for_room)
    thread.start()
    gate.wait()
    time.sleep(0.02)
    closer = threading.Thread(target=buffered.close)
    closer.start()
    thread.join(30)
    assert [type(error) for error in raised] == [ValueError]
    gate.open.set()
    closer.join(30)
    assert rig.payloads() == [b"12345678"]


@pytest.mark.parametrize("size", [10, 2 << 20])
def test_what_no_segment_has_room_for(new_rig: NewRig, size: int) -> None:
    rig = new_rig()
    buffered = rig.buffered(segment_bytes=size)
    for call in (
        lambda: buffered.append(bytes(size - 3)),
        lambda: buffered.append_many([b"", bytes(size - 7)]),
        lambda: buffered.append_arrow(*arrow([b"", bytes(size - 7)])),
    ):
        with pytest.raises(InvalidPayload, match="more than a file has room for"):
            call()
    assert buffered.flush() is None
    buffered.append(bytes(size - 4))
    put(buffered)
    assert rig.payloads() == [bytes(size - 4)]


def test_a_batch_has_no_more_than_a_segment_has_room_for(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(segment_bytes=30)
    got = [buffered.append(b"123456") for _ in range(3)]  # 30 bytes
    got += [buffered.append(b""), buffered.append_many([b"12345", b"12345"]), buffered.append(b"12345678")]
    assert [place for _, place in got] == [0, 1, 2, 0, 1, 0]
    batches = [got[i][0] for i in (0, 3, 5)]
    assert [got[i][0] for i in (1, 2, 4)] == [batches[0], batches[0], batches[1]]
    assert buffered.wait(batches[1], 60)  # it is full, and so are those before it
    assert not batches[2].done
    put(buffered)
    assert [batch.first for batch in batches] == [100, 103, 106]
    assert [us > 0 for us, _ in rig.entries()] == [False, False, True, False, False, True, True]


def test_what_is_refused_changes_nothing(new_rig: NewRig) -> None:
    rig = new_rig()
    queue, journal = rig.buffered(QUEUE), rig.buffered(JOURNAL)
    for call, error in [
        (lambda: queue.append(b""), InvalidPayload),
        (lambda: queue.append_many([b"a", b""]), InvalidPayload),
        (lambda: queue.append(b"x", 1), ValueError),
        (lambda: journal.append(b"x", 256), ValueError),
        (lambda: journal.append_many([b"x"], 256), ValueError),
        (lambda: journal.append_many([]), InvalidPayload),
        (lambda: journal.append("text"), PayloadTypeError),
        (lambda: journal.append(None), PayloadTypeError),
        (lambda: journal.append_many([b"a", 5]), PayloadTypeError),
        (lambda: journal.append_arrow(struct.pack("<2i", 0, 3), False, b"ab", 0, 1), InvalidPayload),
        (lambda: journal.append_arrow(struct.pack("<2i", 0, 1), False, b"ab", 0, 2), InvalidPayload),
        (lambda: journal.append_arrow(b"", False, b"ab", 0, 0), InvalidPayload),
    ]:
        with pytest.raises(error):
            call()
    assert queue.flush() is None
    assert journal.flush() is None


def test_nonsense_is_refused(new_rig: NewRig) -> None:
    rig = new_rig()
    for wrong in ({"batch_records": 0}, {"linger_s": -1.0}, {"linger_s": float("nan")}, {"segment_bytes": 3}):
        with pytest.raises(ValueError, match="must"):
            rig.buffered(**wrong)
    buffered = rig.buffered()
    for wrong in ({"start": 2, "limit": 1}, {"data_fd": -1}, {"times_fd": -1}):
        with pytest.raises(ValueError, match="no such segment"):
            rig.attach(buffered, **wrong)
        buffered.append(b"x")
        with pytest.raises(Slow, match=str(REMAP)):  # it stands nowhere, so nothing is written to a wrong place
            put(buffered)
    frozen = rig.kernel.ControlPage(bytes(layout.PAGE_BYTES), None, False)
    with pytest.raises(ValueError, match="mapped read-only"):
        rig.buffered(page=frozen)


# ---- beside a busy program ----


def test_the_thread_works_while_the_gil_is_held(native: ModuleType, tmp_path: Path) -> None:
    if not native.ROBUST:
        pytest.skip("a file lock is taken with the GIL")
    rig = Rig(native, tmp_path, robust=True)
    buffered = rig.buffered(batch_records=10)
    batch, _ = buffered.append(b"warm up")
    put(buffered)
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # nobody else gets the GIL for as long as this loop does not sleep
    try:
        for i in range(10):
            batch, _ = buffered.append(b"%d" % i)
        deadline = time.monotonic() + 30
        while not batch.done and time.monotonic() < deadline:
            pass
        assert batch.done
    finally:
        sys.setswitchinterval(before)
        rig.clean()
    assert (batch.first, batch.count) == (101, 10)


def test_the_thread_gets_its_turn_in_a_busy_loop(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(batch_records=10)
    for i in range(10):
        batch, _ = buffered.append(b"%d" % i)
    deadline = time.monotonic() + 30
    while not batch.done and time.monotonic() < deadline:
        pass
    assert (batch.first, batch.count) == (100, 10)


def readable(buffered: Any, timeout_s: float = 0.0) -> bool:
    return bool(select.select([buffered], [], [], timeout_s)[0])


def test_a_descriptor_tells_when_a_batch_is_done(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    fd = buffered.fileno()
    assert fd == buffered.fileno()
    assert not os.get_inheritable(fd)
    buffered.drain()  # empty already
    batch, _ = buffered.append(b"a")
    assert not readable(buffered)
    buffered.flush()
    assert readable(buffered, 60)
    assert batch.done
    assert readable(buffered)  # until it is drained
    buffered.drain()
    assert not readable(buffered)
    for _ in range(3):
        buffered.append(b"b")
        put(buffered)
    until(lambda: readable(buffered), "it is rung")
    buffered.detach()
    time.sleep(0.01)
    buffered.drain()
    batch, _ = buffered.append(b"fails")
    buffered.flush()
    assert readable(buffered, 60)  # of a failure too
    assert batch.exception is not None
    buffered.close()
    assert readable(buffered)


def test_a_descriptor_asked_for_late(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.drain()
    buffered.append(b"a")
    put(buffered)
    assert readable(buffered)
    buffered.drain()
    assert not readable(buffered)


def test_asyncio(new_rig: NewRig) -> None:
    asyncio = pytest.importorskip("asyncio")
    rig = new_rig()
    buffered = rig.buffered(linger_s=0.001)

    async def main() -> list[int]:
        loop, waiting, out = asyncio.get_running_loop(), [], []

        def look() -> None:
            buffered.drain()
            for batch, place, future in list(waiting):
                if batch.done:
                    waiting.remove((batch, place, future))
                    future.set_result(batch.first + place)

        async def append(payload: bytes) -> int:
            future = loop.create_future()
            waiting.append((*buffered.append(payload), future))
            return int(await future)

        loop.add_reader(buffered.fileno(), look)
        for i in range(5):
            out += await asyncio.gather(*(append(b"%d.%d" % (i, j)) for j in range(10)))
        loop.remove_reader(buffered.fileno())
        return out

    assert asyncio.run(main()) == list(range(100, 150))


def test_when_it_is_closed_it_lets_go_of_the_page_and_of_whom_it_asked(new_rig: NewRig) -> None:
    rig = new_rig()
    room = mmap.mmap(-1, layout.PAGE_BYTES)
    page = rig.kernel.ControlPage(room, threading.Lock())
    asked = Asked()
    buffered = rig.kernel.Buffered(
        page,
        JOURNAL,
        asked.slow,
        asked.error,
        batch_records=1,
        linger_s=0,
        most_bytes=100,
        segment_bytes=100,
        sync=False,
    )
    gone = weakref.ref(asked)
    batch, _ = buffered.append(b"a")
    with contextlib.suppress(Slow):  # the batch may have had it before
        buffered.close()
    assert batch.done
    del page, asked, batch
    gc.collect()
    assert gone() is None
    room.close()  # nobody has it any more
    with pytest.raises(ValueError, match="was closed"):
        buffered.attach(0, 0, -1, turn=1, start=0, limit=0, interval=1)
    buffered.detach()


class Asked:
    def slow(self, code: int, need: int, records: int) -> None:
        raise Slow

    def error(self, code: int) -> None:
        raise AssertionError(code)


def test_batches_nobody_keeps(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(batch_records=1, sync=False)
    for i in range(3000):
        buffered.append(b"%d" % i)
        if i % 500 == 0:
            gc.collect()
    buffered.close()
    assert rig.payloads() == [b"%d" % i for i in range(3000)]


# ---- both the same ----

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=40), st.sampled_from([0, 1, 2, 255])),
        st.tuples(st.just("many"), st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.sampled_from([0, 1])),
        st.tuples(st.just("arrow"), st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.booleans()),
        st.tuples(st.just("flush")),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(
    steps=steps,
    spec=st.sampled_from([JOURNAL, FrameSpec(shift=8, big_endian=True, sum_bytes=4)]),
    room=st.integers(120, 300),
)
def test_both_kernels_write_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, spec: FrameSpec, room: int
) -> None:
    results = []
    for name in ("native", "reference"):
        rig = Rig(kit(name), tmp_path_factory.mktemp(name), robust=False)
        buffered = rig.buffered(spec, segment_bytes=room, sync=False)
        places = []
        for step, *given_ in steps:
            if step == "append":
                places.append(buffered.append(*given_))
            elif step == "many":
                places.append(buffered.append_many(*given_))
            elif step == "arrow":
                places.append(buffered.append_arrow(*arrow(given_[0], given_[1])))
            elif (batch := buffered.flush()) is not None:
                buffered.wait(batch)
        buffered.close()
        sums = [((us > 0) - (us < 0), crc) for us, crc in rig.entries()]
        numbers = [(batch.first, batch.count, place) for batch, place in places]
        results.append((rig.data(), sums, numbers, buffered.state, rig.ends(), rig.index()))
        rig.clean()
    assert results[0] == results[1]
