"""Reading a log: one segment at a time, without any lock, never beyond the published end.

A segment is left only after the control page names another as active and the manifest has said where the old one ends, so
nothing is missed at a roll. Not thread-safe: one reader per thread. `BackwardReader` reads the other way.
"""

from __future__ import annotations

import os
import time
import weakref
from bisect import bisect_right
from contextlib import suppress
from typing import Literal

from penstock import kernel
from penstock.errors import CorruptRecord, PenstockError, RecordGone
from penstock.kernel import Message
from penstock.options import MAX_NUMBER
from penstock.storage import files, index
from penstock.storage.damage import REASONS, Loss, Place
from penstock.storage.log import Log
from penstock.storage.losses import is_listed
from penstock.storage.manifest import SegmentInfo
from penstock.storage.report import Recovery
from penstock.storage.segment import ReadSegment
from penstock.storage.walking import agreed, next_readable, place_over, walk
from penstock.storage.weakly import weakly

OnCorrupt = Literal["raise", "skip"]
_STATIC_POLL_S = 0.05
_ON_LIVE_CLOSE_S = 1.0
_DROP_BYTES = 32 << 20


class LogReader:
    """Reads records in order from any place in the log."""

    def __init__(self, log: Log, on_corrupt: OnCorrupt = "raise") -> None:
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f'on_corrupt must be "raise" or "skip", not {on_corrupt!r}')
        self.log = log
        self.on_corrupt = on_corrupt
        self.losses: list[Loss] = []
        self.records = kernel.Reader(log.page, log.fmt.SPEC, weakly(self._on_end), weakly(self._on_bad))
        self._segment: ReadSegment | None = None
        self._ends = Place(0, 0)  # of the segment, as far as known
        self._skipped: Place | None = None  # where it stands after records that a file cut short no longer has
        self._mended: set[int] = set()  # segments whose index was made anew
        _all.add(self)

    # ---- where it stands ----

    @property
    def position(self) -> int:
        """The sequence of the record that is read next."""
        return self.records.sequence

    @property
    def segment(self) -> ReadSegment:
        assert self._segment is not None
        return self._segment

    def seek(self, sequence: int) -> None:
        """Stand before the record `sequence`; the next one to be written is allowed."""
        info = self._stand_where(sequence)
        at = self.segment.place_before(sequence, info.end)
        if sequence - at.sequence >= self.log.interval and self._mend_index(self.segment, info):
            info = self._stand_where(sequence)
            at = self.segment.place_before(sequence, info.end)
        at = self._walk_to(self.segment, at, sequence, info)
        self.records.seek(min(at.position, self.records.end), at.sequence)  # of a missing file: its end is its start

    def seek_time(self, us: int) -> None:
        """Stand before the first record that is not older than `us`, or at the end."""
        while True:
            first = self.log.first_sequence
            try:
                self._seek_time(us)
                return
            except RecordGone:  # retention was faster: what is left is looked at
                if self.log.first_sequence == first:
                    raise

    def _seek_time(self, us: int) -> None:
        now = self.log.active()
        for info in self._ordered():
            if info.last_us >= us or not info.last_us:  # not known: what is known of those before it counts
                seg = ReadSegment(self.log.path, self.log.fmt, info.id, info.base, listed=True)
                place = seg.times.first_at(us, info.count)
                if place < info.count:
                    self.seek(info.base + place)
                    return
        seg = ReadSegment(self.log.path, self.log.fmt, now.segment, now.base, listed=True)
        if not len(seg.data) and self.log.active().segment != now.segment:
            raise RecordGone(f"{self.log.path}: {seg.paths.data} was left and removed meanwhile")
        self.seek(now.base + seg.times.first_at(us, now.next - now.base))

    def _ordered(self) -> list[SegmentInfo]:
        now = self.log.active()
        return sorted((s for s in self.log.finished().values() if s.id < now.segment), key=lambda s: s.id)

    def _find(self, sequence: int) -> SegmentInfo:
        """The segment that holds a record, or is to hold it."""
        self.log.check_open()
        while True:
            now = self.log.active()
            if sequence > now.next:
                raise RecordGone(f"{self.log.path}: sequence {sequence} is not written yet; the next one is {now.next}")
            if sequence >= now.base:
                return SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)
            ordered = self._ordered()
            i = bisect_right([s.base for s in ordered], sequence) - 1
            if i >= 0 and sequence < ordered[i].next:
                return ordered[i]
            if self.log.active().segment == now.segment:
                first = ordered[0].base if ordered else now.base
                raise RecordGone(f"{self.log.path}: sequence {sequence} is no longer there; the first one is {first}")

    def _stand_where(self, sequence: int) -> SegmentInfo:
        """Open the segment that holds a record and stand at its first one."""
        while True:
            info = self._find(sequence)
            if self._stand_in(info):
                return info

    def _stand_in(self, info: SegmentInfo) -> bool:
        """Open a segment and stand at its first record; False when retention has removed it meanwhile."""
        seg = self._segment
        if seg is None or seg.id != info.id or self._has_grown(seg, info):
            seg = self._read(info.id, info.base)  # if that raises, the reader stands where it stood
            if not len(seg.data) and info.id != self.log.active().segment and info.id not in self.log.finished():
                return False
        self._attach(seg, Place(seg.start, seg.base), info)
        return True

    def _read(self, segment_id: int, base: int) -> ReadSegment:
        """A segment that is listed. If there is no file the log may have been moved: then nothing of it is damaged."""
        seg = ReadSegment(self.log.path, self.log.fmt, segment_id, base, listed=True)
        if not len(seg.data) and self.log.page is not None and self.log.control is not None:
            self.log.control.check_here()
        return seg

    def _has_grown(self, seg: ReadSegment, info: SegmentInfo) -> bool:
        """Whether files are longer than when they were mapped, or their map may end within a record."""
        return len(seg.times) < info.count or (self.log.fmt.GROWS and len(seg.data) < info.end)

    def _attach(self, seg: ReadSegment, at: Place, info: SegmentInfo) -> None:
        # A companion without room for more is a closed log's. Should the log go on, it must be opened anew for the times, so
        # the kernel may not go on by itself. Nor where files grow, since maps do not.
        ahead = len(seg.times) > info.count and not self.log.fmt.GROWS
        self.records.page = self.log.page if ahead else None
        agreed(seg, Place(info.end, info.next))
        end = min(info.end, len(seg.data))  # shorter: the rest is found missing when it is reached
        self.records.attach(
            seg.data, seg.times_data, seg.spec, seg.id, seg.base, min(at.position, end), at.sequence, end
        )
        self._segment, self._ends, self._skipped = seg, Place(info.end, info.next), None

    def _walk_to(self, seg: ReadSegment, at: Place, sequence: int, info: SegmentInfo) -> Place:
        """From a known place to a record in the same segment, over damage if there is some."""
        end = Place(info.end, info.next)
        while at.sequence < sequence:
            stop = min(info.end, len(seg.data))
            found = seg.scan(min(at.position, stop), stop, sequence - at.sequence, first=at.sequence)
            at = Place(max(at.position, found.position), at.sequence + found.count)
            if at.sequence < sequence:
                after = self._found_after(seg, at, end)
                if not at.sequence < after.sequence <= sequence:
                    return at  # the record itself is lost: reading will say so
                at = after
        return at

    def _found_after(self, seg: ReadSegment, bad: Place, end: Place) -> Place:
        """Where the next record is, whatever becomes of those in between."""
        return place_over(self.log.losses.all(), seg, bad, end) or next_readable(seg, bad, end)

    def _mend_index(self, seg: ReadSegment, info: SegmentInfo) -> bool:
        """The index did not lead there: make it anew from the data, once, for a finished segment and where allowed. Where that cannot be
        stored, on a full disk say, it is done without."""
        if self.log.read_only or not self.log.fmt.INDEXED:
            return False
        if info.id == self.log.active().segment or info.id in self._mended:
            return False
        self._mended.add(info.id)
        found = walk(seg, Place(info.end, info.next), self.log.interval, Recovery())
        made = index.pack(self.log.interval, seg.base, info.count, found.points)
        try:
            with self.log.locked():  # segments are removed under it
                if info.id not in self.log.finished():
                    return False
                files.replace(seg.paths.index, made, durable=False)
        except OSError:
            return False
        self._segment = None
        return True

    def read_batch(self, n: int) -> list[Message]:
        """Up to `n` records; fewer only at the end, or before a damaged one, at which the next call raises."""
        start, known = self.position, len(self.losses)
        try:
            return self.records.read_batch(min(n, MAX_NUMBER))
        except PenstockError:
            done = self.position - start - sum(loss.last + 1 - loss.first for loss in self.losses[known:])
            if done <= 0:
                raise
            del self.losses[known:]  # they are met again
            self.seek(start)
            return self.records.read_batch(done)

    # ---- what the kernel's reader asks ----

    def _on_end(self) -> bool:
        """All that was known of this segment is read: is there more of it, or a next one?"""
        self.log.check_open()
        seg = self._segment
        if seg is None:
            return False
        self.log.become_live()
        now = self.log.active()
        at = self._skipped or Place(self.records.position, self.records.sequence)
        if now.segment == seg.id:
            if now.end > at.position:
                self._more(seg, at, SegmentInfo(seg.id, seg.base, now.next - seg.base, now.end, 0, 0))
                return True
            return False
        # Zeros may have been taken for empty records, so positions tell what was read, and what is known of the segment where the
        # next one begins.
        info = self.log.finished().get(seg.id)
        if info is not None and info.end > at.position:
            self._more(seg, at, info)
            return True
        end = Place(info.end, info.next) if info is not None else self._ends
        return self._go_on(seg.id, min(at.sequence, end.sequence) if at.position == end.position else at.sequence)

    def _more(self, seg: ReadSegment, at: Place, info: SegmentInfo) -> None:
        if at.position >= len(seg.data) or self._has_grown(seg, info):
            reread = self._read(seg.id, seg.base)
            at = Place(max(at.position, reread.start), at.sequence)  # it had no file yet, and so no header
            if at.position >= len(reread.data):
                self._ends = Place(info.end, info.next)
                self._bad(at, "the file is cut short here", Place(info.end, info.next))
                return
            seg = reread
        self._attach(seg, at, info)

    def _go_on(self, after: int, sequence: int) -> bool:
        """Open the segment that follows; records that retention removed in between are told."""
        while True:
            now = self.log.active()
            straight = self.log.finished().get(after + 1) if after + 1 < now.segment else None  # nearly always
            later = [straight] if straight else [s for s in self._ordered() if s.id > after]
            if later:
                following = later[0]
            elif now.segment > after:
                following = SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)
            else:
                return False
            if following.base < sequence:  # an open after a failed sync moved the end of this one into later ones
                self.seek(sequence)
                return True
            gap = following.base > sequence and not is_listed(self.log.losses.all(), sequence, following.base - 1)
            if gap and self.on_corrupt == "raise":
                raise RecordGone(
                    f"{self.log.path}: sequences {sequence} to {following.base - 1} are no longer there; "
                    f"seek({following.base}) to go on"
                )
            if self._stand_in(following):
                if following.base > sequence:
                    self.losses.append(Loss(sequence, following.base - 1, "no longer in the log"))
                return True

    def _on_bad(self, reason: int) -> None:
        at = Place(self.records.position, self.records.sequence)
        end = self._ends
        now = self.log.active()
        if now.segment == self.segment.id:
            end = Place(now.end, now.next)
        self._bad(at, REASONS.get(reason, "it is not whole"), end)

    def _bad(self, at: Place, reason: str, end: Place) -> None:
        """A bad record: say so, or step over it and note what is lost. What is listed as lost is never said."""
        after = self.after(self.segment, at, end)
        if after is None:
            raise CorruptRecord(self.segment.paths.data, at.position, at.sequence, reason)
        self.losses.append(Loss(at.sequence, after.sequence - 1, reason))
        if after.position > len(self.segment.data):
            self._after_cut(after)
        else:
            info = SegmentInfo(self.segment.id, self.segment.base, end.sequence - self.segment.base, end.position, 0, 0)
            self._attach(self.segment, after, info)

    def after(self, seg: ReadSegment, bad: Place, end: Place) -> Place | None:
        """Where to go on after a bad frame; None if that is neither listed as lost nor to be skipped."""
        listed = place_over(self.log.losses.all(), seg, bad, end)
        if listed is None:
            self.log.directory.meters.corruptions += 1
        return next_readable(seg, bad, end) if listed is None and self.on_corrupt == "skip" else listed

    def _after_cut(self, after: Place) -> None:
        """The file ends before its records do: go on with the next segment, if there is one."""
        seg = self.segment
        self.records.attach(
            seg.data, seg.times_data, seg.spec, seg.id, seg.base, len(seg.data), after.sequence, len(seg.data)
        )
        self._skipped = after
        self._go_on(seg.id, after.sequence)

    # ---- waiting ----

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there may be more to read; False when the time is over. None: for ever."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.log.check_open()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            page = self.log.page
            if page is None:
                time.sleep(_STATIC_POLL_S if left is None else min(left, _STATIC_POLL_S))
                return True
            nap = _ON_LIVE_CLOSE_S if left is None else min(left, _ON_LIVE_CLOSE_S)
            if page.wait(self.records.segment, self.records.position, nap):
                self.log.check_open()
                return True

    def close(self) -> None:
        self.records.page = None  # a seek asks for it again
        self._segment = None
        self.records.detach()

    def forked(self) -> None:
        """In the child: what is in the map could be read on and on. Without it the next read asks the log, which says to open it anew."""
        with suppress(BufferError):  # another thread was at a read, in the parent; it has let go of it all the same
            self.close()


