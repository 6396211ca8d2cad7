"""A segment whose length says what it holds: nothing is allocated ahead, though its files, empty, may be made before.

For frames without a checksum. `buffered` writes to it, `opening` and `span` cut it. Callers hold the log's lock.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock import kernel
from penstock.errors import NotALog
from penstock.storage import companion, files, index
from penstock.storage.segment import Format, ReadSegment, SegmentPaths, is_prepared, next_name

_COPY_BYTES: Final = 1 << 20


def make(top: Path, fmt: Format, segment: int, base: int, interval: int, first: bytes) -> None:
    """Make a segment's files, the companion first, and put `first`, if it is not empty, there as its first record's frame.

    Files of that name are from a roll that was cut short, and begin anew. Prepared ones are taken, since making a file that
    must wait for the file system's journal costs more than a sync. The caller syncs the names.
    """
    paths = SegmentPaths(top, fmt, segment)
    ready = is_prepared(top, fmt, segment)
    head = companion.pack_header(base, companion.entry_bytes(fmt.SPEC))
    if first:
        head += files.now_us().to_bytes(8, "little") + kernel.crc64(first).to_bytes(8, "little")
    _write_new(paths.times, head, ready)
    if fmt.INDEXED:
        _write_new(paths.index, index.pack(interval, base, 1 if first else 0, [(base, fmt.HEADER_BYTES)]), ready)
    _write_new(paths.data, fmt.pack_header(segment, base, 0, files.now_us()) + first, ready)


def _write_new(path: Path, content: bytes, ready: bool) -> None:
    if files.exists(path) and not files.is_regular(path):
        raise NotALog(f"{path}: the next file's name, and no regular file; move it away and append again")
    fd = files.open_write(next_name(path)) if ready else files.create(path, exclusive=False)
    try:
        files.truncate(fd, 0)
        files.write(fd, content, 0)
    finally:
        files.close(fd)
    if ready:
        files.rename(next_name(path), path)


def prepare(top: Path, fmt: Format, segment: int) -> list[tuple[Path, Path]]:
    """Make the files of a segment ahead of its use, empty, under names of our own; what `segment.place` takes."""
    made: list[tuple[Path, Path]] = []
    for path in SegmentPaths(top, fmt, segment).made():
        made.append((files.temporary(path), next_name(path)))
        files.close(files.create(made[-1][0], exclusive=False))
    return made


class GrowingSegment:
    """The files of the segment being written. What is missing beside the data is made: the records do without."""

    def __init__(self, top: Path, fmt: Format, segment: int, base: int, interval: int) -> None:
        self.id = segment
        self.base = base
        self.paths = SegmentPaths(top, fmt, segment)
        self._fds: list[int] = []
        try:
            self._fds.append(files.open_write(self.paths.data))
            head = companion.pack_header(base, companion.entry_bytes(fmt.SPEC))
            self._fds.append(_open_beside(self.paths.times, head, len(head)))
            self.index_fd = -1
            if fmt.INDEXED:
                self.index_fd = _open_beside(self.paths.index, index.pack_header(interval), 8)
                self._fds.append(self.index_fd)
        except BaseException:
            self.close()
            raise

    @property
    def data_fd(self) -> int:
        return self._fds[0]

    @property
    def times_fd(self) -> int:
        return self._fds[1]

    def close(self) -> None:
        while self._fds:  # never twice, whatever interrupts this: the number may be another file's by then
            files.close(self._fds.pop())


def _open_beside(path: Path, head: bytes, exact: int) -> int:
    fd = files.create(path, exclusive=False)
    try:
        if files.read(fd, 0, exact) != head[:exact]:
            files.truncate(fd, 0)
            files.write(fd, head, 0)
    except BaseException:
        files.close(fd)
        raise
    return fd


def cut(top: Path, fmt: Format, segment: int, end: int, count: int) -> None:
    """Take away what lies beyond the end of a segment's records, and make that durable. The companion's entries go when the records are
    gone: until then only they tell a part of a batch, which a power cut may leave, from the whole."""
    paths = SegmentPaths(top, fmt, segment)
    _end_at(paths.data, end)
    _end_at(paths.times, companion.length(fmt.SPEC, count), may_be_lost=True)


def sync(top: Path, fmt: Format, segment: int) -> None:
    """Put a segment's records on the disk. The companion first: of a record that is zeros only its entry tells that it is one."""
    paths = SegmentPaths(top, fmt, segment)
    with suppress(FileNotFoundError), files.opened(paths.times) as fd:  # the records do without
        files.sync(fd)
    with files.opened(paths.data) as fd:
        files.sync(fd)


def seal(top: Path, fmt: Format, segment: int, end: int, count: int, *, synced: bool) -> None:
    """The same for a segment that is finished: all of it is durable, but for the index, which is a cache. Names are since
    it was made, and the data, if it is `synced`."""
    paths = SegmentPaths(top, fmt, segment)
    _end_at(paths.times, companion.length(fmt.SPEC, count), sync=True, may_be_lost=True)
    _end_at(paths.data, end, sync=not synced)


def _end_at(path: Path, length: int, *, sync: bool = False, may_be_lost: bool = False) -> None:
    try:
        fd = files.open_write(path)
    except FileNotFoundError:
        if may_be_lost:  # the records do without
            return
        raise
    try:
        longer = files.size(fd) > length
        if longer:
            files.truncate(fd, length)
        if longer or sync:
            files.sync(fd)
    finally:
        files.close(fd)


def fill(
    top: Path, fmt: Format, segment: int, source: ReadSegment, start: int, end: int, first: int, count: int
) -> None:
    """Write a new segment's records: `count` from the `first`-th of another, which are its bytes start to end. Durable."""
    paths = SegmentPaths(top, fmt, segment)
    with files.opened(paths.data, write=True) as fd:
        for at in range(start, end, _COPY_BYTES):
            files.write(fd, source.data[at : min(at + _COPY_BYTES, end)], fmt.HEADER_BYTES + at - start)
        files.sync(fd)
    entry = companion.entry_bytes(fmt.SPEC)
    with files.opened(paths.times, write=True) as fd:
        files.write(fd, source.times.raw[first * entry : (first + count) * entry], companion.HEADER_BYTES)
        files.sync(fd)
