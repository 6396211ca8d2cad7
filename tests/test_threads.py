"""Threads of one process that share a log, beside its background: what each of them was told holds, and nothing fails that nobody has broken.

Files are small and manifests soon too long, so that segments are rolled, sealed, removed and listed anew all the time, and threads
take turns at nearly every line. In the midst of it the log is closed: whoever is at work is told that, and nothing else.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Journal, Queue, Retention, Topics, journal, kernel
from penstock.errors import InvalidCheck, LogClosed, RecordGone
from penstock.storage.manifest import Manifest
from tests.support import AWhile, until

SECONDS = 1.0
LEAST = 40 if kernel.NAME == "reference" else 200  # records, whatever the machine is busy with
SWITCH_S = 1e-5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Manifest, "is_long", property(lambda self: self._edits > 2 + len(self.segments)))
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", 1000)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(interval_s)


class Crew:
    """Threads that do something again and again until they are told to stop, or that the log is closed."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self._failed: list[BaseException] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, name: str, act: Callable[[], object], *others: type[Exception]) -> None:
        """`others` are what it may raise when it comes too late, or too early: then it is tried again."""

        def work() -> None:
            try:
                while not self._stop.is_set():
                    with suppress(*others):
                        act()
                    self.turns[name] = self.turns.get(name, 0) + 1
            except LogClosed:
                pass
            except BaseException as error:
                self._failed.append(error)
                self._stop.set()

        self._threads.append(threading.Thread(target=work, name=name, daemon=True))

    @contextmanager
    def at_work(self, enough: Callable[[], bool]) -> Iterator[None]:
        """For some time, and until it is enough; what follows is done beside them, and then they stop."""
        for thread in self._threads:
            thread.start()
        some = AWhile(SECONDS)
        while some.goes_on(enough=enough() and len(self.turns) == len(self._threads)) and not self._failed:
            self._stop.wait(0.05)
        try:
            if not self._failed:
                yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)
                assert not thread.is_alive(), f"{thread.name} does not end"
            if self._failed:
                raise self._failed[0]


def numbered(thread: int) -> Iterator[bytes]:
    """What a thread sends: nobody else sends the same, and in this order."""
    rng = random.Random(thread)
    return (b"%d:%d:" % (thread, i) + bytes(rng.randrange(60)) for i in itertools.count())


def check_order(got: list[bytes], least: dict[int, int] | None = None) -> None:
    """Of each thread all, from its first one on, in its order; so many at least."""
    last: dict[int, int] = {}
    for payload in got:
        thread, number, _ = payload.split(b":", 2)
        assert int(number) == last.get(int(thread), -1) + 1, payload
        last[int(thread)] = int(number)
    for one, count in (least or {}).items():
        assert last.get(one, -1) + 1 >= count


class Sending:
    """Some threads that send, and how many of each were acknowledged."""

    def __init__(self, crew: Crew, send: Callable[[bytes], object], threads: int) -> None:
        self.done = dict.fromkeys(range(threads), 0)
        for thread in range(threads):
            self._add(crew, thread, numbered(thread), send)

    def _add(self, crew: Crew, thread: int, payloads: Iterator[bytes], send: Callable[[bytes], object]) -> None:
        def act() -> None:
            send(next(payloads))
            self.done[thread] += 1

        crew.add(f"sender {thread}", act)

    @property
    def total(self) -> int:
        return sum(self.done.values())


