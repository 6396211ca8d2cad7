"""Appending: what is accepted, what comes back, and that it is what a tailer then reads."""

from __future__ import annotations

import array
import mmap
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flush, InvalidPayload, LogClosed, PayloadTypeError, Queue, Roll
from penstock.kernel import NAME
from penstock.kernel.spec import SPACE
from tests.support import until

SLOW = NAME == "reference"


def payloads(q: Queue, at: int | str = "start") -> list[bytes]:
    return [m.payload for m in q.tailer(at=at)]


def test_append_returns_dense_sequences_from_zero(path: Path) -> None:
    with Queue(path) as q:
        assert (q.first_sequence, q.next_sequence) == (0, 0)
        assert [q.append(b"%d" % i) for i in range(100)] == list(range(100))
        assert (q.first_sequence, q.next_sequence) == (0, 100)
        assert payloads(q) == [b"%d" % i for i in range(100)]


def test_a_message_has_sequence_timestamp_and_payload(path: Path) -> None:
    with Queue(path) as q:
        before = datetime.now(UTC)
        q.append(b"hello")
        message = q.tailer().read()
        after = datetime.now(UTC)
        assert message is not None
        assert (message.sequence, message.payload) == (0, b"hello")
        assert message.timestamp is not None
        assert message.timestamp.tzinfo is UTC
        assert before.replace(microsecond=before.microsecond) <= message.timestamp <= after
        assert pickle.loads(pickle.dumps(message)) == message


def test_sequences_go_on_after_a_reopen(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a")
        q.append_batch([b"b", b"c"])
    with Queue(path) as q:
        assert q.recovery.clean
        assert q.append(b"d") == 3
        assert payloads(q) == [b"a", b"b", b"c", b"d"]


def test_a_queue_reaches_another_process_by_pickle(path: Path) -> None:
    with Queue(path, file_size=65536, roll=Roll.count(2)) as q:
        q.append(b"a")
        with pickle.loads(pickle.dumps(q)) as other:
            assert other.append(b"b") == 1
        assert payloads(q) == [b"a", b"b"]


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        memoryview,
        lambda b: memoryview(b"__" + b + b"__")[2:-2],
        lambda b: array.array("B", b),
        lambda b: pa.py_buffer(b),
    ],
    ids=["bytearray", "memoryview", "part of a memoryview", "array", "arrow buffer"],
)
@pytest.mark.parametrize("how", ["append", "append_batch"])
def test_anything_bytes_like_is_a_payload(path: Path, make: Callable[[bytes], Any], how: str) -> None:
    with Queue(path) as q:
        if how == "append":
            q.append(make(b"payload"))
        else:
            q.append_batch([make(b"payload")])
        assert payloads(q) == [b"payload"]


def test_items_wider_than_a_byte_are_stored_as_their_bytes(path: Path) -> None:
    numbers = array.array("I", [1, 2, 3])
    square = memoryview(bytes(range(16))).cast("B", (4, 4))
    with Queue(path) as q:
        q.append(numbers)
        q.append_batch([numbers, square])
        assert payloads(q) == [numbers.tobytes(), numbers.tobytes(), bytes(range(16))]


def test_a_map_and_a_bytes_subclass_are_payloads(path: Path) -> None:
    class Text(bytes):
        pass

    with Queue(path) as q, mmap.mmap(-1, 4096) as room:
        room[:3] = b"abc"
        q.append(room)
        q.append(Text(b"sub"))
        first, second = payloads(q)
        assert first == b"abc" + bytes(4093)
        assert (second, type(second)) == (b"sub", bytes)


def test_a_payload_changed_after_append_stays_as_it_was(path: Path) -> None:
    payload = bytearray(b"before")
    with Queue(path) as q:
        q.append(payload)
        payload[:] = b"after!"
        assert payloads(q) == [b"before"]


# ---- batches ----


