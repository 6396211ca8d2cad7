"""SIGKILL at each step of writing a batch: a process takes the lock as the kernel's thread does, leaves what that would have
left, and kills itself. Those beside go on at once; so does whoever comes after, in this boot and another. One that stands still
there (SIGSTOP) is waited for.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Topic, kernel
from penstock.formats import topic as fmt
from penstock.kernel import layout
from penstock.storage import control
from tests.queue.crash import Yard, payload
from tests.queue.dying import Zygote, die, open_zygote
from tests.stopping import is_stopped
from tests.support import until
from tests.topic_crash.wreck import everything, found, lay, open_topics

BEFORE = [payload(i, n) for i, n in enumerate([10, 0, 20])]
BATCH = [payload(10 + i, n) for i, n in enumerate([5, 0, 30, 1])]
AFTER = [b"after", b"", b"that"]


class Writing:
    """What the kernel's thread does under the lock, one step after another, up to where it dies."""

    def __init__(self, t: Topic) -> None:
        log = t._here(0).log
        assert log.control is not None
        self.control = log.control
        self.control.page.lock()
        now = self.now = self.control.active()
        self.file = t.path / log.fmt.name(now.segment)
        self.frames = kernel.encode_many(fmt.SPEC, BATCH)
        us = 1_700_000_000_000_000
        self.entries = b"".join(
            struct.pack("<qQ", us if i + 1 == len(BATCH) else -us, kernel.crc64(kernel.encode(fmt.SPEC, p)))
            for i, p in enumerate(BATCH)
        )

    def store(self, field: int, value: int) -> None:
        self.control.page.store(layout.SLOTS[self.now.turn & 1] + field, value)

    def announce(self, *, half: bool = False) -> Writing:
        self.store(layout.DIRTY_NEXT, self.now.next + len(BATCH))
        if not half:
            self.store(layout.DIRTY_END, self.now.end + len(self.frames))
        return self

    def write(self, size: int | None = None) -> Writing:
        self.announce()
        self._put(self.file, self.now.end, self.frames[:size])
        return self

    def note(self, size: int | None = None) -> Writing:
        self.write()
        times = self.file.with_name(self.file.name + ".time")
        self._put(times, 64 + 16 * (self.now.next - self.now.base), self.entries[:size])
        return self

    def publish(self, *, half: bool = False, mark: bool = False) -> Writing:
        self.note()
        self.store(layout.LAST_US, 1_700_000_000_000_000)
        self.store(layout.NEXT, self.now.next + len(BATCH))
        if not half:
            self.store(layout.END, self.now.end + len(self.frames))
        if mark:
            end = self.now.end + len(self.frames)
            self.control.mark_durable(control.Mark(self.now.segment, end, self.now.next + len(BATCH)))
        return self

    @staticmethod
    def _put(path: Path, at: int, data: bytes) -> None:
        with path.open("r+b") as f:
            f.seek(at)
            f.write(data)


STEPS: dict[str, tuple[Callable[[Writing], object], bool]] = {
    "with the lock": (lambda w: None, False),
    "half announced": (lambda w: w.announce(half=True), False),
    "announced": (lambda w: w.announce(), False),
    "a byte written": (lambda w: w.write(1), False),
    "a message written": (lambda w: w.write(9), False),
    "half written": (lambda w: w.write(17), False),
    "all but a byte written": (lambda w: w.write(-1), False),
    "written": (lambda w: w.write(), False),
    "half noted": (lambda w: w.note(24), False),
    "noted": (lambda w: w.note(), False),
    "half published": (lambda w: w.publish(half=True), True),
    "published": (lambda w: w.publish(), True),
    "marked": (lambda w: w.publish(mark=True), True),
}


def run(path: str, name: str) -> None:
    """In a child."""
    with open_topics(Path(path)) as logs:
        STEPS[name][0](Writing(logs.topic("t")))
        die()


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(run) as zygote:
        yield zygote


