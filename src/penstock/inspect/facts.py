"""What a log is and how it does, at one look: `look(path)`. Quick however long the log is, since only its ends are read.

Nothing is recovered, written or locked in a way that anybody would notice; a directory that cannot be written will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.errors import InvalidOffset, PenstockError
from penstock.formats.journal import Checkpoints
from penstock.inspect import FormatName, Part, Segment, View, find
from penstock.inspect.processes import Process, holding
from penstock.storage import files
from penstock.storage.control import Control
from penstock.storage.damage import REASONS, Loss
from penstock.storage.log import Log
from penstock.storage.losses import is_listed
from penstock.storage.offsets import Offsets
from penstock.storage.places import Places
from penstock.storage.segment import ReadSegment
from penstock.storage.session import last_checkpoints

_WINDOWS_S: Final = (60, 300, 900)
_SECTOR: Final = 512  # in which the system counts blocks
_BLOCK: Final = 4096

State = Literal["open", "closed", "not closed"]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One file of records, `base` to `next - 1`, with what lies beside it."""

    name: str
    base: int
    next: int
    state: Literal["sealed", "finished", "active"]
    compressed: bool
    data_bytes: int  # its header and frames, as they are on the disk
    disk_bytes: int  # blocks of it and of what lies beside it
    reserved_bytes: int  # of these, blocks of the data file that have no records yet
    first_us: int  # 0: not known
    last_us: int


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """A named reader and how far it is. Positions and lags count records; those of a channel's receivers bytes, too."""

    name: str
    kind: Literal["tailer", "receiver", "group"]
    position: int  # the record that it reads next
    lag: int  # records that it has not done
    exact: bool = True  # False: it stands in a compressed file, which is not inflated to count its records
    offset: int | None = None
    lag_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """What was appended in the last so many seconds, for each of them. Bytes are in proportion to the records of each file."""

    seconds: int
    records: float
    bytes: float


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log, or one partition of a topic."""

    path: str
    format: FormatName
    topic: str
    partition: int
    first: int = 0
    next: int = 0
    durable: int = 0  # every record below survives a power cut
    first_us: int = 0  # 0: not known
    last_us: int = 0
    segments: tuple[SegmentFacts, ...] = ()
    readers: tuple[ReaderFacts, ...] = ()
    rates: tuple[Rate, ...] = ()
    processes: tuple[Process, ...] = ()
    state: State = "closed"  # not closed: its last writer died, or a reader had it open when that closed it
    losses: tuple[Loss, ...] = ()  # what `repair` has listed as lost; readers step over it
    checkpoints: Checkpoints | None = None  # of a journal: the last one retired, and the last one registered
    problems: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return self.next - self.first

    def to_dict(self) -> dict[str, Any]:
        """As plain data; a journal says by the names of its own methods how far it is."""
        losses = [loss._asdict() for loss in self.losses]
        made = {**asdict(self), "records": self.records, "losses": losses}
        at = made.pop("checkpoints")
        return made if at is None else {**made, "first_unchecked": at[0] + 1, "current": at[1]}


def look(path: str | Path, *, processes: bool = True) -> list[LogFacts]:
    """The facts of every log at a path. One that cannot be read says so, and does not keep the others from it. To look for those that
    have it open takes the longest."""
    parts = find(path)
    pages = {part: part.own / ".lock" for part in parts}
    holders = holding(pages.values() if processes else ())
    return [_facts(part, holders.get(pages[part], ())) for part in parts]


def _facts(part: Part, processes: tuple[Process, ...]) -> LogFacts:
    try:
        return part.look(lambda view: _look_into(view, processes))
    except (PenstockError, OSError) as error:
        return LogFacts(*_name(part), processes=processes, problems=(str(error),))


def _name(part: Part) -> tuple[str, FormatName, str, int]:
    return part.path, part.format, part.topic, part.partition


def _look_into(view: View, processes: tuple[Process, ...]) -> LogFacts:
    log = view.logs[-1]
    segments = view.segments()
    unsealed = {(str(of.path), info.id) for of in view.logs for info in of.finished().values() if not info.sealed}
    files_ = tuple(_segment(segment, sealed=(segment.directory, segment.id) not in unsealed) for segment in segments)
    state = _state(log.control, processes)
    filled = [one for one in files_ if one.next > one.base]
    return LogFacts(
        *_name(view.part),
        first=segments[0].base if segments else view.first,
        next=segments[-1].next if segments else view.end,
        durable=log.durable_sequence,
        first_us=next((one.first_us for one in filled if one.first_us), 0),
        last_us=next((one.last_us for one in reversed(filled) if one.last_us), 0),
        segments=files_,
        readers=tuple(readers_of(view.part, log)),
        rates=tuple(_rates(segments)),
        processes=processes,
        state=state,
        losses=tuple(one.loss for one in view.losses()),
        checkpoints=_checkpoints(view),
        problems=tuple(_problems(view, segments, state)),
    )


def _state(control: Control | None, processes: tuple[Process, ...]) -> State:
    if any(process.writes is not False for process in processes):
        return "open"
    return "closed" if control is None or control.clean is not None else "not closed"


# ---- files ----


def _segment(segment: Segment, *, sealed: bool) -> SegmentFacts:
    paths, first_us, last_us = segment.paths(), segment.first_us, segment.last_us
    packed = paths.packed is not None and paths.packed.exists()
    data = paths.packed if packed and paths.packed is not None else paths.data
    if segment.next > segment.base and not (first_us and last_us):
        times = segment.times()
        first_us, last_us = first_us or times.us(0), last_us or times.us(segment.next - segment.base - 1)
    size, blocks = _sizes(data)
    beside = [_sizes(path)[1] for path in paths.made() if path != paths.data]
    return SegmentFacts(
        name=Path(segment.name).with_name(data.name).as_posix(),
        base=segment.base,
        next=segment.next,
        state="active" if segment.active else "sealed" if sealed else "finished",
        compressed=packed,
        data_bytes=size if packed else segment.end,
        disk_bytes=blocks + sum(beside),
        reserved_bytes=0 if packed else reserved_bytes(data, segment.end),
        first_us=first_us,
        last_us=last_us,
    )


def reserved_bytes(path: Path, end: int) -> int:
    """Blocks of a data file behind its last frame."""
    return max(0, _sizes(path)[1] - -(-end // _BLOCK) * _BLOCK)


def _sizes(path: Path) -> tuple[int, int]:
    """A file's length, and its blocks in bytes; none if it is not there."""
    try:
        st = path.stat()
    except FileNotFoundError:
        return 0, 0
    return st.st_size, st.st_blocks * _SECTOR


