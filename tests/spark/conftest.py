"""One Spark session for all tests here, and logs to read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql import DataFrame, SparkSession

from penstock import Channel, Journal, Queue, Topics
from penstock.errors import JavaNotFound
from penstock.spark import register, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        made = session(master="local[2]", **{"spark.task.maxFailures": 1})
    except JavaNotFound as error:
        pytest.skip(str(error))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Py4J may give this thread another one of the virtual machine's, where no session is active."""
    if "spark" in request.fixturenames:
        register(request.getfixturevalue("spark"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def write(path: Path, format: str, payloads: list[bytes]) -> None:
    """A log of any format with these records."""
    if format == "queue":
        with Queue(path, file_size=65536, index_interval=16) as q:
            for i in range(0, len(payloads), 100):
                q.append_batch(payloads[i : i + 100])
    elif format == "channel":
        with Channel[bytes](path, segment_bytes=50_000, compression="zstd") as c:
            c.rx("holds")
            for i in range(0, len(payloads), 100):
                c.tx().send_many(payloads[i : i + 100])
    elif format == "journal":
        with Journal(path) as j:
            for i in range(0, len(payloads), 100):
                j.append_many(payloads[i : i + 100])
                j.checkpoint()
    else:
        with Topics(path, segment_bytes=20_000) as t:
            t.topic("orders", partitions=2).publish_many(payloads, partition=1).wait()


def read(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(path))


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.orderBy("topic", "partition", "offset").collect()]


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
