"""Appending through memory: what stops it, what fails, what a death leaves behind, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BufferFull
from penstock.kernel import layout, reference
from penstock.kernel.spec import DIRTY, POISONED, REMAP, ROLL, FrameSpec
from tests.support import until

from .buffering import Gate, NewRig, Rig, Slow, arrow, put
from .conftest import need_native

# ---- what stops it ----


def stopped(rig: Rig, buffered: Any, code: int, mend: Callable[[], object]) -> None:
    """A batch asks for help once, having changed nothing and without the lock, and goes on when it was given."""
    before, data = rig.ends(), rig.data()
    thread: list[int] = []

    def on_slow(*_: int) -> None:
        assert (rig.ends(), rig.data()) == (before, data)
        rig.page.lock()  # it is not held
        rig.page.unlock()
        thread.append(threading.get_ident())
        mend()

    rig.on_slow = on_slow
    batch, _ = buffered.append_many([b"1234", b"12"])
    put(buffered)
    assert rig.slow == [(code, 14, 2)]
    assert thread != [threading.get_ident()]
    assert (batch.first, batch.count) == (rig.word("next") - 2, 2)
    assert buffered.lost == 0


def test_standing_nowhere(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"x")
    put(buffered)
    buffered.detach()
    stopped(rig, buffered, REMAP, lambda: rig.attach(buffered))


def test_another_process_rolled(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"old")
    put(buffered)
    rig.page.store(layout.POISON, 5)  # REMAP comes first: nothing else is known of the new segment
    rig.begin(4, 101, "new")
    rig.on_slow = lambda *_: (rig.page.store(layout.POISON, 0), rig.attach(buffered, "new"))  # type: ignore[assignment]
    buffered.append(b"fresh")
    assert put(buffered) == 101
    assert [code for code, _, _ in rig.slow] == [REMAP]
    assert (rig.payloads(), rig.payloads(name="new")) == ([b"old"], [b"fresh"])
    assert rig.page.active() == (4, 0, 101, 25, 102)
    assert len(rig.entries("new")) == 1


def test_poisoned_and_mended(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    rig.page.store(layout.POISON, 5)
    rig.slot(dirty_end=17)  # POISONED comes first
    stopped_at = rig.ends()
    rig.on_slow = lambda *_: (rig.page.store(layout.POISON, 0), rig.slot(dirty_end=16))  # type: ignore[assignment]
    buffered.append(b"x")
    assert put(buffered) == 100
    assert [code for code, _, _ in rig.slow] == [POISONED]
    assert stopped_at[0] == 16


@pytest.mark.parametrize("words", [{"dirty_end": 17}, {"dirty_next": 101}, {"dirty_end": 90, "dirty_next": 101}])
def test_dirty(new_rig: NewRig, words: dict[str, int]) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    rig.attach(buffered, limit=20)
    rig.slot(**words)  # comes before ROLL

    def mend() -> None:
        rig.slot(dirty_end=16, dirty_next=100)
        rig.attach(buffered)

    stopped(rig, buffered, DIRTY, mend)


def test_a_roll(new_rig: NewRig) -> None:
    """Batches go whole into one file or the next, and the sequences go on."""
    rig = new_rig(start=16)
    buffered = rig.buffered(attach=False, segment_bytes=84, linger_s=0)
    names = ["data"]

    def on_slow(code: int, need: int, count: int) -> None:
        rig.page.lock()
        try:
            if code == ROLL:
                assert rig.word("end") + need > 100
                names.append(f"data{len(names)}")
                rig.begin(rig.turn + 1, rig.word("next"), names[-1])
            buffered.detach()
            rig.attach(buffered, names[-1], limit=100)
        finally:
            rig.page.unlock()

    rig.on_slow = on_slow
    got = []
    for i in range(60):
        payloads = [b"%d.%d" % (i, j) for j in range(i % 7 + 1)]
        got.append((*buffered.append_many(payloads), payloads))
    buffered.close()
    files = [rig.payloads(name=name) for name in names]
    assert len(names) > 10
    assert all(16 < (rig.path / name).stat().st_size <= 100 for name in names)
    assert [p for file in files for p in file] == [p for _, _, payloads in got for p in payloads]
    assert [batch.first + place for batch, place, _ in got] == [
        100 + sum(len(p) for *_, p in got[:i]) for i in range(60)
    ]
    for name in names:  # each ends with a batch that is whole
        assert rig.entries(name)[-1][0] > 0
        assert [crc for _, crc in rig.entries(name)] == [rig.kernel.crc64(f) for f in rig.frames(name=name)]
    bases = [100 + sum(map(len, files[:i])) for i in range(len(files))]
    for name, base in zip(names, bases, strict=True):
        rig.check_index(name=name, base=base)


def test_the_limit_is_exact(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    rig.attach(buffered, limit=40)
    for _ in range(2):
        buffered.append(b"12345678")
        put(buffered)
    assert rig.word("end") == 40
    buffered.append(b"")
    with pytest.raises(Slow, match=str(ROLL)):
        put(buffered)


def test_an_empty_segment_takes_it(new_rig: NewRig) -> None:
    """Else a batch that the limit was set too low for would roll for ever."""
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    rig.attach(buffered, limit=20)
    buffered.append(b"12345678")
    put(buffered)
    assert rig.payloads() == [b"12345678"]
    buffered.append(b"")
    with pytest.raises(Slow, match=str(ROLL)):
        put(buffered)


def test_an_exception_fails_its_batch_alone(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0)
    buffered.detach()
    batch, _ = buffered.append_many([b"a", b"b"])
    with pytest.raises(Slow, match=str(REMAP)) as caught:
        buffered.wait(batch, 60)
    assert (batch.done, batch.first, batch.error, batch.count) == (True, None, 0, 2)
    assert batch.exception is caught.value
    assert any(entry.name == "refuse" for entry in caught.traceback)  # where it came from
    depth = len(caught.traceback)
    for _ in range(3):
        with pytest.raises(Slow) as caught:
            buffered.wait(batch)
        assert len(caught.traceback) == depth
    assert buffered.lost == 2
    rig.attach(buffered)
    batch, _ = buffered.append(b"c")
    assert buffered.wait(batch, 60)
    assert (batch.first, buffered.lost) == (100, 2)
    assert rig.errors == []


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads cannot be slowed down here")
def test_what_an_exception_fails_is_counted_before_more_is_taken(new_rig: NewRig) -> None:
    """Else whoever asks whether anything was lost, and appends that all is whole, would do so in between. The thread is slow there: it
    shares a processor, and comes last."""
    all_of_them, interval_s = os.sched_getaffinity(0), sys.getswitchinterval()
    one = {min(all_of_them)}
    gc.collect()
    gc.disable()  # what it closes lets go of the GIL
    sys.setswitchinterval(1000)  # it has the GIL until it is out of Python, however long it waits for the processor
    os.sched_setaffinity(0, one)
    try:
        for _ in range(10):
            rig = new_rig()
            buffered = rig.buffered(attach=False, linger_s=0)
            raised = threading.Event()

            def on_slow(*_: int, raised: threading.Event = raised) -> None:
                os.sched_setaffinity(0, one)
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                raised.set()
                raise Slow

            rig.on_slow = on_slow
            batch, _ = buffered.append_many([b"a", b"b"])
            assert raised.wait(60)
            # In plain Python the count comes later, and so does that nothing more joins those that are lost.
            assert buffered.lost == 2 or rig.kernel is reference
            with pytest.raises(Slow):
                buffered.wait(batch, 60)
            assert buffered.lost == 2
    finally:
        gc.enable()
        os.sched_setaffinity(0, all_of_them)
        sys.setswitchinterval(interval_s)


def test_an_exception_over_a_poisoned_log_fails_all(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, segment_bytes=8)
    gate = Gate(rig, buffered)
    batches = [buffered.append(b"1234")[0] for _ in range(3)]
    gate.wait()
    rig.page.store(layout.POISON, 5)

    def on_slow(code: int, *_: int) -> None:
        gate.pass_through() if code == REMAP else rig.refuse(code, 0, 0)

    rig.on_slow = on_slow
    gate.open.set()
    for batch in batches:
        with pytest.raises(Slow, match=str(POISONED)):
            buffered.wait(batch, 60)
        assert isinstance(batch.exception, Slow)
        assert batch.error == 0
    assert [code for code, _, _ in rig.slow] == [REMAP, POISONED]  # once is enough
    rig.page.store(layout.POISON, 0)
    for call in (lambda: buffered.append(b"x"), lambda: buffered.append(bytes(4)), buffered.flush):
        with pytest.raises(Slow, match=str(POISONED)):
            call()
    assert (rig.errors, buffered.lost) == ([], 3)
    buffered.close()
    with pytest.raises(ValueError, match="closed"):
        buffered.append(b"x")


def test_a_lock_that_cannot_be_taken(new_rig: NewRig) -> None:
    rig = new_rig()
    if rig.robust:
        pytest.skip("a mutex can")

    class Broken:
        calls = 0

        def acquire(self) -> None:
            self.calls += 1
            raise Slow("no lock")

        def release(self) -> None:
            raise AssertionError

    rig.file_lock = Broken()
    buffered = rig.buffered(page=rig.map_page())
    buffered.append(b"x")
    with pytest.raises(Slow, match="no lock"):
        put(buffered)
    assert rig.ends() == (16, 100, 16, 100)


# ---- what fails ----


def is_broken(rig: Rig, buffered: Any, code: int) -> None:
    """Everything is refused until it is closed, and the owner was told once."""
    assert rig.errors == [code]
    for call in (lambda: buffered.append(b"x"), lambda: buffered.append_many([b"x"]), buffered.flush):
        with pytest.raises(OSError, match="could not be put on the disk") as caught:
            call()
        assert caught.value.errno == code
    buffered.close()
    with pytest.raises(ValueError, match="closed"):
        buffered.append(b"x")


def failed(buffered: Any, code: int) -> Any:
    batch = buffered.flush()
    with pytest.raises(OSError, match="could not be put on the disk") as caught:
        buffered.wait(batch, 60)
    assert caught.value.errno == code
    assert (batch.done, batch.first, batch.error) == (True, None, code)
    assert batch.exception.errno == code
    return batch


def test_a_full_disk_fails_the_batch_alone(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"before")
    put(buffered)
    ends = rig.ends()
    full = os.open("/dev/full", os.O_RDWR)
    rig.fds.append(full)
    for wrong in ("data_fd", "times_fd"):
        rig.attach(buffered, **{wrong: full})
        buffered.append_many([b"a", b"b"])
        failed(buffered, errno.ENOSPC)
        assert rig.ends() == ends  # nothing is announced either
        assert rig.payloads() == [b"before"]
    assert (rig.errors, buffered.lost, rig.page.load(layout.POISON), rig.slow) == ([], 4, 0, [])
    rig.attach(buffered)
    buffered.append(b"after")
    assert put(buffered) == 101
    assert rig.payloads() == [b"before", b"after"]


def test_one_behind_one_that_failed_is_counted_with_it(new_rig: NewRig) -> None:
    """It fails with it. Else whoever was told of that by his own wait asks what was lost, appends that again, and finds that nothing more
    was, as long as the thread has not come to that one."""
    rig = new_rig()
    buffered = rig.buffered(segment_bytes=64)
    full = os.open("/dev/full", os.O_RDWR)
    rig.fds.append(full)
    rig.attach(buffered, data_fd=full)
    for times in range(1, 101):
        first, _ = buffered.append(bytes(40))
        second, _ = buffered.append(bytes(40))  # both do not fit in one; now the first one is due
        with pytest.raises(OSError, match="could not be put on the disk"):
            buffered.wait(first)
        # In plain Python the count comes later, and so does that nothing more joins those that are lost.
        assert buffered.lost == 2 * times or rig.kernel is reference
        with pytest.raises(OSError, match="could not be put on the disk"):
            buffered.wait(second, 60)
        assert buffered.lost == 2 * times


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_gets_half_way_is_cut_off(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"before")
    put(buffered)
    buffered.append(b"x" * 100_000)
    ends = rig.ends()
    with no_file_longer_than(50_000):  # the first 50,000 bytes are written
        failed(buffered, errno.EFBIG)
    assert rig.ends() == ends
    assert rig.payloads() == [b"before"]
    assert rig.page.load(layout.POISON) == 0
    is_broken(rig, buffered, errno.EFBIG)
    again = rig.buffered()
    again.append(b"after")
    assert put(again) == 101
    assert rig.payloads() == [b"before", b"after"]


@pytest.mark.parametrize("wrong", ["data_fd", "times_fd"])
def test_a_file_that_cannot_be_written(new_rig: NewRig, wrong: str) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    rig.fds.append(os.open(rig.path / "data", os.O_RDONLY))
    rig.attach(buffered, **{wrong: rig.fds[-1]})
    buffered.append_many([b"a", b"b"])
    failed(buffered, errno.EBADF)
    assert rig.ends() == (16, 100, 16, 100)
    assert rig.data() == b""
    is_broken(rig, buffered, errno.EBADF)


def test_what_cannot_be_cut_off_stays_announced(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    gone = os.open(rig.path / "data", os.O_RDWR)
    rig.attach(buffered, data_fd=gone)
    os.close(gone)
    buffered.append(b"1234")
    failed(buffered, errno.EBADF)
    assert rig.ends() == (16, 100, 24, 101)  # for the next to mend, who can look at the file
    is_broken(rig, buffered, errno.EBADF)


def test_a_failed_sync_poisons(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, segment_bytes=8)
    null = os.open("/dev/null", os.O_RDWR)  # takes every write, and no sync
    rig.fds.append(null)
    gate = Gate(rig, buffered, data_fd=null)
    batches = [buffered.append(b"1234")[0] for _ in range(3)]
    gate.wait()
    gate.open.set()
    for batch in batches:
        with pytest.raises(OSError, match="could not be put on the disk") as caught:
            buffered.wait(batch, 60)
        assert (caught.value.errno, batch.error, batch.first) == (errno.EINVAL, errno.EINVAL, None)
    assert rig.page.load(layout.POISON) == errno.EINVAL
    assert rig.ends()[:2] == (16, 100)
    assert buffered.lost == 3
    is_broken(rig, buffered, errno.EINVAL)
    rig.on_slow = rig.refuse
    other = rig.buffered()  # every other one meets the poison
    other.append(b"x")
    with pytest.raises(Slow, match=str(POISONED)):
        put(other)


def test_a_failed_sync_is_cut_off_too(new_rig: NewRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told to have failed must not be found in the file later. (No file of a real disk fails on demand.)"""
    rig = new_rig()
    if rig.kernel is need_native():
        pytest.skip("the native kernel's sync cannot be replaced")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "fdatasync", refuse)
    buffered = rig.buffered()
    buffered.append(b"1234")
    failed(buffered, errno.EIO)
    assert (rig.data(), rig.ends()) == (b"", (16, 100, 16, 100))


