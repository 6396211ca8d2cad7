"""The sink: exactly once. Tasks stage encoded frames, files of each attempt; the driver appends those of a batch as one.

A batch goes through the log's ledger (`storage.ledger`), keyed on query and batch: one that Spark runs again, for whatever reason, is
found there and left out. A batch query has neither, unless the options `txnAppId` and `txnVersion` stand for them. Nothing is in the log
before the driver's commit, so tasks that fail, are repeated or run twice leave files at most, and those are swept with their batch.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import kernel
from penstock.errors import InvalidOption
from penstock.formats.journal import MAX_PAYLOAD_BYTES
from penstock.formats.topic import check_topic, partition_of
from penstock.inspect import format_of
from penstock.journal import too_large
from penstock.spark import pins, staging
from penstock.spark.options import write_options
from penstock.spark.overwrite import check_place, replace_log
from penstock.spark.target import Target, layout, publish
from penstock.storage.arrow import arrow_buffers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

_KINDS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "timestamp": ("timestamp",),
}
_Staging = Mapping[staging.Key, Sequence[staging.Put]]  # by target


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged."""

    query: str
    files: dict[staging.Key, staging.Put]
    counts: dict[str, int]  # of partitions of each topic, when its rows were shared out


class _Writer:
    """What batch and stream have in common. Made on the driver, and sent to the workers."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._options = write_options(given)
        self._columns = _check_columns(schema)
        self._layout = layout(self._options)
        if self._layout.format != "topic" and self._columns & {"topic", "partition", "key"}:
            raise InvalidOption(
                f"{self._options.path}: columns topic, partition and key are for topics, and this is a "
                f"{self._layout.format}; leave them out, or give option topic"
            )
        if self._layout.format == "topic" and self._options.topic is None and "topic" not in self._columns:
            raise InvalidOption(f"{self._options.path}: rows without a topic; give option topic, or a column topic")
        self._job = f"batch-{uuid.uuid4().hex}"  # of a query that has no id
        self._aside: str | None = None  # what its staged files go by, if not by the query

    def _know_pins(self, query: str | None = None) -> None:
        """Let the tasks know where a batch went that may have been run before; that of any query, if it is not known which, but only if
        it went to fewer partitions than there are."""
        known, found = self._layout.known, pins.load_all(Path(self._options.path), self._layout.known, query)
        fewer = {q: {t: p for t, p in of.items() if p.partitions != known.get(t)} for q, of in found.items()}
        self._layout = replace(self._layout, pins={q: of for q, of in fewer.items() if of})

    def _place(self, query: str, batch: int) -> staging.Place:
        return staging.Place(staging.top_of(self._options), self._aside or query, batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: encode the rows, and put them aside."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, epoch = self._run_by(context)
        batch = int(epoch or 0)
        # Of rows that do not say where they go, a whole micro-batch goes to one partition: run again after a crash it may be cut into
        # tasks in another way, and a row would change from a partition that has the batch already to one that has not, or back.
        turn, step = (context.partitionId(), 1) if epoch is None else (batch, 0)
        with staging.Attempt(self._place(query, batch)) as attempt:
            for rows in iterator:
                counts = partial(self._layout.count, query=query, batch=batch)
                for key, some in self._shared_out(rows, counts, turn, step):
                    attempt.add(key, *self._encoded(some))
                turn += step * rows.num_rows
        topics = {topic for topic, _ in attempt.files} if self._layout.format == "topic" else set()
        return Staged(query, attempt.files, {topic: self._layout.count(topic, query, batch) for topic in topics})

    @abstractmethod
    def _run_by(self, context: TaskContext) -> tuple[str, str | None]:
        """The query, and the number of its micro-batch, if it has one."""

    def _encoded(self, rows: pa.RecordBatch) -> tuple[bytes, bytes | None]:
        """The rows as frames, in their order, and their times, if they have any."""
        values = rows.column("value")
        if values.null_count:
            raise InvalidOption(f"column value has {values.null_count} nulls; a record needs a value")
        if self._layout.format == "journal":
            self._check_sizes(values)
        buffers = arrow_buffers(values)
        assert buffers is not None
        frames = kernel.encode_arrow(format_of(self._layout.format).SPEC, *buffers)
        return frames, _times(rows.column("timestamp")) if "timestamp" in self._columns else None

    def _check_sizes(self, values: pa.Array) -> None:
        """A journal takes from nobody what it would not take by `append`."""
        import pyarrow.compute as pc

        largest = pc.max(pc.binary_length(values)).as_py() or 0
        if largest > MAX_PAYLOAD_BYTES:
            raise too_large(Path(self._options.path), largest)

    def _shared_out(
        self, rows: pa.RecordBatch, counts: Callable[[str], int], turn: int, step: int
    ) -> Iterator[tuple[staging.Key, pa.RecordBatch]]:
        """By topic and partition; in their order within each."""
        import pyarrow as pa

        if self._layout.format != "topic":
            if rows.num_rows:
                yield ("", 0), rows
            return
        topics, partitions, keys = (self._given(rows, name) for name in ("topic", "partition", "key"))
        where: dict[staging.Key, list[int]] = {}
        for i, (topic, partition, key) in enumerate(zip(topics, partitions, keys, strict=True)):
            topic = topic if topic is not None else self._options.topic
            if topic is None:
                raise InvalidOption("a row without a topic; give option topic, or a column topic without nulls")
            count = counts(topic)
            if partition is None:
                raw = key.encode() if isinstance(key, str) else key
                partition = partition_of(raw, count) if raw is not None else (turn + step * i) % count
            elif not 0 <= partition < count:
                raise InvalidOption(f"partition {partition} of topic {topic}, which has {count}: 0 to {count - 1}")
            where.setdefault((topic, partition), []).append(i)
        for target, places in where.items():
            check_topic(target[0])
            whole = len(places) == rows.num_rows
            yield target, rows if whole else rows.take(pa.array(places, pa.int64()))

    def _given(self, rows: pa.RecordBatch, column: str) -> list[Any]:
        return rows.column(column).to_pylist() if column in self._columns else [None] * rows.num_rows

    def _commit_once(self, query: str, batch: int, messages: Sequence[Any]) -> None:
        """On the driver: append what was staged, unless it is there already."""
        staged = _by_target(messages)
        if self._layout.format == "topic":
            counts = {t: n for message in messages if message is not None for t, n in message.counts.items()}
            for topic, count in sorted(counts.items()):
                some = {key: puts for key, puts in staged.items() if key[0] == topic}
                self._commit_pinned(Path(self._options.path) / check_topic(topic), query, pins.Pin(batch, count), some)
        else:
            self._publish(query, batch, staged, comes_again=True)
        self._place(query, batch).sweep()

    def _commit_pinned(self, topic: Path, query: str, pin: pins.Pin, staged: _Staging) -> None:
        """The same for one topic. Cut short, the batch comes again and goes where it went, until all of it is said to be there."""
        known = pins.load(topic, query)
        if known is None or not known.has(pin.batch):
            pins.keep(topic, query, pin)
            self._publish(query, pin.batch, staged, comes_again=True)
            pins.keep(topic, query, pin._replace(done=True))

    def _publish(self, query: str, batch: int, staged: _Staging, *, comes_again: bool) -> None:
        """On the driver: append what was staged, each target's as one batch."""
        for key, puts in staged.items():
            publish(Target(self._options, self._layout, *key), query, batch, puts, comes_again=comes_again)


