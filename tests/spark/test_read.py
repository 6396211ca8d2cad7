"""Batch queries: every format, every option, columns, filters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import Queue, Topics
from tests.spark.conftest import read, values, write

SENT = [b"%05d" % i * 5 for i in range(3000)]
FORMATS = ["queue", "channel", "journal", "topic"]


@pytest.mark.parametrize("format", FORMATS)
def test_every_record_of_every_format(spark: SparkSession, path: Path, format: str) -> None:
    write(path, format, SENT)
    frame = read(spark, path)
    assert values(frame) == SENT
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "value"]
    row = frame.orderBy("offset").first()
    assert row is not None
    assert (row.topic, row.partition) == (("orders", 1) if format == "topic" else ("log", 0))
    assert abs((row.timestamp.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()) < 600


def test_known_in_a_new_session_without_a_call(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT[:10])
    assert values(spark.newSession().read.format("penstock").load(str(path))) == SENT[:10]


def test_a_directory_of_logs_a_glob_and_a_list(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / "logs" / name, "queue", [name.encode()])
    assert values(read(spark, tmp_path / "logs")) == [b"a", b"b", b"c"]
    assert values(read(spark, f"{tmp_path}/logs/[ab]")) == [b"a", b"b"]
    several = spark.read.format("penstock").load([f"{tmp_path}/logs/{name}" for name in ("a", "c")])
    assert values(several) == [b"a", b"c"]


@pytest.mark.parametrize(
    ("starting", "ending", "wanted"),
    [
        ("earliest", "latest", SENT),
        ("latest", "latest", []),
        ('{"log": {"0": 2990}}', "latest", SENT[2990:]),
        ('{"log": {"0": -2}}', '{"log": {"0": 7}}', SENT[:7]),
        ('{"log": {"0": 100}}', '{"log": {"0": -1}}', SENT[100:]),
        ('{"log": {"0": 1000}}', '{"log": {"0": 1000}}', []),
    ],
)
def test_offsets(spark: SparkSession, path: Path, starting: str, ending: str, wanted: list[bytes]) -> None:
    write(path, "queue", SENT)
    assert values(read(spark, path, startingOffsets=starting, endingOffsets=ending)) == wanted


def test_timestamps(spark: SparkSession, path: Path) -> None:
    with Queue(path) as q:
        q.append_batch(SENT[:10])
        first = q.tailer().read()
        assert first is not None
        assert first.timestamp_us is not None
        while True:  # the next one is at least a millisecond later
            q.append(b"later")
            last = q.tailer(direction="backward").read()
            assert last is not None
            assert last.timestamp_us is not None
            if last.timestamp_us // 1000 > first.timestamp_us // 1000 + 1:
                break
    found = values(read(spark, path, startingTimestamp=str(last.timestamp_us // 1000)))
    assert found
    assert set(found) == {b"later"}
    assert last.timestamp is not None
    until = values(read(spark, path, endingTimestamp=last.timestamp.isoformat()))
    assert until[:10] == SENT[:10]
    assert len(until) == last.sequence


def test_columns_that_are_asked_for_alone(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    frame = spark.read.format("penstock").schema("offset bigint").load(str(path))
    assert frame.columns == ["offset"]
    assert sorted(row.offset for row in frame.collect()) == list(range(3000))
    with pytest.raises(PySparkException, match="has no column 'payload'"):
        spark.read.format("penstock").schema("payload binary").load(str(path)).collect()


def test_metadata(spark: SparkSession, path: Path) -> None:
    write(path, "journal", SENT[:300])
    rows = read(spark, path, includeMetadata=True).orderBy("offset").collect()
    assert [row.group for row in rows] == [1] * 100 + [2] * 100 + [3] * 100
    assert {row.segment for row in rows} == {"0.journal"}
    data = (path / rows[7].segment).read_bytes()
    assert data[rows[7].position + 4 :][: len(SENT[7])] == SENT[7]


def test_positions_of_a_queue(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    for row in read(spark, path, includeMetadata=True).where("offset % 97 = 0").collect():
        data = (path / row.segment).read_bytes()
        assert data[row.position + 4 :][: len(SENT[row.offset])] == SENT[row.offset]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("offset = 17", [SENT[17]]),
        ("offset >= 10 and offset < 12", SENT[10:12]),
        ("offset in (3, 2999)", [SENT[3], SENT[2999]]),
        ("partition = 0 and offset > 2997", SENT[2998:]),
        ("partition = 5", []),
        ("topic = 'nothing'", []),
        ("timestamp < '2001-01-01'", []),
        ("timestamp > '2001-01-01' and offset < 2", SENT[:2]),
        ("offset < 2 or offset > 2998", [*SENT[:2], SENT[2999]]),
    ],
)
def test_filters(spark: SparkSession, path: Path, where: str, wanted: list[bytes]) -> None:
    write(path, "queue", SENT)
    assert values(read(spark, path).where(where)) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"checksum": "maybe"}, "checksum must be true or false"),
        ({"startingOffsets": "soon"}, "startingOffsets must be"),
        ({"endingOffsets": "earliest"}, "nothing lies before the earliest"),
        ({"endingOffsets": '{"log": {"0": 5000}}'}, "has no offset 5000"),
        ({"maxOffsetsPerTrigger": "0"}, "must be a whole number from 1 on"),
        ({"onCorrupt": "ignore"}, "onCorrupt must be one of fail, skip, permissive"),
        ({"startingTimestamp": "yesterday"}, "ISO 8601"),
        ({"format": "csv"}, "format must be one of"),
    ],
)
def test_wrong_options(spark: SparkSession, path: Path, options: dict[str, str], message: str) -> None:
    write(path, "queue", SENT[:100])
    with pytest.raises(PySparkException, match=message):
        read(spark, path, **options).collect()


def test_no_log_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no such directory"):
        read(spark, tmp_path / "nothing").collect()


def test_offsets_that_were_removed(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    with Queue(path) as q:
        log = q._open_log()
        log.seal_finished()
        gone = sorted(log.finished().values(), key=lambda s: s.id)[0]
        log.retire(gone)
    asked = {"startingOffsets": '{"log": {"0": 0}}'}
    with pytest.raises(PySparkException, match=f"offsets 0 to {gone.next - 1} were removed"):
        read(spark, path, **asked).collect()
    assert values(read(spark, path, failOnDataLoss=False, **asked)) == SENT[gone.next :]


def damage(path: Path) -> tuple[int, int]:
    """Change a byte of a record in the middle; which record, and how many there are."""
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(SENT)
        position = q._open_log().directory.read(q._open_log().active().segment, 0).scan(4096, 1 << 20, 1500).position
        file = next(path.rglob("*.data"))
    data = bytearray(file.read_bytes())
    data[position + 6] ^= 1
    file.write_bytes(data)
    return 1500, 3000


def test_damage(spark: SparkSession, path: Path) -> None:
    bad, count = damage(path)
    with pytest.raises(PySparkException, match=rf"sequence {bad}\): its checksum does not match"):
        read(spark, path).collect()
    assert values(read(spark, path, onCorrupt="skip")) == SENT[:bad] + SENT[bad + 1 :]
    rows = read(spark, path, onCorrupt="permissive").orderBy("offset").collect()
    assert len(rows) == count
    assert rows[bad].value is None
    assert rows[bad]._corrupt == f"offsets {bad} to {bad} are lost: its checksum does not match"
    assert rows[bad + 1]._corrupt is None
    assert len(values(read(spark, path, checksum=False))) == count
    alone = spark.read.format("penstock").schema("offset bigint")  # checked as well, though nothing of it is copied
    with pytest.raises(PySparkException, match=rf"sequence {bad}\)"):
        alone.load(str(path)).collect()
    assert alone.option("onCorrupt", "skip").load(str(path)).count() == count - 1


def test_many_splits_of_one_file(spark: SparkSession, path: Path) -> None:
    with Queue(path, file_size=1 << 20) as q:
        q.append_batch(SENT)
    frame = read(spark, path, minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert values(frame) == SENT


def test_beside_a_live_writer(spark: SparkSession, path: Path) -> None:
    with Queue(path) as q:
        q.append_batch(SENT[:100])
        assert values(read(spark, path)) == SENT[:100]
        assert q.durable_sequence == 100 or values(read(spark, path, durableOnly=False)) == SENT[:100]
        q.append_batch(SENT[100:200])
        assert values(read(spark, path)) == SENT[:200]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lo=st.integers(0, 3000), size=st.integers(0, 3000), parts=st.integers(1, 9), modulo=st.integers(1, 5))
def test_any_range_and_split(spark: SparkSession, tmp_path: Path, lo: int, size: int, parts: int, modulo: int) -> None:
    path = tmp_path / "log"
    if not path.exists():
        write(path, "queue", SENT)
    hi = min(3000, lo + size)
    frame = read(
        spark,
        path,
        startingOffsets=f'{{"log": {{"0": {lo}}}}}',
        endingOffsets=f'{{"log": {{"0": {hi}}}}}',
        minPartitions=parts,
    )
    assert values(frame.where(f"offset % {modulo} = 0")) == [SENT[i] for i in range(lo, hi) if i % modulo == 0]


def test_partitions_of_a_topic(spark: SparkSession, path: Path) -> None:
    with Topics(path, linger_s=0) as logs:
        t = logs.topic("orders", partitions=3)
        for p in range(3):
            t.publish_many([b"%d-%d" % (p, i) for i in range(50)], partition=p).wait()
    counted = {row.partition: row["count"] for row in read(spark, path).groupBy("partition").count().collect()}
    assert counted == {0: 50, 1: 50, 2: 50}
    only = read(spark, path, startingOffsets='{"orders": {"0": 45, "1": -1, "2": -2}}', endingOffsets="latest")
    assert {row.partition: row["count"] for row in only.groupBy("partition").count().collect()} == {0: 5, 2: 50}
