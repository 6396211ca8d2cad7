"""What an archive holds: a listing for each log, and the names of its Parquet files.

    archive/date=2026-11-15/orders-0-00000000000000000000-00000000000000001600.parquet
    archive/_archive/orders/0.json        the listing: which file has which offsets
    archive/_staging/                     files that are being written

Only what is listed is archived. A listing is replaced in one step, after its files are on the disk. Spark takes what begins with an
underscore for no data, so that `spark.read.parquet(archive)` reads the files too, with a column `date`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.errors import NotALog
from penstock.inspect import FormatName, Part
from penstock.storage import files

_LISTINGS: Final = "_archive"
_VERSION: Final = 1
Range = tuple[int, int]  # the first, and the one after the last


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """Records `first` to `next - 1` of a log. Plain data."""

    file: str | None  # the path within the archive; None where there are no records that count, as between a journal's
    first: int
    next: int
    rows: int
    bytes: int
    first_us: int  # 0 where no time is known
    last_us: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What an archive has of one log, in the order of offsets."""

    path: str  # of the log
    format: FormatName
    topic: str
    partition: int
    files: tuple[ArchivedFile, ...] = ()

    def covered(self) -> list[Range]:
        """The ranges that are archived; those that touch as one."""
        return merged((file.first, file.next) for file in self.files)

    def having(self, more: Iterable[ArchivedFile]) -> Listing:
        """The same with more files."""
        both = sorted((*self.files, *more), key=lambda file: file.first)
        return Listing(self.path, self.format, self.topic, self.partition, tuple(both))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, those that touch or overlap as one."""
    out: list[Range] = []
    for first, next_ in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], next_))
        else:
            out.append((first, next_))
    return out


def without(lo: int, hi: int, taken: Sequence[Range]) -> list[Range]:
    """What is left of lo to hi - 1 without some ranges, which are in order."""
    out = []
    for first, next_ in taken:
        if lo < min(first, hi):
            out.append((lo, min(first, hi)))
        lo = max(lo, next_)
    if lo < hi:
        out.append((lo, hi))
    return out


def name_of(part: Part, date: str | None, first: int, next_: int) -> str:
    """The path of a file within its archive. A date that is not known is named as Spark names it."""
    day = date or "__HIVE_DEFAULT_PARTITION__"
    return f"date={day}/{part.topic}-{part.partition}-{first:020}-{next_:020}.parquet"


def is_archive(path: Path) -> bool:
    return (path / _LISTINGS).is_dir()


def begin(path: Path) -> None:
    """Make a directory an archive, which has nothing yet."""
    files.make_directories(path / _LISTINGS, path)


def staging(archive: Path) -> Path:
    return archive / "_staging"


def _path(archive: Path, topic: str, partition: int) -> Path:
    return archive / _LISTINGS / topic / f"{partition}.json"


def load(archive: Path, part: Part) -> Listing:
    """What an archive has of a log: nothing, as long as none of it was archived there."""
    path = _path(archive, part.topic, part.partition)
    try:
        with files.opened(path) as fd:
            raw = files.read(fd, 0, files.size(fd))
    except FileNotFoundError:
        return Listing(str(Path(part.path).resolve()), part.format, part.topic, part.partition)
    return _read(path, raw)


def load_all(archive: Path) -> list[Listing]:
    """What an archive has, of every log."""
    found = []
    for path in sorted((archive / _LISTINGS).glob("*/*.json")):
        with files.opened(path) as fd:
            found.append(_read(path, files.read(fd, 0, files.size(fd))))
    if not found:
        raise NotALog(f"{archive}: no archive; it has no listing in {_LISTINGS}")
    return found


def _read(path: Path, raw: bytes) -> Listing:
    try:
        found = json.loads(raw)
        if found["version"] != _VERSION:
            raise NotALog(f"{path}: a listing of version {found['version']}, this Penstock knows {_VERSION}")
        listed = tuple(ArchivedFile(**file) for file in found["files"])
        return Listing(found["path"], found["format"], found["topic"], found["partition"], listed)
    except (ValueError, KeyError, TypeError) as error:
        raise NotALog(f"{path}: not a listing ({error!r}); restore it from a copy") from error


def store(archive: Path, listing: Listing) -> None:
    """Put a listing in place of the one before, on the disk."""
    path = _path(archive, listing.topic, listing.partition)
    files.make_directories(path.parent, archive)
    text = json.dumps({"version": _VERSION, **asdict(listing)}, indent=1)
    files.replace(path, text.encode() + b"\n")
    files.sync_directory(path.parent)
