"""What opening a log finds and does, when no other process has it open.

Same boot: the control page is exact, so whatever fails to verify below its end is damage. Another boot: below the place of
the last clean close, or the last durable mark, it is damage; above, it is the torn tail of a power cut, which is copied
aside and cut. Damage is reported and left alone. Called by `Log`, under the exclusive lock; read-only openers call
`survey`, which changes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock import kernel
from penstock.errors import NotALog, SyncFailed
from penstock.kernel import Buffer
from penstock.storage import companion, files, index, last_time, notes
from penstock.storage.control import Mark
from penstock.storage.damage import Loss, Place
from penstock.storage.listing import companion_base, list_segments
from penstock.storage.losses import LossList, is_listed
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.report import Recovery
from penstock.storage.segment import Format, ReadSegment, SegmentPaths, has_room, map_data
from penstock.storage.walking import Hole, Walked, walk


class Tail(NamedTuple):
    """The segment to append to: where its records begin and end."""

    segment: int
    base: int
    end: int
    next: int
    last_us: int


def report_loss(report: Recovery, losses: LossList, seg: ReadSegment, position: int, loss: Loss) -> None:
    """Records that cannot be read are damage, unless they are listed as lost: that was told before, and readers step over them."""
    if loss.first > loss.last or not is_listed(losses.known(), loss.first, loss.last):
        report.damage.append(
            f"{seg.paths.data}: byte {position}: sequences {loss.first} to {loss.last} are lost: {loss.reason}"
        )


class Opening:
    """Finds where a log ends. With `mend`, also puts right what a crash left; without, nothing on disk is changed."""

    def __init__(
        self,
        top: Path,
        fmt: Format,
        manifest: Manifest,
        interval: int,
        *,
        mend: bool,
        losses: LossList,
        written: int = 0,
        on_failed_sync: Callable[[], None] = lambda: None,
    ) -> None:
        """`written`: up to which byte, of all frames one after the other, the log is known to have been written; or 0."""
        self._on_failed_sync = on_failed_sync
        self.written = written
        self.top = top
        self.fmt = fmt
        self.manifest = manifest
        self.interval = interval
        self.mend = mend
        self._losses = losses
        self.report = Recovery()
        self.begins: dict[int, int] = {}  # bytes of frames before each segment that was looked at
        self.finished_only: set[int] = set()  # can be read on, but not written: a broken header, or compressed
        self._ours = False  # somebody of ours has written here, so a file without our header has lost it

    def find_tail(self, floor: Mark | None, *, exact: bool, verify: bool) -> Tail | None:
        """The end of the log; None when there are no records and no files.

        Below `floor` whatever does not verify is damage. If `exact`, the log ends there; else it goes on as far as frames
        verify, and what comes after is a torn tail. With `verify` the last segment is checked in any case.
        """
        self._ours = floor is not None
        on_disk = [s for s in list_segments(self.top, self.fmt) if not self._is_retired(s)]
        if self.manifest.unknown_edits:
            self._list_between(on_disk)
        for info in self.manifest.ordered():
            if info.id not in on_disk:
                path = SegmentPaths(self.top, self.fmt, info.id).data
                self.report.damage.append(f"{path}: the file is missing (sequences {info.base} to {info.next - 1})")
        unlisted = [s for s in on_disk if s not in self.manifest.segments or (exact and floor and s == floor.segment)]
        if floor and floor.segment not in on_disk and not any(s > floor.segment for s in on_disk):
            listed = self.manifest.ordered()
            if floor.next > max(self.manifest.retired_next, listed[-1].next if listed else 0):
                path = SegmentPaths(self.top, self.fmt, floor.segment).data
                raise NotALog(f"{path}: the last file of the log is missing; restore it from a copy")
        if not unlisted:
            return None
        if exact and floor:
            for segment in [s for s in unlisted if s > floor.segment]:
                self.set_aside(segment)  # made by a roll or batch that was never committed
            unlisted = [s for s in unlisted if s <= floor.segment]
            if unlisted == [floor.segment] and not verify and (tail := self._trusted(floor)) is not None:
                return tail
        return self._scan(unlisted, floor, exact)

    def _list_between(self, on_disk: list[int]) -> None:
        """List the segments before one that is listed, which are not: an edit that cannot be read was about them. They end where the next
        one begins."""
        last = max(self.manifest.segments, default=-1)
        for segment, following in pairwise(on_disk):
            if segment < last and segment not in self.manifest.segments:
                seg = self._open_known(segment)
                self._begins_at(seg, self._begin_after(self._before(seg)), below=True)
                end = self._finished_end(seg, following)
                found = walk(seg, end, self.interval, self.report, listed=self._losses.known())
                for hole in found.losses:
                    self._damage(seg, hole.position, hole.loss)
                sealed = any(s.sealed for s in self.manifest.segments.values() if s.id > segment)
                self.manifest.segments[segment] = replace(self._info(seg, found), sealed=sealed)

    def _is_retired(self, segment: int) -> bool:
        """Whether a segment is listed as gone, though its process died before its files were."""
        if self.manifest.is_gone(segment):
            return True
        if segment in self.manifest.segments or not self.manifest.retired_next:
            return False
        paths = SegmentPaths(self.top, self.fmt, segment)
        try:
            header = self.fmt.read_header(memoryview(map_data(paths)), str(paths.data))
        except NotALog:
            return False
        base = header.base if header.base is not None or header.foreign else companion_base(paths)
        return base is not None and base < self.manifest.retired_next

    def _trusted(self, floor: Mark) -> Tail | None:
        """The end where the mark says, if that can be."""
        seg = self._open_known(floor.segment)
        if not has_room(seg.spec, floor.next - seg.base, floor.end):
            return None
        self._begins_at(seg, self._begin_after(self._before(seg)), below=True)
        self.begins[seg.id] = seg.header.begin
        if len(seg.data) < floor.end:
            self._is_short(seg, floor.end)
            lost = seg.base + seg.scan(min(seg.start, len(seg.data)), len(seg.data), verify=False).count
            self._damage(seg, len(seg.data), Loss(lost, floor.next - 1, "the file is cut short"))
        return Tail(floor.segment, seg.base, floor.end, floor.next, self._last_us(seg, floor.next))

    def _open(self, segment: int, expected: int | None = None) -> ReadSegment:
        """Open a segment; where neither its header nor a companion says which sequence is its first, it is `expected`."""
        paths = SegmentPaths(self.top, self.fmt, segment)
        # All of it: a foreign file is told by its first record, however long.
        header = self.fmt.read_header(memoryview(map_data(paths)), str(paths.data))
        base = header.base if header.base is not None or header.foreign else companion_base(paths)
        if paths.packed is not None and paths.packed.exists():
            self.finished_only.add(segment)
        if base is not None:
            return ReadSegment(self.top, self.fmt, segment, base)
        if header.foreign and (self.mend or self._ours):
            raise NotALog(f"{paths.data}: written by another implementation; open the log with read_only=True")
        if header.foreign:
            self.report.how = "foreign"
        if expected is None:
            finished = [s for s in self.manifest.ordered() if s.id < segment]
            expected = finished[-1].next if finished else self.manifest.retired_next
        return ReadSegment(self.top, self.fmt, segment, expected)

    def _open_known(self, segment: int, expected: int | None = None) -> ReadSegment:
        """Open a segment that is known to hold records: if its header is broken, its companion says which."""
        try:
            return self._open(segment, expected)
        except NotALog:
            base = companion_base(SegmentPaths(self.top, self.fmt, segment))
            if base is None:
                raise
            seg = ReadSegment(self.top, self.fmt, segment, base, listed=True)
            self.report.damage.append(seg.header_error)
            self.finished_only.add(segment)
            return seg

    def _last_us(self, seg: ReadSegment, next_: int) -> int:
        return last_time.last_us(self.top, self.fmt, self.manifest, seg.id, seg.times, next_ - seg.base)

    def _damage(self, seg: ReadSegment, position: int, loss: Loss) -> None:
        report_loss(self.report, self._losses, seg, position, loss)

    def _scan(self, segments: list[int], floor: Mark | None, exact: bool) -> Tail | None:
        """Walk the segments in order; list all but the last in the manifest, and cut what is torn. None when nothing of
        these files ever reached the disk but their names."""
        walked: list[tuple[ReadSegment, Walked]] = []
        for i, segment in enumerate(segments):
            below = floor is not None and segment <= floor.segment
            expected = walked[-1][1].end.sequence if walked else None
            try:
                seg = self._open_known(segment, expected) if below else self._open(segment, expected)
            except NotALog:
                if self.report.how == "foreign" and self._is_blank(segment):
                    continue  # made ahead by another implementation, and nothing written to it yet
                only = floor is None and segment == segments[-1] and not walked and not self._is_empty(segment)
                if below or self.report.how == "foreign" or only:
                    raise
                break  # a new file whose header never reached the disk
            if expected is not None and seg.base != expected:
                if not below:
                    break
                if seg.base > expected:
                    previous, found = walked[-1]
                    end = found.end._replace(sequence=seg.base)
                    self._damage(previous, found.end.position, Loss(expected, seg.base - 1, "records are missing"))
                    walked[-1] = (previous, found._replace(end=end))
            else:
                before = self._info(*walked[-1]) if walked else self._before(seg)
                if not self._begins_at(seg, self._begin_after(before), below=below):
                    break  # its header never reached the disk, or only its zeros did
            known = Place(0, 0)
            if (
                floor is not None
                and segment == floor.segment
                and not has_room(seg.spec, floor.next - seg.base, floor.end)
            ):
                floor, exact = None, False  # it is not believed
            if floor is not None and segment == floor.segment:
                known = Place(floor.end, floor.next)
            elif self.report.how == "foreign" and i + 1 < len(segments):
                known = self._foreign_end(seg)
            elif below and i + 1 < len(segments):
                known = self._finished_end(seg, segments[i + 1])
            left = floor is not None and segment < floor.segment
            written = self._written_in(seg, segments[i + 1 : i + 2], left=left)
            found = walk(seg, known, self.interval, self.report, written, self._losses.known())
            self.begins[segment] = seg.header.begin
            self._is_short(seg, known.position)
            if exact and floor is not None and segment == floor.segment:
                if found.end.sequence < known.sequence:
                    loss = Loss(found.end.sequence, known.sequence - 1, "records are missing")
                    found.losses.append(Hole(found.end.position, loss, known.position))
                found = found._replace(end=known)
            for hole in found.losses:
                self._damage(seg, hole.position, hole.loss)
            walked.append((seg, found))
            if i + 1 < len(segments) and not exact:
                self.manifest_hint(seg, found)
        if not walked:
            # A file that came after all that was promised, and whose header never reached the disk, is no part of the log.
            if floor is not None or all(self._is_empty(segment) for segment in segments):
                for segment in segments:
                    self.set_aside(segment)
                return None
            raise NotALog(f"{self.top}: no data file here has a readable header; restore them from a copy")
        if not exact and self.report.how != "foreign":
            self._cut_batch(walked, floor)
        return self._settle(walked, segments, exact)

    def _before(self, seg: ReadSegment) -> SegmentInfo | None:
        """The listed segment that this one follows; it may be gone."""
        listed = [s for s in self.manifest.ordered() if s.id < seg.id]
        if listed:
            return listed[-1]
        gone = self.manifest.gone
        return gone if gone is not None and gone.id < seg.id and gone.next == seg.base else None

    def _begin_after(self, before: SegmentInfo | None) -> int | None:
        """How many bytes of frames lie before the segment that follows this one; None when not known."""
        if before is None or not self.fmt.SAYS_BEGIN:
            return None
        return before.begin + max(0, before.end - self.fmt.HEADER_BYTES)

    def _begins_at(self, seg: ReadSegment, begin: int | None, *, below: bool) -> bool:
        """Whether a segment's header, which has no checksum, says what it must. If it is `below` what is known to be
        written it is damaged if not, and is read on, but not written."""
        if begin is None and seg.id == 0 and self.fmt.SAYS_BEGIN:
            begin = 0
        if begin is None:
            return True
        head = self.fmt.pack_header(seg.id, seg.base, begin, 0)
        if not seg.header_error and bytes(seg.data[: len(head)]) == head:
            return True
        if below:
            if not seg.header_error:
                self.report.damage.append(
                    f"{seg.paths.data}: byte 0: the header is not segment {seg.id}'s from {begin} on"
                )
            seg.header = self.fmt.read_header(head, str(seg.paths.data))
            self.finished_only.add(seg.id)
        return below

    def _is_short(self, seg: ReadSegment, end: int) -> None:
        """A file cut short is not made longer, if zeros are records: they would stand for those that are lost."""
        if len(seg.data) < end and not seg.spec.zero_ends:
            self.finished_only.add(seg.id)

    def _written_in(self, seg: ReadSegment, following: list[int] | None = None, *, left: bool = False) -> int:
        """The byte of a segment up to which it is known to have been written; if it was `left` before what is known, that is
        where the following one begins."""
        if not seg.paths.times.exists() and not self.manifest.exists:
            return len(seg.data)  # not ours: nothing was put behind its frames
        upto = self.written
        for later in following or ():
            begin = self._begin_of(later)
            if begin > seg.header.begin:  # else it is not known
                upto = begin if left else min(upto, begin)
        return seg.start + max(0, upto - seg.header.begin)

    def _begin_of(self, segment: int) -> int:
        """How many bytes of frames lie before a segment, as its header says; 0 when that cannot be read."""
        paths = SegmentPaths(self.top, self.fmt, segment)
        try:
            return self.fmt.read_header(memoryview(map_data(paths)), str(paths.data)).begin
        except NotALog:
            return 0

    def _is_empty(self, segment: int) -> bool:
        """Whether a file is zeros all over, if it has any bytes at all."""
        paths = SegmentPaths(self.top, self.fmt, segment)
        return _last_nonzero(map_data(paths), 0, paths.data) is None

    def _is_blank(self, segment: int) -> bool:
        with files.opened(SegmentPaths(self.top, self.fmt, segment).data) as fd:
            return not any(files.read(fd, 0, 2 * self.fmt.HEADER_BYTES))

    def _foreign_end(self, seg: ReadSegment) -> Place:
        """Where a finished file of another implementation ends: where its lengths lead, if there is nothing behind that."""
        plain = seg.scan(seg.start, len(seg.data), verify=False)
        if _last_nonzero(seg.data, plain.position, seg.paths.data) is None:
            return Place(plain.position, seg.base + plain.count)
        self.report.damage.append(
            f"{seg.paths.data}: byte {plain.position}: nothing leads on from here; how many records are lost is not known"
        )
        return Place(0, 0)

    def _finished_end(self, seg: ReadSegment, following: int) -> Place:
        """Where a whole segment ends that the manifest does not list, though it is damaged: its last byte that is not
        zero tells, give or take the zeros a checksum may end with, and the next one's header says how many records."""
        listed = self.manifest.segments.get(following)
        if listed is not None:
            after, begin = listed.base, listed.begin
        else:
            later = self._open(following)
            after, begin = later.base, later.header.begin
            if later.header.base is None and companion_base(later.paths) is None:
                return Place(0, 0)  # nothing says how many
        if self.fmt.GROWS:
            return Place(len(seg.data), after)
        if begin > seg.header.begin:
            return Place(seg.start + begin - seg.header.begin, after)
        plain = seg.scan(seg.start, len(seg.data), verify=False)
        if seg.base + plain.count == after:
            return Place(plain.position, after)
        last = _last_nonzero(seg.data, seg.start, seg.paths.data)
        start = seg.place_before(after - 1, len(seg.data)).position
        for end in range(last + 1, min(last + 10, len(seg.data) + 1)) if last is not None else ():
            if start < end and kernel.resync(seg.spec, seg.data, start, end) < end:
                return Place(end, after)
        return Place(0, 0)

    def manifest_hint(self, seg: ReadSegment, found: Walked) -> None:
        """Remember a walked segment, so that the base of a foreign one after it can be told."""
        if self.report.how == "foreign":
            self.manifest.segments[seg.id] = self._info(seg, found)

    def _info(self, seg: ReadSegment, found: Walked) -> SegmentInfo:
        count = found.end.sequence - seg.base
        first_us, last_us = (seg.times.us(0), seg.times.us(count - 1)) if count else (0, 0)
        # Sealed ones come first: what lies before one is believed to be sealed, or gone.
        sealed = all(s.sealed for s in self.manifest.segments.values() if s.id < seg.id)
        begin = seg.header.begin
        return SegmentInfo(seg.id, seg.base, count, found.end.position, first_us, last_us, sealed, begin)

    def _cut_batch(self, walked: list[tuple[ReadSegment, Walked]], floor: Mark | None) -> None:
        """Take back a batch of which only the first part came back: whole or absent, never a part."""
        least = floor.next if floor else 0
        if self.fmt.GROWS:
            self._cut_unfinished(walked, least)
            return
        while walked:
            seg, found = walked[-1]
            count = keep = found.end.sequence - seg.base
            if not seg.paths.times.exists():
                return  # no companion, so nothing is known of batches
            least = max(
                least, notes.reached(seg.data, self.fmt.HEADER_BYTES, found.end), self._written_next(seg, found)
            )
            while keep > 0 and seg.base + keep > least and not seg.times.ends_batch(keep - 1):
                keep -= 1
            if keep < count:
                found = _without_last(seg, found, keep)
                walked[-1], keep = (seg, found), found.end.sequence - seg.base
            if keep or len(walked) == 1:
                return
            walked.pop()  # nothing is left of this segment: the batch may have begun in the one before

    def _cut_unfinished(self, walked: list[tuple[ReadSegment, Walked]], least: int) -> None:
        """Take back the last batch, if the companion knows of more of it than the file has: nobody was told of it. A batch
        lies in one file."""
        seg, found = walked[-1]
        count = keep = found.end.sequence - seg.base
        while keep > 0 and seg.base + keep > least and seg.times.goes_on(keep - 1):
            keep -= 1
        if keep < count:
            walked[-1] = (seg, _without_last(seg, found, keep))

    def _written_next(self, seg: ReadSegment, found: Walked) -> int:
        """The sequence up to which the log was written when that was last noted, if the frames have reached it; or 0."""
        at = self._written_in(seg)
        if not self.written or not seg.start < at <= found.end.position:
            return 0
        start = Place(seg.start, seg.base)
        for hole in found.losses:
            if hole.position < at:
                start = Place(hole.end, hole.loss.last + 1)
        if start.position > at:
            return 0
        whole = seg.scan(start.position, at, verify=False)
        return start.sequence + whole.count if whole.position == at else 0

    def _settle(self, walked: list[tuple[ReadSegment, Walked]], segments: list[int], exact: bool) -> Tail:
        """Write down what the walk found: indexes, manifest, the torn tail's copy; and make it durable."""
        last, found = walked[-1]
        kept = {seg.id for seg, _ in walked}
        if self.mend:
            for seg, done in walked if self.fmt.INDEXED else ():
                count = done.end.sequence - seg.base
                files.replace(seg.paths.index, index.pack(self.interval, seg.base, count, done.points))
            if not exact:
                self._cut_tail(last, found.end.position)
                self._cut_times(last, found.end.sequence - last.base)  # last: of a torn batch they alone say that it is
            for segment in segments:
                if segment not in kept:
                    self.set_aside(segment)
            for seg, done in walked:
                if seg.paths.packed is not None and seg.paths.packed.exists():
                    continue  # it was synced before it had its name
                with files.opened(seg.paths.data, write=True) as fd:
                    if not exact:
                        notes.forget_beyond(fd, self.fmt.HEADER_BYTES, done.end)
                    self.sync(fd)
                self._sync(seg.paths.sync_names)  # whoever made them may have died, or have failed, before he did
        for seg, done in walked[:-1]:
            self.manifest.segments[seg.id] = self._info(seg, done)
        self.manifest.segments.pop(last.id, None)
        return Tail(
            last.id,
            last.base,
            found.end.position,
            found.end.sequence,
            self._last_us(last, found.end.sequence),
        )

    def sync(self, fd: int) -> None:
        self._sync(lambda: files.sync(fd))

    def _sync(self, sync: Callable[[], None]) -> None:
        """A sync that fails is remembered: that the next one succeeds says nothing of what the first should have written. One for which no
        file could be opened was not tried."""
        try:
            sync()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self._on_failed_sync()
            raise SyncFailed(self.top, error.errno or errno.EIO) from error

    def _cut_times(self, seg: ReadSegment, count: int) -> None:
        """Times beyond the end would say of later records that a batch ends where it does not; and a part of an entry, which was written
        in two pieces, that a record is damaged, once others stand behind it."""
        length = companion.length(self.fmt.SPEC, min(count, len(seg.times)))
        if len(seg.times_data) > length:
            with files.opened(seg.paths.times, write=True) as fd:
                files.truncate(fd, length)
                self.sync(fd)

    def _cut_tail(self, seg: ReadSegment, end: int) -> None:
        """Copy what lies beyond the end to `*.torn`, and zero it or cut it off, so that it never comes back to life."""
        last = _last_nonzero(seg.data, end, seg.paths.data)
        if last is not None:
            aside = free_name(seg.paths.data, ".torn")
            files.copy_range(seg.paths.data, end, last + 1, aside)
        if last is not None or (self.fmt.GROWS and len(seg.data) > end):
            with files.opened(seg.paths.data, write=True) as fd:
                if self.fmt.GROWS:
                    files.truncate(fd, end)
                else:
                    files.punch(fd, end, len(seg.data) - end)
                self.sync(fd)
        if last is None:
            return
        self.report.torn.append(
            f"{seg.paths.data}: byte {end}: {last + 1 - end} bytes of a torn tail, copied to {aside.name}"
        )

    def set_aside(self, segment: int) -> None:
        """Take a file that is no part of the log out of its way; one that holds anything is kept as `*.torn`."""
        if not self.mend:
            return
        paths = SegmentPaths(self.top, self.fmt, segment)
        source = paths.data if paths.packed is None or paths.data.exists() else paths.packed
        with files.opened(source) as fd:
            data = files.map_read(fd, files.size(fd))
        if _last_nonzero(data, self.fmt.HEADER_BYTES, source) is None:
            files.remove(source)
        else:
            aside = free_name(source, ".torn")
            files.rename(source, aside)
            self.report.torn.append(f"{source}: beyond the end of the log, kept as {aside.name}")
        files.remove(paths.index)
        files.remove(paths.times)


