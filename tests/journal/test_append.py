"""Appending: what is copied, what waits, how much may wait, and what a journal does not take."""

from __future__ import annotations

import array
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import BufferFull, InvalidPayload, Journal, PayloadTypeError
from tests.journal import by_hand
from tests.journal.conftest import Ran, held, log_of, payloads, walked
from tests.support import until

New = Callable[..., Journal]


def stored(path: Path) -> list[bytes]:
    """The payloads in the files of the session that is open."""
    return [item.payload for item in by_hand.items(path)[0]]


def batches(path: Path, number: int = 0) -> list[int]:
    """How many records each batch of a file has, as the signs of the times in the companion say."""
    content = (path / f"{number}.journal.time").read_bytes()[64:]
    out, size = [], 0
    for us, _ in struct.iter_unpack("<qQ", content):
        size += 1
        if us > 0:
            out.append(size)
            size = 0
    assert size == 0
    return out


def test_an_append_returns_before_it_is_on_the_disk_and_is_done_when_it_is(new: New, path: Path) -> None:
    j = new()
    with held(j):
        appended = j.append(b"payload")
        assert not appended.done()
        assert appended.exception() is None
        assert stored(path) == []
        with pytest.raises(TimeoutError, match="still on the way"):
            appended.result(0.01)
    appended.result(60)
    assert appended.done()
    assert stored(path) == [b"payload"]
    appended.result()  # any number of times


def test_what_arrives_while_the_disk_is_busy_is_one_batch(new: New, path: Path) -> None:
    j = new()
    with held(j):
        made = [j.append(b"0")]

        def next_has_begun() -> bool:
            made.append(j.append(b"%d" % len(made)))
            return made[-1]._batch is not made[0]._batch

        until(next_has_begun, "the first batch is taken to be written")
        first = len(made) - 1
        made += [j.append(b"%d" % i) for i in range(len(made), len(made) + 100)]
        assert not any(appended.done() for appended in made)
    made[-1].result()
    assert all(appended.done() for appended in made)
    assert stored(path) == [b"%d" % i for i in range(len(made))]
    assert batches(path) == [1, first, 101]  # the first of all is the record that the file begins with


def test_one_batch_is_written_at_a_time_and_in_order(new: New, path: Path) -> None:
    j = new()
    made = [j.append(b"%d" % i) for i in range(500)]
    made[-1].result()
    assert all(appended.done() for appended in made)  # what was appended before is on the disk before
    assert stored(path) == [b"%d" % i for i in range(500)]


def test_the_payload_is_copied(new: New, path: Path) -> None:
    j = new()
    mine = bytearray(b"before")
    with held(j):
        one = j.append(mine)
        two = j.append_many([mine, memoryview(mine)[:3]])
        mine[:] = b"after!"
    one.result()
    two.result()
    assert stored(path) == [b"before", b"before", b"bef"]


def test_whatever_is_bytes_like_can_be_appended(new: New, path: Path) -> None:
    j = new()
    for payload in (b"", bytearray(b"ab"), memoryview(b"abc")[1:], array.array("H", [1, 2])):
        j.append(payload).result()
    assert stored(path) == [b"", b"ab", b"bc", struct.pack("=HH", 1, 2)]


def test_what_is_not_bytes_like_is_refused(new: New, path: Path) -> None:
    j = new()
    for bad in ("text", 7, None, [1]):
        with pytest.raises(PayloadTypeError):
            j.append(bad)  # type: ignore[arg-type]
        with pytest.raises(PayloadTypeError):
            j.append_nowait(bad)  # type: ignore[arg-type]
        with pytest.raises(PayloadTypeError):
            j.append_many([b"good", bad])  # type: ignore[list-item]
    j.append(b"good").result()
    assert stored(path) == [b"good"]


def test_a_record_of_1_mib_with_its_head_is_the_longest(new: New, path: Path) -> None:
    j = new()
    longest = bytes(range(256)) * 4096
    for payload in (longest[:-3], bytearray(longest), memoryview(longest), memoryview(longest[:-3]).cast("B")):
        for call in (j.append, j.append_nowait, lambda p: j.append_many([b"x", p])):
            with pytest.raises(InvalidPayload, match="append it in parts"):
                call(payload)  # type: ignore[operator]
    wide = memoryview(bytearray(1 << 20)).cast("Q")
    with pytest.raises(InvalidPayload, match="append it in parts"):
        j.append(wide)  # its length is an eighth of its bytes
    j.append(longest[:-4]).result()
    assert stored(path) == [longest[:-4]]
    assert (path / "0.journal").stat().st_size == 20 + (1 << 20)


def test_many_records_are_one_batch(new: New, path: Path) -> None:
    j = new()
    j.append_many([b"a", b"", b"c"]).result()
    j.append_many((b"d",)).result()
    assert stored(path) == [b"a", b"", b"c", b"d"]
    assert batches(path) == [1, 3, 1]


@pytest.mark.parametrize("payloads", [b"one", "text", None, 5, iter([b"a"])], ids=lambda one: type(one).__name__)
def test_many_records_are_a_list(new: New, path: Path, payloads: Any) -> None:
    j = new()
    with pytest.raises(PayloadTypeError, match="takes a list of payloads, not one"):
        j.append_many(payloads)
    j.append_many(deque([b"a", b"b"])).result()
    assert stored(path) == [b"a", b"b"]


def test_many_records_are_never_in_two_files(new: New, path: Path) -> None:
    """So a batch of more than a file holds is refused, and all of it."""
    j = new()
    part = bytes((1 << 20) - 4)
    with pytest.raises(InvalidPayload, match=r"\(4\d{6}\); append fewer records at a time$"):
        j.append_many([part] * 4)
    with pytest.raises(InvalidPayload):
        j.append_many([])
    j.append_many([part] * 3).result()
    j.append_many([part] * 2).result()
    assert {n: len(found) for n, found in by_hand.read(path).items()} == {0: 4, 1: 3}


