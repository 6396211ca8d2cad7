"""Streaming queries: offsets, limits, restarts, cursors, and the exactly-once sink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Queue, Topics
from penstock.spark import pins
from penstock.spark.progress import Listener, Progress
from tests.spark.conftest import read, remove, values
from tests.support import until

SENT = [b"%05d" % i for i in range(2000)]


def stream(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("penstock").option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(path))


def to_log(
    frame: DataFrame, target: Path, checkpoint: Path, columns: Sequence[str] = ("value",), **options: Any
) -> StreamingQuery:
    writer = frame.selectExpr(*columns).writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
    for name, value in options.items():
        writer = writer.option(name, value)
    return writer.option("path", str(target)).trigger(availableNow=True).start()


def run(query: StreamingQuery) -> list[dict[str, Any]]:
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_a_limit_a_restart_and_what_came_since(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    with Queue(source) as q:
        q.append_batch(SENT[:1000])
        progress = run(to_log(stream(spark, source, maxOffsetsPerTrigger=300), target, checkpoint))
        assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [300, 300, 300, 100]
        q.append_batch(SENT[1000:])
        run(to_log(stream(spark, source), target, checkpoint))
    assert values(read(spark, target)) == SENT


def test_latest_is_where_a_query_starts_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT[:10])
        frame = spark.readStream.format("penstock").load(str(tmp_path / "in"))
        run(to_log(frame, tmp_path / "out", tmp_path / "checkpoint"))
        q.append_batch(SENT[10:20])
        run(to_log(frame, tmp_path / "out", tmp_path / "checkpoint"))
    assert values(read(spark, tmp_path / "out")) == SENT[10:20]


def test_bytes_per_trigger(spark: SparkSession, tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT)
        frame = stream(spark, tmp_path / "in", maxBytesPerTrigger=10_000)
        progress = run(to_log(frame, tmp_path / "out", tmp_path / "checkpoint"))
    rows = [p["numInputRows"] for p in progress if p["numInputRows"]]
    assert len(rows) > 2
    assert sum(rows) == 2000
    assert values(read(spark, tmp_path / "out")) == SENT


def test_a_partition_that_comes_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    with Topics(tmp_path / "in", linger_s=0) as logs:
        t = logs.topic("orders", partitions=1)
        t.publish_many(SENT[:10]).wait()
        run(to_log(stream(spark, tmp_path / "in"), tmp_path / "out", tmp_path / "checkpoint"))
        t.add_partitions(2)
        t.publish_many(SENT[10:20], partition=1).wait()
        run(to_log(stream(spark, tmp_path / "in"), tmp_path / "out", tmp_path / "checkpoint"))
    assert values(read(spark, tmp_path / "out")) == SENT[:20]


def test_a_cursor_moves_with_the_query(spark: SparkSession, tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT[:900])
        frame = stream(spark, tmp_path / "in", maxOffsetsPerTrigger=300, cursor="spark")
        run(to_log(frame, tmp_path / "out", tmp_path / "checkpoint"))
        assert q.cursors()["spark"] in (600, 900)  # a batch is committed when the next one begins


def test_a_batch_that_is_there_already_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    with Queue(source) as q:
        q.append_batch(SENT[:500])
        run(to_log(stream(spark, source), target, checkpoint))
        for name in ("0", ".0.crc"):  # as if the driver had died before Spark's own commit
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        q.append_batch(SENT[500:600])
        run(to_log(stream(spark, source), target, checkpoint))
    assert values(read(spark, target)) == SENT[:600]
    assert not (target / ".staging").exists()


def test_offsets_that_were_removed_stop_the_query(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    with Queue(source, file_size=8192) as q:
        q.append_batch(SENT[:100])
        run(to_log(stream(spark, source), target, checkpoint))
        for i in range(100, 2000, 100):
            q.append_batch(SENT[i : i + 100])
        log = q._open_log()
        log.seal_finished()
        for info in sorted(log.finished().values(), key=lambda s: s.id)[:3]:
            log.retire(info)
        first = q.first_sequence
    with pytest.raises(PySparkException, match="were removed"):
        run(to_log(stream(spark, source), target, checkpoint))
    run(to_log(stream(spark, source, failOnDataLoss=False), target, checkpoint))
    assert values(read(spark, target)) == SENT[:100] + SENT[first:]


def test_topics_by_key_and_by_column(spark: SparkSession, tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT)
    frame = read(spark, tmp_path / "in").selectExpr("value", "cast(value as string) as key")
    frame.write.format("penstock").mode("append").option("topic", "keyed").option("partitions", 3).save(
        str(tmp_path / "topics")
    )
    assert sorted(values(read(spark, tmp_path / "topics"))) == SENT
    named = read(spark, tmp_path / "in").selectExpr(
        "value", "concat('t', cast(offset % 2 as string)) as topic", "0 as partition"
    )
    named.write.format("penstock").mode("append").option("format", "topic").save(str(tmp_path / "two"))
    found = {row.topic: row["count"] for row in read(spark, tmp_path / "two").groupBy("topic").count().collect()}
    assert found == {"t0": 1000, "t1": 1000}


@pytest.mark.parametrize("format", ["queue", "channel"])
def test_order_within_a_partition_is_kept(spark: SparkSession, tmp_path: Path, format: str) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT)
    frame = read(spark, tmp_path / "in").coalesce(1).select("value")
    for _ in range(2):
        frame.write.format("penstock").mode("append").option("format", format).save(str(tmp_path / "out"))
    assert values(read(spark, tmp_path / "out")) == SENT + SENT
    assert not (tmp_path / "out" / ".staging").exists()


def test_wrong_columns(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3)
    with pytest.raises(PySparkException, match="needs a column value"):
        frame.write.format("penstock").mode("append").save(str(tmp_path / "out"))
    with pytest.raises(PySparkException, match="column value is bigint"):
        frame.selectExpr("id as value").write.format("penstock").mode("append").save(str(tmp_path / "out"))


def test_lag_is_told(spark: SparkSession, tmp_path: Path) -> None:
    told: list[Progress] = []
    listener = Listener(told.append)
    spark.streams.addListener(listener)
    try:
        with Queue(tmp_path / "in") as q:
            q.append_batch(SENT[:1000])
            frame = stream(spark, tmp_path / "in", maxOffsetsPerTrigger=300)
            query = to_log(frame, tmp_path / "out", tmp_path / "checkpoint")
            query.awaitTermination()
            until(lambda: sum(p.rows for p in told) == 1000, "the reports have come")
    finally:
        spark.streams.removeListener(listener)
    assert [p.behind for p in told if p.rows] == [700, 400, 100, 0]
    assert told[0].lag == {"in": {0: 700}}
    assert listener.last[str(query.id)].behind == 0


def cut_short(target: Path, checkpoint: Path) -> None:
    """As if the driver had died over the first batch to a topic, before it came to the second partition."""
    for path in (target / "t").iterdir():
        if path.name.lstrip(".").startswith("partition_1"):
            remove(path) if path.is_dir() else path.unlink()
    (query,) = (path.name for path in (target / "t" / ".sinks").iterdir())
    pin = pins.load(target / "t", query)
    assert pin is not None
    assert pin.done
    pins.keep(target / "t", query, pin._replace(done=False))
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_batch_cut_short_between_partitions_is_completed_however_it_is_cut_into_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows without a key: none may move to a partition that has the batch, or away from one that has not."""
    source, target, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    with Queue(source) as q:
        q.append_batch(SENT)
    to_topic = {"topic": "t", "partitions": 2}
    run(to_log(stream(spark, source, minPartitions=1), target, checkpoint, **to_topic))
    cut_short(target, checkpoint)
    run(to_log(stream(spark, source, minPartitions=3), target, checkpoint, **to_topic))
    assert sorted(values(read(spark, target))) == SENT


def test_a_batch_cut_short_is_completed_though_partitions_were_added(spark: SparkSession, tmp_path: Path) -> None:
    """Keys that would go elsewhere now still go where the rest of the batch is."""
    source, target, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    with Queue(source) as q:
        q.append_batch(SENT)
    keyed = "value", "value as key"
    with Topics(target) as topics:
        topics.topic("t", 2)
    run(to_log(stream(spark, source), target, checkpoint, keyed, topic="t"))
    cut_short(target, checkpoint)
    with Topics(target) as topics:
        topics.topic("t").add_partitions(3)
    run(to_log(stream(spark, source), target, checkpoint, keyed, topic="t"))
    assert sorted(values(read(spark, target))) == SENT
    with Queue(source) as q:
        q.append_batch(SENT)
    run(to_log(stream(spark, source), target, checkpoint, keyed, topic="t"))
    with Topics(target, read_only=True) as topics:
        assert all(topics.topic("t").ends().values()), "what comes next goes to all there are"
