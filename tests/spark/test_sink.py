"""The sink: every format, times, overwriting, bad input, and what is left behind."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Journal, Queue, Topics
from penstock.spark import register
from tests.spark.conftest import read, values


def rows(spark: SparkSession, count: int, *columns: str) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) as value", *columns)


def save(frame: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("penstock").mode(mode)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save(str(path))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


@pytest.mark.parametrize("format", ["queue", "channel", "journal"])
def test_every_format(spark: SparkSession, path: Path, format: str) -> None:
    save(rows(spark, 1000), path, format=format)
    save(rows(spark, 10), path)
    assert values(read(spark, path)) == numbers(1000) + numbers(10)
    assert not list(path.glob(".staging*"))
    if format == "journal":
        with Journal(path) as j:
            found = list(j.recovered())
        assert [r.payload for r in found] == numbers(1000) + numbers(10)
        assert {r.session for r in found} == {0, 1}


def test_times(spark: SparkSession, path: Path) -> None:
    save(rows(spark, 100, "timestamp_micros(1700000000000000 + id * 1000000) as timestamp").coalesce(1), path)
    with Queue(path) as q:
        got = [m.timestamp for m in q.tailer()]
    assert got[0] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert [(t - got[0]).total_seconds() for t in got if t is not None] == list(range(100))  # type: ignore[operator]
    assert read(spark, path).where("timestamp >= timestamp_seconds(1700000090)").count() == 10


def test_topics(spark: SparkSession, path: Path) -> None:
    with Topics(path) as logs:
        logs.topic("there", partitions=3)
    frame = rows(spark, 300, "if(id % 2 = 0, 'there', 'new') as topic", "cast(id as string) as key")
    save(frame, path, partitions=2)
    with Topics(path, read_only=True) as logs:
        assert {name: logs.topic(name).partitions for name in logs.topics()} == {"there": 3, "new": 2}
        ends = {name: logs.topic(name).ends() for name in logs.topics()}
    assert {name: sum(by) if isinstance(by, list) else sum(by.values()) for name, by in ends.items()} == {
        "there": 150,
        "new": 150,
    }
    with pytest.raises(PySparkException, match=r"partition 3 of topic there, which has 3: 0 to 2"):
        save(rows(spark, 1, "3 as partition"), path, topic="there")


def test_overwriting(spark: SparkSession, path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        q.append_batch([b"old"] * 500)
    save(read(spark, path).where("offset < 100").select("value"), path, "overwrite")  # from itself
    assert values(read(spark, path)) == [b"old"] * 100
    with Queue(path) as q:
        assert q._open_log().file_size == 8192, "with the settings that it was made with"
        with pytest.raises(PySparkException, match="another process has it open"):
            save(rows(spark, 5), path, "overwrite")
        q.append(b"more")
    assert values(read(spark, path)) == [b"old"] * 100 + [b"more"]
    save(rows(spark, 0), path, "overwrite")
    assert values(read(spark, path)) == []
    save(rows(spark, 7), path.with_name("new"), "overwrite")
    assert values(read(spark, path.with_name("new"))) == numbers(7)
    assert sorted(p.name for p in path.parent.iterdir()) == ["log", "new"]


def test_overwriting_a_topic(spark: SparkSession, path: Path) -> None:
    with Topics(path) as logs:
        logs.topic("a", partitions=2).publish_many([b"old"] * 10, partition=1).wait()
        logs.topic("b").publish_many([b"stays"] * 3).wait()
    save(rows(spark, 20, "0 as partition"), path, "overwrite", topic="a")
    got = read(spark, path).groupBy("topic", "partition").count().collect()
    assert {(r.topic, r.partition): r["count"] for r in got} == {("a", 0): 20, ("b", 0): 3}
    with Topics(path, read_only=True) as logs:
        assert logs.topic("a").partitions == 2
    assert sorted(p.name for p in path.parent.iterdir()) == ["log"]


def test_what_cannot_be_written(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match="column value has 1 nulls"):
        save(rows(spark, 3).selectExpr("if(value = '1', null, value) as value"), path)
    assert list(path.rglob("*")) == [], "nothing is left"
    for columns, message in (
        (["1 as partition"], "columns topic, partition and key are for topics"),
        (["1 as other"], "has no column other; it takes value, key"),
        (["'x' as timestamp"], "column timestamp is string; cast it to timestamp"),
    ):
        with pytest.raises(PySparkException, match=message):
            save(rows(spark, 1, *columns), path)
    with pytest.raises(PySparkException, match=r"no option 'partition'; did you mean 'partitions'"):
        save(rows(spark, 1), path, partition=3)
    with Queue(path):
        pass
    with pytest.raises(PySparkException, match="a queue, but option format is channel"):
        save(rows(spark, 1), path, format="channel")


def test_what_dead_jobs_left_goes_a_day_later(spark: SparkSession, path: Path) -> None:
    stale, young = path / ".staging" / "batch-1" / "0", path / ".staging" / "batch-2" / "0"
    for place in (stale, young):
        place.mkdir(parents=True)
        (place / "x.frames").write_bytes(b"x")
    long_ago = time.time() - 90_000
    os.utime(stale.parent, (long_ago, long_ago))
    save(rows(spark, 3), path)
    assert [p.name for p in (path / ".staging").iterdir()] == ["batch-2"]
    assert values(read(spark, path)) == numbers(3)


def test_a_thread_writes_once_the_source_is_registered_there(spark: SparkSession, path: Path) -> None:
    frame = spark.createDataFrame([(b"x",)], "value binary")

    def write() -> None:
        register(spark)
        frame.write.format("penstock").mode("append").save(str(path))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert values(read(spark, path)) == [b"x"]