def test_without_sync_nothing_is_synced(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(sync=False)
    null = os.open("/dev/null", os.O_RDWR)
    rig.fds.append(null)
    rig.attach(buffered, data_fd=null)
    buffered.append(b"1234")
    assert put(buffered) == 100
    assert (rig.errors, rig.page.load(layout.POISON)) == ([], 0)


# ---- several at one log ----


def test_two_take_turns(new_rig: NewRig) -> None:
    rig = new_rig()
    other_page = rig.map_page()
    pair = [rig.buffered(linger_s=0, page=page) for page in (rig.page, other_page)]
    got: list[list[tuple[Any, int, list[bytes]]]] = [[], []]

    def work(me: int) -> None:
        for i in range(200):
            payloads = [b"%d:%d.%d" % (me, i, j) for j in range(i % 4 + 1)]
            got[me].append((*pair[me].append_many(payloads), payloads))
            if i % 20 == 0:
                pair[me].wait(got[me][-1][0])

    for me in (0, 1, 0, 1, 0, 1):
        got[me].append((*pair[me].append(b"%d:first" % me), [b"%d:first" % me]))
        assert pair[me].wait(got[me][-1][0], 60)
    threads = [threading.Thread(target=work, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for buffered in pair:
        buffered.close()
    written = rig.payloads()
    assert len(written) == 6 + 2 * 500 == rig.word("next") - 100
    assert written[:6] == [b"0:first", b"1:first"] * 3
    for mine in got:
        for batch, place, payloads in mine:
            at = batch.first - 100 + place
            assert written[at : at + len(payloads)] == payloads
    batches = sorted({id(b): (b.first, b.count) for mine in got for b, _, _ in mine}.values())
    assert all(first + count == following for (first, count), (following, _) in pairwise(batches))
    ends = [i for i, (us, _) in enumerate(rig.entries(), 101) if us > 0]
    assert ends == [first + count for first, count in batches]  # batches of one do not mix with the other's
    stamps = [abs(us) for us, _ in rig.entries()]
    assert stamps == sorted(stamps)
    rig.check_index()


def child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, which ends by _exit or by a signal; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def test_a_process_killed_over_a_batch(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.share()
    buffered = rig.buffered()
    buffered.append(b"before")
    put(buffered)
    ends = rig.ends()
    payloads = [bytes(8 << 20)] * 8
    size = sum(map(len, payloads)) + 4 * len(payloads)

    def write() -> None:
        doomed = rig.buffered()
        while True:
            doomed.append_many(payloads)
            doomed.wait(doomed.flush())

    def writes() -> bool:
        size = (rig.path / "data").stat().st_size
        assert size <= rig.word("dirty_end")  # it is announced before the first byte
        return size > rig.word("end")

    for _ in range(20):  # it may be between two batches
        pid = child(write)
        until(writes, "the child writes")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if rig.word("dirty_end") != rig.word("end"):
            break
    end, next_, dirty_end, dirty_next = rig.ends()
    assert (dirty_end - end, dirty_next - next_) == (size, 8)
    assert (end - ends[0], next_ - ends[1]) == (size * (next_ - ends[1]) // 8, next_ - ends[1])

    def mend() -> None:
        rig.page.lock()
        os.truncate(rig.path / "data", end)
        rig.slot(dirty_end=end, dirty_next=next_)
        rig.page.unlock()

    rig.on_slow = lambda *_: mend()
    buffered.append(b"after")
    assert put(buffered) == next_
    assert [code for code, _, _ in rig.slow] == [DIRTY]
    assert rig.payloads()[-1] == b"after"


def test_a_forked_child_has_no_thread(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    idle = rig.buffered()
    batch, _ = buffered.append(b"a")
    buffered.fileno()

    def look() -> None:
        for one in (buffered, idle):
            for call in (partial(one.append, b"b"), partial(one.append, bytes(2 << 20)), one.flush, one.fileno):
                try:
                    call()
                except ValueError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(2)
            one.detach()
            one.close()
        try:
            buffered.wait(batch)
        except ValueError:
            os._exit(0)

    pid = child(look)
    status: list[int] = []
    until(
        lambda: status.extend(os.waitstatus_to_exitcode(s) for p, s in [os.waitpid(pid, os.WNOHANG)] if p) or status,
        "it ends",
    )
    assert status == [0]
    put(buffered)
    assert rig.payloads() == [b"a"]


# ---- the end ----


def test_close_writes_what_there_is(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(segment_bytes=100)
    got = [buffered.append(b"%050d" % i) for i in range(10)]
    buffered.close()
    assert [batch.first for batch, _ in got] == list(range(100, 110))
    assert len(rig.payloads()) == 10
    assert all(buffered.wait(batch) for batch, _ in got)
    for call in (
        lambda: buffered.append(b"x"),
        lambda: buffered.append(bytes(10)),
        lambda: buffered.append_many([b"x"]),
        lambda: buffered.append_arrow(*arrow([b"x"])),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert buffered.flush() is None
    buffered.close()
    buffered.detach()
    rig.buffered().close()  # one that was never used


def test_close_says_what_was_lost(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    buffered.append(b"a")
    with pytest.raises(Slow, match=str(REMAP)):
        buffered.close()
    buffered.close()
    with pytest.raises(ValueError, match="closed"):
        buffered.append(b"x")


def test_threads_may_close_at_once(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"a")
    threads = [threading.Thread(target=buffered.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert rig.payloads() == [b"a"]


@pytest.mark.parametrize("new_rig", ["reference, file lock"], indirect=True)
def test_a_thread_that_has_the_number_of_the_one_that_ended_may_close(new_rig: NewRig) -> None:
    """The native kernel's keeps its number until it is joined."""
    buffered = new_rig().buffered()
    buffered.append(b"a")
    buffered.close()
    assert not buffered._is_thread(lambda: buffered._thread.ident)


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.005, 0.01])
def test_a_close_while_something_large_is_copied(new_rig: NewRig, delay_s: float) -> None:
    """It is written or refused, never taken and forgotten."""
    rig = new_rig()
    buffered = rig.buffered(sync=False)
    large = [bytes(8 << 20)] * 6
    got: list[Any] = []

    def append() -> None:
        with contextlib.suppress(ValueError):
            got.append(buffered.append_many(large)[0])

    buffered.append(b"first")
    thread = threading.Thread(target=append)
    thread.start()
    time.sleep(delay_s)
    buffered.close()
    thread.join(60)
    assert [batch.first for batch in got if batch.count > 6] in ([], [100])
    assert all(batch.done and batch.exception is None for batch in got)
    assert rig.word("next") == 101 + 6 * len(got)


def test_the_thread_does_not_wait_for_itself(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, most_bytes=10)
    batch, _ = buffered.append(b"12345678")
    raised: list[type[BaseException]] = []

    def on_slow(*_: int) -> None:
        for call in (buffered.close, lambda: buffered.wait(batch), lambda: buffered.append(b"12345678")):
            with pytest.raises((RuntimeError, BufferFull)) as caught:
                call()
            raised.append(caught.type)
        rig.attach(buffered)

    rig.on_slow = on_slow
    put(buffered)
    assert raised == [RuntimeError, RuntimeError, BufferFull]


def test_detach_lets_the_files_go(new_rig: NewRig) -> None:
    """When it returns, no write to them is under way."""
    rig = new_rig()
    buffered = rig.buffered()
    rig.on_slow = lambda *_: rig.attach(buffered)
    buffered.append_many([bytes(8 << 20)] * 8)
    batch = buffered.flush()
    until(lambda: rig.word("dirty_end") != rig.word("end") or batch.done, "the thread writes")
    buffered.detach()
    assert rig.word("dirty_end") == rig.word("end")
    assert buffered.wait(batch)


def test_an_object_with_a_thread_lives_until_it_is_closed(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0.2)
    buffered.append(b"a")
    rig.made.clear()
    del buffered
    gc.collect()
    # Not when the file has it: the index comes after that, and the rig closes all files.
    until(lambda: rig.word("next") == 101, "it is published nevertheless")
    assert rig.payloads() == [b"a"]


EXIT = """
import atexit, json, os, sys
def last():  # runs after all that the kernel does at exit
    json.late = Late()  # goes when modules do
atexit.register(last)
os.environ["PENSTOCK_KERNEL"] = sys.argv[1]
import mmap, threading
from penstock import kernel
atexit.register(lambda: made.append(b"at exit"))
room = mmap.mmap(-1, 4096)
page = kernel.ControlPage(room, None if sys.argv[3] == "mutex" else threading.Lock())
page.init_lock()
fds = [os.open(f"{sys.argv[2]}/{name}", os.O_RDWR | os.O_CREAT) for name in ("data", "time")]
def make():
    def on_slow(*code):
        buffered.attach(*fds, -1, turn=0, start=0, limit=10**9, interval=0)
    buffered = kernel.Buffered(page, kernel.FrameSpec(), on_slow, print, batch_records=10**9, linger_s=3600.0,
                               most_bytes=10**9, segment_bytes=10**9, sync=True)
    return buffered
made, unused = make(), make()
made.append(b"early")
class Late:
    def __init__(self):
        self.made = make()
        if sys.argv[4] == "too late":
            self.made.append(b"lost: nobody can be asked for a file any more")
    def __del__(self):
        try:
            self.made.close()
        except OSError:
            os.write(1, b"canceled")
if sys.argv[4] == "error":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["end", "error", "too late"])
@pytest.mark.parametrize("way", ["native mutex", "native file", "reference file"])
def test_the_exit_of_the_interpreter(tmp_path: Path, way: str, how: str) -> None:
    name, lock = way.split()
    if name == "native" and not need_native().ROBUST and lock == "mutex":
        pytest.skip("no robust mutex here")
    if name == "reference" and how == "too late":
        pytest.skip("a thread of Python's ends with it")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT, name, str(tmp_path), lock, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3 if how == "error" else 0, "")
    assert done.stdout == ("canceled" if how == "too late" else "")
    assert (tmp_path / "data").read_bytes() == reference.encode_many(FrameSpec(), [b"early", b"at exit"])
