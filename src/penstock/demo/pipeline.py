"""The Spark driver: a process of its own, which may be killed at any time and goes on from its checkpoints when started again.

    python -m penstock.demo.pipeline DIRECTORY MOST

Three queries over one queue, at most MOST records a micro-batch: bars to Parquet, alerts and dead letters to topics. It says what
every micro-batch did on standard output, a JSON object a line, and works until standard input ends or says "end"; what is in
the queue by then is processed before it ends.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from penstock.demo.flow import BLOCK, OUT_OF_RANGE, UNREADABLE, WATERMARK_S
from penstock.demo.places import ALERTS, BARS, DEAD_LETTERS, Places
from penstock.spark.session import defaults, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ORDER: Final = "id string, time timestamp, symbol string, price decimal(10,2), size bigint"
_LOOK_EVERY_S: Final = 0.1


def records(spark: SparkSession, places: Places, most: int) -> DataFrame:
    """The records of the queue, parsed; `wrong` says why one is no order, and is null if it is one."""
    raw = (
        spark.readStream.format("penstock")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .load(str(places.orders))
    )
    # Through a generator: no filter gets behind it, where it would have every record parsed once for each of its fields.
    order = f.from_json(f.col("value").cast("string"), _ORDER)
    parsed = raw.select("offset", "value", f.inline_outer(f.array(order)))
    complete = f.lit(True)
    for name in ("id", "time", "symbol", "price", "size"):
        complete = complete & f.col(name).isNotNull()
    wrong = f.when(~complete, UNREADABLE).when((f.col("price") <= 0) | (f.col("size") <= 0), OUT_OF_RANGE)
    return parsed.withColumn("wrong", wrong)


def bars(records: DataFrame) -> DataFrame:
    """Bars of one minute by symbol. Open and close go by event time, and by id where that is the same."""
    when = f.struct("time", "id")
    return (
        records.where("wrong is null")
        .withWatermark("time", f"{WATERMARK_S} seconds")
        .groupBy(f.window("time", "1 minute"), "symbol")
        .agg(
            f.min_by("price", when).alias("open"),
            f.max("price").alias("high"),
            f.min("price").alias("low"),
            f.max_by("price", when).alias("close"),
            f.sum("size").alias("volume"),
            f.count("*").alias("orders"),
            f.sum(f.col("price") * f.col("size")).alias("notional"),
        )
        .withColumn("minute", f.col("window.start"))
        .withColumn("vwap", f.col("notional").cast("double") / f.col("volume").cast("double"))
        .drop("window")
    )


def alerts(records: DataFrame) -> DataFrame:
    """Orders of much money, for a topic: the same symbol, the same partition."""
    notional = (f.col("price") * f.col("size")).cast("decimal(20,2)")
    told = f.to_json(f.struct("offset", "id", "symbol", "price", "size", notional.alias("notional")))
    return records.where(f.col("wrong").isNull() & (notional >= f.lit(BLOCK))).select(
        f.col("symbol").alias("key"), told.alias("value")
    )


def dead_letters(records: DataFrame) -> DataFrame:
    """Records that are no orders, as they came, with where they lie and what is wrong with them."""
    payload = f.translate(f.base64("value"), "\r\n", "")  # Spark breaks lines of 76 characters
    told = f.to_json(f.struct("offset", "wrong", payload.alias("payload")))
    return records.where("wrong is not null").select(told.alias("value"))


def start(spark: SparkSession, places: Places, most: int) -> list[StreamingQuery]:
    """Start the three queries, or let them go on."""
    source = records(spark, places, most)

    def to_topic(frame: DataFrame, topic: str, partitions: int) -> StreamingQuery:
        writer = frame.writeStream.format("penstock").option("path", str(places.topics)).option("topic", topic)
        return (
            writer.option("partitions", partitions)
            .option("checkpointLocation", str(places.checkpoint(topic)))
            .queryName(topic)
            .start()
        )

    to_parquet = (
        bars(source)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(places.checkpoint(BARS)))
        .queryName(BARS)
        .start(str(places.bars))
    )
    return [to_parquet, to_topic(alerts(source), ALERTS, 2), to_topic(dead_letters(source), DEAD_LETTERS, 1)]


class _Telling:
    """Says what micro-batches have done, each once."""

    def __init__(self, queries: list[StreamingQuery]) -> None:
        self._queries = queries
        self._told = {query.name: -1 for query in queries}

    def tell(self) -> None:
        for query in self._queries:
            failed = query.exception()
            if failed is not None:
                raise failed
            for progress in query.recentProgress:
                found = json.loads(progress.json)
                if found["batchId"] > self._told[query.name]:
                    self._told[query.name] = found["batchId"]
                    _say(_batch(found))


def _batch(progress: dict[str, Any]) -> dict[str, Any]:
    """What is told of a micro-batch: `offset` is how far it has come in the queue."""
    (source,) = progress["sources"]
    end = source["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    return {
        "query": progress["name"],
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "took_s": progress["durationMs"]["triggerExecution"] / 1000,
        "offset": max(offset for by in (end or {}).values() for p, offset in by.items() if p.isdecimal()),
    }


def _drain(queries: list[StreamingQuery], telling: _Telling) -> None:
    """Let the queries process what is there, and stop them."""
    waiting = [threading.Thread(target=query.processAllAvailable, daemon=True) for query in queries]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        while thread.is_alive():
            thread.join(_LOOK_EVERY_S)
            telling.tell()
    for query in queries:
        query.stop()


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def _settings(places: Places) -> dict[str, object]:
    java = defaults("local[2]")["spark.driver.extraJavaOptions"]
    return {
        "spark.local.dir": places.scratch,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # A driver lives for seconds here: the time that Java's second compiler takes does not come back.
        "spark.driver.extraJavaOptions": f"{java} -XX:TieredStopAtLevel=1",
    }


def main(argv: list[str]) -> int:
    """Run the queries until told to end."""
    places, most = Places(Path(argv[0])), int(argv[1])
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    spark = session(master="local[2]", app_name="penstock demo", **_settings(places))
    queries = start(spark, places, most)
    telling = _Telling(queries)
    _say({"ready": True})
    while not ended.wait(_LOOK_EVERY_S):
        telling.tell()
    _drain(queries, telling)
    spark.stop()
    _say({"finished": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
