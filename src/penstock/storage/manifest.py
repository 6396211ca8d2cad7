"""The manifest: what is known of every finished segment, as an append-only file of small checksummed edits.

A segment is listed as rolled when the log goes on to the next one, and as sealed once its files are synced. Only sealed
ones are believed after a reboot. An edit that is damaged is stepped over: what it said is unknown, and the segments tell. It can be
rebuilt from them; see docs/formats.md, "manifest".
"""

from __future__ import annotations

import contextlib
import struct
import threading
import zlib
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import FilesMissing, UnknownVersion
from penstock.options import MAX_SEQUENCE, MAX_TIME_US
from penstock.storage import files
from penstock.storage.segment import Format, is_place

_MAGIC: Final = b"PENSMANI"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQ36xI")
_EDIT: Final = struct.Struct("<IIQQQQqqQ")
_ROLLED, _SEALED, _RETIRED = 1, 2, 3
_MOST_BYTES: Final = 256 << 20  # that are looked at: of millions of segments
_LEAST_FRAME: Final = 4  # no record takes less of its file


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A finished segment: its records are `base` to `base + count - 1`, its frames end at byte `end`."""

    id: int
    base: int
    count: int
    end: int
    first_us: int
    last_us: int
    sealed: bool = False
    begin: int = 0  # bytes of frames in all segments before, where the format counts them

    @property
    def next(self) -> int:
        return self.base + self.count


def _pack(kind: int, info: SegmentInfo) -> bytes:
    raw = _EDIT.pack(0, kind, info.id, info.base, info.count, info.end, info.first_us, info.last_us, info.begin)
    return zlib.crc32(raw[4:]).to_bytes(4, "little") + raw[4:]


def _can_be(fmt: Format, kind: int, info: SegmentInfo) -> bool:
    """Whether a segment can be as an edit says: a checksum proves no sense."""
    return (
        kind in (_ROLLED, _SEALED, _RETIRED)
        and is_place(fmt, info.id, info.end, info.next)
        and info.begin < MAX_SEQUENCE
        and info.count * _LEAST_FRAME <= info.end
        and all(0 <= us < MAX_TIME_US for us in (info.first_us, info.last_us))
    )


class Manifest:
    """The list of finished segments, oldest first. Writers hold the log's lock; readers call `refresh`.

    Threads may share it: the background and readers refresh it while appends add to it.
    """

    def __init__(self, path: Path, fmt: Format, *, read_only: bool = False) -> None:
        self._path = path
        self._fmt = fmt
        self._fd = -1
        self._read_only = read_only
        self.segments: dict[int, SegmentInfo] = {}
        self.gone: SegmentInfo | None = None  # the last one that was removed: what is left begins where it ended
        self._read_to = 0
        self._edits = 0
        self._bad_edits = 0  # that were stepped over
        self._flaw_at: int | None = None  # the first byte of what is damaged, and not at the end
        self._named: tuple[int, int] | None = None  # the file whose name is known to be on the disk
        self._generation = -1
        self._closed = False
        self._lock = threading.RLock()

    @property
    def retired_next(self) -> int:
        """Sequences below this were removed by retention."""
        return self.gone.next if self.gone is not None else 0

    def is_gone(self, segment_id: int) -> bool:
        """Whether a segment was removed by retention, by its number alone: of a file that came back nothing else may be left."""
        return self.gone is not None and segment_id <= self.gone.id and segment_id not in self.segments

    @property
    def exists(self) -> bool:
        return self._path.exists()

    @property
    def is_open(self) -> bool:
        """Whether it was there, and anything of it could be read."""
        return self._fd >= 0

    def load(self, generation: int, *, believe_rolled: bool) -> bool:
        """Read it all; False when it is missing or damaged. Then what is whole of it is believed."""
        with self._lock:
            return self._load(generation, believe_rolled)

    def _load(self, generation: int, believe_rolled: bool) -> bool:
        fd = -1
        with contextlib.suppress(FileNotFoundError):  # if it cannot be opened for another reason, all stays as it was
            fd = files.open_read(self._path) if self._read_only else files.open_write(self._path)
        self._forget()
        self._generation = generation
        if fd < 0:
            return False
        self._fd = fd
        header = files.read(self._fd, 0, _HEADER.size)
        if len(header) < _HEADER.size or header[:8] != _MAGIC or zlib.crc32(header[:-4]) != _HEADER.unpack(header)[4]:
            self._flaw_at = 0  # each edit proves itself
        elif _HEADER.unpack(header)[1] != _VERSION:
            raise UnknownVersion(
                f"{self._path}: manifest version {_HEADER.unpack(header)[1]}, this Penstock knows {_VERSION}; upgrade"
            )
        self._read_to = _HEADER.size
        self._read_edits()
        if self._flaw_at == 0 and not self._edits:
            self._forget()
            return False
        if self._bad_edits:  # segments are sealed in order
            sealed = max((s.id for s in self.segments.values() if s.sealed), default=-1)
            self.segments = {k: replace(s, sealed=k <= sealed) for k, s in self.segments.items()}
        if not believe_rolled:
            self.segments = {k: s for k, s in self.segments.items() if s.sealed}
        # A torn last edit is what a crash leaves; it never held a promise, and is written over.
        return self._flaw_at is None and files.size(self._fd) - self._read_to <= _EDIT.size

    @property
    def believed_to(self) -> int:
        """The byte from which on something is damaged, or where it ends."""
        return self._read_to if self._flaw_at is None else self._flaw_at

    @property
    def unknown_edits(self) -> int:
        """How many there are that cannot be read, also at the end."""
        return self._bad_edits + -(-self.torn_bytes // _EDIT.size)

    def forget_removed(self, on_disk: Container[int]) -> None:
        """Of edits that cannot be read, some may have said that segments are gone. Those go from the oldest on: what is listed before one
        that is known to be gone is so too, and so are the first ones, if they have no file, as many as there are such edits."""
        with self._lock:
            for info in self.ordered()[: self.unknown_edits]:
                if info.next > self.retired_next and info.id in on_disk:
                    break
                self._apply(_RETIRED, info)

    def leads_to(self, segment_id: int, base: int) -> bool:
        """Whether what is listed goes on without a gap up to a segment that begins with this sequence."""
        before = [s for s in self.ordered() if s.id < segment_id]
        if not before:
            return base == self.retired_next
        return [s.next for s in before] == [*(s.base for s in before[1:]), base]

    @property
    def torn_bytes(self) -> int:
        """How much lies behind the last whole edit. While it is written a look may be too early."""
        with self._lock:
            return files.size(self._fd) - self._read_to if self._fd >= 0 else 0

    def refresh(self, generation: int) -> None:
        """Take in what other processes have added; nothing when it was closed."""
        with self._lock:
            if self._closed:
                return
            # A process that dies over `rewrite` may have replaced the file without saying so.
            if generation != self._generation or self._fd < 0 or not files.has_name(self._fd):
                self.load(generation, believe_rolled=True)
                if self._fd < 0:
                    raise FilesMissing(
                        f"{self._path}: it was removed, or written by somebody else, while the log is open; close the log in every "
                        "process, then open it again: it is made anew"
                    )
            else:
                self._read_edits()

    def snapshot(self, generation: int) -> dict[int, SegmentInfo]:
        """The segments as they are now, in a dictionary that no thread changes."""
        with self._lock:
            self.refresh(generation)
            return dict(self.segments)

    def _read_edits(self) -> None:
        """Take in the edits that there are, up to the last that is whole: one before it that is not is stepped over."""
        start = self._read_to
        size = files.size(self._fd)
        if size == start:
            return
        # What is a hole was never an edit; and of more than that nobody has so many.
        upto = min(files.end_of_data(self._fd, start, size), _MOST_BYTES)
        data = files.read(self._fd, start, max(0, upto - start))
        for at in range(0, len(data) - _EDIT.size + 1, _EDIT.size):
            raw = data[at : at + _EDIT.size]
            crc, kind, segment, base, count, end, first_us, last_us, begin = _EDIT.unpack(raw)
            info = SegmentInfo(segment, base, count, end, first_us, last_us, begin=begin)
            if crc != zlib.crc32(raw[4:]) or not _can_be(self._fmt, kind, info):
                continue
            if start + at > self._read_to:
                self._flaw_at = self._read_to if self._flaw_at is None else self._flaw_at
                self._bad_edits += (start + at - self._read_to) // _EDIT.size
            self._apply(kind, info)
            self._read_to = start + at + _EDIT.size
            self._edits += 1

    def _apply(self, kind: int, info: SegmentInfo) -> None:
        if kind == _RETIRED:
            self.segments.pop(info.id, None)
            if info.next > self.retired_next:
                self.gone = info
        else:
            self.segments[info.id] = replace(info, sealed=kind == _SEALED)

    def _add(self, kind: int, *infos: SegmentInfo) -> None:
        """Add edits, all or none: what a full disk took of them is cut again. Others may look meanwhile, and believe what they see; so
        there is room for all of several before the first is written. (One lies in one page, and is there or not.)"""
        raw = b"".join(_pack(kind, info) for info in infos)
        with self._lock:
            try:
                if len(infos) > 1:
                    files.reserve_beyond(self._fd, self._read_to, len(raw))
                files.write(self._fd, raw, self._read_to)
            except OSError:
                files.truncate(self._fd, self._read_to)
                raise
            self._read_to += len(raw)
            self._edits += len(infos)
            for info in infos:
                self._apply(kind, info)

    def rolled(self, *infos: SegmentInfo) -> None:
        self._add(_ROLLED, *infos)

    def sealed(self, info: SegmentInfo) -> None:
        self._add(_SEALED, info)

    def retired(self, info: SegmentInfo) -> None:
        self._add(_RETIRED, info)

    def sync(self) -> None:
        """What was added is on the disk when this returns. Needs no lock: one who writes it anew syncs it himself, and its name, unless he
        dies over that: so whoever finds another file in place of the one he knew syncs the name, too."""
        with self._lock:
            fd = files.duplicate(self._fd)
        try:
            files.sync(fd)
            if self._named != (file := files.identity(fd)):
                files.sync_directory(self._path.parent)
                self._named = file
        finally:
            files.close(fd)

    @property
    def is_long(self) -> bool:
        """Mostly edits that later ones have made void."""
        with self._lock:
            return self._edits > 64 + 4 * len(self.segments)

    def rewrite(self, generation: int) -> None:
        """Write it anew with what holds now, and put that in place of the old one. Other threads may read it anew meanwhile, when nothing of
        it is known for a moment; but they need not wait for the disk."""
        with self._lock:
            data = self._packed(generation)
        files.replace(self._path, data)
        files.sync_directory(self._path.parent)
        with self._lock:
            self._load(generation, believe_rolled=True)
            self._named = files.identity(self._fd)

    def _packed(self, generation: int) -> bytes:
        """What holds, as a file."""
        head = _HEADER.pack(_MAGIC, _VERSION, 0, generation, 0)[:-4]
        edits = [(_RETIRED, self.gone)] if self.gone is not None else []
        edits += [(_SEALED if s.sealed else _ROLLED, s) for s in self.segments.values()]
        return b"".join([head, zlib.crc32(head).to_bytes(4, "little"), *(_pack(kind, s) for kind, s in edits)])

    def ordered(self) -> list[SegmentInfo]:
        return [self.segments[k] for k in sorted(self.segments)]

    def _forget(self) -> None:
        self._let_go()
        self.segments = {}
        self.gone = None
        self._read_to = self._edits = self._bad_edits = 0
        self._flaw_at = None
        self._named = None

    def close(self) -> None:
        """When no thread is at work with the file: its number may soon be another's."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            files.close(fd)

    def forked(self) -> None:
        """In the child: a thread that held the lock is not there any more."""
        self._lock = threading.RLock()

    def __del__(self) -> None:
        self._let_go()  # nobody has it any more
