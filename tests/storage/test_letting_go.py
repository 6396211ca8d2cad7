"""What was closed holds no file and no map any more, without the collector of garbage; what was forgotten neither."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Flush, Journal, Queue, Retention, Roll, Topics, codecs
from penstock.errors import LogClosed, LogNotFound, PenstockError, SyncFailed
from penstock.storage import files
from penstock.storage.janitor import Janitor
from tests.support import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc, to see files and maps")

TIMES = 5


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def held(path: Path) -> Counter[str]:
    """Every descriptor of this process, by what it is of, and the maps of files below a path. But for sockets: a log has none, and the
    connections to Java that Spark's tests leave in this process come and go."""
    out: Counter[str] = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            of = str(fd.readlink())
        except FileNotFoundError:
            continue  # of this very look
        if not of.startswith("socket:"):
            out[of] += 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(path) in line:
            out["map " + line.split(maxsplit=5)[-1]] += 1
    return out


# ---- uses: each opens a log, works with it, closes it, and gives what its user may still have ----


def queue(path: Path, **options: Any) -> object:
    with Queue(path, file_size=8192, **options) as q:
        appender = q.appender()
        for i in range(50):
            appender.append(b"%d" % i * 20)
        q.append_batch([b"a", b"b"])
        q.append(bytearray(b"c"))
        q.sync()
    return q, appender, q.append


def queue_read(path: Path) -> object:
    with Queue(path, file_size=8192) as q:
        q.append_batch([b"x" * 1000] * 20)
        t = q.tailer("reader")
        assert t.read() is not None
        t.commit()
        t.close()
        assert len([m.payload for m in q.tailer()]) >= 20
        assert q.tailer(direction="backward").read() is not None
        q.tailer().read_view()
        q.tailer(at="end").read_batch(10)
        with q.tailer(at="end") as last, pytest.raises(TimeoutError):
            last.read(timeout_s=0.001)
    return q, t, last


def queue_read_only(path: Path) -> object:
    queue(path)
    with Queue(path, file_size=8192) as writer, Queue(path, read_only=True) as q:
        assert len(list(q.tailer())) >= 50
        writer.append(b"more")
        assert q.tailer(at=q.next_sequence - 1).read() is not None
    with Queue(path, read_only=True) as still:
        t = still.tailer(at="end")
        with Queue(path) as writer:
            writer.append(b"more")
            assert t.read(timeout_s=10) is not None
    return q, still


def channel(path: Path, **options: Any) -> object:
    with Channel[bytes](path, segment_bytes=4096, **options) as ch:
        tx = ch.tx()
        one, shared, acking = ch.rx("one"), [ch.rx("many", shared=True) for _ in range(2)], ch.rx("ack", ack=True)
        for i in range(50):
            tx.send(b"%d" % i * 100)
        tx.send_many([b"a", b"b"])
        assert [one.recv() for _ in range(52)]
        assert len(shared[0].recv_many(10) + shared[1].recv_many(10)) == 20
        assert len(acking.recv_many(5)) == 5
        acking.ack(3)
        assert ch.rx().recv() is not None
        one.close()
        ch.stats()
    return ch, tx


def channel_typed(path: Path) -> object:
    with Channel(path, codecs.json(dict)) as ch:
        rx = ch.rx("worker")
        ch.tx().send({"job": 1})
        assert rx.recv() == {"job": 1}
    return ch


def channel_read_only(path: Path) -> object:
    channel(path)
    with Channel[bytes](path, read_only=True) as ch:
        assert ch.rx().recv() is not None
        ch.stats()
    return ch


def journal(path: Path, **options: Any) -> object:
    with Journal(path, **options) as j:
        assert list(j.recovered()) is not None
        done = [j.append(b"%d" % i * 100) for i in range(20)]
        j.append_many([b"a", b"b"]).result()
        j.checkpoint().result()
        j.append(b"c")
        j.check()
    return j, done


def journal_unwalked(path: Path) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Journal(path) as j:
            j.append(b"a")
    return j


def journal_awaited(path: Path) -> object:
    """The descriptor that the loop watches goes with the journal itself: a thread that waited may be about to ring there."""

    async def work() -> None:
        async with Journal(path) as j:
            list(j.recovered())
            await j.append(b"a")
            on_its_way = asyncio.gather(*(j.append(b"%d" % i) for i in range(20)))
        await on_its_way

    asyncio.run(work())
    return None


