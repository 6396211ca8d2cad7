"""Appending: what is written in which order, what stops it, and who is woken."""

from __future__ import annotations

import gc
import math
import mmap
import os
import signal
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.kernel import layout, reference
from penstock.kernel.reference import writer
from penstock.kernel.spec import DIRTY, END, POISONED, REMAP, ROLL, SPACE, FrameSpec, Scan
from tests.support import until

from .conftest import QUEUE, TOPIC, Rig, Slow

NEVER = 2**64 - 1
Make = Callable[..., Rig]


def now_us() -> int:
    return time.time_ns() // 1000


def arrow(values: list[bytes], wide: bool = False, lead: int = 0) -> tuple[bytes, bool, bytes, int, int]:
    """`append_arrow`'s arguments for these values, after `lead` others that are not to be appended."""
    offsets, data = [0], b""
    for value in [b"skip"] * lead + values:
        data += value
        offsets.append(len(data))
    packed = struct.pack(f"<{len(offsets)}{'q' if wide else 'i'}", *offsets)
    return packed, wide, data, lead, len(values)


# ---- what is written ----


def test_one_record(make: Make) -> None:
    rig = make()
    before = now_us()
    assert rig.writer.append(b"hello world") == rig.base
    after = now_us()
    assert rig.data[64:87] == rig.kernel.encode(QUEUE, b"hello world")
    assert not any(rig.data[87:])
    (stamp,) = rig.stamps(1)
    assert before - 2000 <= stamp <= after + 2000  # native counts cycles between looks at the clock
    assert rig.word("last_us") == stamp
    assert rig.entries() == [(100, 64)]
    assert rig.page.active() == (3, 7, 100, 87, 101)


def test_a_batch_is_marked_until_its_last_record(make: Make) -> None:
    rig = make()
    assert rig.writer.append_batch([b"a", b"b", b"c"]) == 100
    assert rig.writer.append_batch([b"d"]) == 103
    assert rig.writer.append_arrow(*arrow([b"e", b"f"])) == 104
    assert rig.writer.append(b"g") == 106
    stamps = rig.stamps(8)
    assert [(us > 0) - (us < 0) for us in stamps] == [-1, -1, 1, 1, -1, 1, 1, 0]
    assert [abs(us) for us in stamps[:7]] == sorted(abs(us) for us in stamps[:7])
    assert len({abs(us) for us in stamps[:3]}) == 1  # one batch, one time
    assert [(m.sequence, m.payload) for m in rig.reader()] == [(100 + i, b"%c" % c) for i, c in enumerate(b"abcdefg")]
    assert all(message.timestamp_us > 0 for message in rig.reader())


