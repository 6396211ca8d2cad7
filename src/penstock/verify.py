"""Verify: is all of every log at a path as it should be? What is found does not stop the rest, and nothing is changed.

Every checksum of every record is checked, in the frames or, for journals and topics, in the companion beside them; so are headers,
indexes and the small files. `look` and `check` are the two halves, for whoever shares the work out to others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from penstock.errors import PenstockError
from penstock.formats import channel
from penstock.inspect import Part, Segment, View, find, format_of
from penstock.options import INDEX_INTERVAL
from penstock.storage import beside, files, packing, sessions, soundness
from penstock.storage.damage import Loss, Place
from penstock.storage.losses import is_listed
from penstock.storage.manifest import SegmentInfo
from penstock.storage.recovery import torn_bytes
from penstock.storage.report import OnProgress, Recovery
from penstock.storage.segment import Format, ReadSegment
from penstock.storage.soundness import Flaw, Small
from penstock.storage.walking import Hole, Walked, walk

Kind = Literal["log", "header", "record", "stream", "tail", "companion", "index"] | Small
_COSTS_RECORDS: Final = ("log", "header", "record")  # all else can be made anew, or is made whole by opening the log
_MAY_BE_HALF_MADE: Final = ("log", "control", "manifest", "tail")
_LOOKS: Final = 10
_MOMENT_S: Final = 0.02
_NOTHING: Final = "nothing: restore it from a copy"
_REPAIRS: Final[dict[Kind, str]] = {
    "log": _NOTHING,
    "header": "writes the header anew",
    "record": "lists these as lost, so that readers step over them",
    "stream": "inflates the segment, whose records are good",
    "tail": "copies it to *.torn and cuts it off",
    "companion": "makes it anew; times that are lost stay unknown",
    "index": "makes it anew",
    "metadata": "makes it anew from the names and sizes of the files",
    "control": "makes it anew from the records",
    "manifest": "makes it anew from the segments",
    "cursor": "sets the reader back to the earliest record",
    "offset": "makes it anew; a receiver whose place is lost is set back to the earliest message",
    "ledger": "nothing: restore it from a copy, or remove it if no writer comes again",
    "losses": "makes it anew from what is damaged",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    topic: str
    partition: int
    file: str
    position: int  # the byte, in the inflated file if it is compressed
    first: int  # the offsets that it is about, both included; of no record if last is before first
    last: int
    kind: Kind
    what: str
    repair: str = ""  # what `repair` would do about it

    @property
    def mendable(self) -> bool:
        """Whether `repair` can do something about it."""
        return not self.repair.startswith("nothing")

    def __str__(self) -> str:
        about = f"offsets {self.first} to {self.last}: " if self.last >= self.first else ""
        return f"{self.file}: byte {self.position}: {about}{self.what}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what was found."""

    path: str
    logs: int
    segments: int
    records: int  # read and found good
    unproven: int  # of these, those that nothing has a checksum of
    lost: int  # listed as lost before: no finding
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> bool:
        """Whether records are lost or in doubt; what else is wrong can be made anew."""
        return any(finding.kind in _COSTS_RECORDS for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "damaged": self.damaged}


class Looked(NamedTuple):
    """A log, its segments, and what is wrong with it beside them. It is at rest if it was closed, and not opened since."""

    part: Part
    segments: tuple[Segment, ...] = ()
    findings: tuple[Finding, ...] = ()
    flaws: tuple[Flaw, ...] = ()  # what some of these are about
    rests: bool = False
    end: int = 0  # the offset that the next record will have
    end_offset: int = 0  # the same in bytes, of a channel
    missing: tuple[Path, SegmentInfo] | None = None  # the last segment, whose file is gone, and where it lay


@dataclass(frozen=True, slots=True)
class Checked:
    """One segment's part of the report."""

    records: int
    unproven: int
    lost: int
    bytes: int
    findings: tuple[Finding, ...]
    holes: tuple[Hole, ...] = ()  # what is lost and not listed
    entries: tuple[Hole, ...] = ()  # records that are good, though their checksums in the companion are not


def verify(path: str | Path, *, deep: bool = False, progress: OnProgress | None = None) -> VerifyReport:
    """Check every log at `path`: one log, a topic, or a directory of them.

    `deep` also holds times against each other and compressed streams to their own checksums; neither can cost a record.
    `progress` is told how far it is, as (bytes checked, bytes in all).
    """
    found = look(path)
    told = Recovery()
    told._tell(progress, sum(segment.end for log in found for segment in log.segments))
    checked = [check(segment, deep=deep, rests=log.rests, told=told) for log in found for segment in log.segments]
    return report(path, found, checked)


