"""Threads of one process at the very moments at which one must wait for another, or be told the truth: closing beside whoever is at work,
sealing beside whoever makes room, looking beside whoever stores.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from penstock import Channel, Flush, Journal, Queue, Roll, Topics
from penstock.errors import LogBusy, LogClosed, StorageFailed, SyncFailed
from penstock.formats.topic import Partition
from penstock.storage import closable, files, retention
from penstock.storage import control as pages
from penstock.storage import log as logs
from penstock.storage import reader as readers
from penstock.storage.ledger import Ledger
from penstock.storage.log import Log
from penstock.storage.manifest import Manifest
from penstock.storage.meters import Meters
from penstock.storage.segment import WriteSegment
from penstock.storage.weakly import all_of
from tests.channel.conftest import Ran
from tests.support import data_files, until

SOON_S = 0.2  # what is not done after this waits


class Gate:
    """Holds a thread up inside a call, once, until it is let through."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> None:
        self._came, self._open = threading.Event(), threading.Event()
        self._of: threading.Thread | None = None
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            out = real(*args, **options) if after else None
            if threading.current_thread() is self._of:
                self._of = None
                self._came.set()
                assert self._open.wait(60)
            return out if after else real(*args, **options)

        patch.setattr(owner, name, call)

    @contextmanager
    def held(self, act: Callable[[], object]) -> Iterator[Ran]:
        """A thread that does this, and has come to the gate; at the end it goes on, and is waited for."""
        ready = threading.Event()

        def work() -> object:
            self._of = threading.current_thread()
            ready.set()
            return act()

        thread = Ran(work)
        assert ready.wait(60)
        assert self._came.wait(60)
        try:
            yield thread
        finally:
            self.open()
            thread.join(60)

    def open(self) -> None:
        self._open.set()


