"""What each option of a source does that other tests do not show."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan

from penstock import LogNotFound, Queue, Topics
from penstock.errors import InvalidOption
from penstock.inspect import find
from penstock.spark.options import read_options
from penstock.spark.plan import Split
from penstock.spark.source import FilteringReader, PenstockSource
from penstock.storage import files
from tests.spark.conftest import read, values, write
from tests.support import until

SENT = [b"%05d" % i + bytes(20) for i in range(3000)]


def reader(path: Path, **options: str) -> FilteringReader:
    """What Spark makes in the process that it hands filters to."""
    given = {"path": str(path), **options}
    return FilteringReader(read_options(given), PenstockSource(given).schema())


def planned(made: FilteringReader) -> tuple[int, int]:
    """(bytes, rows) that the tasks read."""
    splits = [split for split in made.partitions() if isinstance(split, Split)]
    rows = sum(batch.num_rows for split in splits for batch in made.read(split))
    return sum(piece.size_bytes for split in splits for piece in split.pieces), rows


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ([GreaterThanOrEqual(("offset",), 100), LessThan(("offset",), 130)], 30),
        ([EqualTo(("offset",), 2999)], 1),
        ([EqualTo(("partition",), 1)], 0),
        ([GreaterThan(("timestamp",), 1 << 61)], 0),
        ([EqualTo(("topic",), "another")], 0),
    ],
)
def test_filters_choose_what_is_read(path: Path, filters: list[Filter], rows: int) -> None:
    write(path, "queue", SENT)
    whole = planned(reader(path))
    assert whole[1] == 3000
    narrow = reader(path)
    assert list(narrow.pushFilters(filters)) == filters, "Spark looks at each row all the same"
    size, found = planned(narrow)
    assert found == rows
    assert size < whole[0] * 0.02


def test_what_is_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files, "sync", lambda fd, real=files.sync: (synced.append(fd), real(fd))[1])
    with Queue(path) as q:
        q.append(b"x")
        synced.clear()
        assert planned(reader(path, durableOnly="false"))[1] == 1
        assert not synced
        assert planned(reader(path))[1] == 1
        assert synced, "before anybody may note in a checkpoint that it was read"


@pytest.mark.parametrize(
    ("beyond", "why"), [(0, "the file is cut short"), (3, "its length reaches beyond the end of the log")]
)
def test_losses_are_told(path: Path, caplog: pytest.LogCaptureFixture, beyond: int, why: str) -> None:
    """Whoever asks to go on is told what that cost: in the worker's log, and in a row if permissive."""
    write(path, "queue", SENT)
    (part,) = find(path)
    with part.open() as view:
        last = view.segments()[1]
    seg = last.read()
    with last.paths().data.open("r+b") as file:
        file.truncate(seg.scan(seg.start, last.end, 100).position + beyond)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert planned(reader(path, onCorrupt="skip"))[1] == last.base + 100
    told = f"offsets {last.base + 100} to 2999 are lost: {why}"
    assert told in caplog.text
    made = reader(path, onCorrupt="permissive")
    batches = [batch for split in made.partitions() for batch in made.read(split)]
    assert [text for batch in batches for text in batch.column("_corrupt").to_pylist() if text] == [told]


def test_removed_offsets_are_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "queue", SENT)
    with Queue(path) as q:
        log = q._open_log()
        log.seal_finished()
        gone = sorted(log.finished().values(), key=lambda s: s.id)[0]
        log.retire(gone)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        found = planned(reader(path, failOnDataLoss="false", startingOffsets='{"log": {"0": 0}}'))
    assert found[1] == 3000 - gone.next
    assert f"offsets 0 to {gone.next - 1} were removed" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingTimestamp", "--5"),
        ("startingTimestamp", "-"),
        ("endingTimestamp", "9" * 5000),
        ("startingOffsets", '{"log": {"0": 1e400}}'),
        ("paths", "/data/a,/data/b"),
        ("paths", "5"),
        ("paths", '{"/data/a": 1}'),
        ("paths", "[1]"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_option(path: Path, name: str, value: str) -> None:
    write(path, "queue", SENT[:1])
    with pytest.raises(InvalidOption, match=f"^{name} must be "):
        read_options({"path": str(path), name: value})
    assert read_options({"path": str(path), "startingTimestamp": "-5"}).starting_us == -5000
    assert read_options({"paths": f'["{path}"]'}).paths == (str(path),)


def test_an_empty_partition(spark: SparkSession, path: Path) -> None:
    with Topics(path) as logs:
        logs.topic("orders", partitions=2)
    assert values(read(spark, path)) == []


def test_the_least_of_a_trigger(spark: SparkSession, tmp_path: Path) -> None:
    """Few records wait for more, but not for ever."""

    def start(checkpoint: str, **options: Any) -> Any:
        source = spark.readStream.format("penstock").option("startingOffsets", "earliest")
        for name, value in options.items():
            source = source.option(name, value)
        frame = source.load(str(tmp_path / "in")).select("value")
        writer = frame.writeStream.format("penstock").option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.option("path", str(tmp_path / checkpoint / "out")).start()

    def done(checkpoint: str) -> int:
        with suppress(LogNotFound), Queue(tmp_path / checkpoint / "out", read_only=True) as q:
            return q.next_sequence
        return 0

    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT[:10])
        waits = start("waits", minOffsetsPerTrigger=20, maxTriggerDelay="1h")
        soon = start("soon", minOffsetsPerTrigger=20, maxTriggerDelay="100ms")
        try:
            until(lambda: done("soon") == 10, "the delay is over")
            assert done("waits") == 0
            q.append_batch(SENT[10:30])
            until(lambda: done("waits") == 30, "there are enough")
        finally:
            waits.stop()
            soon.stop()
