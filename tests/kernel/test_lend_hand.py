"""Whoever waits for a batch may write it himself; what he must not do there is the thread's."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel import layout
from tests.support import until

from .buffering import NewRig
from .test_buffered import Interrupted, alarm

ROUNDS = 200
FEW = 60  # where two threads run without a pause, and take turns


def writes() -> int:
    """How many writes this thread has made."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("syscw")))


def test_whoever_waits_writes(new_rig: NewRig) -> None:
    """Two hand-overs between threads cost a third of a sync. Now and then the thread is quicker."""
    rig = new_rig()
    if not rig.robust or not Path("/proc/thread-self/io").exists():
        pytest.skip("only beside the mutex, and seen only where the system counts writes by thread")
    buffered = rig.buffered(batch_records=1)
    before = writes()
    for i in range(ROUNDS):
        buffered.wait(buffered.append(b"%d" % i)[0])
    assert writes() - before > ROUNDS // 2
    assert rig.payloads() == [b"%d" % i for i in range(ROUNDS)]
    assert rig.mark() == (rig.page.load(layout.SLOTS[rig.turn & 1]), rig.word("end"), rig.word("next"))


def test_a_wait_with_an_end_leaves_it_to_the_thread(new_rig: NewRig) -> None:
    rig = new_rig()
    if not Path("/proc/thread-self/io").exists():
        pytest.skip("seen only where the system counts writes by thread")
    buffered = rig.buffered(batch_records=1)
    before = writes()
    for i in range(ROUNDS):
        assert buffered.wait(buffered.append(b"%d" % i)[0], 60)
    assert writes() == before


def test_what_needs_python_is_done_in_the_thread(new_rig: NewRig) -> None:
    """A handler of a signal that raised in the middle of a roll would leave half of one."""
    rig = new_rig()
    seen: set[int] = set()
    buffered = rig.buffered(attach=False, batch_records=1)

    def stand(*_: int) -> None:
        seen.add(threading.get_ident())
        rig.attach(buffered)

    rig.on_slow = stand
    for _ in range(50):
        buffered.wait(buffered.append(b"x")[0])
        buffered.detach()
    assert len(rig.slow) == 50
    assert threading.get_ident() not in seen


def test_a_signal_ends_a_wait_while_another_has_the_lock(new_rig: NewRig) -> None:
    for _ in range(5):  # in some of them the thread is quicker, and it is the one that waits for the lock
        rig = new_rig()
        rig.share()
        buffered = rig.buffered(batch_records=1)
        other = rig.map_page()
        held, over = threading.Event(), threading.Event()

        def hold(page: Any = other, held: threading.Event = held, over: threading.Event = over) -> None:
            page.lock()
            held.set()
            over.wait(10)
            page.unlock()

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(60)
        with alarm(0.1), pytest.raises(Interrupted):
            buffered.wait(buffered.append(b"x")[0])
        assert rig.payloads() == []
        over.set()
        buffered.close()
        holder.join()
        assert rig.payloads() == [b"x"]


def test_what_comes_while_one_writes_is_left_to_the_thread(new_rig: NewRig) -> None:
    """Nobody waits for it yet, and the thread may have been woken for it before there was anything for it to do."""
    rig = new_rig()
    buffered = rig.buffered(batch_records=1)
    go, came = [0], [None]

    def follow() -> None:
        for i in range(1, FEW + 1):
            while go[0] < i:
                pass
            came[0] = buffered.append(b"b")[0]

    follower = threading.Thread(target=follow)
    follower.start()
    for i in range(1, FEW + 1):
        came[0] = None
        batch, _ = buffered.append(b"a")
        go[0] = i
        buffered.wait(batch)
        until(lambda: came[0] is not None, "the other one appends")
        assert buffered.wait(came[0], 20)
    follower.join(60)
    assert len(rig.payloads()) == 2 * FEW


def test_what_comes_after_one_wrote_is_written_at_once(new_rig: NewRig) -> None:
    """The thread may have been woken for what one who waited was writing, and sleeps again: it is to be woken for the next, too. It
    looks by itself, for another reason, after a second."""
    rig = new_rig()
    buffered = rig.buffered(linger_s=0)
    began = time.monotonic()
    for _ in range(20):
        for _ in range(3):
            buffered.wait(buffered.append(b"x")[0])
        batch, _ = buffered.append(b"x")
        until(lambda batch=batch: batch.done, "it is written")  # type: ignore[misc]
    assert time.monotonic() - began < 10
    assert len(rig.payloads()) == 80


def dirty_kb(path: Path) -> int:
    """How much of a mapped file the system has still to write."""
    found, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            within = line.endswith(str(path))
        elif within and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
            found += int(line.split()[1])
    return found


def test_the_mark_of_one_who_wrote_while_the_last_was_put_on_the_disk_gets_there_too(new_rig: NewRig) -> None:
    """The thread does that after a second, in the midst of a write that takes its time. Nothing else comes then, so it is for this mark
    that it has to wake again. The system itself looks after half a minute."""
    rig = new_rig()
    if not rig.robust or not Path("/proc/self/smaps").exists():
        pytest.skip("only beside the mutex, and seen only where the system tells what is to be written")
    buffered, page = rig.buffered(batch_records=1), rig.path / "page"
    began, large = time.monotonic(), bytes(8 << 20)
    buffered.wait(buffered.append(b"first")[0])
    until(lambda: time.monotonic() > began + 0.97, "it is nearly a second")
    while time.monotonic() < began + 1:
        buffered.wait(buffered.append(large)[0])
    until(lambda: not dirty_kb(page), "the last mark is put on the disk", 20)


@pytest.mark.parametrize("linger_s", [0.0, 0.001])
def test_many_who_wait(new_rig: NewRig, linger_s: float) -> None:
    """Each finds his own there, in his order, whoever wrote it; and the end comes while some wait."""
    rig = new_rig()
    buffered = rig.buffered(linger_s=linger_s, batch_records=3)
    firsts: dict[int, list[int]] = {n: [] for n in range(4)}

    def work(n: int) -> None:
        for i in range(100):
            batch, place = buffered.append(b"%d %d" % (n, i))
            buffered.wait(batch)
            firsts[n].append(batch.first + place)

    threads = [threading.Thread(target=work, args=(n,)) for n in firsts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    got = rig.payloads()
    assert sorted(got) == sorted(b"%d %d" % (n, i) for n in firsts for i in range(100))
    for n, sequences in firsts.items():
        assert [got[s - rig.base] for s in sequences] == [b"%d %d" % (n, i) for i in range(100)]
    last, _ = buffered.append(b"last")
    closer = threading.Thread(target=buffered.close)
    closer.start()
    buffered.wait(last)
    closer.join(60)
    assert rig.payloads()[-1] == b"last"
