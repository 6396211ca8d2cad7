"""SIGKILL anywhere: at random (the campaign of tests/torture.py), at named points inside an append, and at every single
store of the slower things.

The dying is done by children of `zygote`, a process of its own that has no log open and no threads. A child takes the lock as
the kernel's writer would, leaves the bytes that the writer would have left, and kills itself; or it runs the real code with
a fuse under every store it makes to a file, a map or the control page.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from penstock import Queue, Retention, Roll, kernel
from penstock.formats import queue as fmt
from penstock.kernel import layout
from penstock.storage import control, files, segment
from penstock.storage.recovery import list_segments
from penstock.storage.segment import WriteSegment
from tests import torture

FILE_SIZE = 16 << 10
BEFORE = [b"first", b"second" * 40, b"third"]
LATE = b"late" * 100
BATCH = [b"one" * 100, b"two" * 50, b"three" * 70]
SPAN = [bytes([65 + i]) * 5000 for i in range(7)]  # two to a file: four files
SLOW = kernel.NAME == "reference" or files.PORTABLE


def open_queue(path: Path | str, **options: Any) -> Queue:
    return Queue(path, file_size=FILE_SIZE, index_interval=2, **options)


# ---- dying: everything here runs in children of the zygote ----


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Writing:
    """What the kernel's writer does under the lock, one store after another, up to where it dies."""

    def __init__(self, q: Queue, payloads: list[bytes]) -> None:
        assert q._log is not None
        assert q._log.control is not None
        self.control = q._log.control
        self.control.page.lock()
        now = self.now = self.control.active()
        self.segment = WriteSegment(q.path, fmt, now.segment, FILE_SIZE, q._log.interval)
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


def _roll(q: Queue) -> None:
    assert q._log is not None
    q._log.roll_now()


def _roll_half_adopted(q: Queue) -> None:
    assert q._log is not None
    new = fmt.next_id(q._log.active().segment, files.now_us())
    segment.place(segment.prepare(q.path, fmt, new, FILE_SIZE, q._log.interval))
    _after(files, "rename", 1)
    _roll(q)


def _roll_adopted(q: Queue) -> None:
    _after(segment, "adopt")
    _roll(q)


def _roll_listed(q: Queue) -> None:
    _before(control.Control, "roll")
    _roll(q)


def _roll_slot_filled(q: Queue) -> None:
    _after(control.Control, "_fill_slot")
    _roll(q)


def _roll_done(q: Queue) -> None:
    _after(control.Control, "roll")
    _roll(q)


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


