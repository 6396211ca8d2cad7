"""Receivers that share a name: each message goes to exactly one of them, and what is done beyond a gap stays done."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import Channel, LogBusy, LogClosed, NotALog, Receiver, codecs
from penstock.storage.cursor import Cursors
from penstock.storage.ranges import Ranges
from tests.channel.conftest import AT_ONCE_S, SLOW, Ran, asleep, offsets_of, payload
from tests.support import until

SENT = [payload(i) for i in range(40)]
AT = offsets_of(SENT)


@pytest.fixture
def filled(path: Path) -> Path:
    with Channel(path) as ch:
        ch.tx().send_many(SENT)
    return path


# ---- sharing the work ----


@pytest.mark.parametrize("ack", [False, True])
def test_each_message_goes_to_exactly_one(filled: Path, ack: bool) -> None:
    with Channel(filled) as ch:
        one, two, three = (ch.rx("pool", shared=True, ack=ack) for _ in range(3))
        other = ch.rx("other")
        got = [rx.recv() for rx in (one, two, one, three, two)]
        assert got == SENT[:5]
        assert {one.id, two.id, three.id} == {"pool"}
        assert three.recv_many(10) == SENT[5:15]
        assert one.recv_many(100) == SENT[15:]
        assert two.try_recv() is None
        assert other.recv_many(100) == SENT
        if ack:
            assert (one.unacked, two.unacked, three.unacked) == (27, 2, 11)


@pytest.mark.parametrize("ack", [False, True])
def test_threads_that_share_a_name_share_all_of_the_work(path: Path, ack: bool) -> None:
    count = 600 if SLOW else 3000
    with Channel(path, codecs.msgpack(int), segment_bytes=2000, compression="snappy") as ch:
        pool = [ch.rx("pool", shared=True, ack=ack) for _ in range(4)]
        alone = ch.rx("alone")

        def work(rx: Receiver[int], seed: int) -> list[int]:
            rng, out = random.Random(seed), list[int]()
            try:
                while True:
                    out += rx.recv_many(5) if rng.random() < 0.3 else [rx.recv()]
                    if ack and rng.random() < 0.2:
                        rx.ack(rng.randint(0, rx.unacked))
            except LogClosed:
                return out

        threads = [Ran(lambda rx=rx, i=i: work(rx, i)) for i, rx in enumerate(pool)]  # type: ignore[misc]
        for i in range(count):
            ch.tx().send(i)
        if ack:
            until(lambda: pool[0]._group.peek(1, bytes) == [], "all is received")
        else:
            until(lambda: pool[0].offset == ch.stats().write_offset, "all is received")
        assert [alone.recv() for _ in range(count)] == list(range(count))
        ch.close()
        parts = [thread.result() for thread in threads]
    assert sorted(i for part in parts for i in part) == list(range(count))
    assert all(part == sorted(part) for part in parts)


def test_receivers_of_one_name_must_be_made_alike(filled: Path) -> None:
    with Channel(filled) as ch:
        pool = ch.rx("pool", shared=True, ack=True)
        with pytest.raises(ValueError, match="ack=True"):
            ch.rx("pool", shared=True)
        with pytest.raises(LogBusy, match="shared=True on both"):
            ch.rx("pool", ack=True)
        alone = ch.rx("alone")
        with pytest.raises(LogBusy, match="shared=True on both"):
            ch.rx("alone", shared=True)
        assert (pool.unacked, alone.offset) == (0, 0)  # they are open all the time


# ---- leaving ----


def test_what_one_that_leaves_has_not_acknowledged_goes_to_the_others_in_order(filled: Path) -> None:
    with Channel(filled) as ch:
        one, two, three = (ch.rx("pool", shared=True, ack=True) for _ in range(3))
        assert [one.recv(), two.recv(), three.recv(), one.recv(), two.recv()] == SENT[:5]
        two.ack(1)
        two.close()
        one.close()
        assert [three.recv() for _ in range(4)] == [SENT[0], SENT[3], SENT[4], SENT[5]]
        assert three.unacked == 5
        three.ack(1)  # message 2: 0 is still open
        assert three.offset == 0
        three.ack(1)
        assert three.offset == AT[3]
        three.ack(3)
        assert three.offset == AT[6]


def test_one_that_nobody_has_any_more_has_left(filled: Path) -> None:
    with Channel(filled) as ch:
        assert ch.rx("alone").recv() == SENT[0]
        assert ch.rx("alone").recv() == SENT[1]
        assert ch.rx("pool", shared=True, ack=True).recv() == SENT[0]  # not acknowledged
        assert ch.rx("pool", shared=True, ack=True).recv() == SENT[0]


def test_what_one_that_nobody_has_any_more_had_goes_to_the_others(filled: Path) -> None:
    with Channel(filled) as ch:
        other = ch.rx("pool", shared=True, ack=True)
        assert ch.rx("pool", shared=True, ack=True).recv_many(len(SENT)) == SENT
        assert other.recv_many(len(SENT), AT_ONCE_S) == SENT


def test_one_that_waits_is_woken_by_what_another_gives_back(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
        leaves, waits = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        assert leaves.recv() == b"a"
        waiting = Ran(lambda: (waits.recv(timeout_s=30), time.monotonic()))
        until(lambda: asleep(ch), "it sleeps")
        began = time.monotonic()
        leaves.close()
        got, woken = waiting.result()
        assert got == b"a"
        assert woken - began < AT_ONCE_S


def test_receivers_that_come_and_go_lose_no_message(path: Path) -> None:
    """Threads join, take, acknowledge some and leave again, all at once: in the end everything was acknowledged once."""
    count = 400 if SLOW else 1500
    with Channel(path, codecs.msgpack(int), segment_bytes=1000) as ch:
        ch.tx().send_many(list(range(count)))
        done: list[int] = []
        stays = ch.rx("pool", shared=True, ack=True)

        def work(seed: int) -> None:
            rng = random.Random(seed)
            while len(done) < count:
                rx = ch.rx("pool", shared=True, ack=True)
                have = [obj for _ in range(rng.randint(1, 9)) if (obj := rx.try_recv()) is not None]
                n = rng.randint(0, len(have))
                rx.ack(n)
                done.extend(have[:n])
                rx.close()

        for thread in [Ran(lambda i=i: work(i)) for i in range(3)]:  # type: ignore[misc]
            thread.result()
        assert sorted(done) == list(range(count))
        assert stays.try_recv() is None
        assert stays.offset == ch.stats().write_offset


def test_the_last_one_that_leaves_and_the_next_one_that_comes_do_not_meet(path: Path) -> None:
    """Each time one may be the last to leave while the other joins: whoever joined can receive."""
    with Channel(path, codecs.msgpack(int)) as ch:
        ch.tx().send(1)
        ready = threading.Barrier(2, timeout=60)

        def work() -> None:
            for _ in range(100 if SLOW else 300):
                ready.wait()
                with ch.rx("pool", shared=True, ack=True) as rx:
                    if (got := rx.try_recv()) is not None:
                        assert got == 1
                    elif len(rx._group.members) == 1:
                        assert rx.recv(timeout_s=5) == 1

        threads = [Ran(work) for _ in range(2)]
        for thread in threads:
            thread.result()


def test_names_that_are_made_at_once_have_offsets_of_their_own(filled: Path) -> None:
    with Channel(filled) as ch:
        ready = threading.Barrier(8, timeout=60)

        def make(i: int) -> Receiver[bytes]:
            ready.wait()
            return ch.rx(f"r{i}")

        def same() -> Receiver[bytes]:
            ready.wait()
            return ch.rx("pool", shared=True)

        made = [Ran(lambda i=i: make(i)) for i in range(4)]  # type: ignore[misc]
        pool = [Ran(same) for _ in range(4)]
        for i, thread in enumerate(made):
            assert thread.result().recv_many(i + 1) == SENT[: i + 1]
        assert [thread.result().recv() for thread in pool] == SENT[:4]
        found = {name: r.offset for name, r in ch.stats().receivers.items()}
        assert found == {**{f"r{i}": AT[i + 1] for i in range(4)}, "pool": AT[4]}


def test_one_that_is_closed_while_its_thread_takes_keeps_nothing_for_itself(path: Path) -> None:
    """A message taken just after its receiver left would be nobody's, and come again only after a restart."""
    rounds = 60 if SLOW else 300
    with Channel(path, codecs.msgpack(int)) as ch:
        ch.tx().send_many(list(range(5)))
        stays = ch.rx("pool", shared=True, ack=True)
        for _ in range(rounds):
            leaves = ch.rx("pool", shared=True, ack=True)

            def take(rx: Receiver[int] = leaves) -> None:
                try:
                    while rx.try_recv() is not None:
                        pass
                except LogClosed:
                    pass

            taking = Ran(take)
            leaves.close()
            taking.result()
            assert sorted(stays.peek(10)) == list(range(5))


