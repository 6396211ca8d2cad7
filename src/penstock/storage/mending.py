"""Putting right what is wrong in the files of one log, one function a kind. Called by `repair` while nobody has the log open.

Each first copies what it changes to `*.broken`, replaces files in one step, and can be done again after a crash at any moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from penstock.formats.topic import Partition
from penstock.options import INDEX_INTERVAL
from penstock.storage import beside, files, metadata, packing, settings
from penstock.storage.control import Control, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.damage import Place
from penstock.storage.directory import Directory
from penstock.storage.losses import Listed
from penstock.storage.manifest import Manifest
from penstock.storage.offsets import DURABLE, WRITTEN, Offsets, is_slot
from penstock.storage.opening import recover, survey
from penstock.storage.recovery import free_name
from penstock.storage.segment import Format, ReadSegment
from penstock.storage.shrink import clear_leftovers
from penstock.storage.walking import Hole

_PART: Final = 1 << 20
_SPACE: Final = 1 << 20  # for a new segment that a channel goes on with: whoever opens it makes that longer
_PARTITIONS: Final = re.compile(rb'"partitions": ([1-9][0-9]{0,5})\b')


class Mending:
    """The files of one log, and the copies made of what was changed."""

    def __init__(self, top: Path, fmt: Format, own: Path) -> None:
        self.top = top
        self.fmt = fmt
        self.own = own
        self.copies: list[str] = []
        self.torn: list[str] = []  # what was cut, and where a copy of it is

    def _keep(self, path: Path, end: int | None = None, name: Path | None = None) -> None:
        """Copy a file, or its beginning, aside, unless there is none."""
        if path.exists():
            aside = free_name(name or path, ".broken")
            files.copy_range(path, 0, path.stat().st_size if end is None else min(end, path.stat().st_size), aside)
            self.copies.append(str(aside))

    def _replace(self, path: Path, data: bytes) -> None:
        self._keep(path)
        files.replace(path, data)
        files.sync_directory(path.parent)

    def _put(self, path: Path, data: bytes | memoryview, length: int) -> None:
        """A new file, in one step, which may be long: zeros follow its data."""
        temporary = files.temporary(path)
        fd = files.create(temporary, exclusive=False)
        try:
            files.truncate(fd, 0)
            for at in range(0, len(data), _PART):
                files.write(fd, data[at : at + _PART], at)
            files.truncate(fd, length)
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(temporary, path)
        files.sync_directory(path.parent)

    def _set_aside(self, path: Path) -> None:
        """Have a file that another has taken the place of under the name of a copy."""
        aside = free_name(path, ".broken")
        files.rename(path, aside)
        files.sync_directory(path.parent)
        self.copies.append(str(aside))

    # ---- a segment's files ----

    def empty_file(self, seg: ReadSegment, begin: int) -> None:
        """Put a file without records in place of one that is missing: numbers stay without a gap. Where a zero head ends the
        data it is as long as the others."""
        head = self.fmt.pack_header(seg.id, seg.base, begin, seg.times.us(0))
        files.make_directories(seg.paths.data.parent, self.top)
        self._put(seg.paths.data, head, self._file_size() if self.fmt.SPEC.zero_ends else len(head))

    def header(self, seg: ReadSegment, begin: int, end: int) -> None:
        """Write the header that a segment should have over the one it has. Of the file only that is copied."""
        packed = seg.paths.packed
        if packed is not None and packed.exists():
            path, head = packed, packing.header_for(packed, seg.id, begin, end)
            if len(head) < self.fmt.HEADER_BYTES:  # nothing is left of it
                self.empty_file(seg, begin)
                self._set_aside(packed)
                return
        else:
            path, head = seg.paths.data, self.fmt.pack_header(seg.id, seg.base, begin, seg.times.us(0))
        self._keep(path, len(head))
        with files.opened(path, write=True) as fd:
            files.write(fd, head, 0)
            files.sync(fd)

    def inflate(self, seg: ReadSegment, end: int) -> None:
        """Put the plain file in place of a compressed one whose stream is damaged and whose records are not."""
        packed = seg.paths.packed
        assert packed is not None
        self._put(seg.paths.data, memoryview(seg.data)[:end], end)
        self._set_aside(packed)

    def companion(self, seg: ReadSegment, end: Place, entries: Sequence[Hole]) -> None:
        """Make a companion anew: what it says is kept if it can be."""
        made = beside.companion_for(seg, end, now_us=files.now_us(), strict=False)
        self._replace(seg.paths.times, beside.mended_sums(made, seg, list(entries)))

    def index(self, seg: ReadSegment, end: Place, listed: Sequence[Listed]) -> None:
        self._replace(seg.paths.index, beside.index_for(seg, end, self.interval(), listed))

    # ---- the small files ----

    def interval(self) -> int:
        return int(metadata.usable(metadata.load(self.top) or {}).get("index_interval", INDEX_INTERVAL))

    def settings(self) -> None:
        """What the files show, and of the rest what can still be read."""
        path = self.top / metadata.FILE
        shown = {
            name: value for fmt in self._parts() for name, value in settings.of_files(self.top, fmt).items() if value
        }
        made: dict[str, Any] = {"format": self.fmt.NAME, "version": self.fmt.VERSION}
        if self.fmt.NAME == "queue":
            made["file_size"] = shown["file_size"]
        if self.fmt.NAME == "topic":
            made["partitions"] = self._partitions(path)
        if self.fmt.INDEXED:
            made["index_interval"] = shown.get("index_interval", INDEX_INTERVAL)
        self._keep(path)
        metadata.change(self.top, made)

    def _partitions(self, path: Path) -> int:
        said = None
        if path.exists():
            with files.opened(path) as fd:
                said = _PARTITIONS.search(files.read(fd, 0, metadata.MOST_BYTES))
        places = [re.fullmatch(r"\.?partition_([0-9]+)(_segment_.*)?", p.name) for p in self.top.iterdir()]
        return max([int(said[1]) if said else 1, *(int(place[1]) + 1 for place in places if place)])

    def _parts(self) -> Sequence[Format]:
        """The formats of all logs that have these settings in common."""
        if not isinstance(self.fmt, Partition):
            return [self.fmt]
        return [Partition(number) for number in range(self._partitions(self.top / metadata.FILE))]

    def cursor(self, name: str, first: int, end: int) -> None:
        """A position that can be read is kept, if it lies in the log. Else its reader goes to the earliest record."""
        found = Cursors(self.own)
        position = found.position(name)
        self._keep(found.path(name), name=self.own / f"cursors.{name}")  # beside the cursors it would be one
        found.store(name, first if position is None else min(position, end))
        found.sync()

    def receivers(self, names: Sequence[str], first: int, end: int) -> None:
        """The offsets of a channel, and cursors that cannot be read: whose place is lost goes to the earliest message."""
        found, path = Cursors(self.own), self.own / "offset"
        self._keep(path)
        names = [*names, *(n for n in found.names() if n not in names and not is_slot(found.position(n)))]
        for name in names:
            self._keep(found.path(name), name=self.own / f"cursors.{name}")
        offsets = Offsets(path)
        try:
            slots = {name: slot for name in found.names() if is_slot(slot := found.position(name))}
            for name in names:
                slot = slots.get(name) or self._free_slot(set(slots.values()))
                if name not in slots:
                    offsets.reach(slot, path)
                    offsets.store(slot, first)
                slots[name] = slot
            for slot in {DURABLE, *slots.values()}:
                offsets.reach(slot, path)
            for slot in range(1, offsets.slots):
                offset = offsets.load(slot)
                lost = slot in slots.values() and not first <= offset <= end
                offsets.store(slot, first if lost else min(offset, end))
            offsets.store(WRITTEN, end)
            offsets.sync()
        finally:
            offsets.close()
        for name in names:
            found.store(name, slots[name])
        if names:
            found.sync()
        files.sync_directory(self.own)

    @staticmethod
    def _free_slot(taken: set[int]) -> int:
        return next(i for i in range(1, len(taken) + 3) if i not in taken and i != DURABLE)

    def forget_losses(self, path: Path) -> None:
        """A list that cannot be read: what is damaged is found again, and listed anew."""
        self._keep(path)
        files.remove(path)
        files.sync_directory(path.parent)

    # ---- the log as a whole ----

    def reopen(self, kept: Sequence[Path]) -> None:
        """Do what opening does: find the end, cut a torn tail, make control page and manifest anew. `kept` are those of its
        files that are damaged."""
        for path in kept:
            self._keep(path)
        with ExitStack() as stack:
            control = Control(self.own / ".lock", self.fmt)
            stack.callback(control.close)
            manifest = Manifest(self.own / "manifest", self.fmt)
            stack.callback(manifest.close)
            directory = Directory(self.top, self.fmt, self._file_size(), self.interval(), own=self.own)
            self._made_anew(directory, control, manifest)

    def _made_anew(self, directory: Directory, control: Control, manifest: Manifest) -> None:
        if self.fmt.NAME == "journal":  # every open begins a log of its own: of this one only the end is to be known
            tail, _ = survey(directory, control, manifest, verify=None, written=0, still=True)
            manifest.rewrite(control.generation + 1)
            control.next_generation()
            end = Mark(tail.segment, tail.end, tail.next)
            control.initialise(*tail, end)
            control.mark_clean(end)
            files.sync(control.fd)
            return
        written = 0
        if self.fmt.SAYS_BEGIN:
            clear_leftovers(directory)
            written = self._durable_offset()
        report = recover(directory, control, manifest, Cursors(self.own), verify=None, written=written)
        self.torn += report.torn

    def _durable_offset(self) -> int:
        try:
            offsets = Offsets(self.own / "offset", read_only=True)
        except FileNotFoundError:
            return 0
        try:
            return offsets.load(DURABLE) if offsets.slots else 0
        finally:
            offsets.close()

    def _file_size(self) -> int:
        return int(metadata.usable(metadata.load(self.top) or {}).get("file_size", _SPACE))
