"""The control page `.lock`: the memory shared by every process that has the log open, and who may initialise it.

It is valid only if the boot id, device and inode stored in it are those of now and here; so neither a reboot nor a copied
directory can leave a lock that nobody holds. Openers keep a shared flock on it; to initialise it takes an exclusive one,
which also shows that nobody else has the log open. Layout: docs/formats.md, "control page".
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from penstock import kernel
from penstock.errors import FilesMissing, LogBusy, LogClosed, NotALog, UnknownVersion
from penstock.kernel import layout
from penstock.storage import files
from penstock.storage.segment import Format, has_room, is_place

_MAGIC: Final = b"PENSCTRL"
_AGAIN_S: Final = 0.003
_VERSION: Final = 1
_IDENTITY: Final = struct.Struct("<8sII16sQQ")
_MUTEX, _FILE_LOCK = 1, 2
_KINDS: Final = {
    _MUTEX: "the native kernel's mutex",
    _FILE_LOCK: "a file lock (reference kernel or PENSTOCK_PORTABLE)",
}

_MARK: Final = struct.Struct("<QQQI")
_NAMESPACE_AT: Final = 208
_DURABLE_AT, _CLEAN_AT, _SPAN_AT, _SYNCS_AT, _FAILED_AT = 512, 576, 640, 704, 768


class Mark(NamedTuple):
    """A place in the log: the byte in a segment, and the sequence of the record that begins there."""

    segment: int
    end: int
    next: int


class Active(NamedTuple):
    """The segment being written, as published."""

    turn: int
    segment: int
    base: int
    end: int
    next: int


@dataclass(frozen=True, slots=True)
class Dirty:
    """What an append under way, or cut short, has announced."""

    end: int
    next: int


class FileLock:
    """Stands in for the robust mutex: a flock, which the system lets go when its owner dies, and a lock for our threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = files.open_to_lock(path)
        self._threads = threading.RLock()  # never taken twice; but it knows its owner
        self._gone = "this log object was closed; open the log again"

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        try:
            self._threads.acquire()
            if self._fd < 0:
                raise LogClosed(f"{self._path.parent}: {self._gone}")
            files.lock(self._fd, shared=False)
        except BaseException:  # also a signal's, with the lock just taken
            self.release()
            raise

    def release(self) -> None:
        """Let go of it; nothing if this thread does not hold it."""
        if self._threads._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks it
            try:
                if self._fd >= 0:
                    files.unlock(self._fd)
            finally:
                self._threads.release()

    def close(self) -> None:
        with self._threads:  # whoever waits for its turn here must not lock some other file of the same number
            fd, self._fd = self._fd, -1
            if fd >= 0:
                files.close(fd)

    def forked(self) -> None:
        """In the child: a thread that held it is not there any more."""
        self._threads = threading.RLock()
        self._gone = "this log was opened before a fork; open it again in the child process"