# ---- beyond a gap ----


def test_what_is_acknowledged_beyond_a_gap_survives_restarts(filled: Path) -> None:
    left = list(range(40))
    rng = random.Random(7)
    for _ in range(8):
        with Channel(filled) as ch:
            pool = [ch.rx("pool", shared=True, ack=True) for _ in range(3)]
            assert pool[0].offset == AT[left[0]]
            assert pool[0].peek(100) == [SENT[i] for i in left]
            have: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for i in left[:12]:
                who = rng.randrange(3)
                assert pool[who].recv() == SENT[i]
                have[who].append(i)
            for who in (1, 2):
                n = rng.randint(0, len(have[who]))
                pool[who].ack(n)
                left = [i for i in left if i not in have[who][:n]]
            if rng.random() < 0.3 and have[0]:
                pool[0].ack(1)
                left.remove(have[0][0])
            assert pool[0].offset == AT[left[0]]
    with Channel(filled) as ch:
        assert ch.rx("pool", shared=True, ack=True).recv_many(100) == [SENT[i] for i in left]


def test_closing_the_gap_frees_the_segments_behind_it(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        slow, fast = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        for message in SENT:
            ch.tx().send(message)
        assert slow.recv() == SENT[0]
        assert fast.recv_many(100) == SENT[1:]
        fast.ack(30)
        assert fast.offset == 0
        assert ch.rx().recv_many(3) == SENT[:3]
        slow.ack(1)
        assert fast.offset == AT[31]
        until(lambda: ch.stats().first_offset == AT[31], "what is done is removed")


def test_a_receiver_that_acknowledges_by_receiving_goes_on_beyond_the_gap_too(filled: Path) -> None:
    with Channel(filled) as ch:
        slow, fast = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        slow.recv()
        fast.recv_many(4)
        slow.recv()
        fast.ack(4)
    left = [0, *range(5, 40)]
    with Channel(filled) as ch:
        rx = ch.rx("pool")
        assert rx.recv() == SENT[0]
        assert rx.offset == AT[5]
        assert rx.recv_many(2) == SENT[5:7]
        rx.close()
        with ch.rx("pool", ack=True) as rx:
            assert rx.peek(1) == [SENT[7]]
    with Channel(filled) as ch:
        assert ch.rx("pool").recv_many(100) == [SENT[i] for i in left[3:]]


def test_recv_many_passes_over_what_is_done_beyond_gaps(filled: Path) -> None:
    with Channel(filled) as ch:
        slow, fast = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        for i in range(20):
            (fast if i % 3 else slow).recv()
        fast.ack(fast.unacked)
    left = [i for i in range(20) if i % 3 == 0] + list(range(20, 40))
    with Channel(filled) as ch:
        rx, got = ch.rx("pool"), list[bytes]()
        while len(got) < len(left):
            got += rx.recv_many(4, timeout_s=5)
        assert got == [SENT[i] for i in left]
        assert rx.offset == AT[40]


def test_seek_forgets_what_was_done_beyond_the_gap(filled: Path) -> None:
    with Channel(filled) as ch:
        slow, fast = (ch.rx("pool", shared=True, ack=True) for _ in range(2))
        slow.recv()
        fast.recv_many(5)
        fast.ack(3)
        fast.seek(0)
        assert (slow.unacked, fast.unacked) == (0, 0)
        assert slow.recv_many(8) == SENT[:8]
    with Channel(filled) as ch:
        assert ch.rx("pool", ack=True).recv_many(8) == SENT[:8]


def test_what_was_done_beyond_the_end_that_is_left_is_not_done(filled: Path) -> None:
    """After a power cut the channel may be shorter than a receiver was: what is sent then is not taken for done."""
    with Channel(filled) as ch:
        with ch.rx("pool", ack=True) as rx:
            rx.recv_many(2)
            rx.ack(2)
        slot = ch._slots()["pool"]
    Cursors(filled).store("pool", slot, [(AT[5], AT[7]), (AT[38], AT[40] + 1000), (AT[40] + 2000, AT[40] + 3000)])
    with Channel(filled) as ch:
        assert ch.recovery.cursors_set_back == {"pool": AT[40] + 3000}
        rx = ch.rx("pool", ack=True)
        more = [b"x" * 100] * 40
        ch.tx().send_many(more)
        assert rx.recv_many(200) == [*SENT[2:5], *SENT[7:38], *more]


def test_what_is_done_is_the_same_as_a_set_of_numbers_says() -> None:
    rng = random.Random(3)
    for _ in range(300):
        low = rng.randrange(20)
        done, said = Ranges(low), set(range(low))
        for _ in range(rng.randrange(1, 30)):
            start = rng.randrange(60)
            end = start + rng.randrange(8)
            before = done.low
            moved = done.add(start, end)
            said |= set(range(start, end))
            assert moved == (done.low > before)
            assert done.low == next(i for i in range(100) if i not in said)
            assert {i for a, b in done.beyond for i in range(a, b)} == {i for i in said if i >= done.low}
            assert all(b < c for (_, b), (c, _) in pairwise(done.beyond)), "ranges touch"
            for i in range(70):
                ends = done.end_of(i)
                assert (ends is not None) == (i in said)
                assert ends is None or ends == next(j for j in range(i, 100) if j not in said)
        again = Ranges(done.low, done.beyond)
        assert (again.low, again.beyond) == (done.low, done.beyond)
        copy, cut = done.copy(), rng.randrange(70)
        copy.cut(cut)
        assert {i for i in range(100) if copy.end_of(i) is not None} == {i for i in said if i < cut}
        assert (again.low, again.beyond) == (done.low, done.beyond), "the copy shares something"


# ---- the files of names ----


def test_a_name_whose_file_is_damaged_holds_everything_back(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        ch.rx("damaged")
        rx = ch.rx("worker")
        for message in SENT[:10]:
            ch.tx().send(message)
        assert rx.recv_many(5) == SENT[:5]
    file = path / "cursors" / "damaged"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with Channel(path, segment_bytes=1) as ch:
        rx = ch.rx("worker")
        assert rx.recv_many(100) == SENT[5:10]
        ch.tx().send(b"more")
        assert rx.recv() == b"more"
        assert ch._log is not None
        ch._tidy(ch._log)
        assert ch.stats().first_offset == 0
        assert ch.stats().receivers["damaged"].offset == 0
        with pytest.raises(NotALog, match="cursors/damaged"):
            ch.rx("damaged")
        other = ch.rx("other")
        assert other.recv() == SENT[0]
        assert rx.offset == ch.stats().write_offset
        ch.forget("damaged")
        until(lambda: ch.stats().first_offset == AT[1], "what it held back is removed")
        assert ch.rx("damaged").recv() == SENT[1]


def test_there_may_be_many_names_and_one_that_is_forgotten_makes_room(path: Path) -> None:
    with Channel(path, codecs.msgpack(int)) as ch:
        ch.tx().send_many(list(range(3)))
        size = (path / "offset").stat().st_size
        first = ch.rx("first")
        assert first.recv() == 0
        for i in range(10, 512):
            ch._log.cursors.store(f"r{i}", i, durable=False)  # type: ignore[union-attr]
        for i in range(10):
            with ch.rx(f"new{i}") as rx:
                assert rx.recv_many(i % 3 + 1) == list(range(i % 3 + 1))
        assert (path / "offset").stat().st_size > size, "it did not have to grow"
        assert first.recv() == 1
        ch.tx().send(3)
        slots = ch._slots()
        assert len(set(slots.values())) == len(slots)
        assert 0 not in slots.values()
    with Channel(path, codecs.msgpack(int)) as ch:
        assert ch.stats().write_offset == 4 * 9
        assert ch.rx("first").offset == 2 * 9
        for i in range(10):
            with ch.rx(f"new{i}") as rx:
                assert rx.offset == 9 * (i % 3 + 1)
        ch.forget("r77")
        with ch.rx("another") as rx:
            assert rx.recv() == 0
        assert ch._slots()["another"] == 77


def test_the_offset_file_that_was_lost_is_made_anew_and_everything_comes_again(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send_many(SENT)
        for i in range(3):
            with ch.rx(f"r{i}") as rx:
                rx.recv_many(10)
    (path / "offset").unlink()
    Cursors(path).store("far", 2000)  # as of one among thousands
    with Channel(path) as ch:
        for name in ("r0", "r1", "r2", "far"):
            with ch.rx(name) as rx:
                assert rx.recv_many(3) == SENT[:3]
    with Channel(path) as ch:
        assert {r.offset for r in ch.stats().receivers.values()} == {AT[3]}
