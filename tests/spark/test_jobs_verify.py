"""The verify job: all is found, in every format, and nothing is found where nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Queue
from penstock.errors import LogNotFound
from penstock.inspect import Segment, find
from penstock.spark.jobs import verify
from tests.spark.conftest import write

SENT = [b"%05d" % i * 5 for i in range(3000)]
FORMATS = ["queue", "channel", "journal", "topic"]


def segments(path: Path) -> list[Segment]:
    out = []
    for part in find(path):
        with part.open() as view:
            out += view.segments()
    return out


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("format", FORMATS)
def test_whole_logs(spark: SparkSession, path: Path, format: str) -> None:
    write(path, format, SENT)
    report = verify(spark, path)
    assert report.findings == ()
    assert not report.damaged
    assert report.unproven == 0
    assert report.records == (
        3031 if format == "journal" else 3000
    )  # a journal's checkpoints, and how a file begins, are records too
    assert report.segments == len(segments(path))
    assert report.bytes >= sum(map(len, SENT))
    assert json.loads(json.dumps(report.to_dict()))["records"] == report.records


@pytest.mark.parametrize("format", ["queue", "journal", "topic"])
def test_damage_is_found_where_it_is(spark: SparkSession, path: Path, format: str) -> None:
    write(path, format, SENT)
    found = segments(path)
    damaged = found[len(found) // 2]
    seg = damaged.read()
    at = seg.scan(seg.start, damaged.end, 17).position
    flip(seg.paths.data, at + 8)
    report = verify(spark, path)
    assert report.damaged
    assert [(f.file, f.position, f.first, f.last, f.kind) for f in report.findings] == [
        (str(seg.paths.data), at, damaged.base + 17, damaged.base + 17, "record")
    ]
    assert "checksum" in report.findings[0].what
    assert report.records == (3030 if format == "journal" else 2999)


def test_damage_in_every_segment_is_found(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT * 2)
    found = segments(path)
    assert len(found) > 2
    for segment in found:
        seg = segment.read()
        flip(seg.paths.data, seg.start + 6)
    report = verify(spark, path)
    assert [f.first for f in report.findings] == [segment.base for segment in found]
    assert report.records == 6000 - len(found)


def test_a_file_that_is_missing_and_a_log_that_is_broken(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "logs" / "good", "queue", SENT[:100])
    write(tmp_path / "logs" / "short", "queue", SENT)
    write(tmp_path / "logs" / "broken", "queue", SENT[:100])
    gone = segments(tmp_path / "logs" / "short")[0]
    gone.paths().data.unlink()
    for name in ("*.data", ".lock"):
        next((tmp_path / "logs" / "broken").rglob(name)).unlink()
    report = verify(spark, tmp_path / "logs")
    assert report.logs == 3
    assert report.damaged
    missing = [f for f in report.findings if f.topic == "short" and f.kind == "record"]
    assert [(f.first, f.last) for f in missing] == [(gone.base, gone.next - 1)]
    assert [f.topic for f in report.findings if f.kind == "log"] == ["broken"]
    assert report.records == 100 + 3000 - gone.next


def test_a_compressed_segment(spark: SparkSession, path: Path) -> None:
    write(path, "channel", SENT)
    packed = [p for s in segments(path) if (p := s.paths().packed) is not None and p.exists()]
    assert packed
    flip(packed[0], packed[0].stat().st_size // 2)
    report = verify(spark, path)
    assert report.damaged
    assert {f.file for f in report.findings if f.kind == "record"} == {str(packed[0])}


def test_what_lies_beside_is_told_apart(spark: SparkSession, path: Path) -> None:
    write(path, "topic", SENT)
    first, second = segments(path)[:2]
    first.paths().index.unlink()
    second.paths().times.unlink()
    report = verify(spark, path)
    assert not report.damaged
    assert [(f.kind, f.first) for f in report.findings] == [("index", first.base), ("companion", second.base)]
    assert report.unproven == second.next - second.base
    assert report.records == 3000


def test_an_index_that_leads_elsewhere(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    wrong = segments(path)[0].paths().index
    flip(wrong, 256 + 16 + 8)
    assert [(f.kind, f.file) for f in verify(spark, path).findings] == [("index", str(wrong))]


def test_beside_a_live_writer(spark: SparkSession, path: Path) -> None:
    with Queue(path, file_size=65536) as q:
        q.append_batch(SENT[:1000])
        report = verify(spark, path)
        assert report.findings == ()
        assert report.records == 1000


def test_nothing_there(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        verify(spark, tmp_path / "nothing")