def place_kept(log: Log, name: str) -> int | None:
    """Where a named reader goes on; None if there is none. A log that nobody writes may end before that, after a power cut: the next open
    to write sets the reader back."""
    log.become_live()
    stored = log.cursors.load(name)
    if stored is None:
        return None
    place = max(stored, log.first_sequence)
    return place if log.page is not None else min(place, log.next_sequence)


class BackwardReader:
    """Reads records in reverse order: a stretch between two index entries is located forwards, then taken from its end."""

    def __init__(self, reader: LogReader, sequence: int) -> None:
        self._reader = reader
        self.position = sequence  # the record that is read next
        self._stretch: list[Place] = []
        self._high = -1  # pages up to here may be held
        _all.add(self)

    def forked(self) -> None:
        self._stretch = []  # of what its reader has let go

    def read(self) -> Message | None:
        """The record at the position, stepping back; None before the first one."""
        while True:
            try:
                if not self._stretch:
                    if self.position < self._reader.log.first_sequence:
                        return None
                    self._locate()
                at = self._stretch[-1]
                if at.sequence < self.position:
                    self._lost(at.sequence + 1)
                    continue
            except RecordGone:
                self._stretch = []  # of what its reader may have let go
                if self.position < self._reader.log.first_sequence:
                    return None  # retention was faster: what is left is read
                raise
            self._stretch.pop()
            if at.position < 0:
                continue
            self._reader.records.seek(at.position, at.sequence)
            message = self._reader.records.read()
            self.position = at.sequence - 1
            self._let_go_of(at.position)
            if message is not None and message.sequence == at.sequence:
                return message

    def _let_go_of(self, position: int) -> None:
        """The pages from `position` on are read, here from their end."""
        if not position <= self._high <= len(self._reader.segment.data):
            self._high = self._reader.records.position
        if self._high - position > _DROP_BYTES:
            kernel.release(self._reader.segment.data, position, self._high)
            self._high = position

    def seek(self, sequence: int) -> None:
        self.position = sequence
        self._stretch = []

    def _lost(self, first: int) -> None:
        listed = is_listed(self._reader.log.losses.all(), first, self.position)
        if self._reader.on_corrupt == "raise" and not listed:
            known = len(self._reader.losses)
            try:
                self._reader.seek(first)
                self._reader.records.read()
            finally:
                del self._reader.losses[known:]  # they are met again, or are a part of what is told below
        self._reader.losses.append(Loss(first, self.position, "damaged"))
        self.position = first - 1

    def _locate(self) -> None:
        """Find the places of the records from the nearest index entry up to the position."""
        reader = self._reader
        info = reader._stand_where(self.position)
        seg, end = reader.segment, Place(info.end, info.next)
        at = seg.place_before(self.position, info.end)
        while at.sequence <= self.position:
            stop = min(info.end, len(seg.data))
            first = min(at.position, stop)
            found = seg.scan(first, stop, self.position + 1 - at.sequence, True, 1, first=at.sequence)
            self._stretch += [Place(p, at.sequence + i) for i, p in enumerate(found.points)]
            at = Place(max(at.position, found.position), at.sequence + found.count)
            if at.sequence <= self.position:
                at = reader._found_after(seg, at, end)
        if not self._stretch:  # the stretch begins with damage: what is lost reaches back to the entry's record
            self._stretch = [Place(-1, seg.place_before(self.position, info.end).sequence - 1)]


_all: weakref.WeakSet[LogReader | BackwardReader] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for reader in list(_all):
        reader.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
