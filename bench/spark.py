"""The Spark rows: `python -m bench.spark`, or `make bench-spark`. One session, rounds over all rows, medians.

Everything is read into Spark's noop sink, so that reading alone is measured. The peers hold the same rows: Parquet without compression
as Spark itself writes it, JSON lines, and a Python source that yields tuples.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThanOrEqual, InputPartition, LessThan

from bench.held import Figure
from penstock import Queue
from penstock.spark import session
from penstock.spark.options import read_options
from penstock.spark.source import FilteringReader, PenstockSource

CORES = 2
_WARM_UPS = 2
_PER_TRIGGER = 2_500_000
BATCH = 65_536


class Range(InputPartition):
    """Offsets of one task of the tuple source."""

    def __init__(self, path: str, lo: int, hi: int) -> None:
        super().__init__(lo)
        self.path, self.lo, self.hi = path, lo, hi


class TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def partitions(self) -> list[InputPartition]:
        with Queue(self.path, read_only=True) as q:
            half = q.next_sequence // CORES
            return [Range(self.path, half * i, half * (i + 1)) for i in range(CORES)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        assert isinstance(partition, Range)
        with Queue(partition.path, read_only=True) as q:
            tailer = q.tailer()
            tailer.seek(partition.lo)
            for message in tailer:
                if message.sequence >= partition.hi:
                    return
                yield message.sequence, message.payload


class TupleSource(DataSource):
    """What a first Python source looks like: the same queue, a tuple for each record."""

    @classmethod
    def name(cls) -> str:
        return "bench_tuples"

    def schema(self) -> str:
        return "offset bigint, value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["path"])


def fill(path: Path, rows: int, size: int) -> None:
    """A queue of so many records."""
    block = [i.to_bytes(8, "big") * (size // 8) + bytes(size % 8) for i in range(10_000)]
    with Queue(path) as q:
        for first in range(0, rows, len(block)):
            q.append_batch(block[: rows - first])


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """The rows, and what came out."""

    def __init__(self, spark: SparkSession, top: Path, rows: int, rounds: int) -> None:
        self.spark, self.top, self.rows, self.rounds = spark, top, rows, rounds
        self.rates: dict[str, list[float]] = {}
        fill(top / "small", rows, 100)

    def load(self, path: Path, schema: str = "offset bigint, value binary") -> DataFrame:
        return self.spark.read.format("penstock").schema(schema).load(str(path))

    def measure(self, acts: dict[str, tuple[int, Callable[[], object]]]) -> None:
        """Each some times, until the virtual machine has compiled what there is to compile, then rounds over all of them."""
        for name, (_, act) in acts.items():
            say(f"warming up: {name}")
            for _ in range(_WARM_UPS):
                act()
        for number in range(self.rounds):
            for name, (amount, act) in acts.items():
                say(f"round {number + 1}/{self.rounds}: {name}")
                self.rates.setdefault(name, []).append(amount / timed(act))

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def reading(self) -> None:
        small, large = self.top / "small", self.top / "large"
        fill(large, self.rows // 10, 1000)
        parquet, lines = self.top / "parquet", self.top / "lines"
        self.load(small).write.option("compression", "none").parquet(str(parquet))
        text = self.load(small).selectExpr("offset", "hex(value) as value").limit(self.rows // 10)
        text.write.json(str(lines))
        self.spark.dataSource.register(TupleSource)
        tuples = self.spark.read.format("bench_tuples").load(str(small))
        as_json = self.spark.read.schema("offset bigint, value string").json(str(lines))
        n = self.rows
        self.measure(
            {
                "penstock": (n, lambda: to_noop(self.load(small))),
                "penstock, offset alone": (n, lambda: to_noop(self.load(small, "offset bigint"))),
                "Parquet, uncompressed": (n, lambda: to_noop(self.spark.read.parquet(str(parquet)))),
                "tuples from Python": (n, lambda: to_noop(tuples)),
                "JSON lines (value as hex)": (n // 10, lambda: to_noop(as_json.selectExpr("offset", "unhex(value)"))),
                "penstock, 1 KB, bytes": (n // 10 * 1000, lambda: to_noop(self.load(large))),
            }
        )

    def copying(self) -> None:
        """Queue to queue, through Spark."""
        small, rows = self.top / "small", self.rows // 2
        ends = json.dumps({small.name: {"0": rows}})
        source = (
            self.spark.read.format("penstock").schema("value binary").option("endingOffsets", ends).load(str(small))
        )

        def batch() -> None:
            shutil.rmtree(self.top / "copy", ignore_errors=True)
            source.write.format("penstock").mode("append").save(str(self.top / "copy"))

        def stream() -> None:
            for name in ("copied", "checkpoint"):
                shutil.rmtree(self.top / name, ignore_errors=True)
            reader = self.spark.readStream.format("penstock").schema("value binary")
            reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", _PER_TRIGGER)
            rows_of = reader.load(str(small))
            writer = rows_of.writeStream.format("penstock").option("checkpointLocation", str(self.top / "checkpoint"))
            writer.option("path", str(self.top / "copied")).trigger(availableNow=True).start().awaitTermination()

        self.measure({"queue to queue, batch": (rows, batch), "queue to queue, stream": (self.rows, stream)})

    def share_of_a_range(self) -> float:
        """Which part of the bytes the tasks of a range of 1,000 records would touch."""
        middle, size = self.rows // 2, []
        some: list[Filter] = [GreaterThanOrEqual(("offset",), middle), LessThan(("offset",), middle + 1000)]
        for filters in (some, []):
            given = {"path": str(self.top / "small")}
            reader = FilteringReader(read_options(given), PenstockSource(given).schema())
            reader.pushFilters(filters)
            size.append(sum(p.size_bytes for split in reader.partitions() for p in split.pieces))  # type: ignore[attr-defined]
        return size[0] / size[1]

    def latency(self) -> tuple[float, float]:
        """Median ms from an append to foreachBatch, and of a trigger of the rate source, under the same settings; both warm."""
        for _ in range(2):
            took = self._append_ms(), self._rate_ms()
        return took

    def _append_ms(self) -> float:
        seen: list[float] = []
        shutil.rmtree(self.top / "live", ignore_errors=True)
        with Queue(self.top / "live") as q:
            q.append(b"0")
            reader = self.spark.readStream.format("penstock").option("startingOffsets", "earliest")
            frame = reader.load(str(self.top / "live"))

            def arrived(rows: DataFrame, _: int) -> None:
                sent = [float(row.value) for row in rows.collect()]
                seen.extend(time.time() - at for at in sent)

            query = frame.writeStream.foreachBatch(arrived).trigger(processingTime="0 seconds").start()
            try:
                for _ in range(40):
                    if (error := query.exception()) is not None:
                        raise error
                    before = len(seen)
                    q.append(repr(time.time()).encode())
                    deadline = time.monotonic() + 30
                    while len(seen) == before and time.monotonic() < deadline and query.isActive:
                        time.sleep(0.002)
            finally:
                query.stop()
        return statistics.median(seen[10:]) * 1000

    def _rate_ms(self) -> float:
        frame = self.spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: rows.collect()).trigger(processingTime="0 seconds").start()
        )
        deadline = time.monotonic() + 30
        while len(query.recentProgress) < 60 and time.monotonic() < deadline:
            time.sleep(0.05)
        took = [json.loads(p.json)["durationMs"].get("triggerExecution", 0) for p in query.recentProgress]
        busy = [json.loads(p.json)["numInputRows"] for p in query.recentProgress]
        query.stop()
        return statistics.median([t for t, n in zip(took, busy, strict=True) if n][5:])


def figures(bench: Bench, range_share: float, latency: tuple[float, float] | None) -> list[Figure]:
    """What is held, from this run alone."""
    m = bench.median

    def ratio(name: str, one: str, other: str, need: float) -> Figure:
        got = m(one) / m(other)
        return Figure(name, f"≥ {need:g} x", f"{got:.2f} x", got >= need)

    def rate(name: str, row: str, need: float, unit: str) -> Figure:
        return Figure(name, f"≥ {need / 1e6:g} M {unit}", f"{m(row) / 1e6:.2f} M {unit}", m(row) >= need)

    gb = m("penstock, 1 KB, bytes") / 1e9
    out = [
        ratio("source against uncompressed Parquet", "penstock", "Parquet, uncompressed", 0.6),
        ratio("source against tuples from Python", "penstock", "tuples from Python", 3.5),
        ratio("offset alone against all columns", "penstock, offset alone", "penstock", 1.5),
        Figure("payloads of 1 KB", "≥ 1.5 GB/s", f"{gb:.2f} GB/s", gb >= 1.5),
        rate("queue to queue, batch", "queue to queue, batch", 2e6, "rows/s"),
        rate("queue to queue, stream", "queue to queue, stream", 1.5e6, "rows/s"),
        Figure("bytes for 1,000 records of all", "< 1 %", f"{range_share:.4%}", range_share < 0.01),
    ]
    if latency is not None:
        got = latency[0] / latency[1]
        said = f"{got:.2f} x ({latency[0]:.0f} ms against {latency[1]:.0f})"
        out.append(
            Figure("append to foreachBatch, p50, against the rate source's trigger", "≤ 1.5 x", said, got <= 1.5)
        )
    return out


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="records of 100 bytes (default: 10 million)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-latency", action="store_true", help="leave out the row that takes a minute")
    parser.add_argument("--dir", type=Path, help="where to work (default: a new directory, removed at the end)")
    parser.add_argument("--json", type=Path, help="write what came out to this file")
    parser.add_argument("--check", action="store_true", help="end with 1 if a held figure fails")
    a = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="bench-spark", dir=a.dir))
    spark = session(master=f"local[{CORES}]", **{"spark.driver.memory": "2g"})
    try:
        bench = Bench(spark, top, a.rows, a.rounds)
        bench.copying()  # first: what else ran in a virtual machine makes it slower by a third
        bench.reading()
        held = figures(bench, bench.share_of_a_range(), None if a.no_latency else bench.latency())
    finally:
        spark.stop()
        shutil.rmtree(top, ignore_errors=True)
    print(
        f"\n{a.rows:,} rows, local[{CORES}], medians of {a.rounds} rounds; streams take {_PER_TRIGGER:,} rows a trigger"
    )
    for name, rates in bench.rates.items():
        low, high = min(rates) / bench.median(name) - 1, max(rates) / bench.median(name) - 1
        print(f"  {name:<28} {bench.median(name) / 1e6:8.2f} M/s   {low:+.0%} {high:+.0%}")
    print("\nHeld figures")
    for figure in held:
        print(f"  {figure.name:<64} {figure.need:<16} {figure.got:<32} {'pass' if figure.passed else 'FAIL'}")
    if a.json:
        a.json.write_text(json.dumps({"rates": bench.rates, "held": [f.to_json() for f in held]}, indent=1))
    return 1 if a.check and not all(f.passed for f in held) else 0


if __name__ == "__main__":
    sys.exit(main())
