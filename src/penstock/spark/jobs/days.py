"""Records of a segment as Parquet files, one for each day (UTC) that it has some of. What a task of `archive` does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.inspect import Part
from penstock.spark import listing
from penstock.spark.listing import ArchivedFile
from penstock.spark.plan import Piece
from penstock.spark.scan import read_piece
from penstock.storage import files

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Staged:
    """A file under the name that it was written by, and what it is to be in the archive."""

    temporary: str
    file: ArchivedFile


def written_by_day(piece: Piece, top: Path) -> list[Staged]:
    """Write a piece to files in the archive's `_staging`, on the disk; raises where a record is damaged."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("value", pa.binary()),
        ]
    )
    out: list[_Day] = []
    for batch in read_piece(piece, schema):
        for day, rows in _by_day(batch):
            if not out or out[-1].day != day:
                out.append(_Day(day, listing.staging(top) / f"{uuid.uuid4().hex}.parquet", schema))
            out[-1].add(rows)
    if not out:
        return [Staged("", ArchivedFile(None, piece.lo, piece.hi, 0, 0, 0, 0))]
    ends = [*(day.first for day in out[1:]), piece.hi]
    starts = [piece.lo, *ends[:-1]]
    return [day.staged(piece.segment.part, lo, hi) for day, lo, hi in zip(out, starts, ends, strict=True)]


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """A batch cut where the day, in UTC, changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.divide(batch.column("timestamp").cast(pa.int64()), _DAY_US)
    ends = [run.as_py() for run in pc.run_end_encode(days).run_ends]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        yield days[start].as_py(), batch.slice(start, end - start)


class _Day:
    """The records of one day, on their way into a file. Times of a log never run backwards."""

    def __init__(self, day: int | None, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self.day = day
        self.first = -1
        self._path = path
        self._rows = 0
        self._times: list[int] = []  # the first and the last of every batch
        self._writer: pq.ParquetWriter = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)

    def add(self, rows: pa.RecordBatch) -> None:
        import pyarrow as pa

        if self.first < 0:
            self.first = rows.column("offset")[0].as_py()
        if self.day is not None:
            times = rows.column("timestamp").cast(pa.int64())
            self._times += [times[0].as_py(), times[-1].as_py()]
        self._rows += rows.num_rows
        self._writer.write_batch(rows)

    def staged(self, part: Part, first: int, next_: int) -> Staged:
        """Close the file, on the disk; it is to hold the offsets first to next_ - 1."""
        self._writer.close()
        with files.opened(self._path) as fd:
            files.sync(fd)
            size = files.size(fd)
        date = None if self.day is None else datetime.fromtimestamp(self.day * _DAY_US / 1e6, UTC).date().isoformat()
        name = listing.name_of(part, date, first, next_)
        first_us, last_us = (self._times[0], self._times[-1]) if self._times else (0, 0)
        return Staged(str(self._path), ArchivedFile(name, first, next_, self._rows, size, first_us, last_us))