def report(path: str | Path, found: Sequence[Looked], checked: Sequence[Checked]) -> VerifyReport:
    """What was found, put together."""
    kept = _without_retired(found, [finding for one in checked for finding in one.findings])
    return VerifyReport(
        path=str(path),
        logs=len(found),
        segments=len(checked),
        records=sum(one.records for one in checked),
        unproven=sum(one.unproven for one in checked),
        lost=sum(one.lost for one in checked),
        bytes=sum(one.bytes for one in checked),
        findings=(*(finding for log in found for finding in log.findings), *kept),
    )


def _without_retired(found: Sequence[Looked], findings: Iterable[Finding]) -> Iterator[Finding]:
    """What is not about segments that retention removed while they were looked at."""
    firsts: dict[tuple[str, int], int] = {}
    parts = {(log.part.topic, log.part.partition): log.part for log in found}
    for finding in findings:
        place = (finding.topic, finding.partition)
        if place not in firsts:
            firsts[place] = 0
            with suppress(PenstockError, OSError):
                firsts[place] = parts[place].look(lambda view: view.first)
        if finding.last >= firsts[place] or finding.last < finding.first:
            yield finding


# ---- a log as a whole ----


def look(path: str | Path, *, before: Callable[[Part], object] = lambda part: None) -> list[Looked]:
    """Every log at a path, and what is wrong with it beside its segments. `before` is called for each first."""
    parts = find(path, strict=False)
    first = {part.path: part for part in reversed(parts)}
    out = []
    for part in parts:
        before(part)
        out.append(_settled(partial(_look, part, first=first[part.path] == part)))
    return out


def _settled(look: Callable[[], Looked]) -> Looked:
    """What is found at two looks one after the other: between the files of a log that is just made, or a mark and its checksum, a busy
    machine may let a moment pass."""
    found = look()
    for _ in range(_LOOKS):
        if not any(finding.kind in _MAY_BE_HALF_MADE for finding in found.findings):
            break
        time.sleep(_MOMENT_S)
        before, found = found, look()
        if found.findings == before.findings:
            break
    return found


def _look(part: Part, *, first: bool) -> Looked:
    """The settings are looked at with the `first` partition."""
    fmt, top = format_of(part.format, part.partition), Path(part.path)
    flaws: list[Flaw] = []
    ours = soundness.is_ours(top, part.own)
    if ours and first:
        flaws += soundness.settings(top, fmt)
    ours = ours and (
        part.format != "topic" or (part.own != top and part.own.is_dir())
    )  # else the partition was never opened
    try:
        return part.look(lambda view: _look_into(view, flaws, ours=ours))
    except (PenstockError, OSError) as error:
        if ours:
            flaws += [flaw for flaw in _lists(part.own, fmt) if flaw not in flaws]
        findings = [_of_flaw(part, flaw) for flaw in flaws]
        missing = _missing_last(part, fmt) if ours else None
        if missing is not None:
            place, info = missing
            file = str(place / fmt.name(info.id))
            about = (part.topic, part.partition, file, 0, info.base, info.next - 1)
            findings.append(Finding(*about, "record", "the last file of the log is missing", _REPAIRS["record"]))
        elif not any(flaw.kind == "losses" or (flaw.kind == "control" and flaw.file.exists()) for flaw in flaws):
            findings.append(Finding(part.topic, part.partition, part.path, 0, 0, -1, "log", str(error), _NOTHING))
        return Looked(part, findings=tuple(findings), flaws=tuple(flaws), missing=missing)


def _look_into(view: View, flaws: Sequence[Flaw], *, ours: bool) -> Looked:
    part = view.part
    flaws = (*flaws, *(_small(part, view) if ours and not view.unmade else ()))
    segments, rests, end = tuple(view.segments()), view.clean, view.end
    end_offset = view.end_offset if part.format == "channel" else 0
    findings = [_of_flaw(part, flaw) for flaw in flaws]
    if not any(flaw.kind == "manifest" for flaw in flaws):
        findings += _gaps(part, segments)
    findings += _tail(part, view, segments)
    return Looked(part, segments, tuple(findings), flaws, rests, end, end_offset)


def _lists(own: Path, fmt: Format) -> Iterator[Flaw]:
    """What is wrong with that which says what a log is made of."""
    yield from soundness.page(own, fmt)
    yield from soundness.manifest(own, fmt)
    yield from soundness.loss_list(own)


