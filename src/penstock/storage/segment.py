"""One segment on disk: its data file, with its index and companion beside it.

`SegmentPaths` names them, `WriteSegment` is the one being appended to, `ReadSegment` one being read. None is thread-safe:
`Log` holds the lock. Bytes on disk: docs/formats.md.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import DiskFull, NotALog
from penstock.kernel import Buffer, FrameSpec, Scan, encode_many, release, scan
from penstock.options import MAX_FILE_SIZE_BYTES, MAX_SEQUENCE
from penstock.storage import companion, files, index, notes, packing
from penstock.storage.companion import Times
from penstock.storage.damage import Place
from penstock.storage.index import Index

_PAGE: Final = 4096
_LEAST_AHEAD: Final = 256 << 10
_MOST_AHEAD: Final = 4 << 20
_PREPARED_RECORDS: Final = 4096
_PUT_RECORDS: Final = 1024
_COPY_BYTES: Final = 1 << 20
_SCAN_BYTES: Final = 32 << 20
_CUT_BYTES: Final = 16 << 20


class Header(Protocol):
    """What a format reads from the start of a data file."""

    @property
    def spec(self) -> FrameSpec: ...
    @property
    def start(self) -> int: ...
    @property
    def base(self) -> int | None: ...  # None where only the companion says it
    @property
    def begin(self) -> int: ...  # bytes of frames in all segments before
    @property
    def created_us(self) -> int | None: ...
    @property
    def foreign(self) -> bool: ...  # another implementation's, in a layout that is only read


class Format(Protocol):
    """The bytes of one format, as the modules in `penstock.formats` say them."""

    NAME: str
    VERSION: int
    HEADER_BYTES: int
    SPEC: FrameSpec
    SAYS_BEGIN: bool  # headers say how many bytes of frames lie before
    CUT_WHEN_SEALED: bool  # to its frames; else it keeps its length, and the rest becomes a hole
    SPILLS: bool  # the record that passes the size to roll at is still written, and the segment left after it
    GROWS: bool  # never preallocated: a file's length says what it holds, since frames have no checksum
    INDEXED: bool  # has an index beside each segment
    CURSORS_ARE_SEQUENCES: bool
    LAST_ID: int  # of a segment whose number its file's name, and its header, can say

    def name(self, segment: int) -> str: ...
    def beside(self, name: str, suffix: str) -> str: ...
    def parse(self, path: str) -> int | None: ...
    def compressed_name(self, segment: int) -> str | None: ...
    def parse_compressed(self, path: str) -> int | None: ...
    def first_id(self, now_us: int) -> int: ...
    def next_id(self, last: int, now_us: int) -> int: ...
    def pack_header(self, segment: int, base: int, begin: int, created_us: int) -> bytes: ...
    def read_header(self, data: bytes | memoryview, path: str) -> Header: ...


def is_place(fmt: Format, segment: int, end: int, sequence: int) -> bool:
    """Whether a log may end at byte `end` of a segment, with that record to come: a checksum proves no sense. One more segment must be
    able to follow."""
    least = fmt.HEADER_BYTES if fmt.SAYS_BEGIN else 0  # another implementation's queue has no header
    return segment < fmt.LAST_ID and least <= end <= MAX_FILE_SIZE_BYTES and sequence < MAX_SEQUENCE


def has_room(spec: FrameSpec, count: int, size: int) -> bool:
    """Whether so many bytes can be, or have been, so many records: for each there is room made elsewhere. A file may have been cut short of
    a few million, or be said to begin too early."""
    return count <= max(size, _CUT_BYTES) // spec.overhead


def next_id(top: Path, fmt: Format, last: int, now_us: int) -> int:
    """The number of the segment after `last`, which may be as high as the name of a file says."""
    segment = fmt.next_id(last, now_us)
    if fmt.parse(fmt.name(segment)) != segment:
        raise NotALog(
            f"{top / fmt.name(last)}: no higher number can follow, and no log gets there; if the file is not of this log, "
            "move it away"
        )
    return segment


class SegmentPaths:
    """Where the files of a segment lie."""

    def __init__(self, top: Path, fmt: Format, segment: int) -> None:
        self.name = fmt.name(segment)  # the data file's, within the log's directory
        self.indexed = fmt.INDEXED
        self._top, self._fmt, self._segment = top, fmt, segment

    @cached_property
    def data(self) -> Path:
        return self._top / self.name

    @cached_property
    def times(self) -> Path:
        return self._top / self._fmt.beside(self.name, ".time")

    @cached_property
    def index(self) -> Path:
        return self._top / self._fmt.beside(self.name, ".index")

    @cached_property
    def packed(self) -> Path | None:
        name = self._fmt.compressed_name(self._segment)
        return self._top / name if name else None

    def sync_names(self) -> None:
        """Put the names of its files on the disk, and those of the directories that they are in, up to the log's: whoever made one of
        these may have died before he did, or have failed."""
        for place in islice(self.data.parents, self.name.count("/") + 1):
            files.sync_directory(place)

    def made(self) -> tuple[Path, ...]:
        """The files that a segment begins with."""
        return (self.data, self.index, self.times) if self.indexed else (self.data, self.times)

    def all(self) -> list[Path]:
        """All of them; what holds records first, since a companion without any is no segment."""
        return [*([self.packed] if self.packed else []), *self.made()]


def map_data(paths: SegmentPaths) -> mmap.mmap | bytes:
    """A segment's data, inflated if it is compressed: that is tried first, since the plain file goes after it is there."""
    while True:
        if paths.packed is not None:
            with contextlib.suppress(FileNotFoundError):
                return packing.unpack(paths.packed)
        try:
            with files.opened(paths.data) as fd:
                return files.map_read(fd, files.size(fd))
        except FileNotFoundError:
            if paths.packed is None or not paths.packed.exists():
                raise  # else it was compressed between the two looks
        except ValueError:
            continue  # sealed, and so cut, since its size was asked


