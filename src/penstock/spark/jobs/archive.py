"""Archive: finished segments as Parquet files, by date, each record once, however often and wherever it is cut short.

Tasks write files under names of their own in `_staging`; the driver gives those of a wave their names and then, in one step for each
log, lists them. What is not listed is not archived: it is written again by the next run, under the same name. Layout: `listing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import DataLost, InvalidOption, LogBusy, PenstockError
from penstock.inspect import Found, Part, logs
from penstock.spark import belonging, listing
from penstock.spark.history import opened
from penstock.spark.jobs.days import Staged, written_by_day
from penstock.spark.jobs.spread import each
from penstock.spark.listing import ArchivedFile, Listing
from penstock.spark.plan import Piece
from penstock.storage import files, retention
from penstock.writing import writing

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

_WAVE_BYTES: Final = 8 << 30  # of segments: what is written between two listings, and is done again after a crash
_DROPPING: Final = ("queue", "topic")


@dataclass(frozen=True, slots=True)
class LogArchived:
    """What an archive has of one log now."""

    path: str
    topic: str
    partition: int
    ranges: tuple[tuple[int, int], ...]  # of offsets, each to the one before its second
    droppable_below: int  # the log may drop all records below this offset: they are archived, from its first one on
    dropped_below: int  # the log begins here now
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What was written now, and what the archive has in all."""

    path: str
    archive: str
    segments: int  # written now
    rows: int
    bytes: int
    logs: tuple[LogArchived, ...]
    failed: tuple[str, ...]  # what could not be archived, or dropped, and why; it stays in the log

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a task made of one piece."""

    piece: Piece
    staged: tuple[Staged, ...]
    error: str = ""


def archive(spark: SparkSession, path: str | Path, to: str | Path, *, drop: bool = False) -> ArchiveReport:
    """Archive every finished segment of the logs at `path` in the directory `to`.

    With `drop` the logs (queues and topics) then remove the segments that are archived, but none that a named reader still
    needs. A log that cannot be opened, or of which the archive is not whole, does not stop the others. One run at a time may write
    to an archive.
    """
    top, found = Path(to), list(logs(path, durable=True))
    for log in found if drop else ():
        if log.part.format not in _DROPPING:
            raise InvalidOption(
                f"{log.part.path}: drop is for queues and topics; a {log.part.format} removes by itself what it no longer needs"
            )
    try:
        files.make_directories(top.absolute(), Path(top.absolute().anchor))
    except FileExistsError as error:
        raise InvalidOption(
            f"{error.filename}: a file; an archive is a directory: give one, or a name that is not there yet"
        ) from error
    with _alone(top):
        listings = {log.part: _own_listing(top, log) for log in found}
        listing.begin(top)
        files.remove_tree(listing.staging(top))  # of a run that was cut short
        listing.staging(top).mkdir()
        written: list[_Written] = []
        for wave in _waves(_wanted(found, listings)):
            done = each(spark, [(piece, str(top)) for piece in wave], _write, lambda item: item[0].size_bytes)
            _publish(top, listings, done)
            written += done
        files.remove_tree(listing.staging(top))
        first = {log.part: min((s.base for s in log.segments), default=0) for log in found}
        kept = list[str]()
        for part in (log.part for log in found if drop and not log.error):
            try:
                first[part] = _drop(spark, top, part, listings[part], first[part])
            except (PenstockError, OSError) as error:
                kept.append(str(error))
    good = [one for one in written if not one.error]
    return ArchiveReport(
        path=str(path),
        archive=str(top),
        segments=len(good),
        rows=sum(staged.file.rows for one in good for staged in one.staged),
        bytes=sum(staged.file.bytes for one in good for staged in one.staged),
        logs=tuple(_told(part, listings[part], first[part]) for part in listings),
        failed=(*(log.error for log in found if log.error), *(one.error for one in written if one.error), *kept),
    )


def _told(part: Part, listed: Listing, first: int) -> LogArchived:
    return LogArchived(
        path=part.path,
        topic=part.topic,
        partition=part.partition,
        ranges=tuple(listed.covered()),
        droppable_below=_reach(listed, first),
        dropped_below=first,
        files=sum(file.file is not None for file in listed.files),
        rows=sum(file.rows for file in listed.files),
        bytes=sum(file.bytes for file in listed.files),
    )


def _reach(listed: Listing, first: int) -> int:
    """Up to where everything from an offset on is archived."""
    return next((next_ for start, next_ in listed.covered() if start <= first < next_), first)


def _own_listing(top: Path, log: Found) -> Listing:
    """What the archive has of a log, if it is this one's, and not that of another one which was there before."""
    part = log.part
    found = listing.load(top, part)
    if found.path != str(Path(part.path).resolve()):
        raise InvalidOption(
            f"{top} has the archive of {found.path}, and {part.path} is called {part.topic} too: give it an archive of its "
            "own, or, if the log was moved, change the path in the listing"
        )
    if not log.error:
        belonging.check(top, found.files, part, log.segments)
    return found


