"""Whether an archive is this log's, or that of another one: of the same name elsewhere, or here before this one was made.

Each counts its records from 0, so offsets do not tell. Times do: what a log and its archive both have was appended once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import DataLost, InvalidOption
from penstock.inspect import Part, Segment
from penstock.spark.listing import ArchivedFile

_FOREVER_US: Final = (1 << 63) - 1
_STEP: Final = "it is another log's archive, perhaps of one that was here before; give the log its own"


class _End(NamedTuple):
    """A record at one end of an archived file, and between which times the log has it; 0 is a time that is not known."""

    offset: int
    least_us: int
    most_us: int


def check(archive: str | Path, files: Sequence[ArchivedFile], part: Part, segments: Sequence[Segment]) -> None:
    """Refuse an archive that reaches beyond the end of the log, or has another time of a record that both have. The oldest and the
    newest are compared, of those at the ends of files: enough to tell two logs apart, and cheap enough for every trigger."""
    reach, end = max((file.next for file in files), default=0), max((s.next for s in segments), default=0)
    if reach > end and reach > (end := part.look(lambda view: view.end)):  # it may have grown since, and been archived
        raise InvalidOption(
            f"{archive} has offsets of {part.topic} up to {reach - 1}, but {part.path} ends at {end}: {_STEP}"
        )
    ends = _ends(files)
    for some in (ends, ends[::-1]):
        known = next(((one, us) for one, us in _live(some, segments) if us and one.most_us), None)
        if known is not None and not known[0].least_us <= known[1] <= known[0].most_us:
            raise InvalidOption(
                f"{archive} has another record {known[0].offset} of {part.topic} than {part.path}: {_STEP}"
            )


def check_all(archive: str | Path, files: Sequence[ArchivedFile], part: Part, segments: Sequence[Segment]) -> None:
    """Before the log drops what these files have: both ends of each of them must be the log's own."""
    for one, us in _live(_ends(files), segments):
        exact = one.least_us == one.most_us
        if not one.least_us <= us <= one.most_us and (us or exact):
            raise DataLost(
                f"{part.path}: nothing was dropped: {archive} has record {one.offset} with another time than the log, so that it may not be "
                "the same; give the log an archive of its own, or let `penstock retain` remove what is old"
            )


def _ends(files: Iterable[ArchivedFile]) -> list[_End]:
    """Of files that have any records, in their order. Where some are missing, as those that are lost, the first that is there
    may come later than the file's range begins, and the last may come before its end."""
    found = []
    for file in files:
        whole = file.rows == file.next - file.first
        if file.rows:
            found.append(_End(file.first, file.first_us if whole else 0, file.first_us))
            found.append(_End(file.next - 1, file.last_us, file.last_us if whole else _FOREVER_US))
    return found


def _live(ends: Iterable[_End], segments: Sequence[Segment]) -> Iterator[tuple[_End, int]]:
    """Those that the log has too, each with the time that it has there."""
    bases = [segment.base for segment in segments]
    for one in ends:
        place = bisect_right(bases, one.offset) - 1
        if place >= 0 and one.offset < segments[place].next:
            yield one, segments[place].times().us(one.offset - segments[place].base)