def next_name(path: Path) -> Path:
    """A file's name until it is adopted."""
    return path.with_name(path.name + ".next")


def _whole_pages(length: int) -> int:
    """Where blocks are smaller than pages, a store to a page that is only partly allocated takes more disk, or kills."""
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


def max_records(fmt: Format, file_size: int) -> int:
    """More records than this do not fit a file."""
    return (file_size - fmt.HEADER_BYTES) // (fmt.SPEC.overhead + fmt.SPEC.zero_ends)


def prepare(top: Path, fmt: Format, segment: int, file_size: int, interval: int) -> list[tuple[Path, Path]]:
    """Make the files of a segment ahead of its use, under names of our own; what `place` takes.

    Needs no lock: any number of threads and processes may do this at once.
    """
    paths = SegmentPaths(top, fmt, segment)
    files.refuse_links(paths.data.parent, top)
    files.make_directories(paths.data.parent, top)
    data_bytes, records = prepared(fmt, file_size, 0)
    made: list[tuple[Path, Path]] = []
    for path, head, blocks, length in (
        (paths.times, b"", companion.HEADER_BYTES + companion.ENTRY_BYTES * records, 0),
        (paths.index, index.pack_header(interval), index.bytes_for(records, interval), 0),
        (paths.data, b"", data_bytes, file_size),
    ):
        temporary = files.temporary(path)
        made.append((temporary, next_name(path)))
        fd = files.create(temporary, exclusive=False)
        try:
            files.truncate(fd, length)
            files.allocate(fd, 0, _whole_pages(blocks))
            files.write(fd, head, 0)
        except BaseException:
            discard(made)  # on a full disk, what was had of it is given back
            raise
        finally:
            files.close(fd)
    return made


def place(made: list[tuple[Path, Path]]) -> None:
    """Let prepared files be adopted. Under the lock only: an adoption under way must not find its files replaced."""
    for temporary, path in made:
        files.rename(temporary, path)


def discard(made: list[tuple[Path, Path]]) -> None:
    for temporary, _ in made:
        files.remove(temporary)


def is_prepared(top: Path, fmt: Format, segment: int) -> bool:
    """All of the files: a process may have died when it had adopted some."""
    return all(next_name(path).exists() for path in SegmentPaths(top, fmt, segment).made())


