"""SIGKILL at named points inside an append, a roll, and a batch over several files.

A process takes the lock as the kernel's writer would, leaves the bytes that the writer would have left, and kills itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Queue, kernel
from penstock.formats import queue as fmt
from penstock.kernel import layout
from penstock.storage import control, files, segment
from penstock.storage.segment import WriteSegment
from tests.queue.dying import (
    BEFORE,
    FILE_SIZE,
    LATE,
    SPAN,
    Zygote,
    append_at_once,
    assert_nothing_beyond,
    assert_whole_after_reopening,
    die,
    open_queue,
    open_zygote,
    payloads,
    roll,
)

BATCH = [b"one" * 100, b"two" * 50, b"three" * 70]


# ---- dying: everything here runs in children of the zygote ----


class Writing:
    """What the kernel's writer does under the lock, one store after another, up to where it dies."""

    def __init__(self, q: Queue, payloads: list[bytes]) -> None:
        assert q._log is not None
        assert q._log.control is not None
        self.control = q._log.control
        self.control.page.lock()
        now = self.now = self.control.active()
        self.segment = WriteSegment(q.path, fmt, now.segment, now.base, FILE_SIZE, q._log.interval)
        self.frames = kernel.encode_many(fmt.SPEC, payloads)
        self.count = len(payloads)
        self.end = now.end + len(self.frames)
        have = self.segment.grow(now.end, now.next, self.control.allocated, len(self.frames), self.count)
        self.control.set_allocated(*have)

    def store(self, field: int, value: int) -> None:
        self.control.page.store(layout.SLOTS[self.now.turn & 1] + field, value)

    def announce(self) -> None:
        self.store(layout.DIRTY_NEXT, self.now.next + self.count)
        self.store(layout.DIRTY_END, self.end)

    def put(self, first: int, end: int) -> None:
        """Bytes first to end of the frames."""
        self.segment.data[self.now.end + first : self.now.end + end] = self.frames[first:end]

    def put_all_but_the_first_head(self) -> None:
        self.announce()
        self.put(4, len(self.frames))
        us = files.now_us()
        for i in range(self.count):
            entry = us if i + 1 == self.count else -us
            at = 64 + 8 * (self.now.next - self.now.base + i)
            self.segment.times[at : at + 8] = entry.to_bytes(8, "little", signed=True)

    def put_all(self) -> None:
        self.put_all_but_the_first_head()
        self.put(0, 4)


def _with_lock(q: Queue) -> None:
    Writing(q, [LATE])


def _half_announced(q: Queue) -> None:
    w = Writing(q, [LATE])
    w.store(layout.DIRTY_NEXT, w.now.next + 1)


def _announced(q: Queue) -> None:
    Writing(q, [LATE]).announce()


