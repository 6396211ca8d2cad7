"""Forks, signals, threads and ends: whoever uses a journal in the wrong place or at the wrong time is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from penstock import Journal, LogBusy, LogClosed, RecoveryUnfinished, SyncFailed, kernel
from penstock import journal as journal_module
from tests.forking import Child
from tests.journal import by_hand
from tests.journal.conftest import Ran, failing, held, log_of, payloads, small_files, walked
from tests.support import ROOT, AWhile, until, until_collected

New = Callable[..., Journal]
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def stored(path: Path) -> list[bytes]:
    return [item.payload for item in by_hand.items(path)[0]]


# ---- the end ----


def test_closing_twice_and_using_it_afterwards(new: New) -> None:
    j = new()
    appended = j.append(b"x")
    assert repr(j) == f"Journal({str(j.path)!r})"
    assert not j.closed
    j.close()
    j.close()
    assert j.closed
    assert repr(j) == f"Journal({str(j.path)!r}, closed)"
    assert appended.done()
    appended.result()
    for call in (
        lambda: j.append(b"x"),
        lambda: j.append(bytearray(b"x")),
        lambda: j.append_nowait(b"x"),
        lambda: j.append_many([b"x"]),
        j.checkpoint,
        j.check,
        j.flush,
        j.recovered,
    ):
        with pytest.raises(LogClosed):
            call()  # type: ignore[no-untyped-call]
    assert (j.first_unchecked, j.current) == (1, 0)


def test_closing_writes_what_there_is(new: New, path: Path) -> None:
    j = new()
    made = [j.append(b"%d" % i) for i in range(1000)]
    number = j.checkpoint()
    j.close()
    assert all(appended.done() for appended in made)
    assert number.result() == 1
    assert len(walked(new())) == 1000


def test_threads_close_at_once(new: New, path: Path) -> None:
    for _ in range(10):
        with new() as j:
            walked(j)
            j.append(b"x")
        j = new()
        start = threading.Barrier(4)

        def close(j: Journal = j, start: threading.Barrier = start) -> None:
            start.wait()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                j.close()
            assert j.closed

        for thread in [Ran(close) for _ in range(4)]:
            thread.result()


def test_appending_while_another_thread_closes(new: New, path: Path) -> None:
    """It is appended and done, or refused."""
    for _ in range(10):
        j = new()
        done: list[bytes] = []
        before = payloads(walked(j))

        def work(j: Journal = j, done: list[bytes] = done) -> None:
            i = 0
            while True:
                i += 1
                try:
                    appended = j.append(b"%d" % i)
                except LogClosed:
                    return
                appended.result()
                done.append(b"%d" % i)

        thread = Ran(work)
        while len(done) < 3:
            time.sleep(0)
        j.close()
        thread.result()
        j = new()
        assert payloads(list(j.recovered())) == done
        j.close()
        assert before is not None


def test_a_failed_close_lets_go_of_everything(new: New, path: Path) -> None:
    j = new()
    j.append(b"x").result()
    j.close()
    j = new()
    walk = iter(j.recovered())
    next(walk)
    with failing(j, "/dev/null"), pytest.raises(SyncFailed):
        j.append(b"y").result()
    with pytest.warns(RecoveryUnfinished):
        j.close()
    assert not j._janitor.is_alive()
    j = new()
    assert payloads(walked(j)) == [b"x"]


def test_a_close_whose_last_words_fail_lets_go_of_everything(new: New, path: Path) -> None:
    """There is nothing to walk, so closing would end the walk, and cannot."""
    with new() as j:
        j.append(b"x")
        j.checkpoint()
    j = new()
    j.check().result()
    with failing(j, "/dev/null"), pytest.raises(SyncFailed):
        j.close()
    assert j.closed
    assert not j._janitor.is_alive()
    j.close()
    new().append(b"y").result()


def test_a_close_that_finds_the_disk_full_leaves_the_end_of_the_walk_to_the_next_open(new: New, path: Path) -> None:
    with new() as j:
        j.append(b"x")
        j.checkpoint()
    j = new()
    j.check().result()
    with failing(j, "/dev/full"):
        j.close()
    assert (path / "recovery").exists()
    new()
    assert not (path / "recovery").exists()


def test_a_journal_that_nobody_closed(path: Path) -> None:
    j = Journal(path)
    j.append(b"x")
    whole = weakref.ref(j)
    with pytest.warns(ResourceWarning, match="unclosed journal"):
        del j
        until_collected(whole)
    with Journal(path) as j:
        assert payloads(walked(j)) == [b"x"]


def test_a_process_that_ends_without_closing(path: Path) -> None:
    code = """
import sys, warnings
from penstock import Journal
warnings.simplefilter("ignore")
j = Journal(sys.argv[1])
for i in range(1000):
    j.append(b"%d" % i)
j.checkpoint()
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with Journal(path) as j:
        assert [(r.payload, r.group, r.complete) for r in walked(j)] == [(b"%d" % i, 1, True) for i in range(1000)]


def test_many_journals_in_one_process(path: Path) -> None:
    tmp_path = path.parent
    journals = [Journal(tmp_path / str(i)) for i in range(20)]
    made = [j.append(b"%d" % i) for i, j in enumerate(journals)]
    for appended in made:
        appended.result()
    for j in journals:
        j.close()
    for i in range(20):
        with Journal(tmp_path / str(i)) as j:
            assert payloads(walked(j)) == [b"%d" % i]


# ---- forks ----