def _by_target(messages: Sequence[Any]) -> _Staging:
    """What was staged for each target, in the order of the tasks; all of it, before any of it is appended."""
    out: dict[staging.Key, list[staging.Put]] = {}
    for message in messages:
        for key, put in message.files.items() if message is not None else ():
            put.check_there()
            out.setdefault(key, []).append(put)
    return dict(sorted(out.items()))


def _query(messages: Sequence[Any]) -> str | None:
    """Whose messages these are: all that a commit has of its writer's past."""
    return next((message.query for message in messages if message is not None), None)


def _times(column: pa.Array) -> bytes:
    """Microseconds since 1970, 8 bytes each; 0 for a null, which is before everything."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.fill_null(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0)
    _, data = numbers.buffers()
    return bytes(data[numbers.offset * 8 : (numbers.offset + len(numbers)) * 8])


def _check_columns(schema: StructType) -> set[str]:
    """The columns, if they are such as a sink takes."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise InvalidOption(f"a penstock sink needs a column value; there are {', '.join(kinds) or 'none'}")
    for name, kind in kinds.items():
        if name not in _KINDS:
            raise InvalidOption(f"a penstock sink has no column {name}; it takes {', '.join(_KINDS)}")
        if kind not in _KINDS[name]:
            hint = ", or use to_json" if name == "value" else ""
            raise InvalidOption(f"column {name} is {kind}; cast it to {' or '.join(_KINDS[name])}{hint}")
    return set(kinds)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(given, schema)
        self._overwrite = overwrite
        if overwrite:
            check_place(self._options, self._layout)
        self._batch = 0
        run = self._options.run
        if run is not None:
            if overwrite:
                raise InvalidOption(
                    "txnAppId and txnVersion are for append: an overwrite that is run again puts the same there"
                )
            self._job, self._batch = staging.name_of(run.app), run.version
            # One batch may be written to several logs at a time, which have a directory for staging in common.
            log = Path(self._options.path).resolve() / (self._options.topic or "")
            self._aside = staging.name_of(f"{run.app}\0{log}")
            self._know_pins(self._job)

    def _run_by(self, context: TaskContext) -> tuple[str, str | None]:
        """A job of its own, also within a query's `foreachBatch`."""
        return self._job, str(self._batch) if self._options.run is not None else None

    def commit(self, messages: Sequence[Any]) -> None:
        query = _query(messages) or self._job
        if self._options.run is not None:
            self._commit_once(query, self._batch, messages)
            return
        if self._overwrite:
            replace_log(self._options, self._layout, query, _by_target(messages))
        else:
            self._publish(query, 0, _by_target(messages), comes_again=False)
        self._place(query, 0).sweep()

    def abort(self, messages: Sequence[Any]) -> None:
        self._place(_query(messages) or self._job, self._batch).sweep()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        if self._options.run is not None:
            raise InvalidOption(
                "txnAppId and txnVersion are for df.write: a streaming query has an id and numbers of its own; leave them out"
            )
        self._know_pins()

    def _run_by(self, context: TaskContext) -> tuple[str, str | None]:
        batch = context.getLocalProperty("streaming.sql.batchId")
        return context.getLocalProperty("sql.streaming.queryId") or self._job, batch or "0"

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        query = _query(messages)
        if query is not None:
            self._commit_once(query, batchId, messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        query = _query(messages)
        if query is not None:
            self._place(query, batchId).sweep()