def topics(path: Path, **options: Any) -> object:
    with Topics(path, **options) as logs:
        t = logs.topic("orders", 3)
        made = [t.publish(b"%d" % i * 100, key=b"%d" % i) for i in range(50)]
        assert [one.wait() for one in made]
        assert t.publish_many([b"a", b"b"], partition=0).wait()
        assert t.read(0, 0, 10)
        assert t.tailer("reader").read_batch(10)
        assert t.tailer().read() is not None
        with t.group("workers") as member:
            assert member.poll() is not None
            member.commit()
        left = t.group("others")
        assert left.poll() is not None
        del left
        t.stats()
    return logs, t, made


def topics_read_only(path: Path) -> object:
    topics(path)
    with Topics(path, read_only=True) as logs:
        t = logs.topic("orders")
        assert t.read(0, 0, 10)
        assert t.tailer().read() is not None
    return logs, t


USES: dict[str, Callable[[Path], object]] = {
    "queue": queue,
    "queue, each synced": lambda path: queue(path, flush=Flush.each()),
    "queue, synced in batches": lambda path: queue(path, flush=Flush.batch(bytes=100, interval_s=0.001)),
    "queue, retention": lambda path: queue(path, roll=Roll.count(10), retention=Retention(max_bytes=20_000)),
    "queue, read": queue_read,
    "queue, read only": queue_read_only,
    "channel": channel,
    "channel, crash consistent": lambda path: channel(path, crash_consistent=True),
    "channel, compressed": lambda path: channel(path, compression="gzip"),
    "channel, typed": channel_typed,
    "channel, read only": channel_read_only,
    "journal": journal,
    "journal, lingering": lambda path: journal(path, linger_s=0.001),
    "journal, not walked": journal_unwalked,
    "journal, awaited": journal_awaited,
    "topics": topics,
    "topics, not synced": lambda path: topics(path, flush="none"),
    "topics, retention": lambda path: topics(path, segment_bytes=1000, retention=Retention(max_bytes=5000)),
    "topics, read only": topics_read_only,
}


@pytest.mark.parametrize("use", USES)
def test_what_was_closed_holds_nothing(path: Path, use: str) -> None:
    USES[use](path)  # what is opened once for all is no leak
    before = held(path)
    for _ in range(TIMES):
        still_there = USES[use](path)
        assert held(path) == before
        del still_there
    assert held(path) == before


# ---- what could not be opened ----


def _not_there(path: Path) -> None:
    for kind in (Queue, Channel):
        with pytest.raises(LogNotFound):
            kind(path, read_only=True)
    with pytest.raises(LogNotFound):
        Topics(path, read_only=True).topic("orders")


def _bad_page(path: Path) -> None:
    queue(path)
    page = path / ".lock"
    page.write_bytes(page.read_bytes().replace(b"PENSCTRL\1", b"PENSCTRL\7"))
    for read_only in (False, True):
        with pytest.raises(PenstockError):
            Queue(path, read_only=read_only)
    page.write_bytes(page.read_bytes().replace(b"PENSCTRL\7", b"PENSCTRL\1"))


def _of_another(path: Path) -> None:
    journal(path)
    with pytest.raises(PenstockError):
        Queue(path)
    with pytest.raises(PenstockError):
        Channel[bytes](path)


def _busy(path: Path) -> None:
    for kind in (Channel, Journal):
        with kind(path / kind.__name__), pytest.raises(PenstockError):
            kind(path / kind.__name__)


def _no_sync(path: Path) -> None:
    queue(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "sync", _fail)
        with pytest.raises(OSError, match="no disk"):
            Queue(path / "new")


def _fail(fd: int, *args: object, **options: object) -> bool:
    raise OSError(5, "no disk")


def _no_lock(path: Path) -> None:
    """Nor is it told who has it."""
    for call in ("lock", "read"):
        for kind in (Channel, Journal):
            with kind(path / kind.__name__), pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, call, _fail)
                with pytest.raises(OSError, match="no disk"):
                    kind(path / kind.__name__)


@pytest.mark.parametrize("failing", [_not_there, _bad_page, _of_another, _busy, _no_sync, _no_lock])
def test_what_could_not_be_opened_holds_nothing(path: Path, failing: Callable[[Path], None]) -> None:
    failing(path)
    before = held(path)
    for _ in range(3):
        failing(path)
        assert held(path) == before


def test_what_could_not_be_synced_holds_nothing_when_it_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = held(path)
    q = Queue(path)
    q.append(b"a")
    monkeypatch.setattr(files, "sync", _fail)
    for _ in range(2):
        with pytest.raises(SyncFailed):
            q.sync()
    q.close()
    assert held(path) == before


# ---- what was forgotten ----


def _forget_queue(path: Path) -> None:
    q = Queue(path)
    q.append(b"a")
    q.tailer("reader").read()