def _missing_last(part: Part, fmt: Format) -> tuple[Path, SegmentInfo] | None:
    """The last segment, of a journal that of a session, whose file is gone; with the directory that it was in."""
    top = Path(part.path)
    for place in sessions.places(top) if part.format == "journal" else [top]:
        found = soundness.missing_last(place, fmt, part.own if place == top else place)
        if found is not None:
            return place, found
    return None


def _small(part: Part, view: View) -> Iterator[Flaw]:
    for log in view.logs:
        place, records = log.directory.own, log.next_sequence - log.first_sequence
        made_with = 1 if part.format == "journal" else 0
        if soundness.is_blank(place) and records <= made_with:
            continue
        if part.format == "topic" and not soundness.was_opened(log.path, log.fmt, place):
            continue
        if place == part.own or (place / ".lock").exists():  # else it is just being moved
            yield from _lists(place, log.fmt)
    yield from soundness.ledger(part.own)
    if part.format == "channel":
        yield from soundness.cursors(part.own, None)
        yield from soundness.channel_offsets(part.own, lambda: view.end_offset, clean=view.clean)
    else:
        yield from soundness.cursors(part.own, lambda: view.end)


def _of_flaw(part: Part, flaw: Flaw) -> Finding:
    repair = (
        _REPAIRS[flaw.kind] if flaw.known or flaw.kind == "ledger" else "nothing: a later version may have written it"
    )
    return Finding(part.topic, part.partition, str(flaw.file), flaw.position, 0, -1, flaw.kind, flaw.what, repair)


def _gaps(part: Part, segments: Sequence[Segment]) -> Iterator[Finding]:
    """Records between two segments that no segment has."""
    for before, after in pairwise(segments):
        if after.base > before.next:
            what = "no segment that is listed has these"
            file = str(part.own / "manifest")
            place = (0, before.next, after.base - 1)
            yield Finding(part.topic, part.partition, file, *place, "manifest", what, _REPAIRS["manifest"])


def _tail(part: Part, view: View, segments: Sequence[Segment]) -> Iterator[Finding]:
    """What a power cut left behind the last whole record. Where somebody may be writing, nothing is said of it."""
    if view.live or not segments or part.format == "journal":
        return
    last = segments[-1]
    seg = last.read()
    size = torn_bytes(seg, last.end)
    if size and not seg.header_error:
        what = f"{size} bytes of a record, or a batch, that is not whole"
        place = (str(seg.paths.data), last.end, last.next, last.next - 1)
        yield Finding(part.topic, part.partition, *place, "tail", what, _REPAIRS["tail"])


# ---- a segment ----


def check(segment: Segment, *, deep: bool = False, rests: bool = False, told: Recovery | None = None) -> Checked:
    """Walk over one segment. If its log `rests`, the last one is as finished as the others."""
    try:
        return segment.part.steadily(lambda: _checked(segment, deep=deep, rests=rests, told=told or Recovery()))
    except (PenstockError, OSError) as error:
        return Checked(0, 0, 0, 0, (replace(_finding(segment, 0, "record", str(error)), repair=_NOTHING),))


def _checked(segment: Segment, *, deep: bool, rests: bool, told: Recovery) -> Checked:
    seg = segment.read()
    interval = seg.index.interval or INDEX_INTERVAL
    walked = walk(seg, Place(segment.end, segment.next), interval, told, listed=segment.losses)
    if walked.end.sequence < segment.next:  # its frames are good, and fewer than the next segment's base says
        missing = Loss(walked.end.sequence, segment.next - 1, "records are missing")
        walked.losses.append(Hole(segment.end, missing, segment.end))
    in_entry = [hole for hole in walked.losses if beside.only_entry_is_wrong(seg, hole)]
    holes = [hole for hole in walked.losses if hole not in in_entry]
    known = [hole for hole in holes if is_listed(segment.losses, hole.loss.first, hole.loss.last)]
    findings = [
        *_header(seg, segment),
        *(_of_hole(segment, hole) for hole in holes if hole not in known),
        *(_of_entry(seg, segment, hole) for hole in in_entry),
        *(
            _beside(seg, segment, walked, rests=rests)
            if soundness.is_ours(Path(segment.part.path), segment.part.own)
            else ()
        ),
        *(_slow(seg, segment, holes) if deep else ()),
    ]
    records = segment.next - segment.base - _count(holes)
    return Checked(
        records=records,
        unproven=min(records, _unproven(seg, segment)),
        lost=_count(known),
        bytes=max(0, min(segment.end, len(seg.data)) - seg.start),
        findings=tuple(findings),
        holes=tuple(hole for hole in holes if hole not in known),
        entries=tuple(in_entry),
    )


