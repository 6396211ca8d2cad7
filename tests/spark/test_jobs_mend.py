"""Compress and reindex: what is made, what is left alone, and that records stay what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Channel
from penstock.errors import InvalidOption
from penstock.spark.jobs import compress, reindex, verify
from tests.spark.conftest import read, values, write
from tests.spark.test_jobs_verify import flip, segments

SENT = [b"%05d" % i * 5 for i in range(6000)]


def plain_channel(path: Path) -> None:
    with Channel[bytes](path, segment_bytes=50_000) as c:
        for i in range(0, len(SENT), 100):
            c.tx().send_many(SENT[i : i + 100])


@pytest.mark.parametrize("method", ["zstd", "snappy"])
def test_compress(spark: SparkSession, path: Path, method: str) -> None:
    plain_channel(path)
    finished = [s for s in segments(path) if not s.active]
    assert len(finished) > 2
    report = compress(spark, path, method=method)  # type: ignore[arg-type]
    assert (report.segments, report.left) == (len(finished), ())
    assert report.bytes_after < report.bytes_before
    for segment in finished:
        paths = segment.paths()
        assert paths.packed is not None
        assert (paths.packed.exists(), paths.data.exists()) == (True, False)
    assert values(read(spark, path)) == SENT
    assert compress(spark, path, method=method).segments == 0  # type: ignore[arg-type]
    with Channel[bytes](path) as c:
        assert c.rx("late").recv_many(6000) == SENT


def test_what_is_damaged_is_not_compressed(spark: SparkSession, path: Path) -> None:
    plain_channel(path)
    damaged = segments(path)[1]
    data = damaged.paths().data
    data.write_bytes(data.read_bytes()[: damaged.end // 2])
    report = compress(spark, path)
    assert report.left == (str(data),)
    assert data.exists()
    assert report.segments == len(segments(path)) - 2


def test_compress_is_refused(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    plain_channel(path)
    with Channel[bytes](path):
        report = compress(spark, path)
    assert (report.segments, [str(path) in error for error in report.failed]) == (0, [True])
    write(tmp_path / "queue", "queue", SENT[:10])
    with pytest.raises(InvalidOption, match="no channel here"):
        compress(spark, tmp_path / "queue")
    with pytest.raises(InvalidOption, match="method must be one of"):
        compress(spark, path, method="rar")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["queue", "channel", "topic"])
def test_reindex(spark: SparkSession, path: Path, format: str) -> None:
    write(path, format, SENT)
    finished = [s for s in segments(path) if not s.active]
    first, second = finished[0].paths(), finished[1].paths()
    times = [row.timestamp for row in read(spark, path).orderBy("offset").collect()]
    whole = {p: p.read_bytes() for p in (first.index, second.index, second.times)}
    first.index.unlink()
    flip(second.index, 256)
    second.times.write_bytes(whole[second.times][: 64 + (len(whole[second.times]) - 64) // 32 * 16])
    first.times.unlink()
    report = reindex(spark, path)
    assert report.failed == ()
    assert report.segments == len(finished)
    assert report.indexes == (str(first.index), str(second.index))
    assert report.companions == (str(first.times), str(second.times))
    assert {p: p.read_bytes() for p in (first.index, second.index)} == {
        p: whole[p] for p in (first.index, second.index)
    }
    checked = verify(spark, path)
    assert (checked.findings, checked.unproven, checked.records) == ((), 0, 6000)
    rows = read(spark, path).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == SENT
    kept = [row.timestamp for row in rows]
    assert kept[: finished[0].next] == [None] * finished[0].next
    half = finished[1].base + (finished[1].next - finished[1].base) // 2
    assert kept[finished[1].base : half] == times[finished[1].base : half]
    assert kept[finished[1].next :] == times[finished[1].next :]
    again = reindex(spark, path)
    assert (again.indexes, again.companions) == ((), ())


def test_reindex_proves_what_it_has_made(spark: SparkSession, path: Path) -> None:
    write(path, "topic", SENT)
    segment = segments(path)[0]
    segment.paths().times.unlink()
    reindex(spark, path)
    flip(segment.paths().data, 40)
    assert [f.kind for f in verify(spark, path).findings] == ["record"]


def test_reindex_says_what_it_cannot_do(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    gone = segments(path)[0].paths().data
    gone.unlink()
    report = reindex(spark, path)
    assert len(report.failed) == 1
    assert str(gone) in report.failed[0]
