"""`penstock append`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.arguments import Json
from penstock.cli.output import FAILED, as_json, count, errors_told, lasting, size
from penstock.cli.progress import progress
from penstock.cli.records import Records
from penstock.errors import InvalidPayload, NotSynced, PenstockError, SyncFailed
from penstock.inspect import FormatName

_INTERRUPTED: Final = 130


def append(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A log; a topic's own directory, topics/orders.")],
    format: Annotated[
        FormatName | None, typer.Option("--format", help="The format of a log that does not exist yet.")
    ] = None,
    length_prefixed: Annotated[
        bool,
        typer.Option(
            "--length-prefixed", help="Each record follows its length (4 bytes, big-endian), and is not a line."
        ),
    ] = False,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="How many partitions a new topic gets.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", metavar="P", help="Append to this partition of a topic; by default they take turns."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Append to the partition of a topic that this key leads to.")
    ] = None,
    durable: Annotated[bool, typer.Option("--durable", help="Sync what was appended before reading on.")] = False,
    json: Json = False,
) -> None:
    """Append what comes on stdin, one record per line, and print how many records were appended.

    At the end all of them are on the disk. With --durable, and always in journals and topics, what was read so far is on the disk before
    more is read. Ctrl-C stops reading: whole lines are appended, half a line is not, and the exit status is 130. In a journal all of it is one
    group.

    Example: seq 1000 | penstock append /data/numbers --format queue
    """
    from penstock.appending import appending

    started, records, written, failed = time.monotonic(), 0, 0, ""
    source = Records(sys.stdin.buffer, length_prefixed=length_prefixed)
    raw = key.encode() if key is not None else None
    with (
        errors_told(),
        appending(path, format, durable=durable, partitions=partitions, partition=partition, key=raw) as put,
        progress("append", 0, shown=not sys.stdin.isatty()) as advance,
    ):
        some: list[bytes] = []
        try:
            for some in source:
                put(some)
                records, written = records + len(some), written + sum(map(len, some))
                advance(len(some))
        except PenstockError as error:
            if isinstance(error, NotSynced | SyncFailed) and error.appended:  # all of them or none
                records, written = records + len(some), written + sum(map(len, some))
            empty = some.index(b"") if isinstance(error, InvalidPayload) and b"" in some else None
            which = f"record {records + empty + 1} of the input is empty; " if empty is not None else ""
            failed = f"{error}; {which}record {records + 1} of the input and what follows was not appended"
    took = time.monotonic() - started
    if source.left_out_bytes and not failed:
        failed = f"the last {source.left_out_bytes} bytes of the input are no whole record, and were left out"
    rate = records / took
    if json:
        as_json({"records": records, "bytes": written, "seconds": took, "records_per_s": rate, "error": failed or None})
    else:
        sys.stderr.write(f"{count(records, 'record')}, {size(written)} in {lasting(took)}: {rate:,.0f} records/s\n")
    if failed:
        sys.stderr.write(f"penstock: {failed}\n")
    if source.interrupted or failed:
        raise typer.Exit(_INTERRUPTED if source.interrupted else FAILED)
