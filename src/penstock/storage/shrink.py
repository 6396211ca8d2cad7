"""Compressing finished segments that are still needed, in the background.

A temporary name, a second look, a rename, and then the plain file goes: at any moment there is one whole file, and whoever
has the plain one open reads on undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.errors import CorruptSegment, NotALog
from penstock.formats.channel import Method, compressing_name, parse_compressing
from penstock.storage import files, packing
from penstock.storage.directory import TEMPORARY, Directory
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo


def compress_sealed(log: Log, method: Method, is_wanted: Callable[[], bool] = lambda: False) -> int:
    """Compress the sealed segments that are not, up to the one at which its thread `is_wanted` elsewhere; how many were."""
    done = 0
    for info in sorted(log.finished().values(), key=lambda s: s.id):
        if done and is_wanted():
            break
        paths = log.directory.paths(info.id)
        if info.sealed and paths.data.exists() and _compress(log, info, method):
            done += 1
    return done


def _compress(log: Log, info: SegmentInfo, method: Method) -> bool:
    return pack_aside(log.path, log.directory.paths(info.id).data, info.id, info.end, method) and adopt(log, info)


def pack_aside(top: Path, data: Path, segment_id: int, end: int, method: Method) -> bool:
    """Compress a segment's file, whose frames end at byte `end`, under a temporary name; False where it cannot be done, and then
    what is there stays as it is. Any process may do this while the log is open."""
    temporary = top / compressing_name(segment_id)
    try:
        packing.pack(data, temporary, end, method)
    except FileNotFoundError:
        return False  # removed meanwhile
    except (CorruptSegment, NotALog):
        files.remove(temporary)
        return False  # it is damaged
    except OSError as error:
        files.remove(temporary)
        if files.is_full(error):
            return False
        raise
    return True


def adopt(log: Log, info: SegmentInfo) -> bool:
    """Have a segment that was packed aside take the place of the plain one, if that is still the log's."""
    paths = log.directory.paths(info.id)
    temporary = log.path / compressing_name(info.id)
    assert paths.packed is not None
    with log.locked():  # whoever removes segments does so under the lock
        if info.id not in log.finished():
            files.remove(temporary)
            return False
        try:
            files.rename(temporary, paths.packed)
        except FileNotFoundError:
            return False  # somebody else has taken it
    files.sync_directory(log.path)
    files.remove(paths.data)
    return True


def clear_leftovers(directory: Directory) -> None:
    """After a crash: what was being compressed goes, and of a segment that is there twice the plain file.

    We put a compressed one on the disk before it has its name; of another's that is cut short the plain file stays.
    """
    for name in list(files.walk(directory.path)):
        if parse_compressing(TEMPORARY.sub("", name)) is not None:
            files.remove(directory.path / name)
    for segment_id in directory.segments():
        paths = directory.paths(segment_id)
        if paths.packed is not None and paths.packed.exists() and paths.data.exists():
            if packing.is_whole(paths.packed):
                files.remove(paths.data)
            else:  # readers would look at it first
                files.rename(paths.packed, paths.packed.with_name(paths.packed.name + ".torn"))


def clear_orphans(log: Log) -> None:
    """After a crash, of segments that are gone or never came to be, what lay beside them: their data file goes first and
    comes last."""
    kept = {*log.directory.segments(), *log.finished(), log.active().segment}
    for name in list(files.walk(log.path)):
        for suffix in (".time", ".index"):
            segment_id = log.fmt.parse(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if segment_id is not None and segment_id not in kept:
                files.remove(log.path / name)
