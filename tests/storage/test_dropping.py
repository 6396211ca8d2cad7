"""Logs that were dropped and not closed: the collector finds them anywhere, also in a thread that closing them would wait for."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Journal, Queue, Retention, Topics
from penstock.errors import DiskFull
from penstock.storage import dropping, files
from penstock.storage.buffered import Buffered
from penstock.storage.cursor import Cursors
from penstock.storage.log import Log
from tests.support import until, until_collected

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


class Cycle:
    """Only the collector finds it, and what it has."""

    def __init__(self, has: object) -> None:
        self.has = has
        self.me = self


@pytest.fixture
def collect() -> Iterator[Callable[[], object]]:
    """The collector comes when it is called, and at no other time."""
    gc.collect()
    gc.disable()
    yield gc.collect
    gc.enable()


def all_are_closed() -> bool:
    closer = dropping._closer
    return closer is not None and not closer.waiting


def test_topics_that_are_found_in_the_thread_that_writes_for_them(
    path: Path, collect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the lock of a partition in hand; and closing waits for the end of that very thread."""
    attach, found = Buffered._attach, list[str]()

    def attached(self: Buffered, now: Any) -> None:
        attach(self, now)
        collect()
        found.append(threading.current_thread().name)

    monkeypatch.setattr(Buffered, "_attach", attached)
    batch = Topics(path, linger_s=0).topic("t").publish(b"a")._batch
    until(lambda: batch.done and all_are_closed(), "it is written, and they are closed")
    assert threading.main_thread().name not in found
    with Topics(path) as logs:
        assert logs.topic("t").recovery(0).how == "clean"
        assert [m.payload for m in logs.topic("t").read(0, 0, 9)] == [b"a"]


def test_one_that_is_found_by_a_thread_that_has_its_lock_through_another(
    path: Path, collect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, here = Cursors.store, list[bool]()
    with Queue(path) as q:
        q.append(b"a")
        Cycle(Queue(path))

        def stored(self: Cursors, *args: Any, **options: Any) -> None:
            collect()
            here.append(all_are_closed())
            store(self, *args, **options)

        monkeypatch.setattr(Cursors, "store", stored)
        q.tailer("reader").close()
        assert here == [False]
        until(all_are_closed, "the other one is closed")
        assert q.append(b"b") == 1


def test_two_that_are_each_found_by_the_background_of_the_other(
    path: Path, collect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, both = Log.seal_finished, threading.Barrier(2)

    def sealing(self: Log, least: int = 1) -> int:
        here = threading.current_thread()
        if here in dropped:
            dropped.remove(here)
            both.wait(20)
            collect()  # what the other one has not found before
            both.wait(20)
        return seal(self, least)

    dropped = list[threading.Thread]()
    monkeypatch.setattr(Log, "seal_finished", sealing)
    queues = [Queue(path / name, retention=Retention(max_bytes=1 << 30)) for name in ("a", "b")]
    janitors = [q._janitor for q in queues]
    while queues:
        Cycle(queues.pop())
    for janitor in janitors:
        assert janitor is not None
        until(lambda janitor=janitor: janitor._wakes.empty(), "it has done what there was")  # type: ignore[misc]
    dropped += [janitor for janitor in janitors if janitor is not None]
    for janitor in janitors:
        assert janitor is not None
        janitor.look_again()
    until(lambda: not any(janitor and janitor.is_alive() for janitor in janitors), "both are closed")


@pytest.mark.parametrize("kind", [Channel, Journal])
def test_whoever_opens_it_again_waits_for_it(path: Path, kind: type[Channel[bytes]] | type[Journal]) -> None:
    """Only one at a time may have it."""
    for _ in range(3):
        dropped = weakref.ref(Cycle(kind(path)).has)
        until_collected(dropped)
        kind(path).close()


def test_what_fails_is_told_as_of_the_end_of_any_object_and_the_next_one_is_closed(
    path: Path, collect: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    q = Queue(path / "a")
    close = q._open_log().close

    def fail() -> None:
        close()
        raise DiskFull(path / "a", 1)

    q._open_log().close = fail  # type: ignore[method-assign]
    Cycle(q)
    del q
    collect()
    until(all_are_closed, "it is")
    told = capfd.readouterr().err
    assert "DiskFull" in told
    assert str(path / "a") in told
    Cycle(Journal(path / "b"))
    collect()
    Journal(path / "b").close()


def test_what_its_last_reference_drops_is_closed_at_once(path: Path) -> None:
    q = Queue(path)
    q.append(b"a")
    del q
    with (path / ".lock").open() as page:
        assert files.lock_holders(page.fileno()) == []


def test_what_a_forked_child_drops_before_it_ends_is_written(path: Path) -> None:
    """As multiprocessing has it: without an exit of the interpreter."""

    def work() -> None:
        j = Journal(path)
        for i in range(100):
            j.append(b"%d" % i)

    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with Journal(path) as j:
        assert [record.payload for record in j.recovered()] == [b"%d" % i for i in range(100)]


def test_whoever_opens_it_where_it_is_closed_does_not_wait_for_himself(
    path: Path, collect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[int]()
    q = Queue(path)
    q.append(b"a")
    close = q._open_log().close

    def look() -> None:
        close()
        with Queue(path) as again:
            found.append(again.next_sequence)

    q._open_log().close = look  # type: ignore[method-assign]
    Cycle(q)
    del q
    collect()
    until(lambda: found == [1], "it is opened")


def test_a_child_closes_what_it_drops_itself(path: Path) -> None:
    """The thread that closes is the parent's, and so is what waits for it."""
    Queue(path / "parents").close()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            q = Queue(path / "childs")
            q.append(b"a")
            del q
            with Queue(path / "childs") as q:
                code = 0 if q.recovery.how == "clean" and q.next_sequence == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
