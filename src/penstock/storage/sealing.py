"""What becomes of a segment's files around the time in which it is written: made ahead, sealed, retired.

Called by `Log`, mostly in the background, without its lock: each takes that where it changes what others look at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from penstock.options import Roll
from penstock.storage import files, segment
from penstock.storage.buffered import Buffered
from penstock.storage.control import Active, Control, Mark
from penstock.storage.directory import Directory
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.mapped import Mapped
from penstock.storage.segment import Format, next_id
from penstock.storage.span import guard_sync
from penstock.storage.syncing import unless_gone

_NEVER: Final = (1 << 63) - 1


class Owner(Protocol):
    """What is asked of the log."""

    fmt: Format
    directory: Directory
    manifest: Manifest
    roll: Roll
    file_size: int
    writing: Mapped | Buffered | None

    @property
    def mapped(self) -> Mapped: ...
    def active(self) -> Active: ...
    def finished(self) -> dict[int, SegmentInfo]: ...
    def writable(self) -> Control: ...
    def locked(self) -> AbstractContextManager[Control]: ...
    def sync(self) -> int: ...


def prepare_at(log: Owner) -> int:
    """The end of the active segment from which on its successor should be made."""
    if log.fmt.GROWS:
        return _NEVER
    now = log.active()
    half = min(log.mapped.roll_at(), log.file_size) // 2
    return half if now.end < half else _NEVER


def prepare_next(log: Owner) -> None:
    """Make the next segment's files before they are needed, so that a roll is not a stall."""
    now = log.active()
    if isinstance(log.writing, Buffered):
        if not log.writing.has_rolled:
            return  # many a one never will
    else:
        few = log.roll.records is not None and now.next - now.base >= log.roll.records // 2
        if now.end < prepare_at(log) < _NEVER and not few and log.roll.interval_s is None:
            return
    new = next_id(log.directory.path, log.fmt, now.segment, files.now_us())
    if not log.directory.is_prepared(new):
        log.writable().check_here()
        made = log.directory.prepare(new)
        with log.locked() as control:
            if control.active().segment == now.segment:
                segment.place(made)
        segment.discard(made)


def seal_finished(log: Owner, least: int) -> int:
    """Sync finished segments, give back what they did not use, and list them as sealed, if there are so many; how many."""
    waiting = [s for s in log.finished().values() if not s.sealed]
    if len(waiting) < least:
        return 0
    log.writable().check_here()
    if not log.fmt.GROWS:  # else sealing syncs all there is; and what is buffered need not hurry
        log.sync()
    for listed in sorted(waiting, key=lambda s: s.id):
        # Look again once it is no longer active: a roll that was cut short lists a segment that then goes on growing.
        info = log.finished().get(listed.id) if listed.id < log.active().segment else None
        if info is not None and not info.sealed:
            seal_files(log, log.writable(), Mark(info.id, info.end, info.count))
            with log.locked() as control:
                if info.id in log.manifest.snapshot(control.generation):
                    log.manifest.sealed(info)
    guard_sync(log.directory, log.writable(), log.manifest.sync)
    with log.locked() as control:
        log.manifest.refresh(control.generation)  # or what others added since would be lost
        if log.manifest.is_long:
            log.manifest.rewrite(control.generation + 1)
            control.next_generation()
    return len(waiting)


def seal_files(log: Owner, control: Control, done: Mark) -> None:
    """Here `done.next` counts the segment's records."""
    writing = log.writing
    assert writing is not None
    writing.wait_for_growth()

    def seal() -> None:
        with unless_gone(log, control, done.segment):
            log.directory.seal(done.segment, done.next, done.end, synced=writing.take_synced(done.segment))

    guard_sync(log.directory, control, seal)


def retire(log: Owner, info: SegmentInfo, unless: Callable[[SegmentInfo], bool]) -> bool:
    """Delete a sealed segment, unless (asked under the lock) it is needed. It is listed as gone first: a crash in
    between leaves a file, never a hole."""
    with log.locked() as control:
        if unless(info):
            return False
        control.check_here()
        log.manifest.refresh(control.generation)
        log.manifest.retired(info)
    guard_sync(log.directory, control, log.manifest.sync)
    log.directory.delete(info.id)
    return True