@contextmanager
def _alone(top: Path) -> Iterator[None]:
    """One run at a time: what another one has staged must stay."""
    with files.opened_to_lock(top / "_lock", make=True) as fd:
        if not files.lock(fd, shared=False, wait=False):
            raise LogBusy(f"{top}: another run archives here; wait until it is done")
        yield


def _wanted(found: Iterable[Found], listings: dict[Part, Listing]) -> Iterator[Piece]:
    """Of every finished segment what is not archived yet."""
    for log in found:
        covered = listings[log.part].covered()
        for segment in log.segments:
            if not segment.active:
                for lo, hi in listing.without(segment.base, segment.next, covered):
                    yield Piece(segment, lo, hi)


def _waves(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    wave, size = list[Piece](), 0
    for piece in pieces:
        if wave and size + piece.size_bytes > _WAVE_BYTES:
            yield wave
            wave, size = [], 0
        wave.append(piece)
        size += piece.size_bytes
    if wave:
        yield wave


# ---- in a task ----


def _write(item: tuple[Piece, str]) -> _Written:
    """One piece as files, one for each day that it has records of; what is damaged is not archived at all."""
    piece, top = item
    try:
        return _Written(piece, tuple(written_by_day(piece, Path(top))))
    except OSError:
        raise  # storage that fails is no damage: the task is tried again
    except PenstockError as error:
        return _Written(piece, (), str(error))


# ---- on the driver again ----


def _publish(top: Path, listings: dict[Part, Listing], done: Sequence[_Written]) -> None:
    """Give a wave's files their names, and when these are on the disk list them."""
    places: set[Path] = set()
    for staged in (staged for one in done for staged in one.staged if staged.file.file is not None):
        assert staged.file.file is not None
        path = top / staged.file.file
        if path.parent not in places:
            files.make_directories(path.parent, top)
            places.add(path.parent)
        files.rename(Path(staged.temporary), path)
    for place in sorted(places):
        files.sync_directory(place)
    for part in {one.piece.segment.part: None for one in done if one.staged}:
        more = [s.file for one in done if one.piece.segment.part == part for s in one.staged]
        listings[part] = listings[part].having(more)
        listing.store(top, listings[part])


def _drop(spark: SparkSession, top: Path, part: Part, listed: Listing, first: int) -> int:
    """Let a log remove what is archived, if all of that is there; where it begins then."""
    below = _reach(listed, first)
    if below > first:
        needed = [file for file in listed.files if file.next > first and file.first < below]
        wrong = [error for error in each(spark, [(file, str(top)) for file in needed], _is_whole, lambda _: 1) if error]
        if wrong:
            raise DataLost(f"{part.path}: nothing was dropped, since its archive is not whole: {'; '.join(wrong)}")
        with writing(part) as log:  # which nobody puts another one in place of meanwhile
            belonging.check_all(top, needed, part, part.look(lambda view: view.segments()))
            retention.drop(log, below)
            return log.first_sequence
    return first


def _is_whole(item: tuple[ArchivedFile, str]) -> str:
    """In a task: what is wrong with a file that is listed; empty if nothing is. All of it is read, with its checksums."""
    file, top = item
    if file.file is None:
        return ""
    path = Path(top) / file.file
    try:
        found: pq.ParquetFile = opened(path)
        rows = sum(batch.num_rows for batch in found.iter_batches())
    except (PenstockError, OSError, ValueError) as error:
        return f"{path}: {error}"
    return "" if rows == file.rows else f"{path}: {rows} rows, not {file.rows}; restore it from a copy"