def prepared(fmt: Format, file_size: int, base: int) -> tuple[int, int]:
    """(byte, sequence) up to which the files of a prepared segment have real blocks."""
    return min(file_size, fmt.HEADER_BYTES + _LEAST_AHEAD), base + min(_PREPARED_RECORDS, max_records(fmt, file_size))


def adopt(top: Path, fmt: Format, segment: int, base: int, begin: int) -> None:
    """Give prepared files their headers and names. The companion comes first: a data file without one is a finding."""
    paths = SegmentPaths(top, fmt, segment)
    for path, head in (
        (paths.times, companion.pack_header(base)),
        (paths.index, b""),
        (paths.data, fmt.pack_header(segment, base, begin, files.now_us())),
    ):
        fd = files.open_write(next_name(path))
        try:
            files.write(fd, head, 0)
        finally:
            files.close(fd)
        files.rename(next_name(path), path)


class WriteSegment:
    """The segment being written: maps of its three files, and the blocks under them."""

    def __init__(self, top: Path, fmt: Format, segment: int, base: int, file_size: int, interval: int) -> None:
        self.id = segment
        self.base = base
        self.paths = SegmentPaths(top, fmt, segment)
        self.file_size = file_size
        self._interval = interval
        self.names_synced = False  # here: a sync then asks for the file alone
        self._fds: list[int] = []
        try:
            self.data, self.header = self._open_data(fmt)
            records = max_records(fmt, self.file_size)
            head = companion.pack_header(self.base)
            self.times = self._open_beside(
                self.paths.times, companion.HEADER_BYTES + companion.ENTRY_BYTES * records, head
            )
            self.index = self._open_beside(
                self.paths.index, index.bytes_for(records, interval), index.pack_header(interval)
            )
        except BaseException:
            self.close()
            raise

    def _open_data(self, fmt: Format) -> tuple[mmap.mmap, Header]:
        fd = files.open_write(self.paths.data)
        self._fds.append(fd)
        header = fmt.read_header(files.read(fd, 0, fmt.HEADER_BYTES), str(self.paths.data))
        if header.foreign or header.spec != fmt.SPEC:
            raise NotALog(f"{self.paths.data}: written by another implementation; open the log with read_only=True")
        self.file_size = max(self.file_size, files.size(fd))  # a channel may have been opened with larger ones before
        if files.size(fd) < self.file_size:
            files.truncate(fd, self.file_size)
        return files.map_write(fd, self.file_size), header

    def _open_beside(self, path: Path, length: int, head: bytes) -> mmap.mmap:
        """Open the index or companion at its full, sparse length; a wrong one starts afresh."""
        fd = files.create(path, exclusive=False)
        self._fds.append(fd)
        exact = len(head) if path == self.paths.times else 8  # an index counts its entries in its header
        if files.read(fd, 0, exact) != head[:exact]:
            files.truncate(fd, 0)
            files.write(fd, head, 0)
        if files.size(fd) < length:
            files.truncate(fd, length)
        return files.map_write(fd, length)

    @property
    def fd(self) -> int:
        return self._fds[0]

    @property
    def fds(self) -> tuple[int, int, int]:
        """Of the data, the companion and the index."""
        data, times, index_ = self._fds
        return data, times, index_

    def grow(self, end: int, next_: int, have: tuple[int, int], need_bytes: int, records: int) -> tuple[int, int]:
        """Allocate for `need_bytes` and `records` beyond (end, next_), and some ahead; how far they reach then.

        `have` is how far they reach now: (byte, sequence).

        Raises DiskFull when even the need cannot be had; nothing that is in the log is touched.
        """
        ahead = min(max(end, _LEAST_AHEAD), _MOST_AHEAD)
        for extra, extra_records in ((ahead, max(4096, ahead // 64)), (0, 0)):
            upto = min(self.file_size, -(-(end + need_bytes + extra) // _PAGE) * _PAGE)
            place = next_ - self.base + records + extra_records
            try:
                self._allocate(have[0], upto, have[1] - self.base, place)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not extra:
                    raise DiskFull(self.paths.data, upto - end) from error
            else:
                return max(upto, have[0]), max(self.base + place, have[1])
        raise AssertionError("unreachable")

    def reserve(self, end: int, next_: int, have: tuple[int, int], need_bytes: int, records: int) -> tuple[int, int]:
        """The same for bytes that are all written at once, through the file and not the map: they need no zeros before."""
        if files.PORTABLE:
            return self.grow(end, next_, have, need_bytes, records)
        upto, place = max(have[0], end + need_bytes), max(have[1], next_ + records)
        try:
            files.reserve(self.fd, have[0], upto - have[0])
            self._allocate(upto, upto, have[1] - self.base, place - self.base)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self.paths.data, need_bytes) from error
            raise
        return upto, place

    def _allocate(self, start: int, end: int, first: int, last: int) -> None:
        times_at = companion.HEADER_BYTES + companion.ENTRY_BYTES * first
        times_end = min(len(self.times), companion.HEADER_BYTES + companion.ENTRY_BYTES * last)
        index_at = index.bytes_for(first, self._interval)
        index_end = min(len(self.index), index.bytes_for(last, self._interval))
        for fd, room, at, upto in zip(
            self._fds,
            (self.data, self.times, self.index),
            (start, times_at, index_at),
            (end, times_end, index_end),
            strict=True,
        ):
            if upto > at:
                files.allocate(fd, at, min(_whole_pages(upto), len(room)) - at)

    def put(self, payloads: Sequence[Buffer], us: int, spec: FrameSpec, *, goes_on: bool) -> int:
        """Write a part of a batch as all the records of this segment, the first one's head last; where it ends."""
        start = at = self.header.start
        head, positions = b"", []
        for i in range(0, len(payloads), _PUT_RECORDS):
            part = payloads[i : i + _PUT_RECORDS]
            frames = encode_many(spec, part)
            skip = 0 if i else 4
            head = head or frames[:4]
            self.data[at + skip : at + len(frames)] = frames[skip:]
            for payload in part:
                positions.append(at)
                at += memoryview(payload).nbytes + spec.overhead
        self._note(range(self.base, self.base + len(payloads)), positions)
        entries = array("q", [-us]) * len(payloads)
        if not goes_on:
            entries[-1] = us
        self.times[companion.HEADER_BYTES : companion.HEADER_BYTES + len(entries) * companion.ENTRY_BYTES] = (
            entries.tobytes()
        )
        self.data[start : start + 4] = head
        return at

    def fill(self, source: ReadSegment, start: int, end: int, base: int, next_: int) -> None:
        """Copy records base to next_ - 1, which are the bytes start to end of another segment, and make them durable."""
        self.grow(self.header.start, base, (self.header.start, base), end - start, next_ - base)
        at = self.header.start
        for low in range(start, end, _COPY_BYTES):
            part = source.data[low : min(low + _COPY_BYTES, end)]
            self.data[at : at + len(part)] = part
            release(source.data, low, low + len(part))
            release(self.data, at, at + len(part))
            at += len(part)
        points = scan(source.spec, self.data, self.header.start, at, every=self._interval)
        self._note(range(base, next_, self._interval), points.points)
        entries = array("q", (source.times.entry(i - source.base) for i in range(base, next_)))
        self.times[companion.HEADER_BYTES : companion.HEADER_BYTES + len(entries) * companion.ENTRY_BYTES] = (
            entries.tobytes()
        )
        files.sync(self._fds[1])
        self.sync()

    def _note(self, sequences: Sequence[int], positions: Sequence[int]) -> None:
        """Write the index of a segment that is filled in one go."""
        points = zip(sequences, positions, strict=False)
        packed = index.pack(self._interval, self.base, sequences[-1] + 1 - self.base, points)
        self.index[: len(packed)] = packed

    def time_of(self, sequence: int) -> int:
        """When a record was appended, as its companion says."""
        return Times(self.times).us(sequence - self.base)

    def zero(self, start: int, end: int, first: int, next_: int) -> None:
        """Wipe what lies beyond the end of the log, and make that durable: it must never come back to life."""
        self.data[start:end] = bytes(end - start)
        at, upto = (companion.HEADER_BYTES + companion.ENTRY_BYTES * (s - self.base) for s in (first, next_))
        self.times[at:upto] = bytes(upto - at)
        files.sync(self._fds[1])
        files.sync(self.fd)

    def sync(self) -> None:
        """The records are on the disk, and so is the file's name."""
        files.sync(self.fd)
        if not self.names_synced:
            self.paths.sync_names()
            self.names_synced = True

    def __del__(self) -> None:
        self.close()  # a background thread may still be at work here when the log has gone on

    def close(self) -> None:
        while self._fds:  # never twice, whatever interrupts this: the number may be another file's by then
            files.close(self._fds.pop())


def seal(top: Path, fmt: Format, segment: int, count: int, end: int, interval: int) -> None:
    """Give back what a finished (or closed) segment did not use, and sync all its files."""
    paths = SegmentPaths(top, fmt, segment)
    lengths = (
        (paths.times, companion.length(fmt.SPEC, count)),
        (paths.index, index.bytes_for(count, interval)),
    )
    for path, length in lengths:
        try:
            fd = files.open_write(path)
        except FileNotFoundError:
            continue  # lost: the records do without
        try:
            files.truncate(fd, length)
            files.sync(fd)
        finally:
            files.close(fd)
    fd = files.open_write(paths.data)
    try:
        if fmt.CUT_WHEN_SEALED:
            files.truncate(fd, min(end, files.size(fd)))  # never longer: zeros may be read as records
        else:
            files.punch(fd, end, files.size(fd) - end)
        notes.forget_all(fd, fmt.HEADER_BYTES)
        files.sync(fd)
    finally:
        files.close(fd)
    paths.sync_names()


def read_companion(paths: SegmentPaths, spec: FrameSpec, base: int) -> mmap.mmap | bytes:
    """A segment's companion, mapped; nothing if it is missing, or another segment's."""
    data = _beside(paths.times)
    return data if companion.is_valid(data, base, companion.entry_bytes(spec)) else b""


def _beside(path: Path) -> mmap.mmap | bytes:
    while True:
        try:
            with files.opened(path) as fd:
                return files.map_read(fd, files.size(fd))
        except FileNotFoundError:
            return b""
        except ValueError:
            continue  # sealed since its size was asked, so it is shorter now


class ReadSegment:
    """A segment being read: its data mapped, its index and companion where they are there.

    What is in a `listed` one is known from elsewhere: if its file is missing it reads as cut short, and a broken header costs
    no records; `header_error` says so.
    """

    def __init__(self, top: Path, fmt: Format, segment: int, base: int, *, listed: bool = False) -> None:
        self.id = segment
        self.base = base
        self.paths = SegmentPaths(top, fmt, segment)
        self.header_error = ""
        self.data: mmap.mmap | bytes = b""
        try:
            self.data = map_data(self.paths)
            self.header = fmt.read_header(memoryview(self.data), str(self.paths.data))
        except (FileNotFoundError, NotALog) as error:
            if not listed:
                raise
            self.header = fmt.read_header(fmt.pack_header(segment, base, 0, 0), str(self.paths.data))
            self.header_error = str(error)
        self.times_data = read_companion(self.paths, fmt.SPEC, base)
        self.times = Times(self.times_data, companion.entry_bytes(fmt.SPEC))
        self.index = Index(_beside(self.paths.index), base)
        if isinstance(self.data, mmap.mmap) and hasattr(mmap, "MADV_SEQUENTIAL"):
            self.data.madvise(mmap.MADV_SEQUENTIAL)

    @property
    def start(self) -> int:
        return self.header.start

    @property
    def spec(self) -> FrameSpec:
        return self.header.spec

    @property
    def tail_spec(self) -> FrameSpec:
        """How frames are told where nothing says how far they reach."""
        return replace(self.spec, zero_ends=True)

    def scan(
        self,
        start: int,
        end: int,
        limit: int = 1 << 62,
        verify: bool = True,
        every: int = 0,
        spec: FrameSpec | None = None,
        first: int | None = None,
    ) -> Scan:
        """`kernel.scan` that lets go of the pages behind it, so that a file of any size takes little memory. It ends where the file
        does, if that is sooner.

        With the sequence of the `first` record, frames without a checksum are verified by the companion.
        """
        end = min(end, len(self.data))
        spec, count, at, points = spec or self.spec, 0, min(start, end), list[int]()
        sums = self.times.raw if first is not None and not spec.sum_bytes else None
        place = first - self.base if first is not None else 0
        while True:
            off = count % every if every else 0
            want = min(limit - count, every - off) if off else limit - count
            near = min(end, at + _SCAN_BYTES)
            found = scan(spec, self.data, at, near, want, verify, 0 if off else every, sums, place + count)
            if not found.count and want and near < end:
                want, near = 1, end  # one record longer than that
                found = scan(spec, self.data, at, end, 1, verify, 0 if off else every, sums, place + count)
            if found.position - at > _COPY_BYTES:
                release(self.data, at, found.position)
            count, at = count + found.count, found.position
            points += found.points
            if count == limit or found.count == 0 or (found.count < want and near == end):
                return Scan(count, at, found.reason, points)

    def _entry(self, i: int, end: int) -> Place | None:
        """An index entry, if a record can begin there at all."""
        sequence, position = self.index.entry(i)
        if sequence == self.base + i * self.index.interval and self.start <= position < min(end, len(self.data)):
            return Place(position, sequence)
        return None

    def leads_to(self, end: Place) -> bool | None:
        """Whether the lengths of the records lead to a place with as many as there should be; None if they do not lead there."""
        if not self.start <= end.position <= len(self.data):
            return None
        found = self.scan(self.start, end.position, verify=False)
        return self.base + found.count == end.sequence if found.position == end.position else None

    def _leads(self, start: Place, to: Place) -> bool:
        """Whether the lengths of the records between two places agree with both."""
        if not start.position <= to.position <= len(self.data):
            return False
        found = self.scan(start.position, to.position, to.sequence - start.sequence, False)
        return (found.position, found.count) == (to.position, to.sequence - start.sequence)

    def place_before(self, sequence: int, end: int) -> Place:
        """The nearest known place at or before a record: an index entry that the one before it leads to."""
        self.index.refresh()
        first = Place(self.start, self.base)
        for i in range(self.index.number(sequence), 0, -1):
            before, place = self._entry(i - 1, end) if i > 1 else first, self._entry(i, end)
            if before is not None and place is not None and self._leads(before, place):
                return place
        return first

    def place_at(self, position: int, end: Place) -> Place:
        """The nearest known place at or before a byte: an index entry that the one before it leads to."""
        self.index.refresh()
        if position >= end.position:
            return end
        last = self.base + max(0, self.index.after(position) - 1) * self.index.interval
        return self.place_before(last, end.position)

    def anchor_after(self, position: int, end: Place) -> Place:
        """The nearest known place behind a byte: an index entry that leads to the next one, or that the one before it leads to and behind
        which a record can be read; or where the segment ends."""
        self.index.refresh()
        first = Place(self.start, self.base)
        for i in range(self.index.after(position), self.index.count):
            place = self._entry(i, end.position)
            if place is None or place.position <= position:
                continue
            before = self._entry(i - 1, end.position) if i > 1 else first
            after = self._entry(i + 1, end.position) if i + 1 < self.index.count else end
            if after is not None and self._leads(place, after):
                return place
            known = before is not None and before.position < place.position and self._leads(before, place)
            if known and self._is_readable(place, end):
                return place
        return end

    def _is_readable(self, place: Place, end: Place) -> bool:
        """Whether any record is whole, up to where a length is broken or the next index entry is. Zeros prove nothing."""
        found = self.scan(place.position, end.position, self.index.interval, False, every=1)
        return any(
            any(self.data[at : at + self.spec.overhead])
            and self.scan(at, end.position, 1, first=place.sequence + i).count
            for i, at in enumerate(found.points[: found.count])
        )
