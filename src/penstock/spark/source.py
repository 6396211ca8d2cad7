"""`format("penstock")`: what Spark asks for, answered by `options`, `plan`, `scan`, `stream` and `sink`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidOption
from penstock.spark.filters import wanted
from penstock.spark.history import History
from penstock.spark.marks import mark_of
from penstock.spark.options import ReadOptions, read_options
from penstock.spark.plan import EVERYTHING, Split, batch_bounds, check_offsets, pieces, splits
from penstock.spark.scan import read_split

_COLUMNS: Final = (
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("value", BinaryType()),
)
_METADATA: Final = (("segment", StringType()), ("position", LongType()), ("group", LongType()))
_CORRUPT: Final = (("_corrupt", StringType()),)


class PenstockSource(DataSource):
    """The entry point: made by Spark with the options of one read or write."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        options = read_options(self.options)
        columns = _COLUMNS + (_METADATA if options.include_metadata else ())
        columns += _CORRUPT if options.on_corrupt == "permissive" else ()
        return StructType([StructField(name, kind) for name, kind in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return (FilteringReader if _filters_are_pushed() else BatchReader)(options, _checked(schema, self.schema()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.stream import StreamReader

        return StreamReader(read_options(self.options), _checked(schema, self.schema()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink import BatchWriter

        return BatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from penstock.spark.sink import StreamWriter

        if overwrite:  # it is asked for by this mode alone
            raise InvalidOption(
                'outputMode("complete"): a log is appended to, and would have all of the result again with every batch; use "append", or '
                'mode("overwrite") within foreachBatch'
            )
        return StreamWriter(dict(self.options), schema)


def _filters_are_pushed() -> bool:
    """Whether this is the process that Spark hands filters to: elsewhere, while its setting is off, it takes a reader that
    overrides `pushFilters` for an error."""
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


def _checked(schema: StructType, full: StructType) -> StructType:
    """The schema that the user asks for, if it is a part of the source's."""
    known = {field.name: field.dataType for field in full.fields}
    for field in schema.fields:
        if field.name not in known:
            raise InvalidOption(f"penstock has no column {field.name!r}; it has {', '.join(known)}")
        if field.dataType != known[field.name]:
            raise InvalidOption(
                f"column {field.name!r} is {known[field.name].simpleString()}, not {field.dataType.simpleString()}"
            )
    return schema


class BatchReader(DataSourceReader):
    """A batch query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, offsets in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            if isinstance(offsets, dict):
                check_offsets(name, offsets, options.parts)
        self._options = options
        self._schema = schema
        self._wanted = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        found = []
        for part in self._options.parts:
            if self._wanted.has(part):
                mark = mark_of(part)
                history = History(part, self._options.archive, durable=self._options.durable_only)
                found += pieces(history, batch_bounds(self._options, history), self._wanted, mark)
        # Without any, Spark would call `read` all the same, with nothing.
        return list(splits(found, self._options.min_partitions)) or [Split([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Split)
        return read_split(self._options, self._schema, partition)


class FilteringReader(BatchReader):
    """The same where filters are handed down: segments and ranges that cannot pass are not read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = wanted(filters)
        return filters  # they choose what is read; Spark still applies them to rows
