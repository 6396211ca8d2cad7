"""The stats job: its numbers beside numbers counted by hand, and its page."""

from __future__ import annotations

import importlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from penstock import Queue, Topics
from penstock.spark.jobs import page, stats
from tests.spark.conftest import write
from tests.spark.test_jobs_verify import flip, segments

SENT = [b"x" * (10 + i % 300) for i in range(3000)]
DAY_US = 86_400_000_000


def at(path: Path, times: list[int]) -> None:
    """Have records been appended at other times."""
    for segment in segments(path):
        file = segment.paths().times
        data = bytearray(file.read_bytes())
        for i in range(segment.base, segment.next):
            place = 64 + 8 * (i - segment.base)
            data[place : place + 8] = times[i].to_bytes(8, "little", signed=True)
        file.write_bytes(data)


def test_counted_by_hand(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    start = round(datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1e6)
    times = [start + i * 1_000_000 + (3600_000_000 if i >= 1234 else 0) for i in range(3000)]
    last = segments(path)[-1]
    assert last.base > 1234  # so that the second gap lies between two segments
    times = [us + (7200_000_000 if i >= last.base else 0) for i, us in enumerate(times)]
    at(path, times)
    report = stats(spark, path)
    (log,) = report.logs
    assert (log.records, log.bytes) == (3000, sum(map(len, SENT)))
    assert (log.first_us, log.last_us) == (times[0], times[-1])
    assert log.per_minute == pytest.approx(3000 / ((times[-1] - times[0]) / 60e6))
    assert (log.peak_per_minute, log.peak_us) == (60, start)
    assert [(gap.offset, gap.seconds) for gap in log.gaps[:3]] == [(last.base, 7201.0), (1234, 3601.0), (1, 1.0)]
    assert (log.size_min, log.size_max) == (10, 308)
    sizes = sorted(map(len, SENT))
    for told, share in ((log.size_p50, 0.5), (log.size_p90, 0.9), (log.size_p99, 0.99)):
        assert told == pytest.approx(sizes[round(3000 * share) - 1], rel=0.01)
    assert dict(log.sizes) == {n: sum(n <= s < 2 * n for s in sizes) for n in (8, 16, 32, 64, 128, 256)}
    assert sum(count for _, count in log.timeline) == 3000
    assert len(log.timeline) <= 96
    assert any(count == 0 for _, count in log.timeline)
    assert json.loads(json.dumps(report.to_dict()))["logs"][0]["records"] == 3000


def test_partitions_and_damage(spark: SparkSession, path: Path) -> None:
    with Topics(path, linger_s=0) as logs:
        t = logs.topic("orders", partitions=2)
        t.publish_many(SENT[:100], partition=0).wait()
        t.publish_many(SENT[:50], partition=1).wait()
    seg = segments(path)[1].read()
    flip(seg.paths.data, seg.start + 6)
    report = stats(spark, path)
    assert [(log.topic, log.partition, log.records) for log in report.logs] == [("orders", 0, 100), ("orders", 1, 49)]
    assert report.records == 149


def test_a_log_without_records(spark: SparkSession, path: Path) -> None:
    with Queue(path):
        pass
    (log,) = stats(spark, path).logs
    assert (log.records, log.per_minute, log.gaps, log.timeline) == (0, 0.0, (), ())
    assert "no times are known" in page(stats(spark, path))


@pytest.mark.parametrize("published", [0, 1])
def test_a_partition_without_a_message(path: Path, monkeypatch: pytest.MonkeyPatch, published: int) -> None:
    """It has no file yet."""
    job = importlib.import_module("penstock.spark.jobs.stats")
    monkeypatch.setattr(job, "each", lambda spark, items, work, size: [work(item) for item in items])
    with Topics(path, linger_s=0) as logs:
        logs.topic("orders", partitions=3).publish_many(SENT[:published], partition=1).wait()
    report = stats(cast(SparkSession, None), path)
    assert [(log.partition, log.records) for log in report.logs] == [(0, 0), (1, published), (2, 0)]
    assert [(log.first_offset, log.next_offset, log.segments) for log in report.logs[::2]] == [(0, 0, 0)] * 2
    assert page(report).count("no times are known") == 3 - published


def test_the_page_needs_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a<b>&c"
    write(path, "queue", SENT)
    html = page(stats(spark, path))
    assert "<script" not in html
    assert not re.search(r"(src|href|url\()\s*=?", html)
    assert "a<b>" not in html
    assert "prefers-color-scheme: dark" in html
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        drawn = ElementTree.fromstring(chart)
        bars = drawn.findall("rect")
        assert bars
        for bar in bars:
            box = [float(bar.attrib[name]) for name in ("x", "y", "width", "height")]
            assert min(box) >= 0
            assert box[0] + box[2] <= 720.1
            assert box[1] + box[3] <= 190