def _half_written(q: Queue) -> None:
    w = Writing(q, [LATE])
    w.announce()
    w.put(4, len(w.frames) // 2)


def _without_head(q: Queue) -> None:
    Writing(q, [LATE]).put_all_but_the_first_head()


def _whole(q: Queue) -> None:
    Writing(q, [LATE]).put_all()


def _half_published(q: Queue) -> None:
    w = Writing(q, [LATE])
    w.put_all()
    w.store(layout.NEXT, w.now.next + 1)


def _published(q: Queue) -> None:
    w = Writing(q, [LATE])
    w.put_all()
    w.store(layout.NEXT, w.now.next + 1)
    w.store(layout.END, w.end)


def _batch_half_written(q: Queue) -> None:
    w = Writing(q, BATCH)
    w.announce()
    w.put(4, len(BATCH[0]) + 12 + 60)


def _batch_first_frame_only(q: Queue) -> None:
    w = Writing(q, BATCH)
    w.announce()
    w.put(0, len(BATCH[0]) + 12)  # what a writer without an order of its stores could leave


def _batch_without_first_head(q: Queue) -> None:
    Writing(q, BATCH).put_all_but_the_first_head()


def _batch_whole(q: Queue) -> None:
    Writing(q, BATCH).put_all()


def _batch_half_published(q: Queue) -> None:
    w = Writing(q, BATCH)
    w.put_all()
    w.store(layout.NEXT, w.now.next + len(BATCH))


def _before(owner: Any, name: str) -> None:
    """Die instead of calling a function."""
    assert callable(getattr(owner, name))
    setattr(owner, name, lambda *_, **__: die())


def _after(owner: Any, name: str, calls: int = 1) -> None:
    """Die when a function has returned so many times."""
    real, left = getattr(owner, name), iter(range(calls - 1, -1, -1))

    def call(*arguments: Any, **options: Any) -> Any:
        out = real(*arguments, **options)
        if next(left) == 0:
            die()
        return out

    setattr(owner, name, call)


def _roll_half_adopted(q: Queue) -> None:
    assert q._log is not None
    new = fmt.next_id(q._log.active().segment, files.now_us())
    segment.place(segment.prepare(q.path, fmt, new, FILE_SIZE, q._log.interval))
    _after(files, "rename", 1)
    roll(q)


def _roll_adopted(q: Queue) -> None:
    _after(segment, "adopt")
    roll(q)


def _roll_listed(q: Queue) -> None:
    _before(control.Control, "roll")
    roll(q)


def _roll_slot_filled(q: Queue) -> None:
    _after(control.Control, "_fill_slot")
    roll(q)


def _roll_done(q: Queue) -> None:
    _after(control.Control, "roll")
    roll(q)


def _span_announced(q: Queue) -> None:
    _after(control.Control, "announce_span")
    q.append_batch(SPAN)


def _span_one_file_written(q: Queue) -> None:
    _after(WriteSegment, "put", 1)
    q.append_batch(SPAN)


def _span_later_files_written(q: Queue) -> None:
    _after(WriteSegment, "put", 3)
    q.append_batch(SPAN)


def _span_dirty(q: Queue) -> None:
    _after(control.Control, "announce", 2)
    q.append_batch(SPAN)


def _span_without_commit_word(q: Queue) -> None:
    real, calls = WriteSegment.put, iter(range(1, 100))

    def put(self: WriteSegment, *arguments: Any, **options: Any) -> int:
        end = real(self, *arguments, **options)
        if next(calls) == 4:  # the first part, which comes last: as it was before its first head
            self.data[self.header.start : self.header.start + 4] = bytes(4)
            die()
        return end

    WriteSegment.put = put  # type: ignore[method-assign]
    q.append_batch(SPAN)


def _span_with_commit_word(q: Queue) -> None:
    _after(WriteSegment, "put", 4)
    q.append_batch(SPAN)


def _span_listed(q: Queue) -> None:
    # the roll to a fresh file is one, the batch the second
    real, calls = control.Control.roll, iter(range(1, 100))

    def roll(self: control.Control, *arguments: Any, **options: Any) -> None:
        if next(calls) == 2:
            die()
        real(self, *arguments, **options)

    control.Control.roll = roll  # type: ignore[method-assign]
    q.append_batch(SPAN)


def _span_rolled(q: Queue) -> None:
    _before(control.Control, "clear_span")
    q.append_batch(SPAN)


POINTS: dict[str, tuple[Callable[[Queue], None], list[bytes]]] = {
    # where the writer dies, and what it has committed by then
    "with the lock in hand": (_with_lock, []),
    "half announced": (_half_announced, []),
    "after dirty_end": (_announced, []),
    "payload half written": (_half_written, []),
    "frame without its head": (_without_head, []),
    "whole frame, nothing published": (_whole, [LATE]),
    "next published, end not": (_half_published, [LATE]),
    "all published": (_published, [LATE]),
    "batch half written": (_batch_half_written, []),
    "first frame of a batch only": (_batch_first_frame_only, []),
    "batch without its first head": (_batch_without_first_head, []),
    "whole batch, nothing published": (_batch_whole, BATCH),
    "batch, next published, end not": (_batch_half_published, BATCH),
    "roll, files half adopted": (_roll_half_adopted, []),
    "roll, files adopted": (_roll_adopted, []),
    "roll, listed in the manifest": (_roll_listed, []),
    "roll, slot filled": (_roll_slot_filled, []),
    "roll done": (_roll_done, []),
    "span announced": (_span_announced, []),
    "span, one later file written": (_span_one_file_written, []),
    "span, later files written": (_span_later_files_written, []),
    "span, dirty": (_span_dirty, []),
    "span before its commit word": (_span_without_commit_word, []),
    "span after its commit word": (_span_with_commit_word, SPAN),
    "span listed in the manifest": (_span_listed, SPAN),
    "span rolled, not cleared": (_span_rolled, SPAN),
}


def die_at(path: str, point: str) -> None:
    q = open_queue(path)  # named: dropping it would close it
    POINTS[point][0](q)
    die()


# ---- the tests ----


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(die_at) as made:
        yield made


@pytest.mark.parametrize("point", POINTS)
def test_next_append_goes_on_after_a_writer_died_inside_the_lock(path: Path, dies: Zygote, point: str) -> None:
    committed = POINTS[point][1]
    with open_queue(path) as q:
        q.append_batch(BEFORE)
        assert dies(path, point) == -signal.SIGKILL
        with q.tailer() as tailer:  # a reader holds no lock and sees what was committed before, or also the last one
            assert [m.payload for m in tailer] in (BEFORE, BEFORE + committed)
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, *committed, b"x"]
        assert_nothing_beyond(q)
        roll(q)  # what a roll left half done is not in the way of the next one
        append_at_once(q, b"y")
        assert payloads(q) == [*BEFORE, *committed, b"x", b"y"]
    assert_whole_after_reopening(path, [*BEFORE, *committed, b"x", b"y"])


@pytest.mark.parametrize("point", POINTS)
def test_opening_after_the_last_writer_died_inside_the_lock(path: Path, dies: Zygote, point: str) -> None:
    committed = POINTS[point][1]
    with open_queue(path) as q:
        q.append_batch(BEFORE)
    assert dies(path, point) == -signal.SIGKILL
    began = time.monotonic()
    with open_queue(path) as q:
        assert time.monotonic() - began < 1.0
        assert q.recovery.how == "same boot"
        assert q.recovery.damage == []
        assert payloads(q) == [*BEFORE, *committed]
        assert_nothing_beyond(q)
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, *committed, b"x"]
        assert_nothing_beyond(q)
    assert_whole_after_reopening(path, [*BEFORE, *committed, b"x"])


def test_listing_of_a_roll_that_was_cut_short_does_not_cut_what_came_after(path: Path, dies: Zygote) -> None:
    """The manifest then lists the active segment with too few records; sealing must not believe that later."""
    with open_queue(path) as q:
        q.append_batch(BEFORE)
        assert dies(path, "roll, listed in the manifest") == -signal.SIGKILL
        assert q._log is not None
        stale = q._log.finished()
        assert [s.count for s in stale.values()] == [len(BEFORE)]
        real = q._log.sync

        def meanwhile() -> int:
            """While the background syncs, before it seals, the segment goes on and is rolled at last."""
            q._log.sync = real  # type: ignore[method-assign, union-attr]
            q.append(LATE)
            roll(q)
            return real()

        q._log.sync = meanwhile  # type: ignore[method-assign]
        q._log.seal_finished()
        assert payloads(q) == [*BEFORE, LATE]
    assert_whole_after_reopening(path, [*BEFORE, LATE])
