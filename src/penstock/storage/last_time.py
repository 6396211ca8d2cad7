"""The time of a log's last record, which no later one goes behind. Called where a log is opened, under the exclusive lock.

A power cut may have taken it, then those before it tell; or it may be damaged, and all that is appended would get it. So one that is
ahead of the clock by a day is believed only if the one before it is, too: then it is the clock that went back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from penstock.storage import files
from penstock.storage.companion import Times, entry_bytes
from penstock.storage.manifest import Manifest
from penstock.storage.segment import Format, SegmentPaths, read_companion

DAY_US: Final = 86_400_000_000
_FIRST: Final = 64  # nearly always the last one is known, and this is done at each opening
_PART: Final = 1 << 14


def last_us(
    top: Path, fmt: Format, manifest: Manifest, segment: int, times: Times | None = None, count: int = 0
) -> int:
    """In unix microseconds, of the segment with so many records, or of those listed before it; 0 if no time is known."""
    known = chain(_backwards(times, count) if times is not None else (), _before(top, fmt, manifest, segment))
    last, latest = next(known, 0), files.now_us() + DAY_US
    if last <= latest:
        return last
    before = next(known, 0)
    return before if 0 < before <= latest else last


def of_last(paths: SegmentPaths, fmt: Format, base: int, count: int) -> int:
    """The time of a segment's last record; 0 if it is not known, so that nobody takes it for older than it is."""
    return _times(paths, fmt, base).us(count - 1) if count else 0


def _times(paths: SegmentPaths, fmt: Format, base: int) -> Times:
    return Times(read_companion(paths, fmt.SPEC, base), entry_bytes(fmt.SPEC))


def _backwards(times: Times, count: int) -> Iterator[int]:
    """All that are known of so many records."""
    end, size = min(count, len(times)), _FIRST
    while end > 0:
        start = max(0, end - size)
        yield from times.known_backwards(start, end)
        end, size = start, _PART


def _before(top: Path, fmt: Format, manifest: Manifest, segment: int) -> Iterator[int]:
    """The last of each listed segment before one, of the nearest all if its last is not known; and of what is gone."""
    before = [info for info in manifest.ordered() if info.id < segment]
    if before and not before[-1].last_us:
        nearest = before.pop()
        yield from _backwards(_times(SegmentPaths(top, fmt, nearest.id), fmt, nearest.base), nearest.count)
    if manifest.gone is not None:
        before.insert(0, manifest.gone)
    yield from (info.last_us for info in reversed(before) if info.last_us)
