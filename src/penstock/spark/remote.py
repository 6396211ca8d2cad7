"""Logs on object storage, or any other file system that fsspec knows: copied there as they are, and read by ranges.

`s3://bucket/orders` is a copy of a queue's, a channel's or a topic's directory. A task fetches the bytes that it reads, and what is
needed to find them, into files of the same names and lengths with holes for the rest; these are read as any others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidOption, LogNotFound
from penstock.inspect import FormatName, Part, Segment, View, format_of
from penstock.storage import companion, index, metadata
from penstock.storage.losses import FILE as LOSSES
from penstock.storage.losses import Listed, LossList, within
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.segment import Format, ReadSegment, SegmentPaths

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BLOCK: Final = 16 << 20


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
    with tempfile.TemporaryDirectory() as place:
        _Copy(url, Path(place)).whole(metadata.FILE)
        settings = metadata.load(Path(place))
    assert settings is not None
    format, name = settings["format"], PurePosixPath(url).name
    if format == "journal":
        raise InvalidOption(f"{url}: a journal is read where its program runs; convert it to a queue first")
    count = settings["partitions"] if format == "topic" else 1
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
            manifest = Manifest(Path(place, own, "manifest"), read_only=True)
            manifest.load(0, believe_rolled=True)
            infos, gone = manifest.ordered(), manifest.gone
            manifest.close()
            infos += _unlisted(copy, fmt, Path(place), infos[-1] if infos else gone)
            copy.whole(f"{own}{LOSSES}")
            listed = LossList(Path(place, own)).all()
        self._listed = list(listed)
        self._retired_next = gone.next if gone is not None else 0
        self._segments = [
            RemoteSegment(
                part, part.path, i.id, i.base, i.next, i.end, i.first_us, i.last_us, False, losses=within(listed, i)
            )
            for i in infos
        ]

    @property
    def first(self) -> int:
        return self._segments[0].base if self._segments else self._retired_next

    @property
    def end(self) -> int:
        return self._segments[-1].next if self._segments else self._retired_next

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


def _unlisted(copy: _Copy, fmt: Format, place: Path, last: SegmentInfo | None) -> list[SegmentInfo]:
    """The segment that was being written when the log was copied, if it was closed: fetched whole, and looked through. It follows the
    last one that is listed, or, if all of them were removed, that was."""
    later = [s for name in copy.names() if (s := fmt.parse(name)) is not None and (last is None or s > last.id)]
    if not later:
        return []
    paths = SegmentPaths(place, fmt, min(later))
    for path in paths.made():
        copy.whole(copy.name(path))
    base = last.next if last else 0
    seg = ReadSegment(place, fmt, min(later), base)
    found = seg.scan(seg.start, len(seg.data), spec=seg.tail_spec, first=base)
    if not found.count:
        return []
    first_us, last_us = seg.times.us(0), seg.times.us(found.count - 1)
    return [SegmentInfo(min(later), base, found.count, found.position, first_us, last_us)]