def fail_syncs(patch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise files.storage_failed(files.name_of(fd), OSError(errno.EIO, "no disk"))

    patch.setattr(files, "sync", fail)


def take_number(path: Path, number: int) -> Any:
    """A file that has a descriptor of this number now, and its content."""
    path.write_bytes(b"somebody else's")
    fd = os.open(path, os.O_RDWR)
    if fd != number:
        os.dup2(fd, number)
        os.close(fd)


# ---- closing ----


def test_a_poisoned_queue_is_closed_when_an_append_under_way_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies into maps that closing gives back."""
    q = Queue(path)
    q.append(b"a")
    log = q._open_log()
    assert log.control is not None
    with monkeypatch.context() as patch:
        fail_syncs(patch)
        with pytest.raises(SyncFailed):
            q.sync()
    page = log.control.page
    page.lock()  # as one who appends has it
    closing = Ran(q.close)
    closing.join(SOON_S)
    assert closing.is_alive()
    assert log.mapped.segment is not None
    page.unlock()
    closing.result()


def test_a_poisoned_journal_is_closed_when_whoever_writes_to_its_files_is_done(path: Path) -> None:
    """Whole batches are written in the caller's thread, under the lock, and the number of a closed file is soon another one's."""
    j = Journal(path)
    j.append(b"a").result()
    log = j._open_log()
    assert log.control is not None
    log.control.set_poison(errno.EIO)
    page = log.control.page
    page.lock()
    closing = Ran(j.close)
    closing.join(SOON_S)
    assert closing.is_alive()
    assert log.buffered.segment is not None
    page.unlock()
    closing.result()


def test_files_stay_open_while_room_is_made_in_them_though_closing_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or zeros would go to whatever file has got the number since."""
    q = Queue(path, file_size=64 << 20)
    q.append(b"a")
    segment = q._open_log().mapped.segment
    assert segment is not None
    number = segment.fd
    gate = Gate(monkeypatch, WriteSegment, "grow")
    with gate.held(lambda: q.append_batch([bytes(1 << 20)] * 5)) as appending:
        fail_syncs(monkeypatch)
        closing = Ran(q.close)
        closing.join(SOON_S)
        assert closing.is_alive()
        assert files.name_of(number).endswith(".data")
    with pytest.raises(SyncFailed):
        closing.result()
    with pytest.raises((SyncFailed, LogClosed)):
        appending.result()


def test_what_was_appended_before_the_close_is_not_refused_when_it_is_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(path, flush=Flush.each())
    gate = Gate(monkeypatch, Log, "sync_to")
    with gate.held(lambda: q.append(b"a")) as appending:
        q.close()
    assert appending.result() == 0
    with Channel[bytes](path / "channel", crash_consistent=True) as ch:
        tx = ch.tx()
        gate = Gate(monkeypatch, Log, "sync_to")
        with gate.held(lambda: tx.send(b"a")) as sending:
            ch.close()
        sending.result()
    with Channel[bytes](path / "channel") as ch:
        assert ch.rx().try_recv() == b"a"


@pytest.mark.parametrize("owner, name", [(logs, "is_believable"), (files, "lock")])
def test_a_reader_that_is_closed_while_it_finds_a_writer_is_told_that(
    path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """And locks no file that has got the number of its own since."""
    with Queue(path) as q:
        q.append(b"a")
    (path / ".lock").unlink()  # as in a copy
    reader = Queue(path, read_only=True)
    tailer = reader.tailer(at="end")
    with Queue(path):
        gate = Gate(monkeypatch, owner, name, after=name != "lock")
        with gate.held(tailer.read) as reading:
            log = reader._open_log()
            number = log.control.fd if log.control is not None else -1
            closing = Ran(reader.close)
            closing.join(SOON_S)
            if not closing.is_alive():
                take_number(path / "other", number)
                fcntl.flock(number, fcntl.LOCK_EX)
        closing.result()
        if number >= 0 and files.name_of(number).endswith("other"):
            with (path / "other").open() as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.close(number)
    with suppress(LogClosed):
        assert reading.result() is None


def test_a_reader_does_not_wait_for_a_log_that_is_recovered(path: Path) -> None:
    """Whoever closes it would wait for that, too."""
    with Queue(path) as q:
        q.append(b"a")
    (path / ".lock").unlink()  # as in a copy
    with Queue(path, read_only=True) as reader, reader.tailer(at="end") as tailer:
        Queue(path).close()
        with files.opened_to_lock(path / ".lock") as fd:
            assert files.lock(fd, shared=False)
            assert Ran(tailer.read).result(20) is None


def test_a_manifest_is_not_opened_again_when_it_was_closed(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "manifest", Partition(0))
    manifest.rewrite(1)
    manifest.close()
    assert manifest.snapshot(1) == manifest.snapshot(2) == {}
    assert not manifest.is_open


@pytest.mark.parametrize("kind", [Queue, Channel, Journal, Topics])
def test_a_signals_handler_closes_what_is_just_closed(path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """In the same thread: it cannot wait for that, which goes on after it."""
    opened = kind(path)
    if kind is Topics:
        opened.topic("t").publish(b"a").wait()
    sync, again = Log.sync, list[int]()

    def handle(self: Log, timeout_s: float | None = None) -> int:
        if len(again) < 3:
            again.append(0)
            opened.close()
        return sync(self, timeout_s)

    monkeypatch.setattr(Log, "sync", handle)
    closing = Ran(opened.close)
    closing.result(20)
    assert again
    kind(path).close()


@pytest.mark.parametrize("kind", [Queue, Channel])
def test_a_signals_handler_closes_what_is_just_synced(path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """It would wait for the very sync that it has interrupted: it is told so, and all goes on."""
    opened = kind(path) if kind is Queue else Channel[bytes](path, crash_consistent=True)
    append = opened.append if kind is Queue else opened.tx().send
    append(b"a")
    real, told = files.sync, []

    def interrupted(fd: int) -> None:
        monkeypatch.setattr(files, "sync", real)
        with pytest.raises(LogBusy, match="handler") as busy:
            opened.close()
        told.append(busy)
        real(fd)

    monkeypatch.setattr(files, "sync", interrupted)
    if kind is Queue:
        assert opened.sync() == 1
    append(b"b")
    assert told
    opened.close()
    with kind(path, read_only=True) as again:
        assert (again.next_sequence if kind is Queue else len(again.rx().recv_many(10))) == 2


@pytest.mark.parametrize("kind", [Queue, Channel, Journal, Topics])
def test_a_close_that_is_interrupted_while_it_takes_its_turn_can_be_made_again(path: Path, kind: Any) -> None:
    """At once, where the exception is caught and so still there; and nobody waits for what was interrupted."""

    class Interrupted(BaseException):
        pass

    def interrupt(frame: Any, event: str, arg: object) -> Any:
        """At one of the moments at which functions of these modules begin or end: there a signal's handler may come."""
        nonlocal left
        if frame.f_code.co_filename in (closable.__file__, contextlib.__file__) and event in ("call", "return"):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise Interrupted
        return interrupt

    def close() -> bool:
        """Whether it was interrupted."""
        opened = kind(path)
        if kind is Topics:
            opened.topic("t").publish(b"a").wait()
        try:
            sys.settrace(interrupt)
            try:
                opened.close()
            finally:
                sys.settrace(None)
        except Interrupted:
            opened.close()
            assert not opened._open if kind is Topics else opened.closed
            Ran(opened.close).result(20)
            return True
        return False

    for moment in range(1, 12):
        left = moment
        Ran(close).result(60)
    kind(path).close()


# ---- sealing and removing ----


def test_a_lock_that_cannot_be_had_before_sealing_is_no_failed_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, roll=Roll(records=2)) as q:
        log = q._open_log()
        real = files.lock

        def lock(fd: int, *, shared: bool, wait: bool = True) -> bool:
            if files.name_of(fd).endswith(".grow"):
                raise files.storage_failed(files.name_of(fd), OSError(errno.ENOLCK, "no locks"))
            return real(fd, shared=shared, wait=wait)

        with monkeypatch.context() as patch:
            for i in range(5):
                q.append(b"%d" % i)
            patch.setattr(files, "lock", lock)
            with pytest.raises(StorageFailed):
                log.seal_finished()
        assert log.control is not None
        assert not log.control.poison
        log.seal_finished()


def test_what_refuses_a_lock_is_told_as_ours(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(StorageFailed, match=str(tmp_path)):
            files.lock(fd, shared=False)
    finally:
        os.close(fd)


def test_a_segment_is_sealed_when_nobody_makes_room_in_it_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added later nobody gives back."""
    with Channel[bytes](path, segment_bytes=200_000) as ch:
        ch.rx("worker")
        tx = ch.tx()
        for _ in range(19):
            tx.send(bytes(10_000))
        gate = Gate(monkeypatch, WriteSegment, "grow")
        with gate.held(lambda: tx.send(bytes(400_000))) as sending:
            for _ in range(5):
                tx.send(bytes(10_000))  # it is left
            log = ch._open_log()
            sealing = Ran(lambda: until(lambda: log.finished()[0].sealed, "it is sealed"))
            sealing.join(SOON_S)
            assert sealing.is_alive()
        sending.result()
        sealing.result()
        assert (path / "segment.0").stat().st_size == log.finished()[0].end
        assert log.directory.paths(0).times.stat().st_blocks * 512 < 100_000


def test_an_index_that_is_made_anew_does_not_come_back_when_its_segment_is_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=65536, index_interval=4, roll=Roll(records=50)) as q:
        for _ in range(120):
            q.append(bytes(100))
        log = q._open_log()
        log.seal_finished()
        first = data_files(path)[0]
        os.truncate(first.with_suffix(".index"), 256)  # a power cut may
        real = readers.walk

        def walk(*args: Any) -> Any:
            out = real(*args)
            retention.drop(log, 100)
            return out

        with monkeypatch.context() as patch:
            patch.setattr(readers, "walk", walk)
            with q.tailer() as tailer:
                tailer.seek(30)
        assert not list(first.parent.glob(f"{first.stem}.*"))


def test_what_a_batch_held_back_goes_when_that_is_committed(path: Path) -> None:
    """Whether it is in the log is told by records that would be removed."""
    with Channel[bytes](path, segment_bytes=1000) as ch:
        rx, tx = ch.rx("worker"), ch.tx()
        ledger = Ledger(ch._open_log())
        assert ledger.append("writer", 0, [])
        for _ in range(30):
            tx.send(bytes(100))
        with ledger._locked():
            assert len(rx.recv_many(30)) == 30
            until(lambda: ch._janitor is not None and ch._janitor._retry_s, "that was noticed")
            assert ch.stats().segments > 1
        until(lambda: ch.stats().segments == 1, "all but the last are removed")


# ---- looking ----


def test_a_mark_that_is_just_stored_is_looked_at_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there means that nothing is known to be durable, or with a log that nobody writes, that all is."""
    with Channel[bytes](path) as ch:
        ch.tx().send(b"one")
        log = ch._open_log()
        log.sync()
        control, durable = log.control, ch._places.durable
        assert control is not None
        mark, at = control.durable, pages._DURABLE_AT
        good = bytes(control._map[at : at + 28])

        def later(seconds: float) -> None:
            control._put(at, good)

        ch.tx().send(b"two")
        with monkeypatch.context() as patch:
            control._put(at, good[:8] + b"\x7f" + good[9:])
            patch.setattr(time, "sleep", later)
            assert control.durable == mark
        control._put(at, good[:8] + b"\x7f" + good[9:])
        assert control.durable is None, "it is damaged"
        assert ch._places.durable == 0
        control._put(at, good)
        assert ch._places.durable == durable


def test_counters_lose_nothing_that_threads_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meters, times = Meters(), iter([10, 40, 20, 25])

    def now() -> int:
        told = next(times)
        if told == 40:  # another thread syncs while this one looks at the clock
            with meters.syncing():
                pass
        return told

    monkeypatch.setattr(time, "monotonic_ns", now)
    with meters.syncing():
        pass
    assert (meters.syncs, meters.sync_ns) == (2, (40 - 10) + (25 - 20))


def test_all_logs_can_be_listed_while_others_are_opened() -> None:
    class Late(WeakSet[Any]):
        """Something is added while it is gone over, once."""

        def __iter__(self) -> Iterator[Any]:
            for item in super().__iter__():
                if not late:
                    late.append(Manifest)
                    self.add(late[0])
                yield item

    late, items = list[type](), [Gate, Late, Meters]
    assert set(all_of(Late(items))) == {*items, *late}
    assert late