def _forget_channel(path: Path) -> None:
    ch = Channel[bytes](path, crash_consistent=True)
    ch.tx().send(b"a")
    ch.rx("worker").recv()


def _forget_journal(path: Path) -> None:
    j = Journal(path)
    list(j.recovered())
    j.append(b"a").result()


@pytest.mark.parametrize("forget", [_forget_queue, _forget_channel, _forget_journal])
def test_what_was_forgotten_warns_and_holds_nothing(path: Path, forget: Callable[[Path], None]) -> None:
    before = held(path)
    with pytest.warns(ResourceWarning, match="unclosed"):
        forget(path)
        until(lambda: held(path) == before, "it is let go of: its background may have it for a moment yet")


def test_forgotten_topics_warn_and_hold_nothing_when_the_collector_came(path: Path) -> None:
    """A topic and its `Topics` hold each other."""
    before = held(path)
    with pytest.warns(ResourceWarning, match="unclosed"):
        Topics(path).topic("orders", 2).publish(b"a").wait()
        gc.collect()
    until(lambda: held(path) == before, "it is let go of")


def _forget_queue_reader(path: Path) -> None:
    assert Queue(path / "queue", read_only=True).tailer().read() is not None


def _forget_channel_reader(path: Path) -> None:
    assert Channel[bytes](path / "channel", read_only=True).rx().recv() is not None


@pytest.mark.parametrize("forget", [_forget_queue_reader, _forget_channel_reader])
def test_what_was_only_read_and_forgotten_holds_nothing(path: Path, forget: Callable[[Path], None]) -> None:
    queue(path / "queue")
    channel(path / "channel")
    before = held(path)
    forget(path)
    assert held(path) == before


# ---- what is in use ----


def test_going_over_a_tailer_keeps_it_and_its_queue_until_the_end(path: Path) -> None:
    queue(path)
    before = held(path)
    messages = iter(Queue(path, read_only=True).tailer())
    assert len(list(messages)) == 53
    del messages
    assert held(path) == before


def test_a_view_keeps_its_own_file_and_no_other(path: Path) -> None:
    before = held(path)
    with Queue(path) as q:
        q.append(b"a" * 100)
        view = q.tailer().read_view()
    assert [name.rsplit(".", 1)[-1] for name in held(path) - before if name.startswith("map")] == ["data"]
    assert view == b"a" * 100
    del view
    assert held(path) == before


@pytest.mark.parametrize("kind", ["append", "append_batch", "read", "wait"])
def test_threads_at_work_when_it_is_closed_are_told_and_hold_nothing_afterwards(path: Path, kind: str) -> None:
    before = held(path)
    for _ in range(TIMES):
        q = Queue(path, file_size=1 << 16)
        q.append(b"first")
        ready = threading.Barrier(3)
        told: list[BaseException] = []

        def work(
            q: Queue = q, ready: threading.Barrier = ready, told: list[BaseException] = told, kind: str = kind
        ) -> None:
            t = q.tailer()
            act: dict[str, Callable[[], object]] = {
                "append": lambda: q.append(b"x" * 100),
                "append_batch": lambda: q.append_batch([b"x" * 100] * 20),
                "read": t.read,
                "wait": lambda: t.read(timeout_s=None),
            }
            ready.wait()
            try:
                while True:
                    act[kind]()
            except LogClosed as closed:
                told.append(closed.with_traceback(None))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        ready.wait()
        q.close()
        for thread in threads:
            thread.join()
        assert len(told) == 2
        del threads, thread, work, q
        assert held(path) == before


@pytest.mark.filterwarnings("ignore:unclosed queue:ResourceWarning")
def test_what_the_collector_finds_in_the_background_is_closed_when_that_has_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs wherever something is allocated: also in the thread that syncs, with the lock of that in hand."""

    class Service:
        def __init__(self) -> None:
            self.queue = Queue(tmp_path / "q", file_size=65536, flush=Flush.batch(interval_s=0.2))
            self.me = self  # only the collector finds it

    real, dropped = files.sync, threading.Event()

    def sync(fd: int) -> None:
        real(fd)
        if isinstance(threading.current_thread(), Janitor) and dropped.is_set():
            gc.collect()

    monkeypatch.setattr(files, "sync", sync)
    gc.disable()
    try:
        service = Service()
        service.queue.append(b"x")
        janitor = service.queue._janitor
        assert janitor is not None
        del service
        dropped.set()
        janitor.join(20)
        assert not janitor.is_alive()
    finally:
        gc.enable()
    with Queue(tmp_path / "q") as q:
        assert q.recovery.how == "clean"
        assert q.next_sequence == 1
