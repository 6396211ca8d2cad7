"""Read-only facts about logs on disk, whatever their format: which there are, what they hold, in which files.

Plain functions that return typed facts. Nothing here changes a log or disturbs its writers. Offsets count records in every
format: the n-th record of a log, or of a topic's partition, has offset n.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from penstock.errors import LogNotFound, NotALog, PenstockError
from penstock.formats import channel, journal, queue, topic
from penstock.options import INDEX_INTERVAL, MAX_FILE_SIZE_BYTES, Roll
from penstock.storage import files, metadata, sessions, soundness
from penstock.storage.closable import Closable
from penstock.storage.companion import Times, entry_bytes
from penstock.storage.cursor import Cursors
from penstock.storage.log import Log
from penstock.storage.losses import Listed, within
from penstock.storage.manifest import SegmentInfo
from penstock.storage.places import Places
from penstock.storage.segment import Format, ReadSegment, SegmentPaths, read_companion

FormatName = Literal["queue", "channel", "journal", "topic"]
FORMATS: Final[tuple[FormatName, ...]] = ("queue", "channel", "journal", "topic")
T = TypeVar("T")
_LEVELS_BELOW: Final = 3
_LOOKED_AT_BELOW: Final = 300
_TOLD_BELOW: Final = 3
_YEAR: Final = re.compile(r"[0-9]{4}")


def format_of(name: str, partition: int = 0) -> Format:
    """The bytes of a format, as the engine takes them."""
    whole: dict[str, Format] = {
        "queue": cast(Format, queue),
        "channel": cast(Format, channel),
        "journal": cast(Format, journal),
    }
    return topic.Partition(partition) if name == "topic" else whole[name]


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One sequence of records: a log, or a partition of a topic. Plain data, which can be sent to other machines."""

    path: str  # the directory of the data files
    format: FormatName
    topic: str  # what the log is called: its directory's name
    partition: int = 0

    @property
    def own(self) -> Path:
        """Where the log keeps what is no segment. A partition that nobody has opened yet will have a directory for it; one of another
        implementation's topic has none."""
        top = Path(self.path)
        own = top / f".partition_{self.partition}"
        ours = self.format == "topic" and (own.is_dir() or (top / metadata.FILE).exists())
        return own if ours else top

    def open(self) -> View:
        """Look into it; `with part.open() as view`."""
        return View(self)

    def look(self, into: Callable[[View], T]) -> T:
        """What is to be seen in it."""
        return self.steadily(lambda: self._look(into))

    def _look(self, into: Callable[[View], T]) -> T:
        with self.open() as view:
            return into(view)

    def steadily(self, look: Callable[[], T]) -> T:
        """What a look at its files tells. Whoever opens a journal moves them: if that happens meanwhile, it is repeated."""
        return sessions.steadily(Path(self.path), look) if self.format == "journal" else look()

    def move_cursor(self, name: str, offset: int) -> None:
        """Keep a named reader's place, for retention to hold on to what it has not passed."""
        Cursors(self.own).store(name, offset)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of records: `base` to `next - 1`. Plain data."""

    part: Part
    directory: str  # where its files lie
    id: int
    base: int
    next: int
    end: int  # the byte behind its last frame
    first_us: int
    last_us: int
    active: bool  # being written, or the last of a log that nobody writes
    begin: int | None = None  # how many bytes of frames lie before it, where the format counts them and it is known
    losses: tuple[Listed, ...] = ()  # what of it is listed as lost

    @property
    def name(self) -> str:
        """The data file's path within the directory."""
        return format_of(self.part.format, self.part.partition).name(self.id)

    def read(self) -> ReadSegment:
        """Its files, mapped; compressed ones inflated."""
        fmt = format_of(self.part.format, self.part.partition)
        return self.part.steadily(lambda: ReadSegment(self._where(), fmt, self.id, self.base, listed=True))

    def opened(self, lo: int, hi: int) -> ReadSegment:
        """The same, to read the records lo to hi - 1 alone: where files are far away no others are fetched."""
        return self.read()

    def times(self) -> Times:
        """When its records were appended; of no data file anything is read."""
        fmt = format_of(self.part.format, self.part.partition)
        data = self.part.steadily(lambda: read_companion(self.paths(), fmt.SPEC, self.base))
        return Times(data, entry_bytes(fmt.SPEC))

    def paths(self) -> SegmentPaths:
        return SegmentPaths(self._where(), format_of(self.part.format, self.part.partition), self.id)

    def _where(self) -> Path:
        """The directory that its files are in now. Opening a journal moves them; no other of its files has the same number."""
        here = Path(self.directory)
        if self.part.format != "journal" or (here / self.name).exists():
            return here
        return next((place for place in sessions.places(Path(self.part.path)) if (place / self.name).exists()), here)


