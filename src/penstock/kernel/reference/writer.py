"""Appending into maps: the order of the stores, so that a process may die between any two of them."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidPayload
from penstock.kernel import layout
from penstock.kernel import spec as why
from penstock.kernel.reference.buffers import store_big, view_of
from penstock.kernel.reference.frames import COMPANION_HEADER, INDEX_HEADER, arrow_values, codec_of
from penstock.kernel.reference.page import ControlPage, slot_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from penstock.kernel.spec import FrameSpec

_MAX: Final = 2**64 - 1
_OK: Final = 0
_TIME: Final = struct.Struct("<q")
_COUNT: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQ")
_TURN, _POISON = layout.TURN // 8, layout.POISON // 8


@dataclass(frozen=True, slots=True)
class _Segment:
    """The files that a writer stands on, and when to leave them."""

    data: memoryview
    times: memoryview
    index: memoryview
    turn: int
    base: int
    last: int  # there is room for the entries of no record behind it
    start: int
    size: int
    limit: int
    interval: int
    roll_next: int
    roll_us: int
    spill: bool
    mirror: memoryview | None
    mirror_add: int


class Writer:
    """Appends to the active segment of one log, for one process. Thread-safe, as it holds the page's lock.

    `on_slow(code, bytes, records)` is called without the lock when an append cannot go on; it mends the cause
    or raises, and the append is tried again. `on_notify()` is called when `end` passed `notify_at`.

    Order of the stores, so that a process may die between any two of them:
      1. dirty_next, dirty_end    from here on there may be bytes beyond `end`
      2. payload, checksum, companion entry, index entry
      3. the frame's head         (of a batch: frames 2..n whole, then the first one's head)
      4. last_us, next, end       readers look at `end` alone
    Whoever finds dirty_end != end under the lock finishes the append if its frames verify, or zeroes them.
    """

    def __init__(
        self,
        page: ControlPage,
        spec: FrameSpec,
        on_slow: Callable[[int, int, int], None],
        on_notify: Callable[[], None],
    ) -> None:
        page.must_write()
        self.notify_at = 0
        self.durable = False  # the native kernel then writes batches through the file; here all ways are slow
        self._page = page
        self._codec = codec_of(spec)
        self._on_slow = on_slow
        self._on_notify = on_notify
        self._segment: _Segment | None = None

    def detach(self) -> None:
        """Stand on no segment: the next append asks `on_slow` for one. Call with the lock held, or alone."""
        if self._segment is not None:
            for view in (self._segment.data, self._segment.times, self._segment.index, self._segment.mirror):
                if view is not None:
                    view.release()
            self._segment = None

    def stop(self, on_slow: Callable[[int, int, int], None] | None = None) -> None:
        """Detach for good. What comes later asks `on_slow`, if that is given. (The native kernel has a thread to end here;
        this one does not work ahead.)"""
        self.detach()
        if on_slow is not None:
            self._on_slow = on_slow

    def attach(
        self,
        data: Buffer,
        times: Buffer,
        index: Buffer,
        *,
        turn: int,
        start: int,
        size: int,
        limit: int,
        interval: int,
        roll_next: int,
        roll_us: int,
        spill: bool = False,
        mirror: Buffer | None = None,
        mirror_add: int = 0,
    ) -> None:
        """Stand on the segment of `turn`. Call with the lock held.

        With `spill` a record may pass the limit, and the segment is left before the next one. Into the first eight bytes of
        `mirror` every published end is stored too, big-endian, plus `mirror_add`.
        """
        self.detach()
        if interval < 1 or start > size:
            raise ValueError("no such segment")
        views = view_of(data, True), view_of(times, True), view_of(index, True)
        if size > len(views[0]):
            raise ValueError("the segment is larger than its map")
        base = self._page.words[layout.BASES[turn & 1] // 8]
        entries = max(0, len(views[1]) - COMPANION_HEADER) // _TIME.size
        last = base + min(entries, max(0, len(views[2]) - INDEX_HEADER) // _ENTRY.size * interval)
        limit = min(limit, size)
        copy = None if mirror is None else view_of(mirror, True)
        if copy is not None and len(copy) < 8:
            raise ValueError("a mirror is eight bytes, aligned")
        self._segment = _Segment(
            *views, turn, base, last, start, size, limit, interval, roll_next, roll_us, spill, copy, mirror_add
        )

    def append(self, payload: Buffer) -> int:
        """Append one record; its sequence."""
        return self.append_batch((payload,))

    def append_batch(self, payloads: Iterable[Buffer]) -> int:
        """Append many records as one; the first one's sequence."""
        return self._append([self._codec.flat(payload) for payload in payloads])

    def append_arrow(self, offsets: Buffer, wide: bool, values: Buffer | None, start: int, count: int) -> int:
        """Append `count` values of an Arrow binary array, from its `start`-th."""
        return self._append(arrow_values(self._codec, offsets, wide, values, start, count))

    def _append(self, payloads: list[memoryview]) -> int:
        count = len(payloads)
        if not count:
            raise InvalidPayload("an empty batch has no sequence")
        need = sum(map(len, payloads)) + count * self._codec.overhead
        while True:
            notify = False
            self._page.lock()
            try:
                code, segment, us = self._admit(need, count)
                if segment is not None:
                    first, end = self._write(segment, payloads, need, us)
                    notify = end >= self.notify_at
                    if notify:
                        self.notify_at = _MAX  # under the lock, so that it fires once
            finally:
                self._page.file_lock.release()
            if code == _OK:
                break
            self._on_slow(code, need, count)
        self._page.ring_if_waited_for()
        if notify:
            self._on_notify()
        return first

    def _admit(self, need: int, count: int) -> tuple[int, _Segment | None, int]:
        """Is there room, where, and which time will the records have? Or why not. Changes nothing."""
        segment, words = self._segment, self._page.words
        if segment is None or words[_TURN] != segment.turn:
            return why.REMAP, None, 0
        if words[_POISON]:
            return why.POISONED, None, 0
        end, next_, dirty_end, dirty_next, last_us, allocated, entries = words[
            slot_word(segment.turn, layout.END) : slot_word(segment.turn, layout.ENTRIES) + 1
        ]
        if dirty_end != end or dirty_next != next_:
            return why.DIRTY, None, 0
        now = time.time_ns() // 1000
        within = 1 if segment.spill else need
        full = end + within > segment.limit or next_ >= segment.roll_next or now >= segment.roll_us
        full |= end + need > segment.size
        if full and (end != segment.start or end + need > segment.size):  # an empty one takes all that fits
            return why.ROLL, None, 0
        if end + need > allocated or next_ + count > entries:
            return why.SPACE, None, 0
        if next_ + count > segment.last or next_ < segment.base:
            return why.ROLL, None, 0
        return _OK, segment, max(now, last_us)  # time never runs backwards in a log

    def _write(self, segment: _Segment, payloads: list[memoryview], need: int, us: int) -> tuple[int, int]:
        """Append under the lock, in the order given above; the first sequence, and the new end."""
        words, turn, data = self._page.words, segment.turn, segment.data
        start = at = words[slot_word(turn, layout.END)]
        first = sequence = words[slot_word(turn, layout.NEXT)]
        last = first + len(payloads) - 1
        words[slot_word(turn, layout.DIRTY_NEXT)] = last + 1
        words[slot_word(turn, layout.DIRTY_END)] = start + need
        commit = b""
        for payload in payloads:
            head, before, _, after = self._codec.parts(payload)
            place = at + 4
            for part in (before, payload, after):
                data[place : place + len(part)] = part
                place += len(part)
            if at == start:
                commit = head
            else:
                data[at : at + 4] = head
            # A negative time says that the batch goes on: after a power cut, the proof that it is not whole.
            self._companions(segment, sequence, at, us if sequence == last else -us)
            at = place
            sequence += 1
        data[start : start + 4] = commit
        words[slot_word(turn, layout.LAST_US)] = us
        words[slot_word(turn, layout.NEXT)] = sequence
        words[slot_word(turn, layout.END)] = at
        if segment.mirror is not None:
            store_big(segment.mirror, 0, 0, 1, at + segment.mirror_add)
        return first, at

    def _companions(self, segment: _Segment, sequence: int, position: int, us: int) -> None:
        """The record's time; of each interval-th record, the position in the index, and then their count."""
        place = sequence - segment.base
        _TIME.pack_into(segment.times, COMPANION_HEADER + 8 * place, us)
        if place % segment.interval == 0:
            n = place // segment.interval
            _ENTRY.pack_into(segment.index, INDEX_HEADER + 16 * n, sequence, position)
            _COUNT.pack_into(segment.index, 8, n + 1)
