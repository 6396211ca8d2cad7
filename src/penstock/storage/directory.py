"""A log's directory: which segments lie in it, and how their files are made, opened and removed. Knows of no lock."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import NotALog
from penstock.storage import files, growing, segment
from penstock.storage.damage import Place
from penstock.storage.listing import companion_base, list_segments
from penstock.storage.meters import Meters
from penstock.storage.segment import Format, Header, ReadSegment, SegmentPaths, WriteSegment

TEMPORARY: Final = re.compile(r"(\.\d+-\d+\.tmp|\.next)$")  # of names: being made, or ready to become the next


class First(NamedTuple):
    """What a new log begins with, if it goes on from another: the least id of its first segment, and the sequence."""

    segment: int = 0
    sequence: int = 0


_FIRST: Final = First()


class Directory:
    """The segments of one log, and what is fixed for all of them."""

    def __init__(
        self,
        path: Path,
        fmt: Format,
        file_size: int,
        interval: int,
        *,
        own: Path | None = None,
        begin_with: Callable[[], bytes] = bytes,
        first: First = _FIRST,
    ) -> None:
        """`own` is where the log keeps what is no segment; `begin_with` gives the frame that a new segment begins with.
        A new log begins with `first`."""
        self.path = path
        self.own = own or path
        files.refuse_links(self.own, path)
        self.fmt = fmt
        self.file_size = file_size
        self.interval = interval
        self.begin_with = begin_with
        self.first = first
        self.meters = Meters()

    @property
    def capacity(self) -> int:
        """The most bytes of frames that a file holds."""
        return self.file_size - self.fmt.HEADER_BYTES

    def segments(self) -> list[int]:
        """The ids of all data files, in order."""
        return list_segments(self.path, self.fmt)

    def paths(self, segment_id: int) -> SegmentPaths:
        return SegmentPaths(self.path, self.fmt, segment_id)

    def read(self, segment_id: int, base: int, *, listed: bool = False) -> ReadSegment:
        return ReadSegment(self.path, self.fmt, segment_id, base, listed=listed)

    def write(self, segment_id: int, base: int) -> WriteSegment:
        return WriteSegment(self.path, self.fmt, segment_id, base, self.file_size, self.interval)

    def header(self, segment_id: int) -> Header:
        paths = self.paths(segment_id)
        if paths.packed is not None:  # it may be compressed just now
            return self.fmt.read_header(memoryview(segment.map_data(paths)), str(paths.data))
        with files.opened(paths.data) as fd:
            return self.fmt.read_header(files.read(fd, 0, self.fmt.HEADER_BYTES), str(paths.data))

    def base_of(self, segment_id: int) -> int | None:
        """The first sequence of a data file, as its header or its companion says, if it can be read."""
        try:
            header = self.header(segment_id)
        except NotALog:
            return None
        return header.base if header.base is not None or header.foreign else companion_base(self.paths(segment_id))

    def begin_of(self, segment_id: int) -> int:
        """How many bytes of frames lie before a segment, as its header says; 0 where the format does not count them."""
        return self.header(segment_id).begin if self.fmt.SAYS_BEGIN else 0

    def begin_after(self, segment_id: int, end: int) -> int:
        """How many bytes of frames lie before the segment that follows this one, which ends at byte `end`."""
        return self.begin_of(segment_id) + end - self.fmt.HEADER_BYTES if self.fmt.SAYS_BEGIN else 0

    def used_bytes(self) -> int:
        """What the data files take of the disk, as near as can be told."""
        used = 0
        for segment_id in self.segments():
            with contextlib.suppress(FileNotFoundError):  # another process's retention
                paths = self.paths(segment_id)
                packed = paths.packed is not None and paths.packed.exists()
                used += files.used_bytes(paths.packed if packed and paths.packed else paths.data)
        return used

    # ---- making and removing ----

    def make(self, segment_id: int, base: int, begin: int) -> Place:
        """Put a new segment in place, from files prepared before or made now; where its next record goes."""
        first = self.begin_with()
        if self.fmt.GROWS:
            growing.make(self.path, self.fmt, segment_id, base, self.interval, first)
        else:
            if not self.is_prepared(segment_id):
                segment.place(self.prepare(segment_id))
            segment.adopt(self.path, self.fmt, segment_id, base, begin)
        return Place(self.fmt.HEADER_BYTES + len(first), base + bool(first))

    def copy(
        self, segment_id: int, base: int, begin: int, source: ReadSegment, start: int, end: int, next_: int
    ) -> int:
        """Make a segment of the records base to next_ - 1, which are the bytes start to end of another one, and make it
        durable; the byte where it ends."""
        if self.fmt.GROWS:
            growing.make(self.path, self.fmt, segment_id, base, self.interval, b"")
            growing.fill(self.path, self.fmt, segment_id, source, start, end, base - source.base, next_ - base)
            files.sync_directory(self.paths(segment_id).data.parent)
            return self.fmt.HEADER_BYTES + end - start
        self.make(segment_id, base, begin)
        # The other one may be larger than they are made now.
        with files.opened(self.paths(segment_id).data, write=True) as fd:
            files.truncate(fd, max(files.size(fd), self.fmt.HEADER_BYTES + end - start))
        copy = self.write(segment_id, base)
        try:
            copy.fill(source, start, end, base, next_)
            return copy.header.start + end - start
        finally:
            copy.close()

    def sync(self, segment_id: int) -> None:
        """Put a new segment's files and their names on the disk."""
        for path in self.paths(segment_id).made():
            with files.opened(path, write=True) as fd:
                files.sync(fd)
        self.paths(segment_id).sync_names()

    def is_prepared(self, segment_id: int) -> bool:
        return segment.is_prepared(self.path, self.fmt, segment_id)

    def prepare(self, segment_id: int) -> list[tuple[Path, Path]]:
        """Make the files of a segment ahead of its use; `segment.place` gives them the names that `make` looks for."""
        if self.fmt.GROWS:
            return growing.prepare(self.path, self.fmt, segment_id)
        return segment.prepare(self.path, self.fmt, segment_id, self.file_size, self.interval)

    def prepared(self, base: int) -> tuple[int, int]:
        """(byte, sequence) up to which a segment that was just made has real blocks."""
        return segment.prepared(self.fmt, self.file_size, base)

    def seal(self, segment_id: int, count: int, end: int, *, synced: bool = False) -> None:
        """Give back what a finished (or closed) segment did not use, and sync its files; its data only if it is not `synced`,
        where that can be."""
        if self.is_packed(segment_id):
            return  # by whoever compressed it
        if self.fmt.GROWS:
            growing.seal(self.path, self.fmt, segment_id, end, count, synced=synced)
        else:
            segment.seal(self.path, self.fmt, segment_id, count, end, self.interval)

    def is_packed(self, segment_id: int) -> bool:
        """Whether a segment is there compressed, and only so."""
        paths = self.paths(segment_id)
        return paths.packed is not None and paths.packed.exists() and not paths.data.exists()

    def delete(self, segment_id: int) -> None:
        for path in self.paths(segment_id).all():
            files.remove(path)

    def remove_temporaries(self) -> None:
        """Remove what a process that died was making, or had ready. Nobody else may be here."""
        for top in {self.path, self.own}:
            for name in list(files.walk(top)):
                # The settings are written before anybody has a lock, so another process may be at it just now.
                if (name.endswith(".tmp") and self._is_ours(name)) or (top == self.path and self._stands_ready(name)):
                    files.remove(top / name)

    def remove_prepared(self) -> None:
        for name in list(files.walk(self.path)):
            if self._stands_ready(name):
                files.remove(self.path / name)

    def _stands_ready(self, name: str) -> bool:
        return name.endswith(".next") and not name.startswith("cursors/") and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        """Whether a temporary file is the log's: what else lies in its directory is none of our business."""
        if name.startswith(("manifest.", "losses.", "cursors/", "unpacked.")):
            return True
        name = TEMPORARY.sub("", name)
        beside = name.rpartition(".")[0]  # of an index or companion, by either way of naming them
        return any(self.fmt.parse(data) is not None for data in (name, beside, beside + ".data"))