def fill(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")
        t.publish_many(BEFORE)
        t.flush()


def goes_on(t: Topic, allowed: list[list[bytes]]) -> None:
    """At once, behind what is there."""
    began = time.monotonic()
    made = t.publish_many(AFTER)
    t.flush()
    assert time.monotonic() - began < 5
    got, losses = found(t)
    there = list(got.values())
    assert losses == []
    assert there[: -len(AFTER)] in allowed
    assert there[-len(AFTER) :] == AFTER
    assert made.wait() == [range(len(there) - len(AFTER), len(there))]
    now = t._here(0).log.active()
    assert (t.path / f"partition_0_segment_{now.segment}.log").stat().st_size == now.end
    assert t._here(0).log.recovery.damage == []


@pytest.mark.parametrize("name", STEPS)
def test_a_death_in_the_middle_of_a_batch(yard: Yard, child: Zygote, name: str) -> None:
    there = BEFORE + BATCH if STEPS[name][1] else BEFORE
    path = yard.keep()
    fill(path)
    with open_topics(path) as logs:  # beside it all the time
        t = logs.topic("t")
        with t.tailer() as tailer:
            assert [m.payload for m in tailer] == BEFORE
            assert child(path, name) == -signal.SIGKILL
            left = everything(path)
            if name != "half published":  # which is what the page says only when somebody finished it
                assert [m.payload for m in tailer] == there[len(BEFORE) :], (
                    "readers see what was published, and nothing else"
                )
            goes_on(t, [there])
            assert [m.payload for m in tailer][-3:] == AFTER
    with open_topics(path) as logs:
        assert logs.topic("t").recovery(0).clean
        assert list(found(logs.topic("t"))[0].values()) == there + AFTER
    with open_topics(lay(left, yard.new(), "same")) as logs:  # who comes after it
        goes_on(logs.topic("t"), [there])
    with open_topics(lay(left, yard.new(), "new")) as logs:  # with all of it on the disk: a prefix, in any case
        some = [BEFORE + BATCH[:n] for n in range(len(BATCH) + 1)]
        whole = [BEFORE, BEFORE + BATCH]  # if the companion knows of it
        goes_on(logs.topic("t"), [there] if STEPS[name][1] else whole if "noted" in name else some)


@pytest.mark.parametrize("name", ["half written", "noted", "half published"])
def test_a_publisher_that_waits_is_not_held_up_by_a_death(yard: Yard, child: Zygote, name: str) -> None:
    there = BEFORE + BATCH if STEPS[name][1] else BEFORE
    path = yard.keep()
    fill(path)
    with open_topics(path, linger_s=0.0) as logs:
        t = logs.topic("t")
        t.ends()
        assert child(path, name) == -signal.SIGKILL
        assert t.publish(b"mine").wait(10) == len(there)
        assert list(found(t)[0].values()) == [*there, b"mine"]


def stand(path: str) -> None:
    """In a child: stand still with half a batch written, and then finish it."""
    logs = open_topics(Path(path))
    w = Writing(logs.topic("t")).write(17)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    w.publish(mark=True)
    w.control.page.unlock()
    os._exit(7)


@pytest.fixture(scope="module")
def standing() -> Iterator[Zygote]:
    with open_zygote(stand) as zygote:
        yield zygote


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_publisher_that_stands_still_with_the_lock_is_waited_for(
    yard: Yard, standing: Zygote, then: signal.Signals
) -> None:
    path = yard.keep()
    fill(path)
    with open_topics(path, linger_s=0.0) as logs:
        t = logs.topic("t")
        t.ends()
        standing.tell(str(path))
        pid = int(standing.answer())
        until(lambda: is_stopped(pid), "it stops")
        try:
            made = t.publish(b"mine")
            with pytest.raises(TimeoutError):
                made.wait(0.5)
            assert list(found(t)[0].values()) == BEFORE
        finally:
            os.kill(pid, then)
        assert int(standing.answer()) == (7 if then == signal.SIGCONT else -signal.SIGKILL)
        there = BEFORE + BATCH if then == signal.SIGCONT else BEFORE
        assert made.wait(10) == len(there)
        assert list(found(t)[0].values()) == [*there, b"mine"]
    with open_topics(path) as logs:
        assert logs.topic("t").recovery(0).clean
