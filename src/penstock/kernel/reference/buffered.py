"""Appending through memory, in plain Python: frames are collected, and a thread writes and syncs whole batches of them.

For frames without a checksum: there a file's own length is the truth, so it grows by whole batches only, in the order
  1. dirty_next, dirty_end    from here on there may be bytes beyond `end`
  2. the frames, the companion's entries
  3. the sync; before it that of the companion, if only its entries tell a record from zeros
  4. the index                a cache: never synced, and nothing fails when it does
  5. last_us, next, end       readers look at `end` alone
  6. the durable mark         if synced
with the page's lock held all the while: readers take none. A batch that fails is cut off again, nothing is published.

The specification of buffered.h, with the same names and results; here too the thread keeps its object alive until `close`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NoReturn, final

from penstock.errors import BufferFull, InvalidPayload
from penstock.kernel import closing, layout
from penstock.kernel import spec as why
from penstock.kernel.reference.buffers import crc32, crc64
from penstock.kernel.reference.frames import COMPANION_HEADER, INDEX_HEADER, SUMMED_ENTRY, arrow_values, codec_of, scan
from penstock.kernel.reference.page import ControlPage, slot_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Buffer

    from penstock.kernel.spec import FrameSpec

_POINT: Final = struct.Struct("<QQ")  # of the index: sequence, byte in the file
_MARK: Final = struct.Struct("=QQQ")
_PERSIST_S: Final = 1.0  # the page is put on the disk so often at most
_NAP_S: Final = 1.0  # how long somebody sleeps before it looks for signals, if none has woken it
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)  # what ends when somebody makes room
_TURN, _POISON, _DURABLE = layout.TURN // 8, layout.POISON // 8, layout.DURABLE // 8


@final
class Batch:
    """What one write and sync puts on the disk, or fails to. Made when its first record is appended."""

    __slots__ = ("_owner", "_raised", "_trace", "count", "done", "error", "first")

    def __init__(self, owner: Buffered | None = None) -> None:
        self._owner = owner
        self._raised: BaseException | None = None
        self._trace: TracebackType | None = None
        self.count = 0  # records so far
        self.first: int | None = None  # sequence of its first record, once durable
        self.error = 0  # errno of the write or sync that failed it
        self.done = False  # it is durable, or has failed; set last

    @property
    def exception(self) -> BaseException | None:
        """What failed it, as `wait` raises it; None while nothing has."""
        if not self.done:
            return None
        if self._raised is not None:
            return self._raised.with_traceback(self._trace)  # else each raise would add to the one before
        return _failure(self.error) if self.error else None


def _failure(code: int) -> OSError:
    text = f"the records could not be put on the disk ({os.strerror(code)}); none of them are in the log"
    return OSError(code, text)


@dataclass(slots=True)
class _Pile:
    """The frames of one batch."""

    batch: Batch
    born_s: float
    frames: bytearray = field(default_factory=bytearray)
    sums: list[int] = field(default_factory=list)
    state: bytes | None = None  # its last record of STATE_KIND
    urgent: bool = False  # do not wait for more
    hollow: bool = False  # it has a record whose head is zero: without a checksum nothing tells it from no record
    doom: Batch | None = None  # one before it that failed


@dataclass(frozen=True, slots=True)
class _Place:
    """The segment it stands on."""

    data_fd: int
    times_fd: int
    index_fd: int
    turn: int
    base: int
    start: int
    limit: int
    interval: int


class _Bell:
    """A descriptor that is readable once rung, until drained."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)]
        else:
            self.fds = list(os.pipe())
            for fd in self.fds:
                os.set_blocking(fd, False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: readable, which is all that is wanted
            os.write(self.fds[-1], (1).to_bytes(8, "little"))

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fds[0], 512)) == 512:
                pass

    def __del__(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _until(timeout_s: float | None) -> float:
    """When to stop waiting, by the monotonic clock."""
    if timeout_s is None:
        return math.inf
    return time.monotonic() + timeout_s if timeout_s > 0 else 0.0


def _wait(condition: threading.Condition, until: float) -> bool:
    """Wait for a change, or to look for signals: one that came before it slept, or to another thread, has woken nobody. False when
    the time is over."""
    left = until - time.monotonic()
    if left <= 0:
        return False
    condition.wait(min(left, _NAP_S))
    return True


class Buffered:
    """Appends to the active segment of one log through memory: a thread writes and syncs whole batches. Thread-safe.

    A batch is written when it has `batch_records`, when `linger_s` have passed since its first one, or when `flush`, `close`
    or a full buffer ask for it; what arrives meanwhile is the next one. It never has more than `segment_bytes`, what an
    empty segment has room for.

    `on_slow(code, bytes, records)` is called in the thread, without the lock, when a batch cannot be written yet: it mends
    the cause or raises, which fails the batch (POISONED: and all later ones). `on_error(errno)` is called there when a write
    or a sync failed; from then on everything is refused. Only a full disk is no such end: it fails the batch, and those that
    were behind it then, which would leave a hole. Neither may wait for a batch, nor take a lock that somebody holds who does.
    """

    def __init__(
        self,
        page: ControlPage,
        spec: FrameSpec,
        on_slow: Callable[[int, int, int], None],
        on_error: Callable[[int], None],
        *,
        batch_records: int,
        linger_s: float,
        most_bytes: int,
        segment_bytes: int,
        sync: bool,
        most_records: int = (1 << 63) - 1,
    ) -> None:
        page.must_write()
        if batch_records < 1 or not linger_s >= 0:
            raise ValueError("batch_records must be at least 1, and linger_s not negative")
        if segment_bytes < spec.overhead:
            raise ValueError("a segment must have room for a record")
        self._page = page
        self._codec = codec_of(spec)
        self._on_slow = on_slow
        self._on_error = on_error
        self._batch_records = batch_records
        self._linger_s = min(float(linger_s), 1e9)
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._marked = False  # a durable mark was stored that is not on the disk itself; the thread's own, as the next
        self._persisted_s = 0.0  # when the page was last put there
        self._pid = os.getpid()  # a forked child has the memory, not the thread
        self.state = b""  # the payload of the last record of kind 1 that was written
        self.synced = (0, 0)  # batches that were synced, and the nanoseconds that took
        self.lost = 0  # records in batches that failed: for whoever waits for none of them

        lock = threading.Lock()  # guards everything below
        self._kick = threading.Condition(lock)  # the thread waits: for records, for more of them, for the end
        self._progress = threading.Condition(lock)  # others wait: for a batch, for room, for the thread to be done
        self._thread: threading.Thread | None = None
        self._stop = self._ended = self._joined = self._writing = False
        self._broken: Batch | None = None  # what failed it is every later one's end too
        self._piles: deque[_Pile] = deque()  # in order; the first is the one being written or waited for
        self._filling: _Pile | None = None  # the last one, while records may still join it
        self._pending = self._pending_records = 0  # bytes, and records, appended and not yet durable
        self._finished = 0  # batches
        self._place: _Place | None = None
        self._closing: list[Batch] = []  # those that `close` has to answer for
        self._bell: _Bell | None = None
        closing.still_open.add(self)

    # ---- where it stands ----

    def attach(
        self, data_fd: int, times_fd: int, index_fd: int, *, turn: int, start: int, limit: int, interval: int
    ) -> None:
        """Stand on the segment of `turn`: its data begin at `start` and may reach to `limit`. Call with the lock held.

        The index notes the place of each `interval`-th record of the segment; without one `index_fd` is -1.
        """
        if self._joined:
            self._check_open()
        self.detach()
        if start > limit or data_fd < 0 or times_fd < 0 or (index_fd >= 0 and interval < 1):
            raise ValueError("no such segment")
        base = self._page.words[layout.BASES[turn & 1] // 8]
        self._stand(_Place(data_fd, times_fd, index_fd, turn, base, start, limit, interval))

    def detach(self) -> None:
        """Stand on no segment: the next batch asks `on_slow` for one. When this returns the files may be closed."""
        self._stand(None)

    def _stand(self, place: _Place | None) -> None:
        if self._forked:
            return
        with self._progress:
            while self._writing:
                _wait(self._progress, math.inf)
            self._place = place

    # ---- appending ----

    def append(self, payload: Buffer, kind: int = 0, timeout_s: float | None = None) -> tuple[Batch, int]:
        """Take one record; its batch, and its place in it. `timeout_s` is for a full buffer: None is for ever."""
        return self.append_many((payload,), kind, timeout_s)

    def append_many(
        self, payloads: Iterable[Buffer], kind: int = 0, timeout_s: float | None = None
    ) -> tuple[Batch, int]:
        """Take many records as parts of one batch; that, and the first one's place in it."""
        return self._take([self._codec.flat(payload, kind) for payload in payloads], kind, timeout_s)

    def append_arrow(
        self,
        offsets: Buffer,
        wide: bool,
        values: Buffer | None,
        start: int,
        count: int,
        timeout_s: float | None = None,
    ) -> tuple[Batch, int]:
        """Take `count` values of an Arrow binary array, from its `start`-th, as parts of one batch."""
        return self._take(arrow_values(self._codec, offsets, wide, values, start, count), 0, timeout_s)

    def _take(self, payloads: list[memoryview], kind: int, timeout_s: float | None) -> tuple[Batch, int]:
        if not payloads:
            raise InvalidPayload("an empty batch has no sequence")
        if kind >> self._codec.spec.shift:
            raise ValueError(f"kind {kind} does not fit the {self._codec.spec.shift} bits below the length")
        need = sum(map(len, payloads)) + len(payloads) * self._codec.overhead
        if need > self._segment_bytes:
            raise InvalidPayload(
                f"{need} bytes with their heads are more than a file has room for ({self._segment_bytes})"
                + ("; append fewer records at a time" if len(payloads) > 1 else "")
            )
        frames = [b"".join(self._codec.parts(payload, kind)) for payload in payloads]
        sums = [crc64(frame) for frame in frames]
        self._check_not_forked()
        with self._progress:
            self._wait_room(need, len(payloads), timeout_s)
            pile = self._filling
            if pile is None or len(pile.frames) + need > self._segment_bytes:
                pile = self._new_pile()
            place = len(pile.sums)
            pile.frames += b"".join(frames)
            pile.sums += sums
            pile.hollow |= kind == 0 and not all(payloads)
            if kind == why.STATE_KIND:
                pile.state = bytes(payloads[-1])
            pile.batch.count = len(pile.sums)
            self._pending += need
            self._pending_records += len(payloads)
            self._kick.notify()
        return pile.batch, place

    def _new_pile(self) -> _Pile:
        """The thread is started when it is first needed."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="penstock", daemon=True)
            thread.start()
            self._thread = thread
        pile = _Pile(Batch(self), time.monotonic())
        self._piles.append(pile)
        self._filling = pile  # what was filling is full, and so due
        return pile

    def _wait_room(self, need: int, records: int, timeout_s: float | None) -> None:
        """An empty buffer takes anything: else a record longer than `most_bytes` could never be appended."""
        until = -1.0
        while True:
            self._check_open()
            fits = self._pending + need <= self._most_bytes and self._pending_records + records <= self._most_records
            if not self._pending or fits:
                return
            self._hurry()
            if until < 0:
                until = _until(timeout_s)
            if self._is_thread() or not _wait(self._progress, until):
                raise BufferFull(
                    f"{self._pending_records} records of {self._pending} bytes are not on the disk yet, and {records} of "
                    f"{need} more would pass what may wait; append again when a batch is done"
                )

    @property
    def waiting(self) -> tuple[int, int]:
        """(records, bytes) that were appended and are not on the disk yet."""
        with self._progress:
            return self._pending_records, self._pending

    @property
    def _forked(self) -> bool:
        return self._pid != os.getpid()

    def _check_not_forked(self) -> None:
        if self._forked:
            raise ValueError("it was made before a fork; make another one in the child process")

    def _check_open(self) -> None:
        if self._stop:
            raise ValueError("it was closed; nothing more can be appended")
        if self._broken is not None:
            self._raise(self._broken)

    def _raise(self, batch: Batch) -> NoReturn:
        error = batch.exception
        assert error is not None
        raise error

    # ---- waiting ----

    def wait(self, batch: Batch, timeout_s: float | None = None) -> bool:
        """Until the batch is durable: True. False when `timeout_s` passed (None: for ever). Raises what failed it."""
        if batch._owner is not self:
            raise ValueError("the batch is another one's")
        if not batch.done:
            self._check_not_forked()
            if self._is_thread():
                raise RuntimeError("the thread that writes the batch cannot wait for it")
            until = _until(timeout_s)
            with self._progress:
                while not batch.done:
                    if not _wait(self._progress, until):
                        return False
        if batch.first is None:
            self._raise(batch)
        return True

    def _hurry(self) -> None:
        """Nothing is waited for any more: wake the thread to write what there is."""
        if self._piles:
            self._piles[-1].urgent = True
        self._kick.notify()

    def flush(self) -> Batch | None:
        """Have everything appended so far written now; the batch to wait for, or None when there is nothing."""
        self._check_not_forked()
        with self._progress:
            if self._broken is not None:
                self._raise(self._broken)
            self._hurry()
            return self._piles[-1].batch if self._piles else None

    def _is_thread(self, ident: Callable[[], int] = threading.get_ident) -> bool:
        """Whether its thread asks, whose number is another's once it has ended. `ident` is kept, as a finalizer at the very end
        finds the module empty."""
        return self._thread is not None and not self._ended and self._thread.ident == ident()

    def close(self) -> None:
        """Write and sync what there is, end the thread and let go of the page. Raises what failed a batch there. Safe to call
        twice."""
        if self._forked:
            return
        if self._is_thread():
            raise RuntimeError("the thread cannot wait for its own end")
        with self._progress:
            if not self._stop:
                self._closing = [pile.batch for pile in self._piles]
                self._stop = True
            self._hurry()
            self._progress.notify_all()  # whoever waits for room waits in vain
            while self._thread is not None and not self._ended:  # a join that a signal ends forgets the thread
                _wait(self._progress, math.inf)
        if self._thread is not None:
            self._thread.join()
        with self._progress:
            if not self._joined:
                self._joined = True
                del self._page, self._on_slow, self._on_error  # only the thread looked there, and asked these
        pending, self._closing = self._closing, []
        for batch in pending:
            if batch.first is None:
                self._raise(batch)

    def fileno(self) -> int:
        """A descriptor, readable when a batch was done since the last `drain`. It lives as long as this object."""
        self._check_not_forked()
        with self._progress:
            if self._bell is None:
                self._bell = _Bell()
                if self._finished:
                    self._bell.ring()  # whoever comes late must look once
            return self._bell.fds[0]

    def drain(self) -> None:
        """Read the descriptor empty. Look at batches after this, not before."""
        if self._bell is not None:
            self._bell.drain()

    # ---- the thread ----

    def _run(self) -> None:
        self._persisted_s = time.monotonic()
        while (pile := self._next_pile()) is not None:
            self._deliver(pile)
        with self._progress:
            self._ended = True
            self._progress.notify_all()

    def _next_pile(self) -> _Pile | None:
        """The first batch, once it is due; None at the end."""
        with self._kick:
            while self._piles or not self._stop:
                left, until_persist = self._due_in(), self._persist_in()
                if until_persist <= 0:
                    self._persist()
                elif left > 0:
                    self._kick.wait(min(left, until_persist, 3600.0))
                else:
                    pile = self._piles[0]
                    if pile is self._filling:
                        self._filling = None  # what arrives from here on is the next batch
                    return pile
        return None

    def _due_in(self) -> float:
        """Seconds until the first batch is to be written."""
        if not self._piles:
            return math.inf
        pile = self._piles[0]
        more = pile is self._filling and len(pile.sums) < self._batch_records
        if more and not (pile.urgent or self._stop or self._broken):
            return pile.born_s + self._linger_s - time.monotonic()
        return 0.0

    def _persist_in(self) -> float:
        """Seconds until a durable mark is to be put on the disk."""
        if not self._marked or self._stop:  # at the end the log's close does it
            return math.inf
        return self._persisted_s + _PERSIST_S - time.monotonic()

    def _persist(self) -> None:
        """With the lock, which is let go meanwhile: nobody waits for this. It only tells damage from a torn tail more
        sharply after a power cut, so it may fail."""
        self._kick.release()
        try:
            self._marked = False
            page = self._page.words.obj
            if isinstance(page, mmap.mmap):
                with contextlib.suppress(OSError):
                    page.flush()
            self._persisted_s = time.monotonic()
        finally:
            self._kick.acquire()

    def _deliver(self, pile: _Pile) -> None:
        """Write a batch, and say what became of it."""
        batch, fatal = pile.batch, False
        first: int | None = None
        failed_before = self._broken or pile.doom
        if failed_before is None:
            try:
                first = self._write(pile)
            except _Failed as failed:
                batch.error, fatal = failed.code, failed.fatal
            except _Raised as raised:
                batch._raised, fatal = raised.cause, raised.fatal
                batch._trace = raised.cause.__traceback__
        else:
            batch.error, batch._raised, batch._trace = failed_before.error, failed_before._raised, failed_before._trace
        if fatal:
            last_straw = Batch(self)
            last_straw.error, last_straw._raised, last_straw._trace = batch.error, batch._raised, batch._trace
            last_straw.done = True
            with self._progress:
                self._broken = last_straw
            if batch.error:
                _report(lambda: self._on_error(batch.error))
        with self._progress:
            self._piles.popleft()
            if first is None and failed_before is None:  # those behind it would leave a hole in what was appended
                self._filling = None
                for behind in self._piles:
                    behind.doom = batch
            self._pending -= len(pile.frames)
            self._pending_records -= len(pile.sums)
            self._finished += 1
            if first is None:
                self.lost += len(pile.sums)
            elif pile.state is not None:
                self.state = pile.state
            batch.first = first
            batch.done = True
            self._progress.notify_all()
            bell = self._bell
        if bell is not None:
            bell.ring()

    def _write(self, pile: _Pile) -> int:
        """Until the batch is published: its first sequence."""
        while True:
            try:
                self._page.lock()
            except BaseException as error:
                raise _Raised(error, fatal=False) from None
            try:
                with self._progress:
                    self._writing = True
                    place = self._place
                code, first = self._commit(place, pile)
            finally:
                with self._progress:
                    self._writing = False
                    self._progress.notify_all()
                _report(self._page.unlock)
            if not code:
                self._marked |= self._sync
                return first
            try:
                self._on_slow(code, len(pile.frames), len(pile.sums))
            except BaseException as error:
                raise _Raised(error, fatal=code == why.POISONED) from None

    def _commit(self, place: _Place | None, pile: _Pile) -> tuple[int, int]:
        """Put a batch into the file, under the lock: (0, first sequence); or a code for `on_slow`, with nothing changed."""
        words, count, need = self._page.words, len(pile.sums), len(pile.frames)
        if place is None or words[_TURN] != place.turn:
            return why.REMAP, 0
        if words[_POISON]:
            return why.POISONED, 0
        end, next_, dirty_end, dirty_next, last_us = words[
            slot_word(place.turn, layout.END) : slot_word(place.turn, layout.LAST_US) + 1
        ]
        if dirty_end != end or dirty_next != next_:
            return why.DIRTY, 0
        if end + need > place.limit and end != place.start:  # an empty one takes it
            return why.ROLL, 0
        us = max(time.time_ns() // 1000, last_us)  # time never runs backwards in a log
        # A negative time says that the batch goes on: after a power cut, the proof that it is not whole.
        times = [-us] * (count - 1) + [us]
        entries = b"".join(map(SUMMED_ENTRY.pack, times, pile.sums))

        words[slot_word(place.turn, layout.DIRTY_NEXT)] = next_ + count
        words[slot_word(place.turn, layout.DIRTY_END)] = end + need
        entries_at = COMPANION_HEADER + SUMMED_ENTRY.size * (next_ - place.base)
        # Others appended to the file and did not sync, and what they did is not known.
        behind = words[_DURABLE + 2] != next_
        failed = self._put(place, pile, end, entries, entries_at, behind=behind)
        if failed is not None:
            with contextlib.suppress(OSError):  # then it stays announced, for the next to mend
                _cut(place.data_fd, end, sync=False)
                # entries that came back after a power cut would speak against the records that are there then
                _cut(place.times_fd, entries_at, sync=self._sync)
                words[slot_word(place.turn, layout.DIRTY_END)] = end
                words[slot_word(place.turn, layout.DIRTY_NEXT)] = next_
            raise failed
        if place.index_fd >= 0:
            self._put_index(place, pile, end, next_)
        words[slot_word(place.turn, layout.LAST_US)] = us
        words[slot_word(place.turn, layout.NEXT)] = next_ + count
        words[slot_word(place.turn, layout.END)] = end + need
        if self._sync:
            self._mark_durable(words[slot_word(place.turn, layout.SEGMENT)], end + need, next_ + count)
        return 0, next_

    def _put(
        self, place: _Place, pile: _Pile, at: int, entries: bytes, entries_at: int, *, behind: bool
    ) -> _Failed | None:
        try:
            _write_all(place.data_fd, pile.frames, at)
            _write_all(place.times_fd, entries, entries_at)
        except OSError as error:
            return _Failed(error.errno or errno.EIO, fatal=error.errno not in _FULL)
        began_ns = time.monotonic_ns()
        try:
            proves = self._codec.spec.sum_bytes > 0
            if self._sync and not proves and (behind or pile.hollow or has_blank(pile.frames, at)):
                os.fdatasync(place.times_fd)  # only its entries tell records from zeros that a power cut left
            if self._sync:
                os.fdatasync(place.data_fd)
        except OSError as error:
            failed = _Failed(error.errno or errno.EIO, fatal=True)
            self._page.words[_POISON] = failed.code  # the system tells a failure once: nobody may build on this file
            return failed
        if self._sync:
            self.synced = self.synced[0] + 1, self.synced[1] + time.monotonic_ns() - began_ns
        return None

    def _put_index(self, place: _Place, pile: _Pile, end: int, next_: int) -> None:
        """An entry for each record whose place in the file is a multiple of the interval, then their count. Readers
        check what it says, so it may fail."""
        number = -(-(next_ - place.base) // place.interval)  # of the first such entry
        due = range(number * place.interval - (next_ - place.base), len(pile.sums), place.interval)
        if not due:
            return
        starts = scan(self._codec.spec, pile.frames, 0, len(pile.frames), verify=False, every=1).points
        points = b"".join(_POINT.pack(next_ + i, end + starts[i]) for i in due)
        with contextlib.suppress(OSError):
            _write_all(place.index_fd, points, INDEX_HEADER + _POINT.size * number)
            _write_all(place.index_fd, (number + len(due)).to_bytes(8, "little"), 8)

    def _mark_durable(self, segment: int, end: int, next_: int) -> None:
        """Everything below this is on the disk. Whoever looks meanwhile finds a wrong checksum, and so no mark; `next`
        alone may be read at any time."""
        words = self._page.words
        for i, word in enumerate((segment, end, next_)):
            words[_DURABLE + i] = word
        words[_DURABLE + 3] = crc32(_MARK.pack(segment, end, next_))


def has_blank(frames: bytes | bytearray, at: int) -> bool:
    """Whether a batch, at byte `at` of its file, has nothing but zeros in one of the file's blocks: a power cut may give the file
    its new length, and not yet that block's content."""
    starts = [0, *range(why.BLOCK_BYTES - at % why.BLOCK_BYTES, len(frames), why.BLOCK_BYTES), len(frames)]
    return any(not any(frames[start:end]) for start, end in pairwise(starts))


def _write_all(fd: int, data: bytes | bytearray, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def _cut(fd: int, end: int, *, sync: bool) -> None:
    """Take back what a failed batch may have left beyond `end`."""
    if os.fstat(fd).st_size > end:
        os.ftruncate(fd, end)
        if sync:
            with contextlib.suppress(OSError):
                os.fdatasync(fd)


def _report(call: Callable[[], None]) -> None:
    """What is raised where nobody could catch it is told, and the thread goes on."""
    try:
        call()
    except BaseException as error:
        thread = threading.current_thread()
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))


class _Failed(Exception):
    """A write or a sync failed the batch; `fatal`: and all later ones."""

    def __init__(self, code: int, *, fatal: bool) -> None:
        super().__init__(code)
        self.code, self.fatal = code, fatal


class _Raised(Exception):
    """`on_slow` or the lock raised `cause`, which fails the batch; `fatal`: and all later ones."""

    def __init__(self, cause: BaseException, *, fatal: bool) -> None:
        super().__init__(cause)
        self.cause, self.fatal = cause, fatal
