"""Stepping over damage: where the next whole record is after one that is not, and exactly which sequences are lost.

Sequences are not in the frames; they follow from counting. So a place is only believed when whole frames lead from it to
a known boundary, the anchor: an index entry, or the end of the segment. From there its number is counted back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock import kernel
from penstock.kernel import Buffer, FrameSpec
from penstock.kernel.spec import CHECKSUM, SHORT, ZERO

REASONS: Final = {
    CHECKSUM: "its checksum does not match",
    SHORT: "its length reaches beyond the end of the log",
    ZERO: "its length is zero",
}


class Loss(NamedTuple):
    """Records first to last (both included) that cannot be read, and why."""

    first: int
    last: int
    reason: str


class Place(NamedTuple):
    """A byte in a segment and the sequence of the record that begins there."""

    position: int
    sequence: int


def step_over(spec: FrameSpec, data: Buffer, bad: Place, anchor: Place) -> Place:
    """The next readable place after a bad frame at `bad`; the records in between are lost.

    When the frame's length can be believed only that record is lost: all lengths lead to the anchor with the right count.
    When not, the next whole frames that lead to the anchor are searched byte by byte, and counted back from it. What lies
    between two damages before one anchor is believed only if the count leaves just one record for the second; else it has no
    provable number, as a broken length may have swallowed some, and is counted as lost too.
    """
    first = kernel.scan(spec, data, bad.position, anchor.position, 1, False)
    if first.count:
        lengths = kernel.scan(spec, data, bad.position, anchor.position, verify=False)
        if lengths.position == anchor.position and bad.sequence + lengths.count == anchor.sequence:
            return Place(first.position, bad.sequence + 1)
    found = kernel.resync(spec, data, min(bad.position + 1, anchor.position), anchor.position)
    after = Place(found, anchor.sequence - kernel.scan(spec, data, found, anchor.position).count)
    if after.sequence <= bad.sequence:
        return anchor
    if first.count and after.sequence > bad.sequence + 1:
        follow = kernel.scan(spec, data, first.position, anchor.position)
        if follow.count and follow.position < found and bad.sequence + follow.count + 2 == after.sequence:
            return Place(first.position, bad.sequence + 1)
    return after