@FORKS
def test_a_forked_child_is_told_and_the_parent_goes_on(new: New, path: Path) -> None:
    with new() as j:
        j.append(b"old")
    j = new()
    before = j.append(b"before")
    with held(j):
        waiting = j.append(b"waiting")
        uses: dict[str, Callable[[], object]] = {
            "append": lambda: j.append(b"child"),
            "append of another type": lambda: j.append(bytearray(b"child")),
            "append_nowait": lambda: j.append_nowait(b"child"),
            "append_many": lambda: j.append_many([b"child"]),
            "checkpoint": j.checkpoint,
            "check": j.check,
            "flush": j.flush,
            "recovered": lambda: list(j.recovered()),
            "result": lambda: waiting.result(),
            "await": lambda: asyncio.run(_await(waiting)),
        }
        for name, use in uses.items():
            with Child(use) as child:
                said = child.said()
                assert said.startswith("LogClosed: "), (name, said)
                assert "open it again in the child process" in said
    with Child(j.close) as child:
        assert child.said() == "returned None"
    with Child(lambda: _second_opener(path)) as child:
        assert child.said() == f"returned 'process {os.getpid()}'"
    before.result()
    waiting.result()
    j.append(b"after").result()
    assert payloads(walked(j)) == [b"old"]
    assert stored(path) == [b"before", b"waiting", b"after"]


async def _await(awaitable: object) -> object:
    return await awaitable  # type: ignore[misc]


def _second_opener(path: Path) -> str:
    try:
        Journal(path)
    except LogBusy as busy:
        return " ".join(str(busy).split(": ")[1].split()[:2])
    return "it was let in"


@FORKS
def test_a_fork_while_other_threads_append(new: New, path: Path) -> None:
    j = new()
    stop = threading.Event()

    def work() -> int:
        n = 0
        while not stop.is_set():
            j.append(b"%d" % n).result()
            n += 1
        return n

    threads = [Ran(work) for _ in range(2)]
    try:
        for _ in range(10):
            with Child(lambda: j.append(b"child")) as child:
                assert child.said().startswith("LogClosed: ")
    finally:
        stop.set()
    assert sum(thread.result() for thread in threads) == len(stored(path))


@FORKS
def test_a_child_opens_it_when_the_parent_has_closed_it(new: New, path: Path) -> None:
    def append() -> str:
        with Journal(path) as mine:
            found = payloads(walked(mine))
            mine.append(b"child")
        return repr(found)

    j = new()
    j.append(b"parent")
    j.close()
    with Child(append) as child:
        assert child.said() == "returned \"[b'parent']\""
    assert payloads(walked(new())) == [b"child"]


# ---- signals ----


class Interrupt(BaseException):
    """What a signal's handler raises."""


@pytest.mark.skipif(
    kernel.NAME == "reference", reason="its locks are taken in Python, where a signal may raise between"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_whose_handlers_raise_anywhere_break_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had returned is there, in order; what was interrupted may be. Nothing is stuck afterwards."""
    small_files(monkeypatch, 2000)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    done: list[bytes] = []
    begun: list[bytes] = []
    hits = n = 0
    j = Journal(path)
    a_while = AWhile(1.0)
    while a_while.goes_on(enough=hits > 100):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.05)  # again, if it came where nobody could be told
                while True:
                    n += 1
                    payload = b"%d." % n * 5
                    begun.append(payload)
                    appended = j.append(payload)
                    if n % 7 == 0:
                        j.checkpoint()
                    if n % 5 == 0:
                        appended.result()
                    done.append(payload)
                    if n % 11 == 0:
                        j.flush()
                    if j.first_unchecked + 20 < j.current:
                        j.check()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        except Interrupt:
            hits += 1
    signal.signal(signal.SIGALRM, before)
    assert hits > 100
    j.append(b"last").result(60)
    assert j.checkpoint().result(60) == j.current
    first = j.first_unchecked
    j.close()
    with Journal(path) as j:
        assert j.first_unchecked == first
        found = [r.payload for r in walked(j) if r.payload != b"last"]
    kept = [p for p in begun if p in set(found)]
    assert found == kept, "in order, nothing twice, nothing invented"
    lost = set(done) - set(found)
    assert all(int(p.split(b".")[0]) < int(found[0].split(b".")[0]) for p in lost), "only what was retired is gone"


def test_ctrl_c_while_it_waits(path: Path) -> None:
    code = """
import os, signal, sys, threading
from penstock import Journal
j = Journal(sys.argv[1], buffer_bytes=100)
with j._log.locked():
    waiting = j.append(b"x" * 90)
    for call in (waiting.result, lambda: j.append(b"y" * 90), j.flush):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            call()
        except KeyboardInterrupt:
            print("interrupted")
waiting.result()
j.append(b"z").result()
j.close()
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n" * 3, "")
    with Journal(path) as j:
        assert payloads(walked(j)) == [b"x" * 90, b"z"]


# ---- the background ----


def test_the_background_survives_a_failed_retiring(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 60)
    monkeypatch.setattr(journal_module, "_TIDY_S", 0.01)
    j = new()
    for i in range(5):
        j.append(b"%d" % i * 20).result()
        j.checkpoint().result()
    with failing(j, "/dev/full"):
        for _ in range(2):
            with pytest.raises(OSError, match="no room"):
                j.check().result()
    j._tidy(log_of(j))
    assert by_hand.numbers(path)[0] == 0
    for _ in range(5):
        j.check()
    until(lambda: by_hand.numbers(path)[0] > 0, "files go")
    assert j._janitor.is_alive()