def test_time_never_runs_backwards(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    ahead = now_us() + 3_600_000_000
    rig.slot(last_us=ahead)
    rig.writer.append(b"x")
    rig.writer.append_batch([b"y", b"z"])
    assert rig.stamps(3) == [ahead, -ahead, ahead]


def test_the_index_has_each_interval(kernel: ModuleType) -> None:
    rig = Rig(kernel, interval=3)
    sizes = [1, 5, 2, 8, 3, 9, 4]
    for size in sizes[:4]:
        rig.writer.append(b"x" * size)
    rig.writer.append_batch([b"x" * size for size in sizes[4:]])
    starts = [64 + sum(sizes[:i]) + 12 * i for i in range(7)]
    assert rig.entries() == [(100 + i, starts[i]) for i in (0, 3, 6)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("lead", [0, 3])
def test_arrow(make: Make, wide: bool, lead: int) -> None:
    values = [b"%d" % i * (i % 5 + 1) for i in range(50)]
    rig, plain = make(), make()
    assert rig.writer.append_arrow(*arrow(values, wide, lead)) == plain.writer.append_batch(values)
    assert rig.timeless() == plain.timeless()


def test_arrow_without_values(kernel: ModuleType) -> None:
    rig = Rig(kernel, TOPIC)
    assert rig.writer.append_arrow(bytes(12), False, None, 0, 2) == 100
    assert kernel.scan(TOPIC, rig.data, 64, rig.word("end")) == Scan(2, 72, END, [])


def test_a_batch_longer_than_a_megabyte(make: Make) -> None:
    rig = make(size=4 << 20)
    payloads = [bytes([i]) * 300_000 for i in range(1, 11)]
    assert rig.writer.append_batch(payloads) == 100
    assert [message.payload for message in rig.reader()] == payloads


def test_a_list_may_change_while_the_lock_is_waited_for(make: Make) -> None:
    rig = make(size=1 << 20)
    wanted = [b"%d" % i * 500 for i in range(100)]
    payloads = [bytes(bytearray(payload)) for payload in wanted]

    def forget(*_: int) -> None:
        payloads.clear()  # the last references, but for the writer's own
        self_made = [b"#" * len(payload) for payload in wanted]  # takes the freed memory
        del self_made
        rig.slot(allocated=1 << 20)

    rig.slot(allocated=64)
    rig.on_slow = forget
    rig.writer.append_batch(payloads)
    assert [message.payload for message in rig.reader()] == wanted


# ---- what stops it ----


def appends(rig: Rig) -> list[tuple[Any, int, int]]:
    """Each way to append: the call, its bytes, its records."""
    writer = rig.writer
    return [
        (lambda: writer.append(b"12345678"), 20, 1),
        (lambda: writer.append(bytearray(8)), 20, 1),
        (lambda: writer.append_batch([b"1234", b"12"]), 30, 2),
        (lambda: writer.append_arrow(*arrow([b"1", b"22", b"333"])), 42, 3),
    ]


def stopped(rig: Rig, code: int, mend: Any) -> None:
    """Each way to append asks for help once, having changed nothing, and goes on when it was given."""
    for way in range(4):
        before = rig.state()
        call, need, count = appends(rig)[way]
        with pytest.raises(Slow):
            call()
        assert rig.slow.pop() == (code, need, count)
        assert rig.state() == before

    def on_slow(*_: int) -> None:
        assert rig.state() == before
        assert rig.file_lock is None or not rig.file_lock.locked()
        rig.page.lock()  # it is not held
        mend()
        rig.page.unlock()

    rig.on_slow = on_slow
    assert rig.writer.append(b"12345678") == rig.word("next") - 1
    assert rig.slow == [(code, 20, 1)]


def test_detached(make: Make) -> None:
    rig = make()
    rig.writer.detach()
    stopped(rig, REMAP, rig.attach)


def test_another_process_rolled(make: Make) -> None:
    rig = make()
    rig.page.store(layout.TURN, rig.turn + 1)
    rig.page.store(layout.POISON, 5)  # REMAP comes first: nothing else is known of the new segment
    stopped(rig, REMAP, lambda: (rig.page.store(layout.TURN, rig.turn), rig.page.store(layout.POISON, 0)))


def test_poisoned(make: Make) -> None:
    rig = make(allocated=0)
    rig.page.store(layout.POISON, 5)
    stopped(rig, POISONED, lambda: (rig.page.store(layout.POISON, 0), rig.slot(allocated=1 << 16)))


@pytest.mark.parametrize("words", [{"dirty_end": 65}, {"dirty_next": 101}, {"dirty_end": 90, "dirty_next": 101}])
def test_dirty(make: Make, words: dict[str, int]) -> None:
    rig = make(limit=0)
    rig.slot(**words)
    stopped(rig, DIRTY, lambda: rig.slot(dirty_end=64, dirty_next=100))


def test_full(make: Make) -> None:
    rig = make(limit=100, allocated=0)
    rig.slot(end=81, dirty_end=81, next=101, dirty_next=101)
    stopped(rig, ROLL, lambda: (rig.attach(limit=200), rig.slot(allocated=1 << 16)))


def test_the_limit_is_exact(kernel: ModuleType) -> None:
    rig = Rig(kernel, limit=100)
    rig.slot(end=80, dirty_end=80, next=101, dirty_next=101)
    rig.writer.append(b"12345678")
    assert rig.word("end") == 100
    with pytest.raises(Slow, match=str(ROLL)):
        rig.writer.append(b"1")


def test_beyond_the_limit(kernel: ModuleType) -> None:
    rig = Rig(kernel, limit=100)
    rig.slot(end=500, dirty_end=500, next=101, dirty_next=101)
    stopped(rig, ROLL, lambda: rig.attach(limit=1000))


def test_an_empty_segment_takes_what_fits_it(kernel: ModuleType) -> None:
    rig = Rig(kernel, limit=70, size=4096, roll_next=0, roll_us=0)
    with pytest.raises(Slow, match=str(ROLL)):
        rig.writer.append(bytes(4096 - 64 - 12 + 1))
    rig.writer.append(bytes(4096 - 64 - 12))
    assert rig.word("end") == 4096
    assert [len(message.payload) for message in rig.reader()] == [4020]


def test_enough_records(kernel: ModuleType) -> None:
    rig = Rig(kernel, roll_next=102)
    assert [rig.writer.append(b"x") for _ in range(2)] == [100, 101]
    stopped(rig, ROLL, lambda: rig.attach(roll_next=NEVER))


def test_too_old(kernel: ModuleType) -> None:
    rig = Rig(kernel, roll_us=1)
    rig.writer.append(b"x")  # the first one always may
    stopped(rig, ROLL, lambda: rig.attach(roll_us=2**62))


def test_no_blocks_ahead(make: Make) -> None:
    rig = make(allocated=64 + 19)
    stopped(rig, SPACE, lambda: rig.slot(allocated=1 << 16))


def test_no_entries_ahead(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    rig.slot(entries=100)
    stopped(rig, SPACE, lambda: rig.slot(entries=200))
    rig.slot(entries=103)
    rig.on_slow = rig.refuse
    with pytest.raises(Slow, match=str(SPACE)):
        rig.writer.append_batch([b"x"] * 3)
    assert rig.writer.append_batch([b"x"] * 2) == 101


@pytest.mark.parametrize("next_", [99, 100 + 4096, 1 << 50], ids=["before the first", "behind the last", "far behind"])
def test_no_room_for_entries(make: Make, next_: int) -> None:
    """Whatever the page says."""
    rig = make()
    rig.slot(next=next_, dirty_next=next_, entries=1 << 62)
    stopped(rig, ROLL, lambda: rig.slot(next=100, dirty_next=100))


def test_an_owner_that_died_with_the_mutex(native: ModuleType) -> None:
    if not native.ROBUST:
        pytest.skip("no robust mutex here")
    rig = Rig(native, robust=True)

    def die() -> None:  # the end of a thread is to its mutexes what the end of a process is
        rig.page.lock()
        rig.slot(dirty_next=101)
        rig.slot(dirty_end=90)

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    # To the system it ends a moment later, and who sleeps for the mutex till then is one that ThreadSanitizer knows nothing of.
    until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "it is gone")
    stopped(rig, DIRTY, lambda: rig.slot(dirty_end=64, dirty_next=100))
    rig.page.lock()
    rig.page.unlock()


def test_a_free_mutex_whose_sleepers_were_forgotten(native: ModuleType) -> None:
    """Who is woken by an unlock sees to the other sleepers. If it is killed first, while one who never slept has the mutex, that one
    lets go of it and wakes nobody. Here the owner lets go like that: the word becomes 0, and there is no call to wake anyone."""
    if not native.ROBUST:
        pytest.skip("no robust mutex here")
    rig = Rig(native, robust=True)
    slept = 1 << 31  # in the mutex's first word: somebody sleeps
    pid = os.fork()
    if pid == 0:
        try:
            rig.page.lock()
            while not rig.page.load(layout.LOCK) & slept:
                pass
            rig.page.store(layout.LOCK, 0)
            signal.pause()  # until it is killed
        finally:
            os._exit(1)
    try:
        until(lambda: rig.page.load(layout.LOCK) & 0xFFFFFFFF, "the other has the mutex")
        thread = threading.Thread(target=lambda: (rig.page.lock(), rig.page.unlock()), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it sleeps for a mutex that is free"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_attach_refuses_nonsense(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    for wrong in ({"interval": 0}, {"start": 2**17}, {"size": 2**17}):
        with pytest.raises(ValueError, match=r"no such segment|larger than its map"):
            rig.attach(**wrong)
        with pytest.raises(Slow, match=str(REMAP)):  # it stands nowhere, so nothing can be written to a wrong place
            rig.writer.append(b"x")
    with pytest.raises(BufferError):
        rig.writer.attach(bytes(1 << 16), rig.times, rig.index, **rig.place)
    rig.attach()
    assert rig.writer.append(b"x") == 100


def test_detach_lets_the_files_go(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    rig.writer.append(b"x")
    reader = rig.reader()
    reader.read()
    with pytest.raises(BufferError):
        rig.data.close()
    rig.writer.detach()
    reader.detach()
    for room in (rig.data, rig.times, rig.index):
        room.close()


# ---- what is refused ----


def offsets(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


REFUSED: list[Any] = [
    pytest.param(lambda w: w.append(b""), InvalidPayload, id="empty"),
    pytest.param(lambda w: w.append(bytearray()), InvalidPayload, id="empty bytearray"),
    pytest.param(lambda w: w.append("text"), PayloadTypeError, id="str"),
    pytest.param(lambda w: w.append(None), PayloadTypeError, id="None"),
    pytest.param(lambda w: w.append(5), PayloadTypeError, id="int"),
    pytest.param(lambda w: w.append(memoryview(b"abcd")[::2]), PayloadTypeError, id="scattered"),
    pytest.param(lambda w: w.append_batch([]), InvalidPayload, id="no records"),
    pytest.param(lambda w: w.append_batch(iter(())), InvalidPayload, id="no records from an iterator"),
    pytest.param(lambda w: w.append_batch([b"a", b""]), InvalidPayload, id="an empty one"),
    pytest.param(lambda w: w.append_batch([b"a", "b"]), PayloadTypeError, id="a str among bytes"),
    pytest.param(lambda w: w.append_batch("ab"), PayloadTypeError, id="a str for a batch"),
    pytest.param(lambda w: w.append_batch(b"ab"), PayloadTypeError, id="bytes for a batch"),
    pytest.param(lambda w: w.append_batch(None), TypeError, id="None for a batch"),
    pytest.param(lambda w: w.append_arrow(offsets(0), False, b"", 0, 0), InvalidPayload, id="no values"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, b"ab", 0, 2), InvalidPayload, id="few offsets"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), True, b"ab", 0, 1), InvalidPayload, id="narrow offsets"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 2, 1), False, b"ab", 0, 2), InvalidPayload, id="backwards"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 3), False, b"ab", 0, 1), InvalidPayload, id="beyond the data"),
    pytest.param(lambda w: w.append_arrow(offsets(-1, 1), False, b"ab", 0, 1), InvalidPayload, id="negative"),
    pytest.param(lambda w: w.append_arrow(offsets(0, -1), False, b"ab", 0, 1), InvalidPayload, id="negative end"),
    pytest.param(lambda w: w.append_arrow(offsets(1, 1), False, b"ab", 0, 1), InvalidPayload, id="empty value"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, None, 0, 1), InvalidPayload, id="values missing"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, b"ab", 2**62, 1), InvalidPayload, id="far start"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, b"ab", 0, 2**62), InvalidPayload, id="huge count"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, b"ab", NEVER, 1), InvalidPayload, id="wrap around"),
    pytest.param(lambda w: w.append_arrow("text", False, b"ab", 0, 1), TypeError, id="offsets of str"),
    pytest.param(lambda w: w.append_arrow(offsets(0, 1), False, "ab", 0, 1), TypeError, id="values of str"),
]