def _count(holes: Iterable[Hole]) -> int:
    return sum(hole.loss.last - hole.loss.first + 1 for hole in holes)


def _finding(
    segment: Segment, position: int, kind: Kind, what: str, first: int | None = None, last: int | None = None
) -> Finding:
    first = segment.base if first is None else first
    last = segment.next - 1 if last is None else last
    paths = segment.paths()
    file = {"companion": paths.times, "index": paths.index}.get(kind, paths.data)
    if file == paths.data and paths.packed is not None and paths.packed.exists():
        file = paths.packed
    place = (segment.part.topic, segment.part.partition, str(file), position, first, last)
    return Finding(*place, kind, what, _REPAIRS[kind])


def _of_hole(segment: Segment, hole: Hole) -> Finding:
    return _finding(segment, hole.position, "record", hole.loss.reason, hole.loss.first, hole.loss.last)


def _of_entry(seg: ReadSegment, segment: Segment, hole: Hole) -> Finding:
    at = beside.entry_position(seg, hole.loss.first)
    what = "the checksum of a record that is good is damaged"
    return _finding(segment, at, "companion", what, hole.loss.first, hole.loss.last)


def _header(seg: ReadSegment, segment: Segment) -> Iterator[Finding]:
    if seg.header_error:
        if seg.paths.data.exists() or (seg.paths.packed is not None and seg.paths.packed.exists()):
            yield _finding(segment, 0, "header", seg.header_error)
    elif segment.begin is not None:
        packed = seg.paths.packed
        if packed is not None and packed.exists():
            if segment.active:
                return  # it has grown since, was left, and compressed
            wanted = packing.header_for(packed, segment.id, segment.begin, segment.end)
            with files.opened(packed) as fd:
                found = files.read(fd, 0, channel.HEADER_BYTES)
        else:
            wanted = channel.pack_header(segment.id, segment.base, segment.begin, 0)
            found = bytes(seg.data[: channel.HEADER_BYTES])
        if found != wanted:
            at = next(i for i, (a, b) in enumerate(zip(found.ljust(len(wanted), b"\0"), wanted, strict=True)) if a != b)
            yield _finding(segment, at, "header", f"it is not that of segment {segment.id} from {segment.begin} on")


def _unproven(seg: ReadSegment, segment: Segment) -> int:
    """How many records have no checksum, in their frame or beside it."""
    count = segment.next - segment.base
    if seg.spec.sum_bytes:
        return 0
    known = min(count, len(seg.times))
    sums = memoryview(seg.times.raw).cast("B").cast("q")[1 : known * 2 : 2] if known else memoryview(b"")
    return count - known + sum(sums[i : i + 65536].tolist().count(0) for i in range(0, known, 65536))


def _beside(seg: ReadSegment, segment: Segment, walked: Walked, *, rests: bool) -> Iterator[Finding]:
    """What is wrong with the files beside a segment. The index of one being written is not finished."""
    count = segment.next - segment.base
    if count and len(seg.times) < count and not sessions.is_ahead(seg.paths.times):
        what = "it is missing or not this segment's" if not seg.times_data else "it is cut short"
        yield _finding(segment, 0, "companion", f"{what}: times are not known")
    if count and seg.paths.indexed and (rests or not segment.active) and not _leads(seg, segment, walked):
        yield _finding(segment, 0, "index", "it is missing, short, or leads elsewhere than the records lie")


def _leads(seg: ReadSegment, segment: Segment, walked: Walked) -> bool:
    """Whether an index says what the records say."""
    interval, count = seg.index.interval, segment.next - segment.base
    if not interval or seg.index.count < -(-count // interval):
        return False
    entry, base = seg.index.entry, segment.base  # of a record that is lost, whatever it says
    points = (
        point for point in walked.points if point[0] < segment.next
    )  # zeros, or a wrong length, may look like more records
    return all(entry((sequence - base) // interval) == (sequence, at) for sequence, at in points)


def _slow(seg: ReadSegment, segment: Segment, holes: Sequence[Hole]) -> Iterator[Finding]:
    """What costs no record, and much time to find."""
    if places := beside.unlikely_times(seg.times, segment.next - segment.base, files.now_us()):
        first, last = segment.base + places[0], segment.base + places[-1]
        at = beside.entry_position(seg, first)
        yield _finding(segment, at, "companion", "times that cannot be: they run backwards, or ahead", first, last)
    packed = seg.paths.packed
    if packed is not None and packed.exists() and not holes and not packing.is_whole(packed):
        yield _finding(segment, 0, "stream", "the compressed stream is damaged where no record is")
