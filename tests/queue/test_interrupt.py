"""Ctrl-C, or any signal whose handler raises, at any moment of a call: the lock is never left behind.

The handler raises wherever the interpreter looks for signals, thousands of times, while the calls that take the lock in
Python run. After each the log must go on at once, for this thread and for others.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Flush, Queue, Roll, kernel
from penstock.storage import files
from penstock.storage.control import FileLock
from tests.support import AWhile

pytestmark = [
    pytest.mark.skipif(
        kernel.NAME == "reference",
        reason="the reference kernel is Python: a signal may come between any two of its lines",
    ),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # it comes in finalizers too
]
SECONDS = 3.0


class Interrupted(BaseException):
    """What the handler raises."""


def interrupted(call: Callable[[], object], after_s: float) -> bool:
    """Call, and raise `Interrupted` in it once that time has passed; False when it was done before."""
    armed = True

    def raise_it(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        call()
        armed = False
        return False
    except Interrupted:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_another_thread(q: Queue) -> None:
    """Append from another thread, which must not have to wait for this one."""
    done = threading.Event()

    def append() -> None:
        q.append(b"from another thread")
        done.set()

    threading.Thread(target=append, daemon=True).start()
    assert done.wait(20), "the lock was left behind"


def test_who_waits_for_the_lock_can_be_interrupted(path: Path) -> None:
    """Its holder may be stopped for good."""
    held, may_go = threading.Event(), threading.Event()
    with Queue(path) as q:

        def hold() -> None:
            with q._open_log().locked():
                held.set()
                may_go.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(20)
            assert interrupted(lambda: q.append(b"x"), 0.1)
            assert holder.is_alive()
        finally:
            may_go.set()
            holder.join()
        assert q.append(b"y") == 0
        in_another_thread(q)


def test_the_lock_is_never_left_behind(path: Path) -> None:
    """Every call here takes the lock from Python: syncs, rolls and appends that find no room."""
    times = 0
    with Queue(path, file_size=1 << 16, roll=Roll.count(40), flush=Flush.each()) as q:
        delay_us = 50
        a_while = AWhile(SECONDS)
        while a_while.goes_on(enough=times > 50):
            delay_us = delay_us % 600 + 7
            before = q.next_sequence
            times += interrupted(lambda: [q.append(b"x" * 500) for _ in range(50)], delay_us / 1e6)
            assert q.next_sequence >= before
            in_another_thread(q)
        count = q.next_sequence
        assert [m.sequence for m in q.tailer()] == list(range(count))
    assert times > 50
    with Queue(path) as q:
        assert q.recovery.damage == []
        assert [m.sequence for m in q.tailer()] == list(range(count))


def test_a_batch_over_several_files_is_whole_or_absent_when_interrupted(path: Path) -> None:
    sizes: set[int] = set()
    with Queue(path, file_size=8192) as q:
        delay_us = 50
        a_while = AWhile(SECONDS)
        while a_while.goes_on(enough=len(sizes) == 2):
            delay_us = delay_us % 20_000 + 131
            before = q.next_sequence
            interrupted(lambda: q.append_batch([b"y" * 1000] * 20), delay_us / 1e6)
            in_another_thread(q)
            sizes.add(q.next_sequence - before - 1)
        count = q.next_sequence
        assert [m.sequence for m in q.tailer()] == list(range(count))
    assert sizes <= {0, 20}
    assert len(sizes) == 2


def test_waiting_for_a_file_lock_that_is_interrupted_leaves_it_to_its_holder(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holding.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait()
    assert interrupted(lock.acquire, 0.01), "it was taken twice"
    fd = files.create(tmp_path / "lock", exclusive=False)
    assert not files.lock(fd, shared=False, wait=False), "the holder lost its lock"
    let_go.set()
    holder.join()
    assert files.lock(fd, shared=False, wait=False)
    files.close(fd)
    lock.close()


def test_an_append_interrupted_while_it_took_its_place_in_a_file_goes_on(path: Path) -> None:
    """The kernel stands on the file, but the log has not noted that yet: the append that finds no room takes its place anew."""
    with Queue(path, file_size=1 << 22) as q:
        log = q._log
        assert log is not None
        if log.mapped.ahead_fd >= 0:  # nobody allocates ahead
            files.close(log.mapped.ahead_fd)
            log.mapped.ahead_fd = -1
        q.append(b"first")
        log.mapped.segment = None
        for _ in range(3000):
            q.append(b"x" * 500)
        assert q.next_sequence == 3001
