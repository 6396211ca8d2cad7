"""Other processes that come from this one: fork, spawn, forkserver, and a queue sent to them.

A forked child has the parent's memory but not its threads, and must not use its locks: the object it inherits says so, and the
parent notices nothing of it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Flush, LogClosed, Queue, ReadOnly, Roll, Topics
from penstock.storage.tailer import Tailer
from tests.forking import Child

# The queue has a background thread, and from Python 3.12 on a fork beside threads warns. That it is safe here is the test.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

METHODS = ["fork", "spawn", "forkserver"]
DEADLINE_S = 60


def payloads(q: Queue) -> list[bytes]:
    with q.tailer() as tailer:
        return [m.payload for m in tailer]


USES: dict[str, Callable[[Queue], object]] = {
    "append": lambda q: q.append(b"child"),
    "append of a view": lambda q: q.append(memoryview(b"child")),
    "append_batch": lambda q: q.append_batch([b"child", b"child"]),
    "appender": lambda q: q.appender().append(b"child"),
    "sync": lambda q: q.sync(),
    "tailer": lambda q: q.tailer(),
    "next_sequence": lambda q: q.next_sequence,
    "first_sequence": lambda q: q.first_sequence,
    "cursors": lambda q: q.cursors(),
}


@pytest.mark.parametrize("use", USES)
def test_child_that_uses_the_parents_queue_is_told_to_open_it_anew(path: Path, use: str) -> None:
    with Queue(path) as q:
        q.append(b"parent")
        with Child(lambda: USES[use](q)) as child:
            said = child.said()
            assert said.startswith("LogClosed: ")
            assert "open it again in the child process" in said
        q.append(b"after")
        assert payloads(q) == [b"parent", b"after"]


@pytest.mark.parametrize("use", USES)
def test_child_is_told_also_with_flush_each(path: Path, use: str) -> None:
    with Queue(path, flush=Flush.each()) as q:
        with Child(lambda: USES[use](q)) as child:
            assert child.said().startswith("LogClosed: ")
        q.append(b"after")
        assert payloads(q) == [b"after"]


def test_child_that_reads_the_parents_tailer_is_told_to_open_it_anew(path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"a", b"b"])
        tailer, named = q.tailer(), q.tailer("named")
        assert tailer.read()
        with Child(lambda: [tailer.read(), tailer.read()]) as child:
            assert child.said().startswith("LogClosed: ")
        with Child(named.commit) as child:
            assert child.said().startswith("LogClosed: ")
        with Child(lambda: tailer.read(timeout_s=5)) as child:
            assert child.said().startswith("LogClosed: ")
        message = tailer.read()
        assert message is not None
        assert message.payload == b"b"


READS: dict[str, Callable[[Tailer], object]] = {
    "read": lambda t: t.read(),
    "read_batch": lambda t: t.read_batch(1),
    "read_view": lambda t: t.read_view(),
    "iteration": lambda t: next(iter(t)),
    "follow": lambda t: next(t.follow()),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("use", READS)
def test_child_has_nothing_of_what_the_parents_tailer_has_before_it(path: Path, use: str, read_only: bool) -> None:
    with Queue(path) as q:
        q.append_batch([b"a", b"b", b"c"])
    with Queue(path, read_only=read_only) as q, q.tailer() as tailer:
        assert tailer.read()
        with Child(lambda: READS[use](tailer)) as child:
            assert child.said().startswith("LogClosed: ")
        assert [m.payload for m in tailer] == [b"b", b"c"]


def test_child_has_nothing_of_what_the_parents_tailer_has_behind_it(path: Path) -> None:
    with Queue(path) as q, q.tailer(direction="backward") as tailer:
        q.append_batch([b"a", b"b", b"c"])
        tailer.to_end()
        assert tailer.read()
        with Child(tailer.read) as child:
            assert child.said().startswith("LogClosed: ")
        assert [m.payload for m in tailer] == [b"b", b"a"]


def test_child_has_nothing_of_a_topics_tailer_nor_of_a_channels_receiver(path: Path) -> None:
    with Topics(path / "topics") as topics, Channel[bytes](path / "channel") as channel:
        topic, tx = topics.topic("orders"), channel.tx()
        topic.publish_many([b"a", b"b"]).wait()
        tx.send_many([b"a", b"b"])
        readers = topic.tailer().read, channel.rx().recv, channel.rx("named").recv
        for read in readers:
            assert read()
            with Child(read) as child:
                assert child.said().startswith("LogClosed: ")
            assert read()


def test_parents_close_stays_clean_while_a_forked_child_lives(path: Path) -> None:
    q = Queue(path, file_size=1 << 20)
    q.append_batch([b"a", b"b"])
    with Child(lambda: None) as child:
        assert child.said() == "returned None"
        q.close()
        with Queue(path) as again:
            assert again.recovery.how == "clean"
            assert payloads(again) == [b"a", b"b"]


def test_child_that_closes_the_parents_queue_does_not_close_it(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a")
        with Child(q.close) as child:
            assert child.said() == "returned None"
        q.append(b"b")
        assert payloads(q) == [b"a", b"b"]


def test_child_that_opens_the_queue_anew_works_beside_the_parent(path: Path) -> None:
    def append() -> range:
        with Queue(path) as mine:
            return mine.append_batch([b"child", b"child"])

    with Queue(path) as q:
        q.append(b"parent")
        with Child(append) as child:
            assert child.said() == "returned range(1, 3)"
        assert q.append(b"after") == 3
        assert payloads(q) == [b"parent", b"child", b"child", b"after"]


def test_child_of_a_child_opens_the_queue_anew(path: Path) -> None:
    def append() -> str:
        with Queue(path) as mine:
            mine.append(b"child")

            def again() -> int:
                with Queue(path) as third:
                    return third.append(b"grandchild")

            with Child(again) as grandchild:
                said = grandchild.said()
            mine.append(b"child")
        return said

    with Queue(path) as q:
        with Child(append) as child:
            assert child.said() == "returned 'returned 1'"
        assert payloads(q) == [b"child", b"grandchild", b"child"]


def test_fork_while_other_threads_append(path: Path) -> None:
    """Whatever lock a thread of the parent holds at that moment, the child never waits for it for long."""
    stop = threading.Event()
    counts = [0, 0]

    def append(which: int) -> None:
        while not stop.is_set():
            q.append(b"thread" * 10)
            counts[which] += 1

    with Queue(path, file_size=1 << 16, roll=Roll.count(200)) as q:
        threads = [threading.Thread(target=append, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                with Child(lambda: q.append(b"child")) as child:
                    assert child.said().startswith("LogClosed: ")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert q.next_sequence == sum(counts)
        assert len(payloads(q)) == sum(counts)


def test_exit_of_a_forked_child_does_not_break_the_parents_locks(path: Path) -> None:
    """It ends as a Python program does: exit handlers run and objects are torn down."""
    with Queue(path) as q:
        q.append(b"before")
        pid = os.fork()
        if pid == 0:
            try:
                sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
                multiprocessing.process._cleanup()  # type: ignore[attr-defined]
                import atexit

                atexit._run_exitfuncs()
                del q
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        q.append(b"after")
        q.sync()
        assert payloads(q) == [b"before", b"after"]
    with Queue(path) as q:
        assert q.recovery.how == "clean"


# ---- multiprocessing ----


def _use_inherited(q: Queue, answers: Any) -> None:
    try:
        answers.put(q.append(b"child"))
    except Exception as error:
        answers.put(repr(error))


def _open_anew(path: str, answers: Any) -> None:
    with Queue(path) as q:
        answers.put((q.append(b"child"), [m.payload for m in q.tailer()]))


def _use_sent(q: Queue, answers: Any) -> None:
    with q:
        answers.put((os.getpid(), str(q.path), list(q.append_batch([b"x", b"y"])), q.recovery.how))


def _read_sent(q: Queue, answers: Any) -> None:
    with q:
        said = [m.payload for m in q.tailer()]
        try:
            q.append(b"no")
        except ReadOnly:
            answers.put(said)


def _run(method: str, function: Callable[..., None], *arguments: object) -> Any:
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=function, args=(*arguments, answers))
    process.start()
    try:
        answer = answers.get(timeout=DEADLINE_S)
        process.join(DEADLINE_S)
        assert process.exitcode == 0
        return answer
    finally:
        process.kill()
        process.join()
        process.close()
        answers.close()
        answers.join_thread()


def test_process_by_fork_that_uses_the_inherited_queue_is_told(path: Path) -> None:
    with Queue(path) as q:
        assert "before a fork" in _run("fork", _use_inherited, q)
        assert q.append(b"parent") == 0


@pytest.mark.parametrize("method", METHODS)
def test_process_opens_the_queue_anew(path: Path, method: str) -> None:
    with Queue(path) as q:
        q.append(b"parent")
        assert _run(method, _open_anew, str(path)) == (1, [b"parent", b"child"])
        assert q.append(b"after") == 2
        assert payloads(q) == [b"parent", b"child", b"after"]
    with Queue(path) as q:
        assert q.recovery.how == "clean"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_queue_sent_to_a_process_is_opened_there(path: Path, method: str) -> None:
    with Queue(path, file_size=1 << 20, index_interval=7) as q:
        q.append(b"parent")
        pid, where, sequences, how = _run(method, _use_sent, q)
        assert pid != os.getpid()
        assert where == str(path)
        assert sequences == [1, 2]
        assert how == "joined"
        assert payloads(q) == [b"parent", b"x", b"y"]


def test_read_only_queue_sent_to_a_process_is_read_only_there(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"a")
        with Queue(path, read_only=True) as reader:
            assert _run("spawn", _read_sent, reader) == [b"a"]


def test_pickled_queue_keeps_its_options(path: Path) -> None:
    with Queue(path, roll=Roll.count(2), index_interval=3) as q:
        with pickle.loads(pickle.dumps(q)) as other:
            assert other is not q
            other.append_batch([b"a", b"b"])
            other.append(b"c")
            assert len(list(path.rglob("*.data"))) == 2
        assert payloads(q) == [b"a", b"b", b"c"]


def test_closed_queue_can_be_used_by_nobody(path: Path) -> None:
    q = Queue(path)
    append = q.append
    q.close()
    with pytest.raises(LogClosed):
        append(b"late")
    with Child(lambda: append(b"late")) as child:
        assert child.said().startswith("LogClosed: ")
