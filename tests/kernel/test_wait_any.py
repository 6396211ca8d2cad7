"""Sleeping on several logs at once: any of them wakes, none is missed, and the time, a signal and a ring are heeded."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from penstock.kernel import layout, reference
from tests.support import until

from .conftest import Rig

Make = Callable[..., Rig]
Place = tuple[int, int]

# A child that only appends and ends takes no lock that a thread of ours may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def place(rig: Rig) -> Place:
    _, segment, _, end, _ = rig.page.active()
    return segment, end


def wait(rigs: list[Rig], timeout_s: float | None, places: list[Place] | None = None) -> bool:
    pages = [rig.page for rig in rigs]
    answer = rigs[0].kernel.wait_any(pages, places or [place(rig) for rig in rigs], timeout_s)
    assert isinstance(answer, bool)
    return answer


class Waiter(threading.Thread):
    """Waits in the background for one of the logs to leave the place it is at."""

    def __init__(self, rigs: list[Rig], timeout_s: float | None) -> None:
        super().__init__()
        self.rigs, self.timeout_s = rigs, timeout_s
        self.places = [place(rig) for rig in rigs]
        self.result: bool | None = None

    def run(self) -> None:
        self.result = wait(self.rigs, self.timeout_s, self.places)


def asleep(rigs: list[Rig]) -> bool:
    """Whether somebody sleeps on all of them; where nobody rings, nobody says so."""
    return rigs[0].file_lock is not None or all(rig.page.load(layout.WAITERS) & 0xFFFFFFFF for rig in rigs)


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---- waking ----


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("timeout_s", [60.0, None])
def test_a_thread_wakes_us_on_any_of_three(make: Make, which: int, timeout_s: float | None) -> None:
    rigs = [make() for _ in range(3)]
    waiter = Waiter(rigs, timeout_s)
    waiter.start()
    until(lambda: asleep(rigs), "it sleeps on all of them")
    rigs[which].writer.append(b"x")
    waiter.join(30)
    assert waiter.result is True


@pytest.mark.parametrize("timeout_s", [60.0, None])
def test_a_process_wakes_us_on_the_second_of_three(make: Make, timeout_s: float | None) -> None:
    rigs = [make() for _ in range(3)]

    def append() -> None:
        until(lambda: asleep(rigs), "it sleeps on all of them")
        rigs[1].writer.append(b"x")

    places = [place(rig) for rig in rigs]
    with forked(append):
        assert wait(rigs, timeout_s, places) is True
    assert [rig.word("next") for rig in rigs] == [100, 101, 100]


def test_many_sleep_and_all_are_woken(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    waiters = [Waiter(rigs[i:], 60.0) for i in range(3)]
    for waiter in waiters:
        waiter.start()
    until(lambda: asleep(rigs), "they sleep")
    rigs[2].writer.append(b"x")
    for waiter in waiters:
        waiter.join(30)
        assert waiter.result is True


@pytest.mark.parametrize("count", [1, 2, 128, 129, 300])
def test_any_number_of_pages(make: Make, count: int) -> None:
    rigs = [make(size=4096, room=16) for _ in range(count)]
    waiter = Waiter(rigs, 60.0)
    waiter.start()
    if count <= 128:
        until(lambda: asleep(rigs), "it sleeps on all of them")
    rigs[-1].writer.append(b"x")
    waiter.join(30)
    assert waiter.result is True
    assert wait(rigs, 0.02) is False


def test_a_roll_wakes(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    waiter = Waiter(rigs, 60.0)
    waiter.start()
    until(lambda: asleep(rigs), "it sleeps on all of them")
    rigs[1].page.lock()
    rigs[1].slot(segment=8)
    rigs[1].page.unlock()
    waiter.join(30)
    assert waiter.result is True


def test_a_ring_wakes(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    waiter = Waiter(rigs, 60.0)
    waiter.start()

    def rung() -> bool:  # once may be before it waits
        rigs[1].page.ring()
        return not waiter.is_alive()

    until(rung, "the waiter is woken")
    assert waiter.result is True


def test_no_waiting_when_one_has_moved_on(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    for moved in ((7, 63), (7, 65), (6, 64), (8, 64)):
        for which in range(3):
            places = [(7, 64)] * 3
            places[which] = moved
            assert wait(rigs, 0.0, places) is True
            assert wait(rigs, 60.0, places) is True
            assert wait(rigs, None, places) is True


def test_a_page_that_nobody_rings_is_looked_at(kernel: ModuleType) -> None:
    """Mapped read-only, it cannot say that somebody sleeps."""
    rig, shown = Rig(kernel, robust=kernel.ROBUST), Rig(kernel, robust=kernel.ROBUST)
    pages = [rig.page, kernel.ControlPage(shown.page_map, None, False)]
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(kernel.wait_any(pages, [(7, 64)] * 2, 60.0)))
    thread.start()
    shown.writer.append(b"x")
    thread.join(30)
    assert done == [True]
    assert shown.page.load(layout.WAITERS) == 0


class Watch:
    """The module `time`, in which time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.naps = 1000.0, list[float]()
        self.work: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        self.work()


