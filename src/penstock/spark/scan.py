"""What a task does: pieces of segments into Arrow record batches, from buffers, never from row objects."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock import kernel
from penstock.errors import CorruptRecord, DataLost, LogNotFound
from penstock.formats import journal
from penstock.spark.history import broken, opened
from penstock.spark.options import OnCorrupt, ReadOptions
from penstock.spark.plan import AnyPiece, ArchivedPiece, Piece, Split
from penstock.storage.damage import REASONS, Loss, Place
from penstock.storage.losses import is_listed
from penstock.storage.walking import next_readable, place_over

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger("penstock.spark")
_ROWS: Final = 32_768
_NUMBERS: Final = array("q", range(_ROWS))
_OF_RECORDS: Final = {"value", "timestamp", "position"}
_BYTES: Final = 16 << 20  # of payloads in a record batch, unless one is larger; Arrow and Spark take less than 2 GiB


def read_split(options: ReadOptions, schema: StructType, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of a split as record batches of this schema, which is a part of the source's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema, timezone="UTC")
    for piece in split.pieces:
        yield from read_piece(
            piece, arrow, options.on_corrupt, checksum=options.checksum, fail_on_data_loss=options.fail_on_data_loss
        )


def read_piece(
    piece: AnyPiece,
    schema: pa.Schema,
    on_corrupt: OnCorrupt = "fail",
    *,
    checksum: bool = True,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of one piece."""
    if isinstance(piece, ArchivedPiece):
        return _archived(piece, schema)
    reader = (_Journal if piece.segment.part.format == "journal" else _Frames)(
        piece, schema, on_corrupt, checksum=checksum
    )
    if reader.is_of_another_log:
        what = "are another log's now: it was replaced while the query ran"
        step = "Run the query again, when nobody overwrites the log"
    elif reader.finds_nothing and _is_gone(piece):
        what = "were removed while the query ran"
        step = "Give a stream the option cursor, so that retention waits for it"
    else:
        return reader.batches()
    told = f"{piece.segment.part.path}: offsets {piece.lo} to {piece.hi - 1} {what}"
    if fail_on_data_loss:
        raise DataLost(f"{told}. {step}, or set failOnDataLoss=false")
    _log.warning("%s; going on, since failOnDataLoss is false", told)
    return iter(())


def _is_gone(piece: Piece) -> bool:
    """Whether a piece was removed since it was planned, by retention or with its log. One that is missing for another reason is damage."""
    try:
        return piece.segment.part.look(lambda view: view.first) >= piece.segment.next
    except LogNotFound:
        return True


