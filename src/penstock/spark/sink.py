"""The sink: exactly once. Tasks stage encoded frames, a file for each attempt; the driver appends those of a batch as one.

A batch goes through the log's ledger (`storage.ledger`), keyed on query and batch: one that Spark runs again, for whatever reason, is
found there and left out. Nothing is in the log before the driver's commit, so tasks that fail, are repeated or run twice leave
files at most, and those are swept with their batch.
"""

from __future__ import annotations

import mmap
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import kernel
from penstock.errors import InvalidOption
from penstock.formats.topic import partition_of
from penstock.inspect import format_of
from penstock.spark.options import write_options
from penstock.spark.target import Target, opened, settle
from penstock.storage.arrow import arrow_buffers

if TYPE_CHECKING:
    import pyarrow as pa

_STAGING: Final = ".staging"
_COLUMNS: Final = {"value", "key", "partition", "topic", "timestamp"}


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged: a file of frames for each target."""

    query: str
    files: dict[tuple[str, int], str]  # (topic, partition): path
    rows: int


class _Writer:
    """What batch and stream have in common. Made on the driver, and sent to the workers."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._options = write_options(given)
        self._columns = _check_columns(schema)
        self._format, self._partitions = settle(self._options)
        self._job = f"batch-{uuid.uuid4().hex}"  # of a query that has no id

    def _staging(self, query: str, batch: int) -> Path:
        top = Path(self._options.staging) if self._options.staging else Path(self._options.path) / _STAGING
        return top / query / str(batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: encode the rows, and put them aside."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId") or self._job
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        place = self._staging(query, batch)
        place.mkdir(parents=True, exist_ok=True)
        turn, rows = context.partitionId(), 0
        targets: dict[tuple[str, int], str] = {}
        with ExitStack() as stack:
            out: dict[tuple[str, int], Any] = {}
            for one in iterator:
                rows += one.num_rows
                for target, frames in self._encoded(one, turn):
                    if target not in out:
                        path = place / f"{context.partitionId()}-{context.attemptNumber()}-{uuid.uuid4().hex}.frames"
                        targets[target] = str(path)
                        out[target] = stack.enter_context(path.open("wb"))
                    out[target].write(frames)
                turn += one.num_rows
            for file in out.values():
                file.flush()
                os.fsync(file.fileno())
        return Staged(query, targets, rows)

    def _encoded(self, rows: pa.RecordBatch, turn: int) -> Iterator[tuple[tuple[str, int], bytes]]:
        """The rows as frames, by where they go; in their order within each."""
        spec = format_of(self._format).SPEC
        for target, some in self._shared_out(rows, turn):
            values = some.column(some.schema.get_field_index("value"))
            if values.null_count:
                raise InvalidOption(f"column value has {values.null_count} nulls; a record needs a value")
            buffers = arrow_buffers(values)
            assert buffers is not None
            yield target, kernel.encode_arrow(spec, *buffers)

    def _shared_out(self, rows: pa.RecordBatch, turn: int) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
        """By topic and partition."""
        import pyarrow as pa

        if self._format != "topic":
            if rows.num_rows:
                yield ("", 0), rows
            return
        topics = rows.column("topic").to_pylist() if "topic" in self._columns else [self._options.topic] * rows.num_rows
        chosen = rows.column("partition").to_pylist() if "partition" in self._columns else [None] * rows.num_rows
        keys = rows.column("key").to_pylist() if "key" in self._columns else [None] * rows.num_rows
        where: dict[tuple[str, int], list[int]] = {}
        for i, (topic, partition, key) in enumerate(zip(topics, chosen, keys, strict=True)):
            if topic is None:
                raise InvalidOption("a row without a topic; give option topic, or a column topic without nulls")
            if partition is None:
                raw = key.encode() if isinstance(key, str) else key
                partition = partition_of(raw, self._partitions) if raw is not None else (turn + i) % self._partitions
            where.setdefault((topic, partition), []).append(i)
        for target, places in where.items():
            whole = len(places) == rows.num_rows
            yield target, rows if whole else rows.take(pa.array(places, pa.int64()))

    def _publish(self, query: str, batch: int, messages: Sequence[Any]) -> None:
        """On the driver: append what was staged, each target's as one batch."""
        staged = [message for message in messages if message is not None]
        targets = sorted({target for message in staged for target in message.files})
        for target in targets:
            paths = [message.files[target] for message in staged if target in message.files]
            with ExitStack() as stack:
                maps = [_mapped(stack, path) for path in paths]
                log = stack.enter_context(opened(Target(self._options, self._format, self._partitions, *target)))
                log.append(query, batch, maps)
        self._sweep(query, batch)

    def _sweep(self, query: str, batch: int) -> None:
        """Remove what was staged for this batch and earlier ones."""
        top = self._staging(query, batch).parent
        for path in top.iterdir() if top.is_dir() else ():
            if path.name.isdecimal() and int(path.name) <= batch:
                shutil.rmtree(path, ignore_errors=True)
        for empty in (top, top.parent):
            try:
                empty.rmdir()
            except OSError:
                return  # another batch, or query, is at work there


def _query(messages: Sequence[Any]) -> str | None:
    """Whose messages these are: all that a commit has of its writer's past."""
    return next((message.query for message in messages if message is not None), None)


def _mapped(stack: ExitStack, path: str) -> Any:
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return stack.enter_context(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else b""


def _check_columns(schema: StructType) -> set[str]:
    """The columns, if they are such as a sink takes."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise InvalidOption(f"a penstock sink needs a column value; there are {', '.join(kinds) or 'none'}")
    if kinds["value"] not in ("binary", "string"):
        raise InvalidOption(f"column value is {kinds['value']}; cast it to binary or string, or use to_json")
    known = {"key": ("binary", "string"), "topic": ("string",), "partition": ("int", "bigint")}
    for name, allowed in known.items():
        if name in kinds and kinds[name] not in allowed:
            raise InvalidOption(f"column {name} is {kinds[name]}; it must be {' or '.join(allowed)}")
    unknown = set(kinds) - _COLUMNS
    if unknown:
        raise InvalidOption(
            f"a penstock sink has no column {', '.join(sorted(unknown))}; it takes {', '.join(sorted(_COLUMNS))}"
        )
    return set(kinds)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(given, schema)
        self._overwrite = overwrite

    def commit(self, messages: Sequence[Any]) -> None:
        query = _query(messages)
        if query is not None:
            self._publish(query, 0, messages)

    def abort(self, messages: Sequence[Any]) -> None:
        query = _query(messages)
        if query is not None:
            self._sweep(query, 0)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        query = _query(messages)
        if query is not None:
            self._publish(query, batchId, messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        query = _query(messages)
        if query is not None:
            self._sweep(query, batchId)