@pytest.mark.parametrize(("call", "error"), REFUSED)
def test_what_is_refused_changes_nothing(make: Make, call: Any, error: type[Exception]) -> None:
    rig = make()
    rig.writer.append(b"first")
    before = rig.state()
    with pytest.raises(error):
        call(rig.writer)
    assert rig.state() == before
    assert rig.slow == []
    assert rig.writer.append(b"second") == 101  # the lock is free


def test_too_long_for_the_head(kernel: ModuleType) -> None:
    rig = Rig(kernel, FrameSpec(shift=16), size=1 << 18)
    before = rig.state()
    long = bytes(0x10000)
    for call in (
        lambda: rig.writer.append(long),
        lambda: rig.writer.append_batch([b"x", long]),
        lambda: rig.writer.append_arrow(*arrow([b"x", long])),
    ):
        with pytest.raises(InvalidPayload, match="65536 bytes is longer than a frame can say"):
            call()
    assert rig.state() == before
    assert rig.writer.append(long[:-1]) == 100


def test_an_iterator_that_fails(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    before = rig.state()
    with pytest.raises(ZeroDivisionError):
        rig.writer.append_batch(b"x" if i else bytes(1 // i) for i in (2, 1, 0))
    assert rig.state() == before


# ---- the order of the stores ----


def test_a_death_between_any_two_stores_can_be_mended() -> None:
    """Look at the log after each line of the reference writer, as the next process would after a death."""
    rig = Rig(reference, interval=2)
    rig.writer.append(b"before")
    end, next_ = rig.word("end"), rig.word("next")
    clean, verdicts = rig.state(), []

    def look() -> None:
        dirty = rig.word("dirty_end") != rig.word("end") or rig.word("dirty_next") != rig.word("next")
        if not dirty:  # then it has not begun, or is whole
            assert rig.word("end") == end + 41 or rig.state() == clean
            return
        if rig.word("dirty_end") == end or rig.word("dirty_next") == next_:
            assert rig.state()[1:] == clean[1:]  # both are set before any other byte
            return
        assert (rig.word("dirty_end"), rig.word("dirty_next")) == (end + 41, next_ + 3)
        whole = reference.scan(QUEUE, rig.data, end, end + 41) == Scan(3, end + 41, END, [])
        verdicts.append(whole)
        if whole:  # it will be finished: then nothing may be missing
            assert [(us > 0) - (us < 0) for us in rig.stamps(5)] == [1, -1, -1, 1, 0]
            assert rig.entries() == [(100, 64), (102, end + 13)]
        else:
            assert rig.data[end : end + 4] == bytes(4)  # it will be undone; readers see the old end anyway
            assert (rig.word("end"), rig.word("next")) == (end, next_)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != writer.__file__ or frame.f_code.co_name not in watched:
            return None
        look()
        return trace

    watched = {"_append", "_admit", "_write", "_companions"}
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        rig.writer.append_batch([b"a", b"bb", b"cc"])
    finally:
        sys.settrace(before)
    look()
    assert verdicts == sorted(verdicts)  # once whole, it stays so
    assert verdicts.count(False) > 10
    assert verdicts.count(True) >= 2
    assert [message.payload for message in rig.reader()] == [b"before", b"a", b"bb", b"cc"]


# ---- attention ----


def test_notify_at_fires_once(make: Make) -> None:
    rig = make()
    rig.writer.notify_at = 64 + 26
    rig.writer.append(b"x")
    assert rig.notified == 0
    rig.writer.append(b"x")  # reaches it exactly
    assert (rig.notified, rig.writer.notify_at) == (1, NEVER)
    rig.writer.append(b"x")
    assert rig.notified == 1
    rig.writer.notify_at = 0
    rig.writer.append_batch([b"x", b"y"])
    rig.writer.append_batch([b"x", b"y"])
    assert rig.notified == 2
    rig.writer.notify_at = 0
    rig.writer.append_arrow(*arrow([b"x"]))
    assert rig.notified == 3


def test_threads_append_in_turns(make: Make) -> None:
    rig = make(size=1 << 20)
    got: list[list[tuple[int, bytes]]] = [[] for _ in range(4)]

    def work(me: int) -> None:
        for i in range(150):
            payload = b"%d-%d" % (me, i)
            if i % 3:
                got[me].append((rig.writer.append(payload), payload))
            else:
                first = rig.writer.append_batch([payload, payload + b"!"])
                got[me] += [(first, payload), (first + 1, payload + b"!")]

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = [(message.sequence, message.payload) for message in rig.reader()]
    assert read == sorted(entry for mine in got for entry in mine)
    assert len(read) == 4 * 200


class Waiter(threading.Thread):
    """Waits in the background for the log to leave the place it is at."""

    def __init__(self, rig: Rig, timeout_s: float) -> None:
        super().__init__()
        _, self.segment, _, self.end, _ = rig.page.active()
        self.page, self.timeout_s = rig.page, timeout_s
        self.result: bool | None = None

    def run(self) -> None:
        self.result = self.page.wait(self.segment, self.end, self.timeout_s)


def asleep(rig: Rig) -> bool:
    return bool(rig.page.load(layout.WAITERS) & 0xFFFFFFFF)


@pytest.mark.parametrize("timeout_s", [60.0, -1.0, math.inf])
@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_an_append_wakes_the_waiting(make: Make, way: int, timeout_s: float) -> None:
    rig = make()
    waiters = [Waiter(rig, timeout_s) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    bell = rig.page.load(layout.WAITERS) >> 32
    if rig.file_lock is None:
        until(lambda: asleep(rig), "a waiter sleeps")
    appends(rig)[way][0]()
    for waiter in waiters:
        waiter.join(30)
        assert waiter.result is True
    if rig.file_lock is None:
        assert rig.page.load(layout.WAITERS) >> 32 > bell


def test_letting_the_lock_go_wakes_the_waiting(make: Make) -> None:
    rig = make()
    waiter = Waiter(rig, 60.0)
    waiter.start()
    if rig.file_lock is None:
        until(lambda: asleep(rig), "a waiter sleeps")
    rig.page.lock()
    rig.slot(segment=8)  # as after a roll
    rig.page.unlock()
    waiter.join(30)
    assert waiter.result is True


def test_a_ring_wakes_the_waiting(make: Make) -> None:
    rig = make()
    waiter = Waiter(rig, 60.0)
    waiter.start()

    def rung() -> bool:  # once may be before it waits
        rig.page.ring()
        return not waiter.is_alive()

    until(rung, "the waiter is woken")
    assert waiter.result is True


def test_nobody_waits_no_bell(make: Make) -> None:
    rig = make()
    rig.writer.append(b"x")
    rig.page.lock()
    rig.page.unlock()
    assert rig.page.load(layout.WAITERS) == 0
    rig.page.store(layout.WAITERS, 1)
    rig.writer.append(b"x")
    assert rig.page.load(layout.WAITERS) == 1 << 32
    rig.page.store(layout.WAITERS, 1 << 32 | 1)
    rig.page.lock()
    rig.page.unlock()
    assert rig.page.load(layout.WAITERS) == 2 << 32


def test_waiting_has_an_end(make: Make) -> None:
    rig = make()
    for timeout_s in (0.0, 0.00001, 0.02):
        before = time.monotonic()
        assert rig.page.wait(7, 64, timeout_s) is False
        assert time.monotonic() - before >= timeout_s


def test_no_waiting_when_it_has_moved_on(make: Make) -> None:
    rig = make()
    for segment, end in ((7, 63), (7, 65), (6, 64), (8, 64)):
        assert rig.page.wait(segment, end, 60.0) is True
        assert rig.page.wait(segment, end, 0.0) is True


# ---- reading what is appended ----


def test_a_reader_follows(make: Make) -> None:
    rig = make()
    reader = rig.reader()
    assert reader.read() is None
    assert reader.measure(10, 1000) == (0, 0)
    for i in range(5):
        rig.writer.append(b"%d" % i)
        message = reader.read()
        assert (message.sequence, message.payload) == (100 + i, b"%d" % i)
        assert message.timestamp_us == rig.stamps(5)[i]
        assert reader.read() is None
    assert (reader.segment, reader.position, reader.end) == (7, rig.word("end"), rig.word("end"))
    rig.writer.append(b"more")
    rig.slot(segment=8)  # rolled: the rest of the old segment is found by `on_end`
    assert reader.read() is None


def test_a_reader_trusts_no_end_beyond_its_map(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    reader = rig.reader()
    rig.slot(end=2**40)
    assert reader.read() is None


def test_a_reader_refuses_nonsense(kernel: ModuleType) -> None:
    frames = kernel.encode_many(QUEUE, [b"a", b"b"])
    reader = kernel.Reader(None, QUEUE, lambda: False, lambda reason: None)
    assert reader.read() is None
    for base, position, sequence, end in ((0, 0, 0, 27), (5, 0, 4, 26), (0, 27, 0, 26), (0, 2**63, 0, 26)):
        with pytest.raises(ValueError, match="beyond its map"):
            reader.attach(frames, b"", QUEUE, 1, base, position, sequence, end)
        assert reader.read() is None
    reader.attach(frames, b"", QUEUE, 1, 5, 0, 5, 26)
    for position, sequence in ((27, 5), (0, 4), (2**64 - 1, 5)):
        with pytest.raises(ValueError, match="not within the segment"):
            reader.seek(position, sequence)
    assert reader.measure(NEVER, NEVER) == (2, 2)
    rooms = [bytearray(size) for size in (12, 2, 16, 16, 1)]
    for count in (3, 2**31, 2**61, 2**62, 2**63):
        with pytest.raises(ValueError, match="do not fit"):
            reader.fill(count, *rooms)
    with pytest.raises(BufferError):
        reader.fill(2, bytes(12), *rooms[1:])
    assert reader.fill(2, *rooms) == 2
    assert rooms[0] == struct.pack("<3i", 0, 1, 2)
    assert (rooms[1], rooms[4]) == (b"ab", b"\0")


def test_reading_does_not_change_what_is_read(kernel: ModuleType) -> None:
    """A reader lets go of the pages of a map behind it; those of other memory it must leave alone."""
    frames = kernel.encode_many(QUEUE, [bytes([i]) * (1 << 20) for i in range(1, 81)])
    mapped = mmap.mmap(-1, len(frames))
    mapped[:] = frames
    for data in (frames, mapped):
        reader = kernel.Reader(None, QUEUE, lambda: False, lambda reason: None)
        reader.attach(data, b"", QUEUE, 1, 0, 0, 0, len(frames))
        assert sum(message.payload[0] for message in reader) == sum(range(1, 81))
        assert kernel.scan(QUEUE, data, 0, len(frames)).count == 80


def test_pages_keep_their_contents(kernel: ModuleType) -> None:
    content = bytes(range(1, 251)) * 100
    shared = mmap.mmap(-1, len(content))
    shared[:] = content
    for data in (bytearray(content), shared):
        for start, end in ((0, len(content)), (5, 9000), (4096, 8192), (0, 0), (len(content), len(content))):
            kernel.touch(data, start, end)
            kernel.release(data, start, end)
        assert bytes(data) == content
    kernel.release(content, 0, len(content))
    with pytest.raises(BufferError):
        kernel.touch(content, 0, 10)


# ---- what only some formats ask for ----


def test_a_record_may_spill_over_the_limit_and_the_next_one_goes_on_elsewhere(kernel: ModuleType) -> None:
    rig = Rig(kernel, limit=200, size=4096)
    rig.attach(spill=True)
    rig.writer.append(bytes(100))
    rig.writer.append(bytes(1000))  # at byte 176: still below the limit
    assert rig.word("end") == 64 + 112 + 1012
    stopped(rig, ROLL, lambda: rig.attach(spill=False, limit=4096))


def test_a_record_that_spills_over_the_file_is_none_of_it(kernel: ModuleType) -> None:
    rig = Rig(kernel, limit=200, size=4096)
    rig.attach(spill=True)
    rig.writer.append(b"x")
    with pytest.raises(Slow, match=str(ROLL)):
        rig.writer.append(bytes(4096))
    with pytest.raises(Slow, match=str(ROLL)):
        rig.writer.append_batch([bytes(2000)] * 3)


def test_every_published_end_is_mirrored(make: Make) -> None:
    rig, mirror = make(), mmap.mmap(-1, 4096)
    rig.attach(mirror=mirror, mirror_add=1000 - 64)
    rig.writer.append(b"x" * 8)
    assert int.from_bytes(mirror[:8], "big") == 1020
    rig.writer.append_batch([b"y" * 8] * 3)
    assert int.from_bytes(mirror[:8], "big") == 1080
    assert not any(mirror[8:])
    rig.writer.detach()
    mirror.close()  # nobody holds it any more


def test_a_mirror_that_is_too_short_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="eight bytes"):
        Rig(kernel).attach(mirror=bytearray(7))  # type: ignore[arg-type]


def test_numbers_are_stored_big_endian_in_each_place(kernel: ModuleType) -> None:
    room = mmap.mmap(-1, 4096)
    kernel.store_big(room, 16, 0, 1, 0x0102030405060708)
    assert room[:32] == bytes(16) + bytes(range(1, 9)) + bytes(8)
    kernel.store_big(room, 8, 64, 3, 2**64 - 1)
    assert [i for i in range(0, 256, 8) if room[i : i + 8] == b"\xff" * 8] == [8, 72, 136]
    kernel.store_big(room, 4088, 0, 1, 1)
    for offset, stride, copies in ((4, 0, 1), (4096, 0, 1), (0, 4, 2), (0, 2048, 3), (0, 8, 0), (2**64 - 8, 8, 2)):
        with pytest.raises(ValueError, match="aligned"):
            kernel.store_big(room, offset, stride, copies, 7)
    with pytest.raises((BufferError, TypeError, ValueError)):
        kernel.store_big(bytes(8), 0, 0, 1, 7)


def test_as_garbage_with_its_views_it_goes_without_a_word(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them the collector comes to first."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    rig = make()
    data, times, index = memoryview(rig.data), memoryview(rig.times), memoryview(rig.index)  # the older go first
    writer = rig.kernel.Writer(rig.page, rig.spec, rig._on_slow, rig._on_notify)
    writer.attach(data, times, index, **rig.place)
    held = [data, times, index, writer]
    held.append(held)
    del data, times, index, writer, held
    gc.collect()
    assert complaints == []


def test_one_that_was_stopped_asks_another(make: Make) -> None:
    rig = make()
    rig.attach()
    rig.writer.append(b"a")
    rig.writer.stop()
    with pytest.raises(Slow):
        rig.writer.append(b"b")
    told: list[tuple[int, ...]] = []

    def refuse(*asked: int) -> None:
        told.append(asked)
        raise KeyError

    rig.writer.stop(refuse)
    for append in (rig.writer.append, lambda payload: rig.writer.append_batch([payload])):
        with pytest.raises(KeyError):
            append(b"b")
    assert [asked[0] for asked in told] == [REMAP, REMAP]
    assert [m.payload for m in rig.reader()] == [b"a"]


def test_going_over_a_reader_keeps_its_owner(make: Make) -> None:
    rig = make()
    rig.attach()
    rig.writer.append_batch([b"a", b"b"])

    class Owner:
        pass

    owner = Owner()
    held = weakref.ref(owner)
    messages = rig.reader().over(owner)
    del owner
    assert iter(messages) is messages
    assert next(messages).payload == b"a"
    assert held() is not None
    assert [m.payload for m in messages] == [b"b"]
    assert next(messages, None) is None
    rig.writer.append(b"c")
    assert next(messages).payload == b"c"
    del messages
    assert held() is None