# ---- rates ----


def _rates(segments: list[Segment]) -> Iterator[Rate]:
    """From the times of the files, and in the one where a window begins those of its records, by halving."""
    now = files.now_us()
    for seconds in _WINDOWS_S:
        records, size = 0, 0.0
        for segment in reversed(segments):
            count, cut = segment.next - segment.base, now - seconds * 1_000_000
            since = _since(segment, count, cut) if count else 0
            records += since
            size += segment.end * since / count if count else 0
            if since < count:
                break
        yield Rate(seconds, records / seconds, size / seconds)


def _since(segment: Segment, count: int, us: int) -> int:
    """How many of a file's records are not older."""
    if segment.first_us >= us:
        return count
    if segment.last_us and segment.last_us < us:
        return 0
    return count - segment.times().first_at(us, count)


# ---- readers ----


def readers_of(part: Part, log: Log) -> Iterator[ReaderFacts]:
    """The named readers of a log that is open."""
    cursors = log.cursors.all()
    if part.format == "channel":
        yield from _receivers(log, cursors)
        return
    groups, first, end = Path(part.path) / ".groups", log.first_sequence, log.next_sequence
    for name, position in cursors.items():
        done = sum(hi - lo for lo, hi in _beyond(log, name))
        at = min(max(position, first), end)
        kind: Literal["group", "tailer"] = "group" if (groups / name).is_dir() else "tailer"
        yield ReaderFacts(name, kind, at, max(0, end - at - done))


