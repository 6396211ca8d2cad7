"""Whether a log is still the one that a query was planned with, or another in its place.

Tasks run later than the plan, in other processes and perhaps on other machines, and a log that `mode("overwrite")` has put there has files of
the same names. It is told by its directory, where that can be compared, and by the time of a record: an inode may be given to the next
directory, and a column `timestamp` may keep the times.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.inspect import Part, Segment
from penstock.spark import remote
from penstock.storage import files
from penstock.storage.segment import ReadSegment


class Mark(NamedTuple):
    """What a log had that another would not."""

    boot: bytes  # of the machine that looked; on another one a directory may have other numbers
    directory: tuple[int, int]
    offset: int = 0
    us: int = 0  # when this record was appended; 0 when not known

    def at(self, segment: Segment, offset: int) -> Mark:
        """The same with the time of a record, which is in this segment."""
        return self._replace(offset=offset, us=segment.times().us(offset - segment.base))

    def is_of_another(self, segment: Segment, opened: ReadSegment) -> bool:
        """Whether another log is there now than the one that was marked. Asked when the segment's files are open: these stay what they
        are."""
        us = opened.times.us(self.offset - segment.base)
        if us and self.us and us != self.us:
            return True
        try:
            now = files.identity(Path(segment.part.path))
        except FileNotFoundError:
            return False
        return (self.boot, self.directory[0]) == (files.boot_id(), now[0]) and self.directory != now


def mark_of(part: Part) -> Mark | None:
    """What to know a log by, before anything of it is looked at. A copy on object storage has no directory of its own to ask for; of a
    log that is not there the look will tell."""
    if not remote.is_remote(part.path):
        with suppress(FileNotFoundError):
            return Mark(files.boot_id(), files.identity(Path(part.path)))
    return None
