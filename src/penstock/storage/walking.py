"""One segment, from a known place to its end: whole records, and what is stepped over on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock import kernel
from penstock.errors import NotALog
from penstock.kernel import Buffer
from penstock.kernel.spec import BLOCK_BYTES, SHORT, ZERO
from penstock.storage.damage import REASONS, Loss, Place, step_over
from penstock.storage.losses import Listed, is_listed, listed_at, place_after
from penstock.storage.report import Recovery
from penstock.storage.segment import ReadSegment

_CHUNK_RECORDS = 1 << 18


class Hole(NamedTuple):
    """What a walk stepped over: records that are lost, from byte `position` up to byte `end`."""

    position: int
    loss: Loss
    end: int


class Walked(NamedTuple):
    """A walk over one segment: where it ended, the losses on the way, and where every interval-th record lies."""

    end: Place
    losses: list[Hole]
    points: list[tuple[int, int]]


def walk(
    seg: ReadSegment,
    known: Place,
    interval: int,
    report: Recovery,
    written: int = 0,
    listed: Sequence[Listed] = (),
) -> Walked:
    """Verify every frame of a segment.

    Up to `known`, a place that records are known to reach, bad frames are stepped over as losses; beyond it the walk ends
    at the first one, and beyond byte `written` also at a zero head, or at a record of which a block may never have been
    written. Of losses that are `listed` the list says how far they reach, and those with a record behind them do not end it. It
    goes a chunk at a time and lets go of the pages behind, so memory stays small.
    """
    at = Place(seg.start, seg.base)
    known = agreed(seg, known)
    points: list[tuple[int, int]] = []
    losses: list[Hole] = []
    size = len(seg.data)
    while True:
        stop = next((p for p in (known.position, written) if at.position < p < size), size)
        off = (at.sequence - seg.base) % interval
        want = interval - off if off else max(1, _CHUNK_RECORDS // interval) * interval
        tail = at.position >= max(known.position, written)
        spec = seg.tail_spec if tail else seg.spec
        found = seg.scan(min(at.position, size), stop, want, True, 0 if off else interval, spec, first=at.sequence)
        if tail and not seg.spec.sum_bytes and (blank := _unproven_blank(seg, at, found.position)) is not None:
            points += [(at.sequence + i * interval, p) for i, p in enumerate(found.points) if p < blank.position]
            return Walked(blank, losses, points)
        points += [(at.sequence + i * interval, point) for i, point in enumerate(found.points)]
        kernel.release(seg.data, min(at.position, size), found.position)
        report._scanned(found.position - min(at.position, size), found.count)
        at = Place(max(at.position, found.position), at.sequence + found.count)
        if not seg.spec.zero_ends and known.position > seg.start and _is_miscounted(at, known):
            plain = seg.scan(min(seg.start, size), min(known.position, size), spec=seg.tail_spec)
            losses = [hole for hole in losses if hole.position < plain.position]
            lost = Loss(seg.base + plain.count, known.sequence - 1, "zeros lie where records were")
            losses.append(Hole(plain.position, lost, known.position))
            points = [point for point in points if point[1] < plain.position]
            at = known
            continue
        if found.count == want or (at.position == stop and stop < size):
            continue
        if found.reason == ZERO and _is_empty_record(seg, at):
            if (at.sequence - seg.base) % interval == 0:
                points.append((at.sequence, at.position))
            at = Place(at.position + seg.spec.overhead, at.sequence + 1)
            continue
        if found.reason == SHORT and stop == written < size:
            written = 0  # no record ends there: whoever said so is not believed
            continue
        after = place_after(listed, seg.paths.name, at)
        if at.position >= known.position:
            while after is not None and not _begins_record(seg, after, written):
                after = place_after(listed, seg.paths.name, after)  # there may be several in a row
            if after is None:
                return Walked(at, losses, points)
        after = after or next_readable(seg, at, known)
        reason = REASONS.get(found.reason, "it is cut short")
        losses.append(Hole(at.position, Loss(at.sequence, after.sequence - 1, reason), after.position))
        at = after


def _begins_record(seg: ReadSegment, at: Place, written: int) -> bool:
    """Whether there is a whole record, in a part of the segment that beyond byte `written` may never have been written."""
    size, spec = len(seg.data), seg.spec if at.position < written else seg.tail_spec
    if at.position >= size:
        return False
    if not seg.scan(at.position, size, 1, spec=spec, first=at.sequence).count:
        return _is_empty_record(seg, at)
    return seg.spec.sum_bytes > 0 or _unproven_blank(seg, at, at.position + 1) is None


def agreed(seg: ReadSegment, known: Place) -> Place:
    """The place, if a segment can reach it. Its first sequence may stand in the companion alone, which may be wrong."""
    if 0 < known.sequence < seg.base:
        raise NotALog(
            f"{seg.paths.times}: byte 16: the first record is said to be {seg.base}, and the segment ends before {known.sequence}; "
            "restore it from a copy, or remove it"
        )
    return known


def _is_empty_record(seg: ReadSegment, at: Place) -> bool:
    """Whether zeros, in a file that may end in some that were never written, are known to be an empty record: the companion
    of a batch with such a one is synced."""
    frame = bytes(seg.data[at.position : at.position + seg.spec.overhead])
    known = seg.times.sum(at.sequence - seg.base)
    return len(frame) == seg.spec.overhead and known != 0 and known == kernel.crc64(frame)


def _unproven_blank(seg: ReadSegment, at: Place, end: int) -> Place | None:
    """The first record from a place on, up to byte `end`, that has a part in a block of zeros, and no checksum. After a power cut
    a file may have its new length and not the content of every block; the companion of a batch that has such a block is
    synced."""
    size = len(seg.data)
    while (blank := _first_blank(seg.data, at.position, end)) < end:
        before = seg.scan(at.position, blank, verify=False)
        place = before.count + at.sequence - seg.base
        if not seg.times.sum(place):
            return Place(before.position, seg.base + place)
        after = seg.scan(before.position, size, 1, verify=False)
        at = Place(after.position, seg.base + place + 1)
    return None


def _first_blank(data: Buffer, start: int, end: int) -> int:
    """Where, from `start` on, there is first a block that has nothing but zeros as far as the file goes; `end` if nowhere."""
    view = memoryview(data)
    for low in range(start - start % BLOCK_BYTES, end, BLOCK_BYTES):
        if not any(view[low : low + BLOCK_BYTES]):
            return max(low, start)
    return end


def _is_miscounted(at: Place, known: Place) -> bool:
    """Whether more records, or fewer, were found than there are: a zeroed page looks like empty ones."""
    if at.position == known.position:
        return at.sequence != known.sequence
    return at.position < known.position and at.sequence >= known.sequence


def next_readable(seg: ReadSegment, bad: Place, end: Place) -> Place:
    """Where to go on after a bad frame, in a segment that ends at `end`; what lies between is lost."""
    anchor = seg.anchor_after(bad.position, end)
    if anchor.position > len(seg.data) or anchor.position <= bad.position:
        return anchor  # the file is shorter than its records were, or is said to be
    if not seg.spec.sum_bytes:
        return _step_over_by_companion(seg, bad, anchor)
    if seg.spec.zero_ends:
        return step_over(seg.spec, seg.data, bad, anchor)
    return _step_over_where_zeros_are_records(seg, bad, anchor)


def place_over(listed: Sequence[Listed], seg: ReadSegment, bad: Place, end: Place) -> Place | None:
    """Where to go on after a bad frame if all that is lost with it is listed; None if it is not."""
    straight = place_after(listed, seg.paths.name, bad)
    if straight is not None or listed_at(listed, bad.sequence) is None:
        return straight
    after = next_readable(seg, bad, end)  # the list was made when another segment had these
    return after if is_listed(listed, bad.sequence, after.sequence - 1) else None


def _step_over_by_companion(seg: ReadSegment, bad: Place, anchor: Place) -> Place:
    """Where frames have no checksum: those that lead to the anchor are believed if the companion has theirs."""
    straight = anchor  # if the bad one's length can be believed
    lengths = seg.scan(bad.position, anchor.position, verify=False, every=1)
    if lengths.position == anchor.position and bad.sequence + lengths.count == anchor.sequence:
        straight = Place(lengths.points[1] if lengths.count > 1 else anchor.position, bad.sequence + 1)
        if straight == anchor or seg.scan(straight.position, anchor.position, 1, first=straight.sequence).count:
            return straight
    at = min(bad.position + 1, anchor.position)
    while (at := kernel.resync(seg.spec, seg.data, at, anchor.position)) < anchor.position:
        count = kernel.scan(seg.spec, seg.data, at, anchor.position, verify=False).count
        place = anchor.sequence - count - seg.base
        known = place > bad.sequence - seg.base and all(seg.times.sum(place + i) for i in range(count))
        if (
            known
            and kernel.scan(seg.spec, seg.data, at, anchor.position, sums=seg.times.raw, place=place).count == count
        ):
            return Place(at, seg.base + place)
        at += 1
    return straight


def _step_over_where_zeros_are_records(seg: ReadSegment, bad: Place, anchor: Place) -> Place:
    """Where an empty record is all zeros, frames that lead to the anchor prove little: a zeroed page has such ones too, and
    so have payloads. So a broken length is first tried with each bit flipped back: its checksum is the payload's alone.
    Else frames are believed only from one on that is not zeros."""
    spec, data = seg.spec, memoryview(seg.data)
    first = kernel.scan(spec, data, bad.position, anchor.position, 1, False)
    if first.count:
        lengths = kernel.scan(spec, data, bad.position, anchor.position, verify=False)
        if lengths.position == anchor.position and bad.sequence + lengths.count == anchor.sequence:
            return Place(first.position, bad.sequence + 1)
    start = bad.position + spec.overhead
    if start <= anchor.position:
        length, checksum = (int.from_bytes(data[bad.position + i : bad.position + i + 4], "big") for i in (0, 4))
        for bit in range(32):
            end = start + (length ^ 1 << bit)
            if end <= anchor.position and kernel.crc32(data[start:end]) == checksum:
                return Place(end, bad.sequence + 1)
    at = min(bad.position + 1, anchor.position)
    while (at := kernel.resync(spec, data, at, anchor.position)) < anchor.position:
        if any(data[at : at + spec.overhead]):
            sequence = anchor.sequence - kernel.scan(spec, data, at, anchor.position).count
            if sequence > bad.sequence:
                return Place(at, sequence)
            at += 1
        else:
            at = max(at + 1, _first_nonzero(data, at, anchor.position) - spec.overhead + 1)
    return anchor


def _first_nonzero(data: memoryview, start: int, end: int) -> int:
    """The first byte from `start` on that is not zero; `end` when all are."""
    for low in range(start, end, 1 << 16):
        part = bytes(data[low : min(end, low + (1 << 16))])
        if kept := part.lstrip(b"\0"):
            return low + len(part) - len(kept)
    return end