class View(Closable):
    """What a log holds at this moment. A journal's earlier sessions that were not walked to their end belong to it."""

    _stand: sessions.Stand = ()  # where a journal's files were when it was opened
    unmade = False  # whoever was to make it died before it had a data file: it is empty

    def __init__(self, part: Part) -> None:
        self.part = part
        self._stack = ExitStack()
        self._logs: list[Log] = []
        try:
            part.steadily(self._open_logs)
        except BaseException:
            self.close()
            raise
        if not self._logs:
            raise LogNotFound(f"{part.path}: no data files here")

    def _open_logs(self) -> None:
        fmt, top = format_of(self.part.format, self.part.partition), Path(self.part.path)
        self.close()
        self._stand = self._stands()
        self._logs = []
        self.unmade = self.part.format != "topic" and soundness.is_unmade(top, fmt)
        whole = self.part.format != "journal" or self.unmade
        for place in [top] if whole else sessions.places(top):
            if whole or sessions.segments(place, fmt):
                self._logs.append(self._open(fmt, place))

    @property
    def moved(self) -> bool:
        """Whether a journal was opened anew since, which puts its files elsewhere, or has forgotten some of them."""
        return self._stands() != self._stand

    def _stands(self) -> sessions.Stand:
        return sessions.stand(Path(self.part.path)) if self.part.format == "journal" else ()

    def _open(self, fmt: Format, top: Path) -> Log:
        settings = _settings(Path(self.part.path))
        log = Log(
            top,
            fmt,
            file_size=settings.get("file_size", MAX_FILE_SIZE_BYTES),
            interval=settings.get("index_interval", INDEX_INTERVAL),
            roll=Roll(),
            read_only=True,
            may_be_empty=self.unmade or self.part.format == "topic",
            own=self.part.own if self.part.format == "topic" else None,
        )
        self._stack.callback(log.close)
        return log

    @property
    def logs(self) -> tuple[Log, ...]:
        """What it is made of, opened for reading: a log, and of a journal one more for each earlier session, which come first."""
        return tuple(self._logs)

    @property
    def first(self) -> int:
        """The oldest record's offset."""
        return min(log.first_sequence for log in self._logs)

    @property
    def end(self) -> int:
        """The offset that the next record will have."""
        return self._logs[-1].next_sequence

    def durable_end(self) -> int:
        """Put everything that is there now on the disk, and say where that ends: it survives a power cut."""
        end = self.end
        for segment in self.segments():
            if segment.next > min(log.durable_sequence for log in self._logs):
                self._sync(segment)
        return end

    def _sync(self, segment: Segment) -> None:
        """Put a segment's records on the disk. One that was compressed or removed meanwhile was there before."""
        paths = segment.paths()
        try:
            with files.opened(paths.data) as fd:
                files.sync(fd)
        except FileNotFoundError:
            packed = paths.packed is not None and paths.packed.exists()
            if not packed and any((s.directory, s.id) == (segment.directory, segment.id) for s in self.segments()):
                raise

    def segments(self) -> list[Segment]:
        """All of them, oldest first; those being written up to where they end now."""
        return [segment for log in self._logs for segment in self._of(log)]

    def _of(self, log: Log) -> Iterator[Segment]:
        now, listed = log.active(), log.losses.all()
        finished = sorted((s for s in log.finished().values() if s.id < now.segment), key=lambda s: s.id)
        counted = log.fmt.SAYS_BEGIN
        for info in finished:
            yield self._segment(log, info, listed, info.begin if counted else None, active=False)
        before = finished[-1] if finished else log.manifest.gone
        begin = before.begin + before.end - log.fmt.HEADER_BYTES if before else None if now.segment else 0
        info = SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)
        active = self._segment(log, info, listed, begin if counted else None, active=True)
        if active.next > active.base or active.paths().data.exists():  # a topic's partition may have no file yet
            yield active

    def _segment(
        self, log: Log, info: SegmentInfo, listed: tuple[Listed, ...], begin: int | None, *, active: bool
    ) -> Segment:
        place = (info.id, info.base, info.next, info.end, info.first_us, info.last_us)
        return Segment(self.part, str(log.path), *place, active, begin, within(listed, info))

    def losses(self) -> list[Listed]:
        """What is listed as lost, and stepped over by every reader; see `penstock.repair`."""
        return [one for log in self._logs for one in log.losses.all()]

    @property
    def end_offset(self) -> int:
        """Where the next record will begin, in bytes of all frames, as a channel counts."""
        return Places(self._logs[-1]).end if self.segments() else 0

    @property
    def live(self) -> bool:
        """Whether its control page says where it ends, so that somebody may be writing it."""
        return any(log.page is not None for log in self._logs)

    @property
    def clean(self) -> bool:
        """Whether it was closed, and nobody has opened it for writing since."""
        return all(log.control is not None and log.control.clean is not None for log in self._logs)

    def cursors(self) -> dict[str, int]:
        """Where named readers stand. Those of a channel are byte offsets, and are left out."""
        return {} if self.part.format == "channel" else self._logs[-1].cursors.all()

    def close(self) -> None:
        self._stack.close()