def test_a_queue(path: Path) -> None:
    crew, got = Crew(), list[bytes]()
    q = Queue(path, file_size=8192, index_interval=4, retention=Retention(max_bytes=20_000))
    tailer = q.tailer("reader")

    def read() -> None:
        for message in tailer.read_batch(50):
            got.append(message.payload)
        tailer.commit()

    def look() -> None:
        with q.tailer(at="start") as some:
            first, seen = some.position, [message.sequence for message in some]
        assert seen == list(range(first, first + len(seen)))
        assert q.first_sequence <= q.durable_sequence <= q.next_sequence

    sending = Sending(crew, q.append, 2)
    crew.add("batches", lambda: q.append_batch([b"9" * 3000] * 4))
    crew.add("sync", q.sync)
    crew.add("read", read)
    crew.add("look", look, RecordGone)
    with crew.at_work(lambda: sending.total > LEAST and len(got) > LEAST):
        q.close()
    with Queue(path) as q:
        assert q.recovery.clean
        got += [message.payload for message in q.tailer("reader")]
    check_order([payload for payload in got if payload[:1] != b"9"], sending.done)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_channel(path: Path, compression: Any) -> None:
    crew, got, more = Crew(), list[bytes](), list[bytes]()
    ch = Channel[bytes](path, segment_bytes=1000, compression=compression)
    rx, second = ch.rx("one"), ch.rx("two", ack=True)

    def receive() -> None:
        got.extend(rx.recv_many(20, timeout_s=0.01))

    def acknowledge() -> None:
        some = second.recv_many(20, timeout_s=0.01)
        second.ack(len(some))
        more.extend(some)

    def come_and_go() -> None:
        with ch.rx("three") as third:
            third.try_recv()
        ch.forget("three")

    def look() -> None:
        stats = ch.stats()
        assert stats.first_offset <= stats.write_offset
        with ch.rx() as unnamed:
            check = unnamed.recv_many(5, timeout_s=0)
            assert len(check) <= 5

    sending = Sending(crew, ch.tx().send, 2)
    crew.add("receive", receive, TimeoutError)
    crew.add("acknowledge", acknowledge, TimeoutError)
    crew.add("come and go", come_and_go)
    crew.add("look", look, TimeoutError, RecordGone)
    with crew.at_work(lambda: sending.total > LEAST and min(len(got), len(more)) > LEAST):
        ch.close()
    with Channel[bytes](path, segment_bytes=1000, compression=compression) as ch:
        assert ch.recovery.clean
        for name, some in (("one", got), ("two", more)):
            again = ch.rx(name, ack=name == "two")
            while (found := again.try_recv()) is not None:
                some.append(found)
                if name == "two":
                    again.ack()
        check_order(got, sending.done)
        check_order(more, sending.done)
        if "three" in ch.stats().receivers:
            ch.forget("three")
        while (left := ch.stats().segments) > 1:  # senders may have been thousands ahead
            until(lambda left=left: ch.stats().segments < left, "all but the last are removed")


def test_a_topic(path: Path) -> None:
    crew, got = Crew(), list[bytes]()
    logs = Topics(path, linger_s=0, segment_bytes=1000, retention=Retention(max_bytes=3000))
    t = logs.topic("t")
    tailer = t.tailer("reader")

    def read() -> None:
        got.extend(message.payload for message in tailer.read_batch(50))
        tailer.commit()

    def look() -> None:
        with t.tailer(at="start") as some:
            offsets = [message.offset for message in some.read_batch(1000)]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
        t.stats()

    def share() -> None:
        with t.group("crew") as member:
            member.poll_many(20, timeout_s=0.01)
            member.commit()

    sending = Sending(crew, lambda payload: t.publish(payload, partition=0).wait(), 3)
    crew.add("flush", t.flush)
    crew.add("read", read)
    crew.add("look", look, RecordGone)
    crew.add("share", share, TimeoutError)
    with crew.at_work(lambda: sending.total > LEAST and len(got) > LEAST):
        logs.close()
    with Topics(path, segment_bytes=1000) as logs:
        t = logs.topic("t")
        assert t.recovery(0).clean
        with t.tailer("reader") as tailer:
            got += [message.payload for message in tailer.read_batch(1 << 20)]
    check_order(got, sending.done)


def test_a_journal(path: Path) -> None:
    crew = Crew()
    j = Journal(path)

    def check() -> None:
        j.checkpoint().result()
        j.check().result()

    sending = Sending(crew, lambda payload: j.append(payload).result(), 3)
    crew.add("check", check, InvalidCheck)
    crew.add("flush", j.flush)
    crew.add("look", lambda: (j.current, j.first_unchecked))
    with crew.at_work(lambda: sending.total > LEAST):
        j.close()
    with Journal(path) as j:
        found = [record.payload for record in j.recovered()]
        last: dict[int, int] = {}
        for payload in found:
            thread, number, _ = payload.split(b":", 2)
            assert int(number) > last.get(int(thread), -1)
            last[int(thread)] = int(number)
        for thread, number in last.items():
            assert number + 1 >= sending.done[thread]