class Fuse:
    """Burns at every store; when it is burnt down the process dies there."""

    def __init__(self, stores: int) -> None:
        self.stores = stores
        self.left = 0  # 0: not lit

    def light(self) -> None:
        self.left = self.stores

    def burn(self) -> None:
        if self.left:
            self.left -= 1
            if self.left == 0:
                die()

    def halves(self, store: Callable[[int, int], Any], length: int) -> None:
        """Die before, in the midst of, or after a store of so many bytes."""
        self.burn()
        if length > 1 and self.left:
            store(0, length // 2)
            self.burn()
            store(length // 2, length)
        else:
            store(0, length)

    def lay(self) -> None:
        """Under files, maps and the control page, before a log is opened."""
        fuse = self

        class Map(mmap.mmap):
            def __setitem__(self, key: Any, value: Any) -> None:
                if not isinstance(key, slice):
                    fuse.burn()
                    super().__setitem__(key, value)
                    return
                start, put = key.indices(len(self))[0], super().__setitem__
                view = memoryview(value)
                fuse.halves(lambda a, b: put(slice(start + a, start + b), view[a:b]), len(view))

        class Page:
            def __init__(self, *arguments: Any) -> None:
                self.real = real_page(*arguments)

            def store(self, offset: int, value: int) -> None:
                fuse.burn()
                self.real.store(offset, value)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.real, name)

        real_page, real_writer, real_write = kernel.ControlPage, kernel.Writer, files.write

        def write(fd: int, data: Any, offset: int) -> None:
            view = memoryview(data)
            fuse.halves(lambda a, b: real_write(fd, view[a:b], offset + a), len(view))

        kernel.ControlPage = Page  # type: ignore[misc, assignment]
        kernel.Writer = lambda page, *a: real_writer(page.real, *a)  # type: ignore[misc, assignment]
        files.write = write
        files.map_write = lambda fd, length: Map(fd, length)
        for name in ("create", "rename", "truncate", "allocate", "remove", "sync", "punch"):
            self._under(name)

    def _under(self, name: str) -> None:
        real = getattr(files, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.burn()
            return real(*arguments, **options)

        setattr(files, name, call)


def _sweep_roll(path: str, light: Callable[[], None]) -> None:
    q = open_queue(path)
    _still(q)
    light()
    _roll(q)
    q.append(LATE)


def _sweep_span(path: str, light: Callable[[], None]) -> None:
    q = open_queue(path)
    _still(q)
    light()
    q.append_batch(SPAN)


def _sweep_seal(path: str, light: Callable[[], None]) -> None:
    q = open_queue(path)
    _still(q)
    _roll(q)
    light()
    assert q._log is not None
    q._log.seal_finished()


def _sweep_close(path: str, light: Callable[[], None]) -> None:
    q = open_queue(path)
    _still(q)
    light()
    q.close()


def _sweep_open(path: str, light: Callable[[], None]) -> None:
    light()
    q = open_queue(path)
    _still(q)


def _still(q: Queue) -> None:
    """Without the background, which would burn the fuse at moments of its own."""
    assert q._janitor is not None
    q._janitor.stop()


SWEEPS: dict[str, tuple[Callable[[str, Callable[[], None]], None], list[list[bytes]]]] = {
    # what is done, and what it may have appended
    "roll": (_sweep_roll, [[], [LATE]]),
    "span": (_sweep_span, [[], SPAN]),
    "seal": (_sweep_seal, [[]]),
    "close": (_sweep_close, [[]]),
    "open": (_sweep_open, [[]]),
}


def zygote() -> None:
    """Reads what to do, a line of JSON each, has a child do it, and says how that ended."""
    for line in sys.stdin:
        path, what, stores = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                if stores:
                    fuse = Fuse(stores)
                    fuse.lay()
                    SWEEPS[what][0](path, fuse.light)
                    fuse.left = 0
                else:
                    q = open_queue(path)  # named: dropping it would close it
                    POINTS[what][0](q)
                    die()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def unreadable(size: int = 400_000) -> bytes:
    """A payload with a page in its midst that cannot be read: whoever copies it dies there, in the kernel's own code."""
    payload = b"u" * size  # larger than what malloc keeps in its heap, so the pages are all its own
    libc = ctypes.CDLL(None)
    middle = (id(payload) + size // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(middle), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return payload


def die_copying(path: str, what: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    q = Queue(path)
    if what == "append":
        q.append(unreadable())
    else:
        q.append_batch([b"one" * 100, b"two" * 100, unreadable(), b"four" * 100])


# ---- the tests ----


class Zygote:
    def __init__(self) -> None:
        command = [sys.executable, "-c", "from tests.queue.test_kill import zygote; zygote()"]
        self.process = subprocess.Popen(
            command, cwd=torture.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, path: Path, what: str, stores: int = 0) -> int:
        """Have a process do something and die over it; how it ended."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps([str(path), what, stores]), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    with made.process as process:
        assert process.stdin
        process.stdin.close()


def payloads(q: Queue) -> list[bytes]:
    with q.tailer() as tailer:
        messages = list(tailer)
    assert [m.sequence for m in messages] == list(range(len(messages)))
    assert q.next_sequence == len(messages)
    return [m.payload for m in messages]


def assert_nothing_beyond(q: Queue) -> None:
    """No byte after the end of the log that could come back to life."""
    assert q._log is not None
    now = q._log.active()
    assert not (q.path / fmt.name(now.segment)).read_bytes()[now.end :].strip(b"\0")
    for later in [s for s in list_segments(q.path, fmt) if s > now.segment]:
        data = (q.path / fmt.name(later)).read_bytes()
        assert not data[fmt.HEADER_BYTES :].strip(b"\0")


def append_at_once(q: Queue, payload: bytes) -> None:
    """A dead writer is noticed at once: there is no timeout to wait for."""
    began = time.monotonic()
    q.append(payload)
    assert time.monotonic() - began < 1.0


def assert_whole_after_reopening(path: Path, expected: list[bytes]) -> None:
    with open_queue(path, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        assert payloads(q) == expected


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
        _roll(q)  # what a roll left half done is not in the way of the next one
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


@pytest.mark.parametrize("someone_has_it_open", [True, False])
@pytest.mark.parametrize("what", SWEEPS)
def test_death_at_any_store(tmp_path: Path, dies: Zygote, what: str, someone_has_it_open: bool) -> None:
    """Every store in turn is the last one. A batch over several files is there whole or not at all, nothing else changes.

    Such a batch has some 250 stores: each run takes every eighth, another eighth each time; PENSTOCK_SWEEP=all takes all.
    """
    endings = SWEEPS[what][1]
    seen = set()
    step = 1 if what != "span" or os.environ.get("PENSTOCK_SWEEP") == "all" else 8
    for stores in itertools.count(1 + int(time.time()) % step, step):
        path = tmp_path / str(stores)
        q = open_queue(path)
        q.append_batch(BEFORE)
        if not someone_has_it_open:
            q.close()
        ended = dies(path, what, stores)
        if not someone_has_it_open:
            q = open_queue(path)
            assert q.recovery.damage == []
        append_at_once(q, b"x")
        found = payloads(q)
        possible = [[*BEFORE, *ending, b"x"] for ending in endings]
        assert found in possible, f"after {stores} stores"
        seen.add(possible.index(found))
        assert_nothing_beyond(q)
        q.close()
        assert_whole_after_reopening(path, found)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert stores > 5
    assert len(seen) == len(endings)


def test_death_at_any_store_of_making_a_queue(tmp_path: Path, dies: Zygote) -> None:
    for stores in itertools.count(1):
        path = tmp_path / str(stores)
        ended = dies(path, "open", stores)
        with open_queue(path) as q:
            append_at_once(q, b"x")
            assert payloads(q) == [b"x"]
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert stores > 20


@pytest.fixture(params=["append", "append_batch"])
def died_copying(request: pytest.FixtureRequest, path: Path) -> Callable[[], None]:
    """A function that has a process die in the midst of copying a payload into the map, under the lock."""

    def run() -> None:
        code = "import sys; from tests.queue.test_kill import *; die_copying(*sys.argv[1:])"
        done = subprocess.run([sys.executable, "-c", code, str(path), request.param], cwd=torture.ROOT)
        assert done.returncode == -signal.SIGSEGV

    return run


def test_writer_that_dies_copying_is_cut_by_the_next_append(path: Path, died_copying: Callable[[], None]) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
        died_copying()
        if kernel.NAME == "native":  # there is something to cut; the reference kernel sums before it copies
            assert q._log is not None
            now = q._log.active()
            assert (path / fmt.name(now.segment)).read_bytes()[now.end :].strip(b"\0")
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, b"x"]
        assert_nothing_beyond(q)


def test_writer_that_dies_copying_is_cut_by_the_next_opening(path: Path, died_copying: Callable[[], None]) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
    died_copying()
    with Queue(path) as q:
        assert payloads(q) == BEFORE
        assert_nothing_beyond(q)
        append_at_once(q, b"x")
        assert payloads(q) == [*BEFORE, b"x"]


@pytest.mark.parametrize("with_companion", [True, False])
def test_part_of_a_batch_is_not_taken_for_records_by_whoever_scans_the_files(
    path: Path, tmp_path: Path, died_copying: Callable[[], None], with_companion: bool
) -> None:
    """As after a power cut: a copy, for which the control page says nothing. The first frame's head comes last, so the scan
    ends before the batch, also where the companion, which would tell too, did not come back."""
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(BEFORE)
        died_copying()
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", str(path), str(copy)], check=True)
    if not with_companion:
        for name in copy.rglob("*.time"):
            name.unlink()
    with Queue(copy) as q:
        assert q.recovery.how == "new boot"
        assert payloads(q) == BEFORE
        assert_nothing_beyond(q)


def test_record_survives_kill_after_append_returned(path: Path) -> None:
    code = (
        "import os, signal, sys; from penstock import Queue; q = Queue(sys.argv[1]); q.append(b'single'); "
        "q.append_batch([b'a', b'b']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    with Queue(path) as q:
        assert q.recovery.how == "same boot"
        assert payloads(q) == [b"single", b"a", b"b"]


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
            _roll(q)
            return real()

        q._log.sync = meanwhile  # type: ignore[method-assign]
        q._log.seal_finished()
        assert payloads(q) == [*BEFORE, LATE]
    assert_whole_after_reopening(path, [*BEFORE, LATE])


def test_manifest_replaced_by_a_process_that_died_over_it_is_noticed(path: Path) -> None:
    """Its rename is done and its new generation is not announced: edits must not go to the file that has no name now."""
    code = (
        "import os, signal, sys; from penstock.storage import control; from tests.queue.test_kill import *\n"
        "q = open_queue(sys.argv[1]); control.Control.next_generation = lambda self: die()\n"
        "with q._log.locked() as c:\n"
        "    q._log.manifest.refresh(c.generation); q._log.manifest.rewrite(c.generation + 1); c.next_generation()\n"
    )
    with open_queue(path) as q, open_queue(path) as other:
        q.append_batch(BEFORE)
        done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=torture.ROOT)
        assert done.returncode == -signal.SIGKILL
        _roll(q)
        q.append(LATE)
        with open_queue(path) as late:  # reads the file that has the name
            assert payloads(late) == [*BEFORE, LATE]
        assert payloads(other) == [*BEFORE, LATE]


def test_reader_that_died_asleep_costs_nobody_anything(path: Path) -> None:
    with open_queue(path) as q:
        code = (
            "import sys; from tests.queue.test_kill import *\n"
            "q = open_queue(sys.argv[1]); q.tailer().read(timeout_s=None)"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=torture.ROOT) as reader:
            assert q._log is not None
            assert q._log.control is not None
            if not SLOW:
                deadline = time.monotonic() + 30
                while not q._log.control.page.load(layout.WAITERS) & 0xFFFFFFFF:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
            reader.kill()
        append_at_once(q, b"x")
        assert payloads(q) == [b"x"]
        assert q._log.control.page.load(layout.WAITERS) & 0xFFFFFFFF == 0


def test_campaign_of_random_kills(tmp_path: Path) -> None:
    """Four writers and two readers, killed and replaced: see tests/torture.py."""
    kills = 40 if SLOW else 200
    seed = int(os.environ.get("PENSTOCK_SEED", time.time()))
    result = torture.campaign(tmp_path, kills, seed)
    again = f"python -m tests.torture --kills {kills} --seed {seed}"
    assert not result.failures, "\n".join([*result.failures, again])
    assert result.kills >= kills
    assert result.acknowledged > 1000


def test_retention_was_at_work_in_the_campaign(tmp_path: Path) -> None:
    """A campaign in which retention removed nothing would prove nothing of it."""
    one = torture.Round(tmp_path, 1, retain=True)
    one.run(10)
    assert one.result.retired > 0
    assert one.result.acknowledged > 100


def test_unclosed_queue_does_not_hold_up_the_exit_of_its_process(tmp_path: Path) -> None:
    """Python stops the background thread where it stands, perhaps with a lock in hand."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); from tests.queue.test_kill import *\n"
        "q = open_queue(sys.argv[1], roll=Roll.count(5), retention=Retention(max_bytes=1 << 20))\n"
        "for i in range(200): q.append(b'x' * 100)\n"
        "sys.exit(7)"
    )
    for i in range(3 if SLOW else 8):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / str(i))], cwd=torture.ROOT, timeout=60)
        assert done.returncode == 7
        with open_queue(tmp_path / str(i)) as q:
            assert len(payloads(q)) == 200


_ = Roll, Retention  # for the code that subprocesses run