class Found(NamedTuple):
    """A log, its segments, and what was wrong with it as a whole; empty if nothing was."""

    part: Part
    segments: tuple[Segment, ...]
    error: str


def logs(path: str | Path, *, durable: bool = False) -> Iterator[Found]:
    """Every log at a path, and every partition of a topic, also what cannot be opened. If `durable`, what they hold is put on
    the disk first."""
    for part in find(path):
        try:
            yield Found(part, part.look(_synced_segments if durable else _segments), "")
        except (PenstockError, OSError) as error:
            yield Found(part, (), str(error))


def _segments(view: View) -> tuple[Segment, ...]:
    return tuple(view.segments())


def _synced_segments(view: View) -> tuple[Segment, ...]:
    view.durable_end()
    return _segments(view)


def find(path: str | Path, format: FormatName | None = None, *, strict: bool = True) -> list[Part]:
    """The logs at a path: one log, a topic with its partitions, or a directory of such. `format` is for a directory that
    does not tell its own. If not `strict`, the names of files tell what settings that cannot be read do not."""
    top = Path(path)
    if not top.is_dir():
        what = "a file; a log is a directory" if top.exists() else "no such directory"
        raise LogNotFound(f"{top}: {what}")
    found = _parts(top, format or detect(top, strict=strict))
    if found:
        return found
    for child in sorted(p for p in top.iterdir() if p.is_dir() and (not p.name.startswith(".") or _says_topic(p))):
        found += _parts(child, detect(child, strict=strict))
    if not found:
        raise LogNotFound(f"{top}: neither a log nor a directory of logs{_told_below(top)}")
    return found


def _told_below(top: Path) -> str:
    """For whoever named a directory too high up: where there are logs further down."""
    found = list(islice(_logs_below(top), _TOLD_BELOW + 1))
    if not found:
        return ""
    names = ", ".join(path.relative_to(top).as_posix() for path in found[:_TOLD_BELOW])
    are, more = "are some" if len(found) > 1 else "is one", " and more" if len(found) > _TOLD_BELOW else ""
    return f"; there {are} further down, {names}{more}: give its path, or the directory that it is in"


def _logs_below(top: Path) -> Iterator[Path]:
    """Logs in the directories below, the nearest first, by their settings alone. Not many entries are looked at: it is only for an error."""
    level, left = [top], _LOOKED_AT_BELOW
    for _ in range(_LEVELS_BELOW):
        above, level = level, []
        for place in above:
            with suppress(OSError), os.scandir(place) as entries:
                looked_at = list(islice(entries, left))
                left -= len(looked_at)
                names = sorted(e.name for e in looked_at if e.name[0] != "." and e.is_dir(follow_symlinks=False))
                level += [place / name for name in names]
        made = {place for place in level if os.path.isfile(place / metadata.FILE)}  # noqa: PTH113  # False where it may not look
        yield from (place for place in level if place in made)
        level = [place for place in level if place not in made]


def detect(top: Path, *, strict: bool = True) -> FormatName | None:
    """The format of the log in a directory, as its settings or the names of its files tell; None when it is no log."""
    try:
        settings = metadata.load(top)
        if settings is not None:
            name = settings["format"]
            if name not in FORMATS:
                raise NotALog(f"{top / metadata.FILE}: format {name!r}, this Penstock knows {', '.join(FORMATS)}")
            return cast(FormatName, name)
    except NotALog:
        if strict:
            raise
    for child in top.iterdir():
        found = _format_of_file(child.name)
        if found is not None and not child.is_dir():  # a topic, or any other log, may be called so
            return found
        if _YEAR.fullmatch(child.name) and any(queue.parse(name) is not None for name in files.walk_below(top, child)):
            return "queue"
    return None


def _format_of_file(name: str) -> FormatName | None:
    """The format whose files in a log's own directory are called so."""
    if journal.parse(name) is not None:
        return "journal"
    if channel.parse(name) is not None or channel.parse_compressed(name) is not None:
        return "channel"
    return "topic" if topic.parse(name) is not None else None


def _says_topic(top: Path) -> bool:
    """Of a hidden directory: a topic may have such a name; what is being converted or written anew lies in one too, and is none."""
    with suppress(NotALog):
        return (metadata.load(top) or {}).get("format") == topic.NAME
    return False


def _settings(top: Path) -> dict[str, Any]:
    """What is fixed for a log, as far as that can be read."""
    try:
        return metadata.usable(metadata.load(top) or {})
    except NotALog:
        return {}


def _parts(top: Path, format: FormatName | None) -> list[Part]:
    if format is None:
        return []
    name = top.absolute().name
    if format != "topic":
        return [Part(str(top), format, name)]
    numbers = {place.partition for child in top.iterdir() if (place := topic.parse(child.name))}
    numbers.update(range(_settings(top).get("partitions", 0)))  # those that have no message yet, too
    return [Part(str(top), "topic", name, number) for number in sorted(numbers)]
