"""Compress: finished segments of channels that are not compressed yet. Packing is shared out; the driver, which has the channel
open meanwhile, puts the packed ones in place of the plain ones, as a live channel does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.errors import InvalidOption
from penstock.formats.channel import Method
from penstock.inspect import Part, find
from penstock.spark.jobs.spread import each
from penstock.spark.jobs.writing import writing
from penstock.storage import files, shrink
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Plain:
    """A segment to compress."""

    top: str
    data: str
    id: int
    end: int
    method: Method


def compress(spark: SparkSession, path: str | Path, *, method: Compression = "zstd") -> CompressReport:
    """Compress what is finished of every channel at `path`. A channel that another process has open raises LogBusy: it compresses
    by itself if it is opened with `compression`."""
    if method not in METHODS:
        raise InvalidOption(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    channels = [part for part in find(path) if part.format == "channel"]
    if not channels:
        raise InvalidOption(f"{path}: no channel here; other logs are not compressed, `archive` makes them small")
    done = [_channel(spark, part, METHODS[method]) for part in channels]
    return CompressReport(
        path=str(path),
        method=method,
        segments=sum(len(sizes) for sizes, _ in done),
        bytes_before=sum(before for sizes, _ in done for before, _ in sizes),
        bytes_after=sum(after for sizes, _ in done for _, after in sizes),
        left=tuple(file for _, left in done for file in left),
    )


def _channel(spark: SparkSession, part: Part, method: Method) -> tuple[list[tuple[int, int]], list[str]]:
    """The sizes before and after of each segment, and the files that are left."""
    sizes, left = list[tuple[int, int]](), list[str]()
    with writing(part) as log:
        log.seal_finished()
        plain = _plain(log)
        items = [_Plain(part.path, str(log.directory.paths(s.id).data), s.id, s.end, method) for s in plain]
        for info, packed in zip(plain, each(spark, items, _pack, lambda item: item.end), strict=True):
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


def _pack(item: _Plain) -> bool:
    """In a task."""
    return shrink.pack_aside(Path(item.top), Path(item.data), item.id, item.end, item.method)
