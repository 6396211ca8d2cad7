"""Byte offsets over a whole log: they count frames, leave out file headers, and go on from file to file.

What a finished segment begins at is known from the manifest, which is checksummed; its header says the same, and is not asked.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.errors import InvalidOffset
from penstock.storage.control import Active
from penstock.storage.damage import Place
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.segment import ReadSegment
from penstock.storage.walking import next_readable, place_over


class Places:
    """From offsets to records of one log, and back."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._begins: dict[int, int] = {}  # never changes for a segment

    def begin(self, segment_id: int, said: int | None = None) -> int:
        """The offset of a segment's first frame. `said` is what its header says, for one that may have been removed."""
        known = self._begins.get(segment_id)
        if known is None:
            finished = self._log.finished()
            if segment_id in finished:
                known = finished[segment_id].begin
            else:
                before = [s for s in finished.values() if s.id < segment_id]
                last = max(before, key=lambda s: s.id, default=None)
                known = self.end_of(last) if last else self._said(segment_id, said)
            self._begins[segment_id] = known
        return known

    def _said(self, segment_id: int, said: int | None) -> int:
        try:
            return self._log.directory.begin_of(segment_id)
        except FileNotFoundError:
            if said is None:
                raise
            return said

    def shift(self, segment_id: int, said: int | None = None) -> int:
        """What to add to a byte's position in a segment to have its offset."""
        return self.begin(segment_id, said) - self._log.fmt.HEADER_BYTES

    def end_of(self, info: SegmentInfo) -> int:
        """The offset behind a finished segment's last frame."""
        return info.begin + info.end - self._log.fmt.HEADER_BYTES

    @property
    def end(self) -> int:
        """Where the next record will begin."""
        now, begin = self._active()
        return begin + now.end - self._log.fmt.HEADER_BYTES

    def _active(self) -> tuple[Active, int]:
        """The segment being written, and the offset of its first frame."""
        while True:
            now = self._log.active()
            try:
                return now, self.begin(now.segment)
            except FileNotFoundError:  # left and removed since
                if self._log.active().segment == now.segment:
                    raise

    @property
    def durable(self) -> int:
        """Everything below this survives a power cut."""
        mark = self._log.durable_mark()
        if mark is None:
            return self.end if self._log.page is None else self.first  # of a log that is written, nothing is known
        try:
            return min(self.end, self.shift(mark.segment) + mark.end)
        except FileNotFoundError:
            return self.first  # its segment was removed, which is done to durable ones

    @property
    def first(self) -> int:
        """The oldest record's offset."""
        while True:
            now, begin = self._active()
            finished = self._log.finished().values()
            if self._log.active().segment == now.segment:  # else it may be gone, and others not listed here
                return min((s.begin for s in finished if s.id < now.segment), default=begin)

    def sequence(self, offset: int) -> int:
        """The record that begins at an offset; refused where none does. Where damage hides that, the record it begins with,
        so that whoever reads on is told of it."""
        now, begin = self._active()
        finished = sorted((s for s in self._log.finished().values() if s.id < now.segment), key=lambda s: s.id)
        infos = [*finished, SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0, begin=begin)]
        i = bisect_right(infos, offset, key=lambda s: s.begin) - 1
        if i < 0 or offset > self.end_of(infos[-1]):
            raise InvalidOffset(
                f"{self._log.path}: offset {offset} is not in the log, which has {infos[0].begin} to "
                f"{self.end_of(infos[-1])}"
            )
        info = infos[i]
        position = self._log.fmt.HEADER_BYTES + offset - info.begin
        seg = self._log.directory.read(info.id, info.base, listed=True)
        if not len(seg.data) and info.id != self._log.active().segment and info.id not in self._log.finished():
            raise InvalidOffset(f"{self._log.path}: offset {offset}: {seg.paths.data} was removed")
        end = Place(info.end, info.next)
        at = self._walk(seg, seg.place_at(min(position, info.end), end), position, end)
        if at.position != position and _is_whole(seg, at):
            raise InvalidOffset(
                f"{self._log.path}: offset {offset}: no record begins there; the nearest before it that does is "
                f"{info.begin + at.position - self._log.fmt.HEADER_BYTES}"
            )
        return at.sequence

    def _walk(self, seg: ReadSegment, at: Place, position: int, end: Place) -> Place:
        """From a known place to a byte, over damage; to where that begins if it reaches beyond the byte."""
        while at.position < position:
            stop = min(position, len(seg.data))
            found = seg.scan(min(at.position, stop), stop)
            at = Place(max(at.position, found.position), at.sequence + found.count)
            if at.position == position or _is_whole(seg, at):
                return at  # there, or a record reaches beyond it
            after = place_over(self._log.losses.all(), seg, at, end) or next_readable(seg, at, end)
            if not at.position < after.position <= position:
                return at
            at = after
        return at


class Counted(Places):
    """Where a record's offset is its sequence."""

    @property
    def first(self) -> int:
        return self._log.first_sequence

    def sequence(self, offset: int) -> int:
        if not self.first <= offset <= self._log.next_sequence:
            raise InvalidOffset(
                f"{self._log.path}: offset {offset} is not in the log, which has {self.first} to {self._log.next_sequence}"
            )
        return offset


def _is_whole(seg: ReadSegment, at: Place) -> bool:
    return seg.scan(min(at.position, len(seg.data)), len(seg.data), 1).count == 1
