"""Which segments there are, and where each begins, as their names and companions say."""

from __future__ import annotations

from pathlib import Path

from penstock.storage import companion, files
from penstock.storage.segment import Format, SegmentPaths


def list_segments(top: Path, fmt: Format) -> list[int]:
    """The ids of all segments, in order. Where files grow only regular ones are any: nothing is put into another's."""
    found = ((path, s) for path in files.walk(top) for s in (fmt.parse(path), fmt.parse_compressed(path)))
    return sorted({s for path, s in found if s is not None and (not fmt.GROWS or files.is_regular(top / path))})


def companion_base(paths: SegmentPaths) -> int | None:
    """The first sequence of a segment, as its companion says; None when that cannot be read."""
    try:
        with files.opened(paths.times) as fd:
            return companion.base_of(files.read(fd, 0, companion.HEADER_BYTES))
    except FileNotFoundError:
        return None
