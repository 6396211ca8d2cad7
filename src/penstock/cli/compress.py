"""`penstock compress`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import as_json, count, errors_told, line, size, tell_failed
from penstock.cli.progress import progress
from penstock.compressing import Compression, Plain, pack_here
from penstock.compressing import compress as run


def compress(
    path: LogPath,
    method: Annotated[Compression, typer.Option("--method", help="The compression method.")] = "zstd",
    json: Json = False,
) -> None:
    """Compress the finished segments of channels. Nobody else may have the channel open.

    Exits with 1 if a segment could not be compressed, or a channel could not be opened; the others are still done.

    Example: penstock compress /data/mail --method zstd
    """
    with errors_told():
        report = run(path, method, _packed)
    if json:
        as_json(report.to_dict())
    else:
        line(f"{count(report.segments, 'segment')}: {size(report.bytes_before)} became {size(report.bytes_after)}")
    left = [f"{file}: cannot be compressed; `penstock verify` tells why" for file in report.left]
    tell_failed([*left, *report.failed], quiet=json)


def _packed(items: Sequence[Plain]) -> Iterator[bool]:
    """With a bar over the bytes."""
    with progress("compress", sum(item.end for item in items)) as advance:
        for item, packed in zip(items, pack_here(items), strict=True):
            yield packed
            advance(item.end)