def _receivers(log: Log, slots: dict[str, int]) -> Iterator[ReaderFacts]:
    """A channel's: where each stands is in the `offset` file, in bytes."""
    if not slots or not (log.path / "offset").exists():
        return
    places = Places(log)
    offsets = Offsets(log.path / "offset", read_only=True)
    try:
        for name, slot in slots.items():
            offset = max(places.first, offsets.load(slot) if slot else 0)
            end, done = places.end, _beyond(log, name)
            at, exact = _sequence(log, places, min(offset, end))
            left, next_ = max(0, end - offset - sum(hi - lo for lo, hi in done)), log.next_sequence
            if done and exact:
                exact, lag = False, round((next_ - at) * left / max(1, end - offset))
            else:
                lag = next_ - at
            yield ReaderFacts(name, "receiver", at, lag, exact, offset, left)
    finally:
        offsets.close()


def _sequence(log: Log, places: Places, offset: int) -> tuple[int, bool]:
    """The record at a byte offset, and whether that is exact: in a compressed file it is told by proportion."""
    for info in log.finished().values():
        paths = log.directory.paths(info.id)
        if info.begin <= offset < places.end_of(info) and paths.packed is not None and paths.packed.exists():
            share = (offset - info.begin) / (places.end_of(info) - info.begin)
            return info.base + round(share * info.count), offset == info.begin
    with suppress(InvalidOffset):
        return places.sequence(offset), True
    return log.first_sequence, False


def _beyond(log: Log, name: str) -> list[tuple[int, int]]:
    """What a shared reader has done past a gap; nothing if its file cannot be read."""
    with suppress(PenstockError):
        return log.cursors.ranges(name)
    return []


def _checkpoints(view: View) -> Checkpoints | None:
    if view.part.format != "journal":
        return None
    state = Checkpoints(0, 0)
    for log in reversed(view.logs):
        found = last_checkpoints(log, Checkpoints(-1, -1))
        if found.current >= 0:
            return found
    return state


# ---- health ----


def _problems(view: View, segments: list[Segment], state: State) -> Iterator[str]:
    log = view.logs[-1]
    undurable = log.next_sequence - log.durable_sequence
    if state == "not closed" and undurable > 0:
        yield (
            f"{log.path}: whoever had it open last did not close it, and {undurable} records may not be on the disk; the next to "
            "open it for writing sees to both"
        )
    if log.control is not None and log.control.same_boot and log.control.poison:
        yield f"{log.path}: a sync failed, so it takes no appends; check the disk, close it everywhere and open it again"
    for one in view.logs:
        yield from one.recovery.damage
        yield from one.recovery.torn
    filled = [s for s in segments if s.next > s.base]
    for segment in dict.fromkeys([*filled[:1], *filled[-1:]]):
        if _is_packed(segment):
            continue  # to look into it, it would have to be inflated
        seg = segment.read()
        found = _damage(seg, segment)
        if found and any(s.id == segment.id for s in view.segments()):  # else it was removed meanwhile
            yield f"{found}; `penstock verify {view.part.path}` tells all"


def _is_packed(segment: Segment) -> bool:
    packed = segment.paths().packed
    return packed is not None and packed.exists()


def _damage(seg: ReadSegment, segment: Segment) -> str:
    """What is wrong with the first record of a file, or its last ones."""
    if seg.header_error:
        return seg.header_error
    end = min(segment.end, len(seg.data))
    near = seg.place_before(segment.next - 1, segment.end)
    for at, sequence, upto in (
        (seg.start, segment.base, segment.base + 1),
        (near.position, near.sequence, segment.next),
    ):
        found = seg.scan(min(at, end), end, upto - sequence, first=sequence)
        if sequence + found.count < upto:
            bad, why = sequence + found.count, REASONS.get(found.reason, "it is cut short here")
            if not is_listed(segment.losses, bad, bad):
                return f"{seg.paths.data}: byte {found.position} (sequence {bad}): {why}"
    return ""
