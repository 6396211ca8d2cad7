"""Logs on object storage, or any other file system that fsspec knows: copied there as they are, and read by ranges.

`s3://bucket/orders` is a copy of a queue's, a channel's or a topic's directory. A task fetches the bytes that it reads, and what is
needed to find them, into files of the same names and lengths with holes for the rest; these are read as any others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from penstock.errors import FilesMissing, InvalidOption, LogNotFound, NotALog
from penstock.inspect import FORMATS, FormatName, Part, Segment, View, format_of
from penstock.storage import companion, index, metadata
from penstock.storage.companion import Times
from penstock.storage.control import Control, Mark
from penstock.storage.damage import Place
from penstock.storage.listing import companion_base
from penstock.storage.losses import FILE as LOSSES
from penstock.storage.losses import Listed, LossList, within
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.report import Recovery
from penstock.storage.segment import Format, ReadSegment, SegmentPaths, map_data
from penstock.storage.walking import walk

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BLOCK: Final = 16 << 20
_EVERY: Final = 1 << 18  # places on a walk that nobody asks for


def is_remote(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


def find(url: str, format: FormatName | None = None) -> list[Part]:
    """The logs at a URL: one log, a topic with its partitions, or a directory of such, as `metadata.json` tells."""
    fs, root = _file_system(url)
    with suppress(FileNotFoundError):
        names = {str(PurePosixPath(name).relative_to(root)) for name in fs.find(root)}
        tops = sorted({name.rpartition("/")[0] for name in names if PurePosixPath(name).name == metadata.FILE})
        found = [part for top in tops if top.count("/") == 0 for part in _parts(f"{url.rstrip('/')}/{top}".rstrip("/"))]
        if format is not None:
            found = [part for part in found if part.format == format]
        if found:
            return found
    raise LogNotFound(f"{url}: no log there; copy a log's whole directory, {metadata.FILE} included")


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidOption(f"{url}: {error}") from error
    return fs, str(root)


def _parts(url: str) -> list[Part]:
    fs, root = _file_system(url)
    where = f"{url}/{metadata.FILE}"
    settings = metadata.parse(fs.cat_file(f"{root}/{metadata.FILE}"), where)
    format, name = settings["format"], PurePosixPath(url).name
    if format not in FORMATS:
        raise NotALog(f"{where}: format {format!r}, this Penstock knows {', '.join(FORMATS)}")
    if format == "journal":
        raise InvalidOption(f"{url}: a journal is read where its program runs; convert it to a queue first")
    count = metadata.usable(settings).get("partitions") if format == "topic" else 1
    if count is None:
        raise NotALog(f"{where}: it does not say how many partitions the topic has; copy it again")
    return [RemotePart(url, format, name, number) for number in range(count)]


class RemotePart(Part):
    """A log elsewhere."""

    __slots__ = ()

    def open(self) -> View:
        return RemoteView(self)

    def move_cursor(self, name: str, offset: int) -> None:
        raise InvalidOption(f"{self.path}: a copy has no readers of its own; leave the option cursor out")


class RemoteSegment(Segment):
    """A segment elsewhere."""

    __slots__ = ()

    def read(self) -> ReadSegment:
        """Its times; of its records nothing."""
        return self._fetched(self.base, self.base)

    def times(self) -> Times:
        return self.read().times

    def opened(self, lo: int, hi: int) -> ReadSegment:
        return self._fetched(lo, hi)

    def _fetched(self, lo: int, hi: int) -> ReadSegment:
        fmt = format_of(self.part.format, self.part.partition)
        with tempfile.TemporaryDirectory() as place:
            paths = SegmentPaths(Path(place), fmt, self.id)
            copy = _Copy(self.directory, Path(place))
            _fetch(copy, paths, fmt, self, lo, hi)
            read = ReadSegment(Path(place), fmt, self.id, self.base, listed=True)
        read.paths = SegmentPaths(Path(self.directory), fmt, self.id)  # which errors name
        return read


def _fetch(copy: _Copy, paths: SegmentPaths, fmt: Format, segment: Segment, lo: int, hi: int) -> None:
    """What is needed of a segment's files to read the records lo to hi - 1; only the times, if there are none."""
    entry = companion.entry_bytes(fmt.SPEC)
    if lo == hi:
        copy.whole(copy.name(paths.times))
        copy.ranges(copy.name(paths.data), [(0, fmt.HEADER_BYTES)])
        return
    if paths.packed is not None and copy.whole(copy.name(paths.packed)):
        copy.whole(copy.name(paths.times))
        return
    copy.whole(copy.name(paths.index))
    known = [(segment.base, fmt.HEADER_BYTES), *_entries(paths.index, segment.base)]
    before = [place for place in known if place[0] <= lo][-2:]  # the one before leads to the one that is believed
    after = [place for place in known if place[0] >= hi]
    first, start = before[0]
    next_, end = after[0] if after else (segment.next, segment.end)
    copy.ranges(copy.name(paths.data), [(0, fmt.HEADER_BYTES), (start, end)])
    times = companion.HEADER_BYTES
    copy.ranges(
        copy.name(paths.times),
        [(0, times), (times + entry * (first - segment.base), times + entry * (next_ - segment.base))],
    )


def _entries(path: Path, base: int) -> Iterator[tuple[int, int]]:
    if path.exists():
        found = index.Index(path.read_bytes(), base)
        yield from (found.entry(i) for i in range(found.count))


