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
from penstock.storage import dropping
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


def test_what_fails_is_told_by_the_hook_for_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    q = Queue(path)
    close = q._open_log().close

    def fail() -> None:
        close()
        raise DiskFull(path, 1)

    q._open_log().close = fail  # type: ignore[method-assign]
    del q
    until(lambda: told, "it is told")
    assert isinstance(told[0].exc_value, DiskFull)
    assert str(path) in told[0].err_msg
    told.clear()
    Queue(path).close()


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