@pytest.mark.parametrize("together", [False, True], ids=["wait", "wait_any"])
@pytest.mark.parametrize(("writable", "longest"), [(False, 0.05), (True, 0.002)], ids=["read-only", "open for writing"])
def test_who_polls_sleeps_longer_the_longer_nothing_comes(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, together: bool, writable: bool, longest: float
) -> None:
    """Late by an eighth of the time in which nothing came; also when it waits a second at a time."""
    watch = Watch()
    monkeypatch.setattr(*((kernel, "_time") if kernel is not reference else (reference.page, "time")), watch)
    rig = Rig(kernel, robust=False)
    page = kernel.ControlPage(rig.page_map, rig.file_lock if writable else None, writable)

    def waits(timeout_s: float) -> bool:
        answer = kernel.wait_any([page], [place(rig)], timeout_s) if together else page.wait(*place(rig), timeout_s)
        assert isinstance(answer, bool)
        return answer

    for _ in range(10):
        begun = len(watch.naps)
        assert waits(1.0) is False
        still_s = watch.now - 1000.0
        assert max(watch.naps[begun:]) == pytest.approx(longest)
    assert still_s == pytest.approx(10.0)
    assert len(watch.naps) < 10 / longest + 150
    quiet = 0.0
    for nap in watch.naps:
        assert nap <= max(0.00005, quiet / 8) + 1e-9
        quiet += nap

    ends: list[float] = []
    watch.work = lambda: ends or (rig.writer.append(b"x"), ends.append(watch.now))
    at = place(rig)
    assert (kernel.wait_any([page], [at], 1.0) if together else page.wait(*at, 1.0)) is True
    watch.work = lambda: None
    begun = len(watch.naps)
    assert waits(0.001) is False  # quick again, now that something has come
    assert max(watch.naps[begun:]) < 0.0002


# ---- not missing any ----


class Meddling:
    """The module `time`, which does something when a waiter, having looked, asks how much of its time is left."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work, self.asked = work, 0

    def monotonic(self) -> float:
        self.asked += 1
        if self.asked == 2:
            self.work()
        return time.monotonic()


@pytest.mark.parametrize("what", ["append", "ring"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_comes_between_the_look_and_the_sleep_is_not_missed(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch, what: str, which: int
) -> None:
    """It would be found only when we wake to look for signals; a ring never."""
    if not native.ROBUST:
        pytest.skip("nobody rings here")
    took = []
    for _ in range(10):  # the machine may be busy
        rigs = [Rig(native, robust=True) for _ in range(3)]
        rig = rigs[which]
        clock = Meddling(rig.page.ring if what == "ring" else lambda rig=rig: rig.writer.append(b"x"))  # type: ignore[misc]
        monkeypatch.setattr(native, "_time", clock)
        before = time.monotonic()
        assert wait(rigs, 1.0) is True
        took.append(time.monotonic() - before)
        assert clock.asked == 2
    assert min(took) < 0.04


def test_no_append_is_missed_however_often(make: Make) -> None:
    """A process appends to one of three at a time, as soon as it sees that the last one was noticed, and a bit later each
    time: often just when we fall asleep. One that was missed would be found only after we sleep no longer for signals."""
    rigs = [make(size=1 << 20, room=1 << 15) for _ in range(3)]
    rounds = 20_000 if rigs[0].file_lock is None else 1000
    seen = rigs[0].page  # how many were noticed: a word that neither of them uses
    at = 2048

    def append() -> None:
        dice = random.Random(1)
        for i in range(rounds):
            while seen.load(at) < i:
                pass
            for _ in range(dice.randrange(400)):
                pass
            rigs[dice.randrange(3)].writer.append(b"x")

    slow, places = 0, [place(rig) for rig in rigs]
    with forked(append):
        for i in range(rounds):
            seen.store(at, i)
            while places == (now := [place(rig) for rig in rigs]):
                assert wait(rigs, 60.0, places) is True
            slow += time.time() - max(rig.word("last_us") for rig in rigs) / 1e6 > 0.04
            if slow > 20:  # more than a busy machine can explain
                seen.store(at, rounds)
                break
            places = now
    assert slow <= 20
    assert sum(rig.word("next") - 100 for rig in rigs) == rounds


# ---- how it ends otherwise ----


def test_the_time_is_over(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    for timeout_s in (0, 0.0, -1.0, 0.00001, 0.02, 0.12):
        before = time.monotonic()
        assert wait(rigs, timeout_s) is False
        assert timeout_s <= time.monotonic() - before < 30


def test_nothing_to_wait_for(kernel: ModuleType) -> None:
    before = time.monotonic()
    assert kernel.wait_any([], [], 0.07) is False
    assert time.monotonic() - before >= 0.07
    assert kernel.wait_any([], [], 0.0) is False


class Alarm(Exception):
    """What the signal's handler raises."""