def _without_last(seg: ReadSegment, found: Walked, keep: int) -> Walked:
    """Of what was walked the first so many records. Nothing leads through what is lost, so they are counted from behind that; a loss
    stays whole, as its numbers are not given to others."""
    at, next_ = Place(seg.start, seg.base), seg.base + keep
    for hole in found.losses:
        if hole.loss.first < next_:
            at = Place(hole.end, hole.loss.last + 1)
    if at.sequence < next_:
        at = Place(seg.scan(at.position, found.end.position, next_ - at.sequence, False).position, next_)
    return found._replace(
        end=at,
        losses=[hole for hole in found.losses if hole.loss.first < at.sequence],
        points=[point for point in found.points if point[0] < at.sequence],
    )


def _last_nonzero(data: Buffer, start: int, path: Path) -> int | None:
    """The last byte from `start` on that is not zero, of what a file holds, or its compressed one. A file's holes are not looked through:
    it has its full length from the beginning."""
    view = memoryview(data)
    end = len(view)
    with suppress(FileNotFoundError):  # it is compressed
        end = files.holes_from(path, min(start, end), end)
    while end > start:
        low = max(start, end - (1 << 20))
        part = bytes(view[low:end])
        kernel.release(data, low, end)
        kept = part.rstrip(b"\0")
        if kept:
            return low + len(kept) - 1
        end = low
    return None


def torn_bytes(seg: ReadSegment, end: int) -> int:
    """How much lies behind the last whole record of a log that nobody writes."""
    last = _last_nonzero(seg.data, end, seg.paths.data)
    return last + 1 - end if last is not None else 0


def free_name(path: Path, suffix: str) -> Path:
    """`path` with a suffix, numbered if a file of that name is there already."""
    name, n = path.with_name(path.name + suffix), 1
    while name.exists():
        n += 1
        name = path.with_name(f"{path.name}{suffix}.{n}")
    return name