def _archived(piece: ArchivedPiece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Of a file of an archive: the row groups that hold some of the piece, cut to it. An archive keeps no positions and
    groups."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fixed = {"topic": piece.part.topic, "partition": piece.part.partition, "segment": piece.file.file}
    kept = [name for name in ("timestamp", "value") if name in schema.names]
    file = opened(piece.path)
    groups = [i for i in range(file.num_row_groups) if _overlaps(file.metadata.row_group(i), piece)]
    try:
        # One by one: each was a record batch. Asked for together they come as one of so many rows, of whatever size.
        for batch in (b for i in groups for b in file.iter_batches(_ROWS, row_groups=[i], columns=["offset", *kept])):
            offsets = batch.column("offset")
            some = batch.filter(pc.and_(pc.greater_equal(offsets, piece.lo), pc.less(offsets, piece.hi)))
            if some.num_rows:
                arrays = [
                    some.column(field.name)
                    if field.name in some.schema.names
                    else pa.repeat(pa.scalar(fixed.get(field.name), field.type), some.num_rows)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (OSError, ValueError) as error:
        raise broken(piece.path, error) from error


def _overlaps(group: pq.RowGroupMetaData, piece: ArchivedPiece) -> bool:
    """Whether a row group may hold some of a piece."""
    columns = [group.column(i) for i in range(group.num_columns)]
    offsets = next(column.statistics for column in columns if column.path_in_schema == "offset")
    return offsets is None or (offsets.max >= piece.lo and offsets.min < piece.hi)


def _told(loss: Loss) -> str:
    return f"offsets {loss.first} to {loss.last} are lost: {loss.reason}"


class _Frames:
    """One piece of one segment."""

    def __init__(self, piece: Piece, schema: pa.Schema, on_corrupt: OnCorrupt, *, checksum: bool) -> None:
        self._piece = piece
        self._schema = schema
        self._names = set(schema.names)
        self._on_corrupt = on_corrupt
        self._checksum = checksum
        self._losses: list[Loss] = []
        self._told = 0  # how many of these have their row
        self._seg = seg = piece.segment.opened(self._first, piece.hi)
        self._ends = Place(piece.segment.end, piece.segment.next)
        self._records = kernel.Reader(None, seg.spec, lambda: False, self._bad, checksum)
        at = seg.place_before(self._first, piece.segment.end)
        found = seg.scan(
            min(at.position, len(seg.data)), min(len(seg.data), piece.segment.end), self._first - at.sequence, False
        )
        self._attach(Place(found.position, at.sequence + found.count))

    @property
    def is_of_another_log(self) -> bool:
        """Whether its log was replaced since it was planned."""
        return self._piece.mark is not None and self._piece.mark.is_of_another(self._piece.segment, self._seg)

    @property
    def finds_nothing(self) -> bool:
        """Whether its file is empty, or not there."""
        return not len(self._seg.data)

    @property
    def _first(self) -> int:
        return self._piece.lo

    def _attach(self, at: Place) -> None:
        seg, end = self._seg, min(self._piece.segment.end, len(self._seg.data))
        position = min(at.position, end)
        self._records.attach(seg.data, seg.times_data, seg.spec, seg.id, seg.base, position, at.sequence, end)

    def _bad(self, reason: int) -> None:
        at = Place(self._records.position, self._records.sequence)
        why = REASONS.get(reason, "it is not whole")
        after = place_over(self._piece.segment.losses, self._seg, at, self._ends)
        listed = after is not None
        after = after or next_readable(self._seg, at, self._ends)
        if (
            after.sequence > self._first
        ):  # else nobody asked for it: it lies between where reading can begin and the piece
            if not listed and self._on_corrupt == "fail":
                raise CorruptRecord(self._seg.paths.data, at.position, at.sequence, why)
            self._lose(Loss(at.sequence, after.sequence - 1, why))
        self._attach(after)

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._records.sequence < self._piece.hi:
            before = self._records.sequence
            batch = self._next(min(_ROWS, self._piece.hi - self._records.sequence))
            if self._on_corrupt == "permissive":
                yield from self._lost_rows()
            if batch is not None:
                yield batch
            if self._records.sequence == before:
                self._short(before)
                if self._on_corrupt == "permissive":
                    yield from self._lost_rows()
                return

    def _short(self, sequence: int) -> None:
        """The file ends before its records do."""
        first, last = max(sequence, self._piece.lo), self._piece.hi - 1
        if self._on_corrupt == "fail" and not is_listed(self._piece.segment.losses, first, last):
            raise CorruptRecord(self._seg.paths.data, self._records.position, first, "the file is cut short here")
        self._lose(Loss(first, last, "the file is cut short"))

    def _lose(self, loss: Loss) -> None:
        """It was asked for to go on, or is listed as lost: what that costs of the piece is said, in the worker's log and, if permissive,
        in a row. The rest is for whoever reads the pieces beside it."""
        loss = loss._replace(first=max(loss.first, self._piece.lo), last=min(loss.last, self._piece.hi - 1))
        if loss.first <= loss.last:
            _log.warning("%s: %s", self._seg.paths.data, _told(loss))
            self._losses.append(loss)

    def _next(self, n: int) -> pa.RecordBatch | None:
        import pyarrow as pa

        if not self._names & _OF_RECORDS and (batch := self._counted(n)) is not None:
            return self._cut(batch)
        start = self._records.position
        count, size = self._records.measure(n, _BYTES)
        if count == 0:
            return None
        start = self._records.position
        offsets, values = pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(size)
        sequences, times, valid = (pa.allocate_buffer(b) for b in (count * 8, count * 8, (count + 7) // 8))
        count = self._records.fill(count, offsets, values, sequences, times, valid)
        if count == 0:
            return None
        columns: dict[str, Callable[[], pa.Array]] = {
            "offset": lambda: pa.Array.from_buffers(pa.int64(), count, [None, sequences]),
            "timestamp": lambda: pa.Array.from_buffers(pa.timestamp("us", "UTC"), count, [valid, times]),
            "value": lambda: pa.Array.from_buffers(pa.binary(), count, [None, offsets, values]),
            "position": lambda: self._positions(start, count, offsets),
        }
        return self._cut(self._batch(count, columns))

    def _cut(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Of rows that were just read, those of the piece: behind damage there are others."""
        end = self._records.sequence
        first, last = max(end - rows.num_rows, self._piece.lo), min(end, self._piece.hi)
        return rows.slice(first - end + rows.num_rows, last - first) if first < last else None

    def _counted(self, n: int) -> pa.RecordBatch | None:
        """The same where nothing of the records themselves is asked for: they are checked, and not copied. None where one is
        damaged, and at the end."""
        import pyarrow as pa
        import pyarrow.compute as pc

        at, end = Place(self._records.position, self._records.sequence), min(self._ends.position, len(self._seg.data))
        found = self._seg.scan(at.position, end, n, self._checksum, first=at.sequence)
        if not found.count:
            return None
        self._attach(Place(found.position, at.sequence + found.count))
        numbers = pa.Array.from_buffers(pa.int64(), found.count, [None, pa.py_buffer(_NUMBERS)])
        return self._batch(found.count, {"offset": lambda: pc.add(numbers, pa.scalar(at.sequence, pa.int64()))})

    def _positions(self, start: int, count: int, offsets: pa.Buffer) -> pa.Array:
        """Where each record lies: frames lie one behind the other."""
        import pyarrow as pa
        import pyarrow.compute as pc

        ends = pa.Array.from_buffers(pa.int32(), count, [None, offsets]).cast(pa.int64())
        heads = pa.array(range(start, start + count * self._seg.spec.overhead, self._seg.spec.overhead), pa.int64())
        return pc.add(ends, heads)

    def _batch(self, count: int, columns: dict[str, Callable[[], pa.Array]]) -> pa.RecordBatch:
        import pyarrow as pa

        segment = self._piece.segment
        fixed = {
            "topic": (segment.part.topic, pa.string()),
            "partition": (segment.part.partition, pa.int32()),
            "segment": (segment.name, pa.string()),
            "group": (None, pa.int64()),
            "_corrupt": (None, pa.string()),
        }
        arrays = []
        for field in self._schema:
            if field.name in columns:
                arrays.append(columns[field.name]())
            else:
                value, kind = fixed.get(field.name, (None, field.type))
                arrays.append(pa.repeat(pa.scalar(value, kind), count))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _lost_rows(self) -> Iterator[pa.RecordBatch]:
        """A row for each range that was stepped over."""
        import pyarrow as pa

        losses, self._told = self._losses[self._told :], len(self._losses)
        if losses:
            texts = [_told(loss) for loss in losses]
            yield self._batch(
                len(losses),
                {
                    "offset": lambda: pa.array([loss.first for loss in losses], pa.int64()),
                    "timestamp": lambda: pa.nulls(len(losses), pa.timestamp("us", "UTC")),
                    "value": lambda: pa.nulls(len(losses), pa.binary()),
                    "position": lambda: pa.nulls(len(losses), pa.int64()),
                    "_corrupt": lambda: pa.array(texts, pa.string()),
                },
            )


class _Journal(_Frames):
    """A journal's: read from the beginning of its file, which is small, since checkpoints say which group a record is of."""

    _group = 1

    @property
    def _first(self) -> int:
        return self._piece.segment.base

    def _next(self, n: int) -> pa.RecordBatch | None:
        while self._records.sequence < self._piece.hi:
            kind, payloads = self._records.read_run(self._records.measure(_ROWS, _BYTES)[0])
            if not payloads:
                return None
            size = sum(len(p) + self._seg.spec.overhead for p in payloads)
            at = Place(self._records.position - size, self._records.sequence - len(payloads))
            if kind == journal.CHECKPOINT:
                self._group = journal.read_checkpoints(payloads[-1], str(self._seg.paths.data), at.position).current + 1
                continue
            skip = max(0, self._piece.lo - at.sequence)
            keep = payloads[skip : max(skip, self._piece.hi - at.sequence)]
            if keep:
                before = sum(len(p) + self._seg.spec.overhead for p in payloads[:skip])
                return self._rows(Place(at.position + before, at.sequence + skip), keep)
        return None

    def _rows(self, at: Place, payloads: list[bytes]) -> pa.RecordBatch:
        import pyarrow as pa

        count, places, position = len(payloads), [], at.position
        for payload in payloads if "position" in self._names else ():
            places.append(position)
            position += len(payload) + self._seg.spec.overhead
        first, times = at.sequence - self._seg.base, self._seg.times
        return self._batch(
            count,
            {
                "offset": lambda: pa.array(range(at.sequence, at.sequence + count), pa.int64()),
                "timestamp": lambda: pa.array(
                    [times.us(i) or None for i in range(first, first + count)], pa.timestamp("us", "UTC")
                ),
                "value": lambda: pa.array(payloads, pa.binary()),
                "position": lambda: pa.array(places, pa.int64()),
                "group": lambda: pa.repeat(pa.scalar(self._group, pa.int64()), count),
            },
        )
