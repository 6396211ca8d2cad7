"""Compress: finished segments of channels that are not compressed yet. Whoever does it has the channel open meanwhile, and puts the
packed ones in place of the plain ones as a live channel does; who packs them is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.errors import InvalidOption, PenstockError
from penstock.formats.channel import Method
from penstock.inspect import Part, find
from penstock.storage import files, shrink
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.writing import writing

Compression = Literal["snappy", "gzip", "zstd"]
METHODS: Final[dict[str, Method]] = {"snappy": Method.SNAPPY, "gzip": Method.GZIP, "zstd": Method.ZSTD}


@dataclass(frozen=True, slots=True)
class CompressReport:
    """What was compressed."""

    path: str
    method: str
    segments: int
    bytes_before: int  # of the disk
    bytes_after: int
    left: tuple[str, ...]  # files that could not be compressed, damaged ones mostly: `verify` tells
    failed: tuple[str, ...]  # channels that were not compressed to their end, and why: mostly they are open elsewhere

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Plain:
    """A segment to compress. Plain data."""

    top: str
    data: str
    id: int
    end: int
    method: Method

    def pack(self) -> bool:
        """Compress it under a temporary name; False where that cannot be done. Any process may."""
        return shrink.pack_aside(Path(self.top), Path(self.data), self.id, self.end, self.method)


Pack = Callable[[Sequence[Plain]], Iterable[bool]]


def pack_here(items: Sequence[Plain]) -> Iterator[bool]:
    """One after the other, in this process."""
    for item in items:
        yield item.pack()


def compress(path: str | Path, method: Compression = "zstd", pack: Pack = pack_here) -> CompressReport:
    """Compress what is finished of every channel at `path`, but for those that another process has open: they compress by
    themselves if they are opened with `compression`."""
    if method not in METHODS:
        raise InvalidOption(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    channels = [part for part in find(path) if part.format == "channel"]
    if not channels:
        raise InvalidOption(f"{path}: no channel here; other logs are not compressed, `archive` makes them small")
    done, failed = list[tuple[list[tuple[int, int]], list[str]]](), list[str]()
    for part in channels:
        try:
            done.append(_channel(part, METHODS[method], pack))
        except (PenstockError, OSError) as error:
            failed.append(str(error))
    return CompressReport(
        path=str(path),
        method=method,
        segments=sum(len(sizes) for sizes, _ in done),
        bytes_before=sum(before for sizes, _ in done for before, _ in sizes),
        bytes_after=sum(after for sizes, _ in done for _, after in sizes),
        left=tuple(file for _, left in done for file in left),
        failed=tuple(failed),
    )


def _channel(part: Part, method: Method, pack: Pack) -> tuple[list[tuple[int, int]], list[str]]:
    """The sizes before and after of each segment, and the files that are left."""
    sizes, left = list[tuple[int, int]](), list[str]()
    with writing(part) as log:
        log.seal_finished()
        plain = _plain(log)
        items = [Plain(part.path, str(log.directory.paths(s.id).data), s.id, s.end, method) for s in plain]
        for info, packed in zip(plain, pack(items), strict=True):
            paths = log.directory.paths(info.id)
            before = files.used_bytes(paths.data) if paths.data.exists() else 0
            if packed and shrink.adopt(log, info):
                assert paths.packed is not None
                sizes.append((before, files.used_bytes(paths.packed)))
            elif paths.data.exists():
                left.append(str(paths.data))
    return sizes, left


def _plain(log: Log) -> list[SegmentInfo]:
    """Sealed segments that are not compressed."""
    sealed = (s for s in log.finished().values() if s.sealed and log.directory.paths(s.id).data.exists())
    return sorted(sealed, key=lambda s: s.id)
