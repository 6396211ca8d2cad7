"""Rows to files: lines, or Parquet a piece at a time, so that memory stays small; a file is whole or not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from penstock import extras
from penstock.errors import InvalidOption
from penstock.inspect.rows import Row
from penstock.storage import files

if TYPE_CHECKING:
    import pyarrow

_PIECE_ROWS: Final = 8192
_PIECE_BYTES: Final = 8 << 20
_TOLD_EVERY: Final = 1000

Advance = Callable[[int], None]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` when it is done and on the disk, and goes if it fails."""
    if path.exists() and not path.is_file():
        raise InvalidOption(
            f"{path}: no regular file, which it would be replaced by; write to stdout, and lead that there"
        )
    temporary = files.temporary(path)
    try:
        yield temporary
        with files.opened(temporary, write=True) as fd:
            files.sync(fd)
        files.rename(temporary, path)
        files.sync_directory(path.absolute().parent)
    finally:
        files.remove(temporary)


def write_lines(rows: Iterable[Row], out: TextIO, line: Callable[[Row], str], advance: Advance) -> int:
    """A line for each row; how many."""
    i = 0
    for i, row in enumerate(rows, 1):
        out.write(line(row) + "\n")
        if i % _TOLD_EVERY == 0:
            advance(_TOLD_EVERY)
    out.flush()
    return i


def write_parquet(rows: Iterable[Row], path: Path, named: bool, advance: Advance) -> int:
    """Columns partition, offset, timestamp and value, and before them the log's name if `named`; how many rows."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidOption(f"Parquet needs pyarrow: {extras.install('arrow')}") from error
    fields = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("value", pa.binary(), nullable=False),
    ]
    schema = pa.schema([*([pa.field("log", pa.string(), nullable=False)] if named else []), *fields])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        done = 0
        for piece in _pieces(rows):
            writer.write_batch(_batch(piece, schema))
            done += len(piece)
            advance(len(piece))
    return done


def _pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row.payload)
        if len(piece) == _PIECE_ROWS or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _batch(piece: list[Row], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    columns: dict[str, list[object]] = {
        "log": [row.part.topic for row in piece],
        "partition": [row.part.partition for row in piece],
        "offset": [row.offset for row in piece],
        "timestamp": [row.timestamp_us for row in piece],
        "value": [row.payload for row in piece],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