class _Copy:
    """Files here that have the bytes of those elsewhere, as far as they were fetched."""

    def __init__(self, url: str, place: Path) -> None:
        self._fs, self._root = _file_system(url)
        self._place = place

    def name(self, path: Path) -> str:
        return path.relative_to(self._place).as_posix()

    def whole(self, name: str) -> bool:
        """Fetch all of a file; False when it is not there."""
        try:
            size = int(self._fs.size(f"{self._root}/{name}"))
        except FileNotFoundError:
            return False
        self.ranges(name, [(0, size)])
        return True

    def ranges(self, name: str, wanted: list[tuple[int, int]]) -> None:
        """Fetch ranges of a file; the rest of it is a hole. Nothing when it is not there."""
        url = f"{self._root}/{name}"
        try:
            size = int(self._fs.size(url))
        except FileNotFoundError:
            return
        path = self._place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
            for start, end in wanted:
                for at in range(start, min(end, size), _BLOCK):
                    file.seek(at)
                    file.write(self._fs.cat_file(url, start=at, end=min(at + _BLOCK, end, size)))

    def names(self) -> list[str]:
        return [str(PurePosixPath(name).relative_to(self._root)) for name in self._fs.find(self._root)]


class RemoteView(View):
    """What a log elsewhere holds. It does not change while it is looked at."""

    def __init__(self, part: Part) -> None:
        self.part = part
        fmt = format_of(part.format, part.partition)
        with tempfile.TemporaryDirectory() as place:
            copy = _Copy(part.path, Path(place))
            own = f".partition_{part.partition}/" if part.format == "topic" else ""
            copy.whole(f"{own}manifest")
            manifest = Manifest(Path(place, own, "manifest"), fmt, read_only=True)
            manifest.load(0, believe_rolled=True)
            there = {s for name in copy.names() for s in (fmt.parse(name), fmt.parse_compressed(name)) if s is not None}
            if manifest.unknown_edits:
                manifest.forget_removed(there)
            copy.whole(f"{own}.lock")
            infos = list(_in_order(part, fmt, manifest, there, _last_mark(Path(place, own, ".lock"), fmt)))
            gone_next = manifest.retired_next
            manifest.close()
            copy.whole(f"{own}{LOSSES}")
            listed = LossList(Path(place, own)).all()
        self._listed = list(listed)
        self._next = infos[-1].next if infos else gone_next
        self._segments = [
            RemoteSegment(
                part, part.path, i.id, i.base, i.next, i.end, i.first_us, i.last_us, False, losses=within(listed, i)
            )
            for i in infos
            if i.count
        ]

    @property
    def first(self) -> int:
        return self._segments[0].base if self._segments else self._next

    @property
    def end(self) -> int:
        return self._next

    def durable_end(self) -> int:
        return self.end

    def segments(self) -> list[Segment]:
        return list(self._segments)

    def cursors(self) -> dict[str, int]:
        return {}

    def losses(self) -> list[Listed]:
        return self._listed

    def close(self) -> None:
        pass


def _last_mark(page: Path, fmt: Format) -> Mark | None:
    """What is known, with a checksum, to have been written when the log was copied."""
    with suppress(FileNotFoundError, NotALog), closing(Control(page, fmt, read_only=True)) as control:
        return control.last_mark
    return None


def _in_order(
    part: Part, fmt: Format, manifest: Manifest, there: Collection[int], known: Mark | None
) -> Iterator[SegmentInfo]:
    """The segments that are listed, and those that are there and are not: the ones that were written when the log was copied, and such
    as a damaged edit spoke of. Each begins where the one before ended: nothing is stepped over."""
    next_ = manifest.gone.next if manifest.gone is not None else None
    for segment in sorted({*manifest.segments, *(s for s in there if not manifest.is_gone(s))}):
        info = manifest.segments.get(segment) or _looked_through(part, fmt, segment, next_, known)
        if info.base < manifest.retired_next and segment not in manifest.segments:
            continue  # it was removed, but for its files
        if next_ is not None and info.base != next_:
            raise FilesMissing(
                f"{part.path}: {fmt.name(segment)} begins with offset {info.base}, what lies before it ends with {next_ - 1}: a file is missing or "
                "damaged, the manifest perhaps; copy the log's whole directory again"
            )
        next_ = info.next
        yield info


def _looked_through(part: Part, fmt: Format, segment: int, expected: int | None, known: Mark | None) -> SegmentInfo:
    """A segment that is not listed, fetched whole. Where nothing in it says with which record it begins, it is the expected one. A file that
    was copied before the page that speaks of it may be shorter than it says."""
    with tempfile.TemporaryDirectory() as place:
        copy, paths = _Copy(part.path, Path(place)), SegmentPaths(Path(place), fmt, segment)
        for path in paths.all():
            copy.whole(copy.name(path))
        header = fmt.read_header(memoryview(map_data(paths)), f"{part.path}/{copy.name(paths.data)}")
        base = header.base if header.base is not None else companion_base(paths)
        base = base if base is not None else expected or 0
        seg = ReadSegment(Path(place), fmt, segment, base)
        reaches = known is not None and known.segment == segment and known.end <= len(seg.data)
        least = Place(known.end, known.next) if known is not None and reaches else Place(seg.start, base)
        end = walk(seg, least, _EVERY, Recovery()).end
        count = end.sequence - base
        times = (seg.times.us(0), seg.times.us(count - 1)) if count else (0, 0)
    return SegmentInfo(segment, base, count, end.position, *times)
