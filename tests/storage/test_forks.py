"""A fork at any moment of another thread: the child keeps no lock of the parent's, and waits for no thread that it has not got."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Journal, Queue, Topics, kernel, metrics
from penstock.storage import bulk, files, metadata
from penstock.storage import log as logs
from penstock.storage.holder import Holder
from penstock.storage.ledger import Ledger
from penstock.storage.mapped import Mapped
from penstock.topic import topics
from tests.channel.conftest import Ran
from tests.forking import Child
from tests.storage.test_beside import Gate

# From Python 3.12 on a fork beside threads warns. That it is safe here is the test.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def nothing() -> None:
    """What a child does that only lives on."""


def open_again(path: Path) -> int:
    with Queue(path) as q:
        return q.next_sequence


def open_files(path: Path) -> list[str]:
    """Of this process, there or below it."""
    links = [fd for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)]
    return [name for name in (str(link.readlink()) for link in links) if name.startswith(str(path))]


@pytest.mark.parametrize("owner, name", [(Mapped, "let_go"), (logs, "recover"), (logs, "join_manifest")])
def test_a_queue_can_be_opened_though_a_child_was_forked_while_it_was_opened_or_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    others = [Queue(path)] if name == "join_manifest" else []

    def use() -> None:
        with Queue(path) as q:
            q.append(b"a")

    gate = Gate(monkeypatch, owner, name)
    with gate.held(use) as using:
        child = Child(nothing)
        with child:
            gate.open()
            using.result()
            for other in others:
                other.close()
            assert Ran(lambda: open_again(path)).result(seconds=20) == 1


def test_a_batch_can_be_committed_though_a_child_was_forked_while_one_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path) as q:
        ledger = Ledger(q._open_log())
        part = bulk.Part(kernel.encode_many(q._open_log().fmt.SPEC, [b"a"]))
        gate = Gate(monkeypatch, bulk, "append")
        with gate.held(lambda: ledger.append("writer", 0, [part])) as committing, Child(nothing):
            gate.open()
            assert committing.result()
            assert Ran(lambda: ledger.append("writer", 1, [part])).result(seconds=20)
            assert ledger.settle()


def test_partitions_can_be_added_though_a_child_was_forked_while_some_were(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Topics(path) as all_of_them:
        t = all_of_them.topic("t")
        gate = Gate(monkeypatch, metadata, "change")
        with gate.held(lambda: t.add_partitions(2)) as adding, Child(nothing):
            gate.open()
            adding.result()
            Ran(lambda: t.add_partitions(3)).result(seconds=20)


@pytest.mark.parametrize("kind", [Channel, Journal])
def test_who_may_write_is_not_kept_by_a_child_when_its_parent_is_killed(
    path: Path, kind: type[Channel[bytes]] | type[Journal]
) -> None:
    def die() -> None:
        held = kind(path)
        if os.fork() == 0:
            os.write(forked, b"x")
            os.read(go, 1)  # lives on, with all that its parent had open
            os._exit(0)
        os.read(is_forked, 1)  # of the lock it lets go as soon as it runs
        assert not held.closed
        os.kill(os.getpid(), 9)

    go, told = os.pipe()
    is_forked, forked = os.pipe()
    pid = os.fork()
    if pid == 0:
        die()
    os.waitpid(pid, 0)
    try:
        Ran(lambda: kind(path).close()).result(seconds=20)
    finally:
        os.write(told, b"x")
        for end in (told, go, is_forked, forked):
            os.close(end)


@pytest.mark.parametrize("full", [False, True])
def test_descriptors_of_locks_are_good_for_nothing_in_a_child(tmp_path: Path, full: bool) -> None:
    """And still there, so that whoever closes one closes nobody else's; also where no more can be had."""
    fds = [files.open_to_lock(tmp_path / f"{i}") for i in range(3)]
    holder = Holder(tmp_path, "journal")
    limits, others = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    if full:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 3, limits[1])
        )
        with suppress(OSError):
            while True:
                others.append(os.dup(0))
    try:
        pid = os.fork()
        if pid == 0:
            found = {files.name_of(fd) for fd in (*fds, holder._fd)}
            for fd in fds:
                files.close(fd)
            os._exit(0 if found == {os.devnull} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        for fd in others:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {files.name_of(fd) for fd in fds} == {str(tmp_path / f"{i}") for i in range(3)}
    holder.close()
    for fd in fds:
        files.close(fd)
    assert not files._lockable & {*fds}


def test_so_is_that_of_a_file_that_another_thread_has_just_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forks does not wait for that one, which may have other locks that this waits for."""
    gate = Gate(monkeypatch, files, "create", after=True)
    with gate.held(lambda: files.open_to_lock(path)) as opening, Child(lambda: open_files(path)) as child:
        assert child.said() == "returned []"
    files.close(opening.result())


@pytest.mark.parametrize("kind", [Queue, Channel, Journal, Topics])
def test_what_a_child_closes_of_its_parents_is_closed(path: Path, kind: Any) -> None:
    opened = kind(path)
    if kind is Channel:
        opened.rx("worker")
    if kind is Topics:
        opened.topic("t").publish(b"a").wait()

    def close() -> list[str]:
        opened.close()
        here = Counter(open_files(path))
        return [name for name, times in here.items() if times > 1]  # a map keeps its file open, once

    with Child(close) as child:
        assert child.said() == "returned []"
    opened.close()


def test_a_child_that_awaits_a_promise_of_its_parents_is_told(path: Path) -> None:
    with Journal(path, linger_s=60) as j:
        promise = j.append(b"a")

        async def wait() -> None:
            await promise

        with j._bell._lock, Child(lambda: asyncio.run(wait())) as child:
            assert child.ends(20)
            assert child.said().startswith("LogClosed")


WAITS: dict[str, tuple[Any, str, Callable[[Topics, Journal], object], Callable[[Topics, Journal], object]]] = {
    "topics are closed": (topics, "settle", lambda t, j: t.topic("x"), lambda t, j: t.close()),
    "a topic is asked for": (topics, "settle", lambda t, j: t.topic("x"), lambda t, j: t.topic("y")),
    "a partition is opened": (
        topics,
        "OpenPartition",
        lambda t, j: t.topic("t").publish(b"a", partition=0),
        lambda t, j: t.topic("t").publish(b"a", partition=1),
    ),
    "a journal is asked": (
        Journal,
        "_settle",
        lambda t, j: j.checkpoint(),
        lambda t, j: (j.current, j.first_unchecked),
    ),
    "metrics are": (metrics, "_metrics", lambda t, j: metrics.snapshot(), lambda t, j: metrics.snapshot()),
}


@pytest.mark.parametrize("what", WAITS)
def test_a_child_does_not_wait_for_a_thread_that_is_not_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner, name, act, ask = WAITS[what]
    with Topics(path / "topics") as t, Journal(path / "journal") as j:
        t.topic("t", 2)
        gate = Gate(monkeypatch, owner, name)
        with gate.held(lambda: act(t, j)):
            with Child(lambda: ask(t, j)) as child:
                assert child.ends(20)
                assert child.said().startswith(("returned", "LogClosed"))
            gate.open()