class Numbers(Sequence[bytes]):
    """A sequence that makes its items when asked."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        if i >= self._count:
            raise IndexError(i)
        return b"%d" % i


@pytest.mark.parametrize("make", [list, tuple, lambda n: Numbers(len(n)), lambda n: dict.fromkeys(n).keys()])
def test_a_batch_is_any_sized_collection(path: Path, make: Callable[[list[bytes]], Any]) -> None:
    wanted = [b"%d" % i for i in range(10)]
    with Queue(path) as q:
        q.append(b"first")
        assert q.append_batch(make(wanted)) == range(1, 11)
        assert payloads(q, 1) == wanted


def test_an_empty_batch_appends_nothing(path: Path) -> None:
    with Queue(path) as q:
        assert q.append_batch([]) == range(0)
        q.append(b"a")
        assert q.append_batch(()) == range(1, 1)
        assert q.append_batch(pa.array([], pa.binary())) == range(1, 1)
        assert q.append_batch(pa.chunked_array([], pa.binary())) == range(1, 1)
        assert q.next_sequence == 1


@pytest.mark.parametrize(
    ("bad", "error"),
    [(b"", InvalidPayload), ("text", PayloadTypeError), (None, PayloadTypeError), (7, PayloadTypeError)],
)
def test_one_bad_payload_refuses_the_whole_batch(path: Path, bad: Any, error: type[Exception]) -> None:
    with Queue(path) as q:
        with pytest.raises(error):
            q.append_batch([b"a", bad, b"c"])
        assert q.next_sequence == 0
        assert q.append(b"a") == 0


@pytest.mark.parametrize("payloads", [b"one", "text", None, 5, iter([b"a"])])
def test_a_batch_is_a_list(path: Path, payloads: Any) -> None:
    with Queue(path) as q, pytest.raises(PayloadTypeError, match="takes a list of payloads, not one"):
        q.append_batch(payloads)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_arrow_arrays_are_batches(path: Path, kind: pa.DataType) -> None:
    wanted = [b"%d" % i * (i + 1) for i in range(50)]
    column = pa.array(wanted, pa.binary()).cast(kind)
    with Queue(path) as q:
        assert q.append_batch(column) == range(50)
        assert q.append_batch(column[10:20]) == range(50, 60)
        assert q.append_batch(column.slice(49)) == range(60, 61)
        assert payloads(q) == wanted + wanted[10:20] + wanted[49:]


def test_chunked_arrow_arrays_are_one_batch(path: Path) -> None:
    chunks = [pa.array([b"a", b"bb"]), pa.array([], pa.binary()), pa.array([b"x", b"ccc", b"y"])[1:2]]
    with Queue(path) as q:
        assert q.append_batch(pa.chunked_array(chunks)) == range(3)
        assert q.append_batch(pa.chunked_array(chunks[:1])) == range(3, 5)
        assert payloads(q) == [b"a", b"bb", b"ccc", b"a", b"bb"]


def test_arrow_nulls_empty_values_and_other_types_are_refused(path: Path) -> None:
    with Queue(path) as q:
        for column, error in (
            (pa.array([b"a", None]), InvalidPayload),
            (pa.array([b"a", b""]), InvalidPayload),
            (pa.array([1, 2]), PayloadTypeError),
            (pa.array([b"aa"], pa.binary(2)), PayloadTypeError),
        ):
            with pytest.raises(error):
                q.append_batch(column)
        assert q.next_sequence == 0


def test_what_read_arrow_gives_can_be_appended(path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"a", b"bb", b"ccc"])
        assert q.append_batch(q.tailer(at=1).read_arrow(10).column("payload")) == range(3, 5)
        assert payloads(q) == [b"a", b"bb", b"ccc", b"bb", b"ccc"]


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_a_batch_larger_than_a_file_spans_several(path: Path, arrow: bool, before: int) -> None:
    wanted = [bytes([i]) * (1 + i * 37 % 900) for i in range(1, 101)]
    with Queue(path, file_size=8192, index_interval=3) as q:
        for _ in range(before):
            q.append(b"before")
        batch: Any = pa.array(wanted) if arrow else wanted
        assert q.append_batch(batch) == range(before, before + 100)
        assert q.append(b"after") == before + 100
        messages = list(q.tailer())
        assert [m.payload for m in messages] == [b"before"] * before + wanted + [b"after"]
        assert [m.sequence for m in messages] == list(range(before + 101))
        assert len({m.timestamp for m in messages[before:-1]}) == 1  # one batch, one time
    assert len(list(path.rglob("*.data"))) > 8
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert payloads(q) == [b"before"] * before + wanted + [b"after"]


def test_spanning_batches_follow_each_other(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        wanted = []
        for n in range(4):
            batch = [b"%d:%d" % (n, i) + bytes(500) for i in range(20)]
            assert q.append_batch(batch) == range(n * 20, n * 20 + 20)
            wanted += batch
        assert payloads(q) == wanted


def test_a_record_too_large_inside_a_spanning_batch_changes_nothing(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        with pytest.raises(InvalidPayload, match="4084"):
            q.append_batch([b"x" * 3000, b"x" * 5000, b"x" * 3000])
        assert q.next_sequence == 0
        assert q.append_batch([b"x" * 3000, b"y" * 3000]) == range(2)


# ---- threads ----


def test_threads_share_an_appender(path: Path) -> None:
    count = 200 if SLOW else 2000
    with Queue(path, file_size=1 << 20) as q:
        appender = q.appender()
        start = threading.Barrier(8)

        def work(number: int) -> list[int]:
            start.wait()
            return [appender.append(b"%d:%d" % (number, i)) for i in range(count)]

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(work, range(8)))
        assert sorted(s for part in taken for s in part) == list(range(8 * count))
        read = {m.sequence: m.payload for m in q.tailer()}
    for number, part in enumerate(taken):
        assert part == sorted(part)
        assert [read[s] for s in part] == [b"%d:%d" % (number, i) for i in range(count)]


def test_batches_of_threads_do_not_mix(path: Path) -> None:
    rounds = 20 if SLOW else 100
    with Queue(path, file_size=65536, roll=Roll.size(20000)) as q:

        def work(number: int) -> list[range]:
            return [q.appender().append_batch([b"%d:%d" % (number, i)] * (1 + i % 40)) for i in range(rounds)]

        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(work, range(4)))
        read = payloads(q)
    for number, part in enumerate(taken):
        for i, sequences in enumerate(part):
            assert [read[s] for s in sequences] == [b"%d:%d" % (number, i)] * (1 + i % 40)
    assert sum(len(r) for part in taken for r in part) == len(read)


def test_threads_append_while_the_log_rolls(path: Path) -> None:
    count = 40 if SLOW else 150
    with Queue(path, file_size=8192, roll=Roll.count(7)) as q:

        def work(number: int) -> list[int]:
            out = []
            for i in range(count):
                if i % 10 == 9:
                    out += q.append_batch([b"%d" % number + bytes(700)] * 9)  # larger than a file
                else:
                    out.append(q.append(b"%d" % number))
            return out

        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(work, range(4)))
        read = payloads(q)
        assert sorted(s for part in taken for s in part) == list(range(len(read)))
        for number, part in enumerate(taken):
            assert {read[s][:1] for s in part} == {b"%d" % number}
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert payloads(q) == read


def test_two_objects_of_one_process_append_to_the_same_log(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(5)) as a, Queue(path) as b:
        taken = [(a, b)[i % 2].append(b"%d" % i) for i in range(60)]
        assert taken == list(range(60))
        assert payloads(a) == payloads(b) == [b"%d" % i for i in range(60)]


def test_an_append_beside_close_is_kept_or_refused(path: Path) -> None:
    kept: list[bytes] = []
    for turn in range(8):
        q = Queue(path, file_size=65536, roll=Roll.count(200))
        ready = threading.Barrier(4)

        def work(number: int, turn: int = turn, q: Queue = q, ready: threading.Barrier = ready) -> list[bytes]:
            done = []
            ready.wait()
            try:
                for i in range(2000):
                    done.append(b"%d:%d:%d" % (turn, number, i))
                    q.append(done[-1])
            except LogClosed:
                done.pop()
            return done

        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(work, n) for n in range(3)]
            ready.wait()
            wanted = q.next_sequence + 20
            until(lambda q=q, wanted=wanted: q.next_sequence >= wanted, "the threads append")  # type: ignore[misc]
            q.close()
            kept += [p for job in jobs for p in job.result(60)]
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        assert sorted(payloads(q)) == sorted(kept)


# ---- time ----


def test_timestamps_lie_within_the_call_and_never_run_backwards(path: Path) -> None:
    bounds = []
    with Queue(path, file_size=1 << 16, roll=Roll.count(100)) as q:
        for i in range(500 if SLOW else 2000):
            before = time.time_ns() // 1000
            q.append(b"x") if i % 3 else q.append_batch([b"x"])
            bounds.append((before, time.time_ns() // 1000))
        times = [m.timestamp_us for m in q.tailer()]
    assert times == sorted(times)
    slack = 5000  # the native kernel sets its clock by the real one every two milliseconds, and may be interrupted over that
    outside = [
        (low, us, high) for (low, high), us in zip(bounds, times, strict=True) if not low - slack <= us <= high + slack
    ]
    assert outside == []


def test_a_clock_set_back_does_not_turn_time_around(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.storage import files

    with Queue(path, file_size=8192) as q:
        monkeypatch.setattr(files, "now_us", lambda: time.time_ns() // 1000 + 5_000_000)
        q.append_batch([bytes([1]) * 900] * 20)  # spans files, so the time is asked of `files`
        monkeypatch.undo()
        q.append(b"later, but the clock says earlier")
        times = [m.timestamp_us for m in q.tailer()]
        assert times == sorted(times)


# ---- durability ----


def test_flush_none_leaves_syncing_to_the_caller(path: Path) -> None:
    with Queue(path, flush=Flush.none()) as q:
        q.append(b"a")
        assert q.durable_sequence == 0
        assert q.sync() == q.durable_sequence == 1


def test_flush_each_is_durable_when_append_returns(path: Path) -> None:
    with Queue(path, flush=Flush.each(), file_size=8192, roll=Roll.count(3)) as q:
        for i in range(10):
            assert q.append(b"%d" % i) == i
            assert q.durable_sequence == i + 1
        assert q.append_batch([b"x" * 1000] * 10) == range(10, 20)
        assert q.durable_sequence == 20
        assert q.appender().append(b"y") == 20
        assert q.durable_sequence == 21


@pytest.mark.parametrize(
    "flush", [Flush.batch(bytes=1, interval_s=3600), Flush.batch(bytes=1 << 30, interval_s=0.01)], ids=["bytes", "time"]
)
def test_flush_batch_syncs_by_itself(path: Path, flush: Flush) -> None:
    with Queue(path, flush=flush, file_size=8192, roll=Roll.count(4)) as q:
        for i in range(10):
            q.append(b"%d" % i)
            if i % 3 == 0:
                until(lambda: q.durable_sequence == q.next_sequence, "all of it is synced")
        until(lambda: q.durable_sequence == 10, "the last one is synced")


def test_closing_syncs(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a")
    with Queue(path) as q:
        assert q.durable_sequence == 1


async def _close_in_a_loop(path: Path) -> None:
    async with Queue(path) as q:
        q.append(b"a")
    assert q.closed
    await q.aclose()


def test_aclose_closes_and_may_be_called_twice(path: Path) -> None:
    import asyncio

    asyncio.run(_close_in_a_loop(path))
    with Queue(path) as q:
        assert payloads(q) == [b"a"]


def test_close_may_be_called_twice_and_on_each_side_of_with(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a")
        q.close()
        q.close()
    assert q.closed
    assert "closed" in repr(q)


def test_an_unclosed_queue_warns_and_loses_nothing(path: Path) -> None:
    q = Queue(path)
    q.append(b"a")
    with pytest.warns(ResourceWarning, match="unclosed queue"):
        del q
    with Queue(path) as q:
        assert q.recovery.clean
        assert payloads(q) == [b"a"]


def test_what_has_to_make_room_while_it_is_closed_is_refused(path: Path) -> None:
    """It would stand on a segment again that the close has sealed already."""
    q = Queue(path)
    q.append(b"a")
    log = q._open_log()
    log._closing = True
    for late in (lambda: log.mapped._slow(SPACE, 100, 1), log.roll_now):
        with pytest.raises(LogClosed, match="is being closed"):
            late()
    q.close()