@contextmanager
def alarm(
    handler: Callable[[], object], *, to_main: bool = True, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """A while after this was entered, and then, a signal comes to the main thread or to another; its handler is called. The collector is
    kept away: what is raised in one of its callbacks, which hypothesis has, is lost."""
    begun, main = threading.Event(), threading.get_ident()

    def send() -> None:
        begun.wait(20)
        until(when, "time for the signal")
        signal.pthread_kill(main if to_main else threading.get_ident(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    old = signal.signal(signal.SIGUSR1, lambda *_: handler())
    gc.disable()
    try:
        begun.set()
        yield
    finally:
        gc.enable()
        sender.join()
        signal.signal(signal.SIGUSR1, old)


def stop() -> None:
    raise Alarm


@pytest.mark.parametrize("timeout_s", [60.0, None])
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("to_main", [True, False], ids=["to us", "to another thread"])
def test_a_signal_may_end_it(make: Make, timeout_s: float | None, count: int, to_main: bool) -> None:
    """The system gives it to any thread that does not block it; Python's handlers run in the main one."""
    kernel, rigs = make().kernel, [make() for _ in range(count)]
    before = time.monotonic()
    with pytest.raises(Alarm), alarm(stop, to_main=to_main, when=lambda: not rigs or asleep(rigs)):
        kernel.wait_any([rig.page for rig in rigs], [place(rig) for rig in rigs], timeout_s)
    assert time.monotonic() - before < 30


def test_a_signal_that_ends_nothing(make: Make) -> None:
    rigs = [make() for _ in range(3)]
    places = [place(rig) for rig in rigs]
    with alarm(lambda: rigs[1].writer.append(b"x"), when=lambda: asleep(rigs)):
        assert wait(rigs, 60.0, places) is True
    assert rigs[1].word("next") == 101
    calls: list[None] = []
    before = time.monotonic()
    with alarm(lambda: calls.append(None)):
        assert wait(rigs, 0.1) is False
    assert time.monotonic() - before >= 0.1
    assert calls == [None]


def test_nonsense_is_refused(kernel: ModuleType) -> None:
    rig = Rig(kernel)
    with pytest.raises(ValueError, match="1 pages, but 2 places"):
        kernel.wait_any([rig.page], [(7, 64)] * 2, 1.0)
    with pytest.raises(TypeError, match="a ControlPage is needed, not NoneType"):
        kernel.wait_any([None], [(7, 64)], 1.0)
    with pytest.raises(ValueError, match="unpack"):
        kernel.wait_any([rig.page], [(7, 64, 1)], 1.0)
    with pytest.raises(TypeError):
        kernel.wait_any([rig.page], [(7, 64)], "soon")


# ---- a system without the call ----

FORBIDDEN = """
import ctypes, mmap, struct, sys, threading, time
from penstock.kernel import _native as kernel, layout

def forbid(call, error):
    # load the number of the call; is it that one? then that errno, else allow
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]
    packed = b"".join(struct.pack("HBBI", *line) for line in code)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(room := ctypes.create_string_buffer(packed)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()

forbid(449, int(sys.argv[1]))
pages = [kernel.ControlPage(mmap.mmap(-1, layout.PAGE_BYTES)) for _ in range(3)]
for page in pages:
    page.init_lock()
before = time.process_time()
assert kernel.wait_any(pages, [(0, 0)] * 3, 0.3) is False
assert time.process_time() - before < 0.2, "it spins"

def append():
    pages[1].lock()
    pages[1].store(layout.SLOTS[0] + layout.END, 8)
    pages[1].unlock()

thread = threading.Timer(0.05, append)
thread.start()
assert kernel.wait_any(pages, [(0, 0)] * 3, None) is True
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no futex here")
@pytest.mark.parametrize("error", [38, 1])  # ENOSYS of an old kernel, EPERM of a sandbox that does not know the call
def test_where_the_system_has_not_got_it_we_look_again_and_again(native: ModuleType, error: int) -> None:
    ran = subprocess.run([sys.executable, "-c", FORBIDDEN, str(error)], capture_output=True, text=True, timeout=60)
    if "prctl" in ran.stderr:
        pytest.skip("calls cannot be forbidden here")
    assert ran.returncode == 0, ran.stderr
