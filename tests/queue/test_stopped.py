"""A writer that stands still (SIGSTOP) in the midst of an append, lock in hand: others wait for it, readers go on, nobody breaks in."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from penstock.kernel import layout
from tests.queue.dying import (
    BEFORE,
    LATE,
    Zygote,
    append_at_once,
    assert_nothing_beyond,
    assert_whole_after_reopening,
    open_queue,
    open_zygote,
    payloads,
)
from tests.queue.test_kill_points import Writing
from tests.stopping import is_stopped
from tests.support import until

PATIENCE_S = 0.5


def stand(path: str) -> None:
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
    with open_zygote(stand) as made:
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