# ---- how much may wait ----


def test_no_more_waits_than_is_allowed(new: New, path: Path) -> None:
    j = new(buffer_bytes=1000)
    with held(j):
        made = []
        with pytest.raises(BufferFull, match="append again"):
            for i in range(100):
                made.append(j.append_nowait(b"%100d" % i))
        assert len(made) == 9  # with the heads
        began = time.monotonic()
        with pytest.raises(TimeoutError):  # which it is too
            j.append(b"x" * 100, timeout_s=0.05)
        assert time.monotonic() - began >= 0.05
        with pytest.raises(BufferFull):
            j.append_many([b"x" * 50] * 2, timeout_s=0)
        j.append_nowait(b"x" * 50)  # something shorter fits
        waiting = Ran(lambda: j.append(b"waited" * 50))
        until(lambda: waiting.is_alive(), "it waits")
        with pytest.raises(AssertionError):
            waiting.result(0.05)
    waiting.result().result()
    assert stored(path) == [*(b"%100d" % i for i in range(9)), b"x" * 50, b"waited" * 50]


def test_something_longer_than_all_that_may_wait_is_taken_by_itself(new: New, path: Path) -> None:
    j = new(buffer_bytes=1)
    for i in range(5):
        j.append(b"%d" % i * 1000)
    j.append(b"last").result()
    assert [p[:1] for p in stored(path)] == [b"0", b"1", b"2", b"3", b"4", b"l"]


def test_threads_that_wait_for_room_all_get_it(new: New, path: Path) -> None:
    j = new(buffer_bytes=200)

    def work(me: int) -> None:
        for i in range(100):
            j.append(b"%d.%d" % (me, i) + bytes(50))

    threads = [Ran(lambda me=me: work(me)) for me in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    j.flush()
    found = [p.rstrip(b"\0") for p in stored(path)]
    for me in range(4):
        assert [p for p in found if p.startswith(b"%d." % me)] == [b"%d.%d" % (me, i) for i in range(100)]
    assert len(found) == 400


@pytest.mark.parametrize("bad", [0, -1, 1.5, "many", 1 << 64])
def test_a_bound_that_is_none(path: Path, bad: object) -> None:
    with pytest.raises(ValueError, match="buffer_bytes"):
        Journal(path, buffer_bytes=bad)  # type: ignore[arg-type]
    for linger_s in (-1.0, "long"):
        with pytest.raises(ValueError, match="linger_s"):
            Journal(path, linger_s=linger_s)  # type: ignore[arg-type]
    assert not path.exists()


def test_a_time_to_linger_may_be_any_real_number(path: Path) -> None:
    with Journal(path, linger_s=Decimal("0.001")) as j:  # type: ignore[arg-type]
        j.append(b"x").result(20)


# ---- waiting for more ----


def test_flush_waits_for_everything(new: New, path: Path) -> None:
    j = new()
    with held(j):
        made = [j.append(b"%d" % i) for i in range(10)]
        with pytest.raises(TimeoutError):
            j.flush(0.01)
    j.flush()
    assert all(appended.done() for appended in made)
    j.flush()
    assert len(stored(path)) == 10


def test_a_journal_that_lingers_waits_for_more(new: New, path: Path) -> None:
    j = new(linger_s=3600.0)
    made = [j.append(b"%d" % i) for i in range(10)]
    number = j.checkpoint()
    with pytest.raises(TimeoutError):
        made[0].result(0.05)
    assert not number.done()
    assert stored(path) == []
    j.flush()
    assert made[-1].done()
    assert number.result(0) == 1
    assert batches(path) == [1, 11]
    j.append(b"late")
    j.close()
    assert stored(path)[-1] == b"late"


def test_a_linger_ends(new: New, path: Path) -> None:
    j = new(linger_s=0.02)
    began = time.monotonic()
    one, two = j.append(b"a"), j.append(b"b")
    one.result(60)
    assert time.monotonic() - began >= 0.02
    assert two.done()
    assert batches(path) == [1, 2]


# ---- many at once ----


def test_threads_append_at_once_and_each_one_keeps_its_order(new: New, path: Path) -> None:
    j = new()
    start = threading.Barrier(4)

    def work(me: int) -> None:
        start.wait()
        made = [j.append(b"%d.%d" % (me, i)) for i in range(300)]
        for appended in made:
            appended.result()

    threads = [Ran(lambda me=me: work(me)) for me in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    found = stored(path)
    for me in range(4):
        assert [p for p in found if p.startswith(b"%d." % me)] == [b"%d.%d" % (me, i) for i in range(300)]
    j.close()
    assert sorted(payloads(walked(new()))) == sorted(found)


def test_a_large_record_and_small_ones_beside_it(new: New, path: Path) -> None:
    """Large ones are copied without a lock that the others would wait for; none is lost or cut."""
    j = new()
    large = bytes(range(256)) * 4000

    def work() -> None:
        for _ in range(20):
            j.append(large)

    thread = Ran(work)
    n = 0
    while thread.is_alive():
        j.append(b"%d" % n)
        n += 1
    thread.result()
    j.flush()
    found = [item for n in by_hand.numbers(path) for item in by_hand.pieces((path / f"{n}.journal").read_bytes())]
    assert [p.body for p in found if p.kind == 0 and len(p.body) < 100] == [b"%d" % i for i in range(n)]
    assert [p.body for p in found if len(p.body) >= 100] == [large] * 20
    assert log_of(j).active().segment >= 4