class _Nobodys:
    """The lock of a page that was let go of."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def acquire(self) -> None:
        raise LogClosed(f"{self._top}: this log object was closed; open the log again")

    def release(self) -> None:
        """Nobody has it."""


class Control:
    """One process's hold on the control page."""

    fd = -1  # of the class: __del__ looks at it also when there was no file to open
    _file_lock: FileLock | None = None

    def __init__(self, path: Path, fmt: Format, *, read_only: bool = False) -> None:
        self.path = path
        self._fmt = fmt
        self.read_only = read_only
        self.fd = files.open_to_lock(path, make=not read_only)
        try:
            size = files.size(self.fd)
            if size < layout.PAGE_BYTES and read_only:
                raise NotALog(f"{path}: shorter than a control page; open the log for writing to mend it")
            if 0 < size < layout.PAGE_BYTES:
                files.allocate(self.fd, 0, layout.PAGE_BYTES)  # it was cut short: nothing of it is believed
            elif size == 0:
                files.lengthen(self.fd, layout.PAGE_BYTES)  # never longer than its blocks: to touch a hole may kill
            # Mapped through a file of its own: a map keeps its file open, and with it a lock would outlive `close`.
            fd = files.open_read(path) if read_only else files.open_write(path)
            try:
                make = files.map_read if read_only else files.map_write
                self._map: mmap.mmap | bytearray | bytes = make(fd, layout.PAGE_BYTES)
            finally:
                files.close(fd)
            portable = files.PORTABLE or not kernel.ROBUST
            if portable and not read_only:
                self._file_lock = FileLock(path.with_name(".append"))
            self._kind = _FILE_LOCK if portable else _MUTEX
            self.page = kernel.ControlPage(self._map, self._file_lock, not read_only)
        except BaseException:
            self.close()
            raise

    # ---- who else is there ----

    def try_exclusive(self) -> bool:
        """True when no other process has the log open; then none can open it until `share`."""
        return files.lock(self.fd, shared=False, wait=False)

    def alone(self) -> bool:
        """Whether no other process has the log open; then none can open it until `share`, and it is for this one to recover. Else it is
        shared, and the page says what is so."""
        while not self.try_exclusive():
            self.share()  # waits while another process recovers
            if self.same_boot:
                return False
            # Whoever recovered died over that. Others have noticed, too: if each kept his share, none would ever be alone.
            files.unlock(self.fd)
            time.sleep(_AGAIN_S)
        return True

    def share(self) -> None:
        files.lock(self.fd, shared=True)

    def forked(self) -> None:
        if self._file_lock is not None:
            self._file_lock.forked()

    def remains(self) -> Control:
        """After `close`: what it said, without the file, for whoever asks now. Whoever is at work in the page itself keeps that, and its
        map goes with the last of them: nothing is ever unmapped under a thread."""
        left = object.__new__(Control)
        left.__dict__.update(self.__dict__)
        left._file_lock, left._map = None, bytearray(self._map)
        left.page = kernel.ControlPage(left._map, _Nobodys(self.path.parent), not self.read_only)
        return left

    def close(self) -> None:
        """Let the lock go. Safe to call twice."""
        if self.fd >= 0:
            if self._file_lock is not None:
                self._file_lock.close()
            fd, self.fd = self.fd, -1
            files.close(fd)

    def __del__(self) -> None:
        self.close()  # of a log that was only read, and forgotten

    # ---- validity ----

    @property
    def same_boot(self) -> bool:
        """Whether the page speaks of now and here, so that what it says is exact."""
        magic, version, _, boot, device, inode = _IDENTITY.unpack_from(self._map)
        if magic == _MAGIC and version != _VERSION:
            raise UnknownVersion(
                f"{self.path}: control page version {version}, this Penstock knows {_VERSION}; upgrade"
            )
        return (
            magic == _MAGIC
            and self.page.load(layout.READY) == 1
            and boot == files.boot_id()
            and (device, inode) == files.identity(self.fd)
        )

    def check_kind(self) -> None:
        """Processes that lock in different ways must not write the same log at the same time. Nor those whose threads are numbered
        differently: a mutex knows its owner by that number, and the death of another thread that has the same would let it go."""
        kind = _IDENTITY.unpack_from(self._map)[2]
        if kind != self._kind and not self.read_only:
            raise LogBusy(
                f"{self.path}: the processes that have this log open take turns by {_KINDS.get(kind, 'another means')}, "
                f"this one would by {_KINDS[self._kind]}; use the same kernel everywhere, or close it there first"
            )
        theirs, ours = self.page.load(_NAMESPACE_AT), files.pid_namespace()
        if kind == _MUTEX and theirs != ours and theirs and ours and not self.read_only:
            raise LogBusy(
                f"{self.path}: the processes that have this log open are in another PID namespace, as those of another container "
                "are; let the containers share one, set PENSTOCK_PORTABLE=1 in all of them, or close it there first"
            )

    def check_here(self) -> None:
        """Before anything is done by name: the directory may have been moved away, or replaced, and it would be done to another log."""
        try:
            here = files.identity(self.path) == files.identity(self.fd)
        except (FileNotFoundError, NotADirectoryError):
            here = False
        if not here:
            raise FilesMissing(
                f"{self.path.parent}: moved, replaced or removed while the log was open here, so nothing was changed; "
                "close it, and if it was moved, open it where it is now: what was appended is there"
            )

    def initialise(self, segment: int, base: int, end: int, next_: int, last_us: int, durable: Mark) -> None:
        """Make the page valid for this boot, with this segment active. Under the exclusive lock only."""
        page = self.page
        page.store(layout.READY, 0)
        self._put(_SPAN_AT, bytes(64))
        self._put(layout.WAITERS, bytes(8))
        self._put(_FAILED_AT, bytes(16))
        page.store(layout.POISON, 0)
        page.store(layout.TURN, 0)
        self._fill_slot(0, segment, base, end, next_, last_us, (end, next_))
        self.mark_durable(durable)
        self._store_mark(_CLEAN_AT, None)
        page.init_lock()
        page.store(_NAMESPACE_AT, files.pid_namespace())
        device, inode = files.identity(self.fd)
        self._put(0, _IDENTITY.pack(_MAGIC, _VERSION, self._kind, files.boot_id(), device, inode))
        page.store(layout.READY, 1)

    # ---- the active segment ----

    def active(self) -> Active:
        return Active(*self.page.active())

    @property
    def is_possible(self) -> bool:
        """Whether a log can end where the page says, for which there is no checksum."""
        durable, now = self.durable, self.active()  # in this order: it never goes ahead of that
        return (
            is_place(self._fmt, now.segment, now.end, now.next)
            and now.base <= now.next
            and (durable is None or durable.next <= now.next)
            and has_room(self._fmt.SPEC, now.next - now.base, now.end)
        )

    def _slot(self) -> int:
        return layout.SLOTS[self.page.load(layout.TURN) & 1]

    def _fill_slot(
        self, which: int, segment: int, base: int, end: int, next_: int, last_us: int, have: tuple[int, int]
    ) -> None:
        slot = layout.SLOTS[which]
        self.page.store(slot + layout.SEGMENT, segment)
        self.page.store(slot + layout.ALLOCATED, have[0])
        self.page.store(slot + layout.ENTRIES, have[1])
        self.page.store(slot + layout.NEXT, next_)
        self.page.store(slot + layout.DIRTY_NEXT, next_)
        self.page.store(slot + layout.LAST_US, last_us)
        self.page.store(layout.BASES[which], base)
        self.page.store(slot + layout.END, end)
        self.page.store(slot + layout.DIRTY_END, end)

    def roll(self, segment: int, base: int, end: int, next_: int, have: tuple[int, int]) -> None:
        """Make `segment` the active one: everything about it first, then one store. Under the lock only.

        `have` is how far its files have real blocks: (byte, sequence).
        """
        turn = self.page.load(layout.TURN)
        last_us = self.page.load(self._slot() + layout.LAST_US)
        self._fill_slot((turn + 1) & 1, segment, base, end, next_, last_us, have)
        self.page.store(layout.TURN, turn + 1)
        self.page.ring()

    @property
    def last_us(self) -> int:
        return self.page.load(self._slot() + layout.LAST_US)

    def set_last_us(self, us: int) -> None:
        self.page.store(self._slot() + layout.LAST_US, us)

    @property
    def dirty(self) -> Dirty | None:
        """The append that was cut short, if there is one. Under a lock only."""
        slot = self._slot()
        end, next_ = self.page.load(slot + layout.DIRTY_END), self.page.load(slot + layout.DIRTY_NEXT)
        if (end, next_) == (self.page.load(slot + layout.END), self.page.load(slot + layout.NEXT)):
            return None
        return Dirty(end, next_)

    def announce(self, end: int, next_: int) -> None:
        """Bytes up to `end` are about to be written. Under the lock only."""
        slot = self._slot()
        self.page.store(slot + layout.DIRTY_NEXT, next_)
        self.page.store(slot + layout.DIRTY_END, end)

    def settle(self, end: int, next_: int) -> None:
        """Publish where the segment ends after an append that was cut short. Under a lock only.

        What was announced goes from its end on: an end without records would be taken for an append that is whole and was not yet
        published when its process died.
        """
        slot = self._slot()
        self.page.store(slot + layout.NEXT, next_)
        self.page.store(slot + layout.END, end)
        self.page.store(slot + layout.DIRTY_END, end)
        self.page.store(slot + layout.DIRTY_NEXT, next_)

    @property
    def allocated(self) -> tuple[int, int]:
        """(bytes, sequences) that have real blocks in the active segment's files."""
        slot = self._slot()
        return self.page.load(slot + layout.ALLOCATED), self.page.load(slot + layout.ENTRIES)

    def set_allocated(self, size_bytes: int, entries: int) -> None:
        """Under the lock only: the slot must still be that segment's."""
        slot = self._slot()
        self.page.store(slot + layout.ALLOCATED, size_bytes)
        self.page.store(slot + layout.ENTRIES, entries)

    # ---- health and marks ----

    @property
    def poison(self) -> int:
        return self.page.load(layout.POISON)

    def set_poison(self, code: int) -> None:
        self.page.store(layout.POISON, code)
        self.page.ring()

    @property
    def failed_to_open(self) -> bool:
        """Whether a sync failed in this boot while the page was not valid, so that no poison could stand in it."""
        return bytes(self._map[_FAILED_AT : _FAILED_AT + 16]) == files.boot_id()

    def note_failed_to_open(self) -> None:
        self._put(_FAILED_AT, files.boot_id())

    @property
    def generation(self) -> int:
        return self.page.load(layout.GENERATION)

    def next_generation(self) -> None:
        self.page.store(layout.GENERATION, self.generation + 1)

    @property
    def durable(self) -> Mark | None:
        """Everything below this is on the disk."""
        return self._load_mark(_DURABLE_AT)

    @property
    def durable_next(self) -> int:
        """The durable mark's sequence, in one load."""
        return self.page.load(_DURABLE_AT + 16)

    def mark_durable(self, mark: Mark) -> None:
        self._store_mark(_DURABLE_AT, mark)

    @property
    def last_mark(self) -> Mark | None:
        """The later of the two marks: so far at least the log goes, with a checksum."""
        return max((m for m in (self.clean, self.durable) if m), key=lambda m: (m.segment, m.end), default=None)

    def count_sync(self) -> int:
        """The number of this sync. Under the lock only."""
        n = self.page.load(_SYNCS_AT)
        self.page.store(_SYNCS_AT, n + 1)
        return n

    @property
    def clean(self) -> Mark | None:
        """Where the log ended when the last process closed it; None while it is open or was not closed."""
        return self._load_mark(_CLEAN_AT)

    def mark_clean(self, mark: Mark) -> None:
        self._store_mark(_CLEAN_AT, mark)

    def forget_clean(self) -> None:
        """Before the first append: a page that still says clean after a power cut would hide what came since."""
        if self.clean is not None:
            self._store_mark(_CLEAN_AT, None)
            files.sync(self.fd)

    def flaw(self) -> tuple[int, str] | None:
        """The byte where the page is not what a page is, or contradicts itself, and how. While it is written a look may be too
        early: look again before it is believed."""
        if _IDENTITY.unpack_from(self._map)[0] != _MAGIC:
            return 0, "it does not begin as a control page does"
        for at, what in ((_DURABLE_AT, "the durable mark"), (_CLEAN_AT, "the mark of the last close")):
            if any(self._map[at : at + _MARK.size]) and self._load_mark(at) is None:
                return at, f"{what} fails its checksum, or cannot be"
        if not self.is_possible:
            return self._slot(), "it says that the log ends where none can"
        clean, now = self.clean, self.active()
        if clean is not None and clean != Mark(now.segment, now.end, now.next):
            return _CLEAN_AT, "it says twice where the log ended when it was closed, and not the same"
        return None

    # ---- a batch over several segments: where the log ends when it is committed ----

    @property
    def span(self) -> tuple[Mark, int] | None:
        """(the log's end once the batch is committed, base of that segment), while such a batch is under way."""
        mark = self._load_mark(_SPAN_AT) if self.page.load(_SPAN_AT) else None
        return (mark, self.page.load(_SPAN_AT + 32)) if mark else None

    def announce_span(self, end: Mark, base: int) -> None:
        self.page.store(_SPAN_AT + 32, base)
        self._store_mark(_SPAN_AT, end)

    def clear_span(self) -> None:
        self._store_mark(_SPAN_AT, None)

    def _load_mark(self, at: int) -> Mark | None:
        """In one look; and in another one if it fails its checksum, since it may just be stored. None stands for zeros, too, and for
        what no log comes to."""
        raw, before = bytes(self._map[at : at + _MARK.size]), b""
        while any(raw) and raw != before:
            segment, end, next_, stored = _MARK.unpack(raw)
            if stored == zlib.crc32(raw[:24]):
                return Mark(segment, end, next_) if is_place(self._fmt, segment, end, next_) else None
            time.sleep(_AGAIN_S)
            raw, before = bytes(self._map[at : at + _MARK.size]), raw
        return None

    def _store_mark(self, at: int, mark: Mark | None) -> None:
        body = _MARK.pack(*mark, 0)[:24] if mark else bytes(24)
        self._put(at, body + zlib.crc32(body).to_bytes(4, "little") if mark else bytes(28))

    def _put(self, at: int, data: bytes) -> None:
        assert not isinstance(self._map, bytes)
        self._map[at : at + len(data)] = data
