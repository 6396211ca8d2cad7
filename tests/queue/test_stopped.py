"""A process that stands still (SIGSTOP), lock in hand: in the midst of an append, and at each store of the slower things. Others wait for
it, readers go on, nobody breaks in; and when it goes on, it does so as if nothing had been.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from penstock.kernel import layout
from tests.channel.conftest import Ran
from tests.queue.crash import Image, Yard
from tests.queue.dying import (
    BEFORE,
    LATE,
    SLOW,
    Zygote,
    append_at_once,
    assert_nothing_beyond,
    assert_whole_after_reopening,
    open_queue,
    open_zygote,
    payloads,
    stand,
)
from tests.queue.test_kill_points import Writing, die_at
from tests.queue.test_kill_stores import SWEEPS, Fuse
from tests.stopping import is_stopped, some_calls
from tests.support import until

PATIENCE_S = 0.5
WAIT_S = 0.02  # to see whether something is done at once


def stand_with_half(path: str) -> None:
    """In a child: stand still with half an append, and then finish it."""
    q = open_queue(path)  # named: dropping it would close it
    w = Writing(q, [LATE])
    w.announce()
    w.put(4, len(w.frames) // 2)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    w.put_all()
    w.store(layout.NEXT, w.now.next + 1)
    w.store(layout.END, w.end)
    w.control.page.unlock()
    q.append(b"and on")
    os._exit(7)


@pytest.fixture(scope="module")
def standing() -> Iterator[Zygote]:
    with open_zygote(stand_with_half) as made:
        yield made


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_writer_that_stands_still_with_the_lock_is_waited_for(
    path: Path, standing: Zygote, then: signal.Signals
) -> None:
    with open_queue(path) as q:
        q.append_batch(BEFORE)
        standing.tell(str(path))
        pid = int(standing.answer())
        until(lambda: is_stopped(pid), "it stops")
        waits = Thread(target=q.append, args=(b"x",), daemon=True)
        try:
            waits.start()
            with q.tailer() as tailer:
                assert [m.payload for m in tailer] == BEFORE
            waits.join(PATIENCE_S)
            assert waits.is_alive(), "it did not wait"
            assert q.next_sequence == len(BEFORE)
        finally:
            os.kill(pid, then)
        ended = int(standing.answer())
        waits.join(10)
        assert not waits.is_alive()
        found = payloads(q)
        if then == signal.SIGCONT:
            assert ended == 7
            assert found[: len(BEFORE) + 1] == [*BEFORE, LATE]
            assert sorted(found[len(BEFORE) + 1 :]) == [b"and on", b"x"]
        else:
            assert ended == -signal.SIGKILL
            assert found == [*BEFORE, b"x"]
        append_at_once(q, b"y")
        assert_nothing_beyond(q)
    assert_whole_after_reopening(path, [*found, b"y"])


# ---- at each store of the slower things ----


def stand_at_store(path: str, what: str, stores: int) -> None:
    """In a child: do it, and stand still at the n-th store."""
    fuse = Fuse(stores, stand)
    fuse.lay()
    q = SWEEPS[what][0](path, fuse.light)
    fuse.left = 0
    q.close()
    os._exit(7)


@pytest.fixture(scope="module")
def standing_at_store() -> Iterator[Zygote]:
    with open_zygote(stand_at_store) as made:
        yield made


@pytest.fixture(scope="module")
def dies_at() -> Iterator[Zygote]:
    with open_zygote(die_at) as made:
        yield made


@pytest.mark.parametrize(("what", "step"), [("roll", 7), ("span", 60), ("seal", 5), ("close", 3), ("open", 1)])
def test_one_that_stands_still_at_any_store_holds_nobody_up_but_who_needs_its_lock(
    yard: Yard, standing_at_store: Zygote, what: str, step: int
) -> None:
    """Others that have it open read on meanwhile; what they append is in at once, or when it goes on."""
    went_on = waited = 0
    for stores in some_calls(step):
        path = yard.new()
        with open_queue(path) as q:
            q.append_batch(BEFORE)
            standing_at_store.tell(str(path), what, stores)
            said = standing_at_store.answer()
            with standing_at_store.standing(said) as stands:
                if stands:
                    assert Ran(lambda q=q: payloads(q)).result()[: len(BEFORE)] == BEFORE
                    adding = Ran(lambda q=q: q.append(b"x"))
                    adding.join(WAIT_S)
                    went_on, waited = went_on + (not adding.is_alive()), waited + adding.is_alive()
            if not stands:
                assert said == "7"
                break
            assert standing_at_store.answer() == "7"
            adding.result()
            found = payloads(q)
            done = SWEEPS[what][1][-1]
            assert found in ([*BEFORE, *done, b"x"], [*BEFORE, b"x", *done]), f"at store {stores}"
            assert_nothing_beyond(q)
        assert_whole_after_reopening(path, found)
    assert went_on + waited >= 3
    assert went_on or what in ("roll", "span"), "of these much is done without the lock"
    assert waited or what not in ("roll", "span")


def closed(path: Path, dies_at: Zygote) -> None:
    with open_queue(path) as q:
        q.append_batch(BEFORE)


def died(path: Path, dies_at: Zygote) -> None:
    """A process died in the midst of an append, and nobody has it open."""
    closed(path, dies_at)
    assert dies_at(path, "payload half written") == -signal.SIGKILL


def went_down(path: Path, dies_at: Zygote) -> None:
    """The machine, over what another process had left half done."""
    died(path, dies_at)
    Image.take(path).lay(path, "new")


@pytest.mark.parametrize("left", [closed, died, went_down])
def test_one_that_stands_still_over_opening_is_waited_for(
    yard: Yard, standing_at_store: Zygote, dies_at: Zygote, left: Callable[[Path, Zygote], None]
) -> None:
    """Who opens it too comes to the same, and so does who only reads, sooner or later."""
    stood = 0
    for stores in some_calls(4 if SLOW else 3):
        path = yard.new()
        left(path, dies_at)
        standing_at_store.tell(str(path), "open", stores)
        said = standing_at_store.answer()
        with standing_at_store.standing(said) as stands:
            if stands:
                opening = Ran(lambda path=path: open_queue(path))
                reading = Ran(lambda path=path: read(path))
                opening.join(WAIT_S)
                reading.join(WAIT_S)
                stood += 1
        if not stands:
            assert said == "7"
            break
        assert standing_at_store.answer() == "7"
        assert reading.result() == BEFORE, f"at store {stores}"
        with opening.result() as q:
            append_at_once(q, b"x")
            assert payloads(q) == [*BEFORE, b"x"], f"at store {stores}"
            assert_nothing_beyond(q)
        assert_whole_after_reopening(path, [*BEFORE, b"x"])
    assert stood >= 3


def read(path: Path) -> list[bytes]:
    with open_queue(path, read_only=True) as q:
        return payloads(q)
