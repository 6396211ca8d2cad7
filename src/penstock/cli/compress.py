"""`penstock compress`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import FAILED, as_json, errors_told, line, size
from penstock.cli.progress import progress
from penstock.compressing import Compression, Plain, pack_here
from penstock.compressing import compress as run


def compress(
    path: LogPath,
    method: Annotated[Compression, typer.Option("--method", help="How to compress.")] = "zstd",
    json: Json = False,
) -> None:
    """Compress the finished segments of channels. Nobody else may have the channel open.

    Exits with 1 if a segment could not be compressed.

    Example: penstock compress /data/mail --method zstd
    """
    with errors_told():
        report = run(path, method, _packed)
    if json:
        as_json(report.to_dict())
    else:
        line(f"{report.segments} segments: {size(report.bytes_before)} became {size(report.bytes_after)}")
        for file in report.left:
            sys.stderr.write(f"penstock: {file}: cannot be compressed; `penstock verify` tells why\n")
    if report.left:
        raise typer.Exit(FAILED)


def _packed(items: Sequence[Plain]) -> Iterator[bool]:
    """With a bar over the bytes."""
    with progress("compress", sum(item.end for item in items)) as advance:
        for item, packed in zip(items, pack_here(items), strict=True):
            yield packed
            advance(item.end)
