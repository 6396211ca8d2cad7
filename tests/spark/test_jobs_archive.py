"""The archive job, and reading an archive and its log as one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import Queue, Topics
from penstock.errors import DataLost, InvalidOption, LogBusy
from penstock.inspect import Part, find
from penstock.spark import listing
from penstock.spark.history import History
from penstock.spark.jobs import archive
from penstock.spark.options import read_options
from penstock.storage import files
from tests.spark.conftest import read, remove, values, write
from tests.spark.test_jobs_verify import flip, segments

SENT = [b"%05d" % i * 5 for i in range(6000)]


def parquet(top: Path) -> list[Path]:
    return sorted(top.rglob("*.parquet"))


def contents(top: Path) -> dict[str, tuple[int, int]]:
    return {str(p.relative_to(top)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in parquet(top)}


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """In place of Spark: this process does the work of its tasks."""
    job = importlib.import_module("penstock.spark.jobs.archive")
    monkeypatch.setattr(job, "each", lambda spark, items, work, size: [work(item) for item in items])
    return cast(SparkSession, None)


@pytest.mark.parametrize("format", ["queue", "channel", "topic", "journal"])
def test_finished_segments_of_every_format(spark: SparkSession, path: Path, to: Path, format: str) -> None:
    write(path, format, SENT)
    finished = [s for s in segments(path) if not s.active]
    report = archive(spark, path, to)
    end = max((s.next for s in finished), default=0)
    assert report.failed == ()
    assert report.segments == len(finished)
    assert report.rows == end  # (a journal has one file, which is active)
    assert [log.ranges for log in report.logs if log.rows] == ([((0, end),)] if end else [])
    assert max(log.droppable_below for log in report.logs) == end
    if end:
        frame = spark.read.parquet(str(to)).orderBy("offset")
        assert [bytes(row.value) for row in frame.collect()] == SENT[:end]
        row = frame.first()
        assert row is not None
        assert (row.topic, row.partition) == (("orders", 1) if format == "topic" else ("log", 0))
        assert row.date == row.timestamp.date()
    assert values(read(spark, path, archive=to)) == SENT


def test_running_again_writes_nothing_twice(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    first = archive(spark, path, to)
    before = contents(to)
    again = archive(spark, path, to)
    assert (again.segments, again.rows) == (0, 0)
    assert again.logs == first.logs
    assert contents(to) == before
    with Queue(path, file_size=65536, index_interval=16) as q:
        q.append_batch(SENT[:3000])
    more = archive(spark, path, to)
    assert more.segments > 0
    assert {name: stat for name, stat in contents(to).items() if name in before} == before
    assert values(read(spark, path, archive=to)) == SENT + SENT[:3000]


def test_days_are_apart(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    segment = segments(path)[0]
    times = segment.paths().times
    data = bytearray(times.read_bytes())
    midnight = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1e6)
    for i in range(segment.next - segment.base):
        us = midnight + (i - 700) * 1000 if i != 1000 else 0  # one of which nothing is known
        data[64 + 8 * i : 72 + 8 * i] = us.to_bytes(8, "little", signed=True)
    times.write_bytes(data)
    archive(spark, path, to)
    found = listing.load(to, find(path)[0]).files[:4]
    days = [str(file.file).split("/")[0] for file in found]
    assert days == ["date=2026-02-28", "date=2026-03-01", "date=__HIVE_DEFAULT_PARTITION__", "date=2026-03-01"]
    assert [(file.first, file.next) for file in found] == [(0, 700), (700, 1000), (1000, 1001), (1001, segment.next)]
    assert values(read(spark, path, archive=to)) == SENT


class Killed(BaseException):
    """Nothing catches it, and nothing is tidied up for it."""


def die_at(monkeypatch: pytest.MonkeyPatch, name: str, n: int, wanted: Callable[[Path], bool]) -> None:
    """Let the n-th call of a function of `files` that is for such a path be the last thing that happens."""
    real, count = getattr(files, name), [0]

    def call(*args: Any, **kwargs: Any) -> Any:
        if wanted(args[-1] if name == "rename" else args[0]):
            count[0] += 1
            if count[0] == n:
                raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(files, name, call)


@pytest.mark.parametrize(
    ("name", "n", "suffix"),
    [("rename", 1, ".parquet"), ("rename", 2, ".parquet"), ("replace", 1, ".json"), ("replace", 2, ".json")],
)
def test_a_death_half_way(
    spark: SparkSession, path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, name: str, n: int, suffix: str
) -> None:
    write(path, "queue", SENT)
    job = importlib.import_module("penstock.spark.jobs.archive")
    with monkeypatch.context() as patch:
        patch.setattr(job, "_WAVE_BYTES", 1)  # each segment is a wave
        die_at(patch, name, n, lambda p: p.name.endswith(suffix))
        with pytest.raises(Killed):
            archive(spark, path, to, drop=True)
    assert read(spark, path).count() == 6000  # nothing was dropped
    listed = listing.load(to, find(path)[0]).files
    assert len(listed) == n - 1
    for file in parquet(to):  # what can be seen is whole
        if "_staging" not in file.parts:
            assert file.parent.name.startswith("date=")
            assert spark.read.parquet(str(file)).count() > 0
    before = contents(to)
    report = archive(spark, path, to)
    assert report.segments == len([s for s in segments(path) if not s.active]) - len(listed)
    kept = {str(file.file) for file in listed}
    assert {f: s for f, s in contents(to).items() if f in kept} == {f: s for f, s in before.items() if f in kept}
    assert not (to / "_staging").exists()
    found = spark.read.parquet(str(to)).orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(report.logs[0].droppable_below))


def test_a_damaged_segment_stays_and_the_rest_goes_on(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    finished = [s for s in segments(path) if not s.active]
    bad = finished[1].read()
    flip(bad.paths.data, bad.start + 6)
    report = archive(spark, path, to, drop=True)
    assert len(report.failed) == 1
    assert str(bad.paths.data) in report.failed[0]
    assert report.segments == len(finished) - 1
    log = report.logs[0]
    assert (log.droppable_below, log.dropped_below) == (finished[1].base, finished[1].base)
    assert len(log.ranges) == 2
    found = values(read(spark, path, archive=to, onCorrupt="skip"))
    assert found == SENT[: bad.base] + SENT[bad.base + 1 :]
    us = bad.times.us(20)  # times are looked for in the order of offsets, wherever these are
    for option in ("startingTimestamp", "endingTimestamp"):
        when = {option: datetime.fromtimestamp(us / 1e6, UTC).isoformat(), "onCorrupt": "skip"}
        lo = History(Part(str(path), "queue", "log")).first_at(us)
        assert History(Part(str(path), "queue", "log"), str(to)).first_at(us) == lo
        part = SENT[lo:] if option == "startingTimestamp" else SENT[:lo]
        assert values(read(spark, path, archive=to, **when)) == [v for v in part if v != SENT[bad.base]]


@pytest.mark.parametrize("format", ["queue", "topic"])
def test_dropping_what_is_archived(spark: SparkSession, path: Path, to: Path, format: str) -> None:
    write(path, format, SENT)
    report = archive(spark, path, to, drop=True)
    log = report.logs[-1]
    assert 0 < log.dropped_below == log.droppable_below < 6000
    assert min(s.base for s in segments(path) if s.part.partition == log.partition) == log.dropped_below
    assert values(read(spark, path)) == SENT[log.dropped_below :]
    assert values(read(spark, path, archive=to)) == SENT


def test_a_named_reader_keeps_what_it_has_not_passed(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    with Queue(path) as q:
        tailer = q.tailer("slow", at=2000)
        tailer.commit()
    log = archive(spark, path, to, drop=True).logs[0]
    assert 0 < log.dropped_below <= 2000 < log.droppable_below


def test_an_archive_that_is_not_whole_drops_nothing(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    archive(spark, path, to)
    file = parquet(to)[0]
    flip(file, 400)
    assert ["nothing was dropped" in error for error in archive(spark, path, to, drop=True).failed] == [True]
    assert read(spark, path).count() == 6000
    file.unlink()
    assert ["nothing was dropped" in error for error in archive(spark, path, to, drop=True).failed] == [True]
    with pytest.raises(PySparkException, match="the archive's file cannot be read"):
        read(spark, path, archive=to).collect()


@pytest.mark.parametrize("format", ["queue", "topic"])
@pytest.mark.parametrize("records", [4000, 12_000])
@pytest.mark.parametrize("drop", [False, True])
def test_a_log_that_was_made_anew_is_not_taken_for_the_archived_one(
    here: SparkSession, path: Path, to: Path, format: str, records: int, drop: bool
) -> None:
    """Its offsets are the same, and none of its records were archived."""
    write(path, format, SENT)
    archive(here, path, to, drop=True)
    remove(path)
    write(path, format, [b"new %d" % i * 5 for i in range(records)])
    before, firsts = contents(to), [s.base for s in segments(path)]
    with pytest.raises(InvalidOption, match="another log's archive"):
        archive(here, path, to, drop=drop)
    assert contents(to) == before
    assert [s.base for s in segments(path)] == firsts


def test_the_archive_of_a_log_that_was_made_anew_is_not_read(here: SparkSession, path: Path, to: Path) -> None:
    """Its segments end elsewhere, and no file of the archive lies within one."""
    write(path, "queue", SENT)
    archive(here, path, to)
    remove(path)
    write(path, "queue", [b"new %05d" % i * 5 for i in range(6000)])
    live = segments(path)
    for file in listing.load(to, find(path)[0]).files:
        assert not any(s.base <= file.first and file.next <= s.next for s in live)
    with pytest.raises(InvalidOption, match=r"another record \d+ of log"):
        History(find(path)[0], str(to))


def test_what_is_appended_and_archived_during_a_look_is_the_logs_own(
    here: SparkSession, path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "queue", SENT)
    archive(here, path, to)
    real = listing.load

    def load(top: Path, part: Part) -> listing.Listing:
        monkeypatch.setattr(listing, "load", real)
        with Queue(path) as q:
            for _ in range(40):
                q.append_batch(SENT[:100])
        archive(here, path, to)
        return real(top, part)

    monkeypatch.setattr(listing, "load", load)
    history = History(find(path)[0], str(to))
    assert (history.first, history.end) == (0, 6000)
    assert history.archived[-1][1] > 6000


def test_a_directory_that_is_no_archive_is_not_taken_for_an_empty_one(
    here: SparkSession, path: Path, to: Path, tmp_path: Path
) -> None:
    """What the log has dropped would be missing without a word."""
    write(path, "queue", SENT)
    archive(here, path, to, drop=True)
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path, tmp_path / "empty", path):
        with pytest.raises(InvalidOption, match="is no archive; give one that `penstock spark archive` wrote"):
            read_options({"path": str(path), "archive": str(wrong)})
    assert read_options({"path": str(path), "archive": str(to)}).archive == str(to)
    write(tmp_path / "short", "queue", SENT[:10])
    archive(here, tmp_path / "short", tmp_path / "nothing yet")
    found = read_options({"path": str(tmp_path / "short"), "archive": str(tmp_path / "nothing yet")})
    assert History(found.parts[0], found.archive).archived == []


def test_times_that_are_not_known_are_passed_over_in_an_archive_as_in_a_log(
    here: SparkSession, path: Path, to: Path
) -> None:
    write(path, "queue", SENT)
    first = segments(path)[0]
    first.paths().times.unlink()
    archive(here, path, to)
    part = find(path)[0]
    for us, found in ((-1, 0), (0, 0), (1, first.next)):
        assert (History(part).first_at(us), History(part, str(to)).first_at(us)) == (found, found)
    file = parquet(to)[0]
    flip(file, 400)
    with pytest.raises(DataLost, match=f"{file}: the archive's file cannot be read"):
        History(part, str(to)).first_at(1)


def test_an_archive_is_a_directory(here: SparkSession, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT[:10])
    (tmp_path / "file").write_text("mine")
    for wrong in (tmp_path / "file", tmp_path / "file" / "archive"):
        with pytest.raises(InvalidOption, match=f"{tmp_path / 'file'}: a file; an archive is a directory"):
            archive(here, path, wrong)
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_dropped_that_has_another_time_in_the_archive(here: SparkSession, path: Path, to: Path) -> None:
    """Every file is looked at, not only those by which logs are told apart."""
    write(path, "queue", SENT)
    archive(here, path, to)
    finished = [s for s in segments(path) if not s.active]
    middle = finished[1]
    times = middle.paths().times
    flip(times, 64 + 8 * (middle.next - 1 - middle.base))
    (error,) = archive(here, path, to, drop=True).failed
    assert f"{path}: nothing was dropped: {to} has record {middle.next - 1} with another time" in error
    assert segments(path)[0].base == 0
    flip(times, 64 + 8 * (middle.next - 1 - middle.base))
    assert archive(here, path, to, drop=True).logs[0].dropped_below == finished[-1].next


def test_a_log_that_cannot_drop_does_not_stop_the_others(here: SparkSession, path: Path, to: Path) -> None:
    for name in ("a", "b", "c"):
        write(path / name, "queue", SENT)
    archive(here, path, to)
    later = '{"format": "queue", "version": 99}'  # such a log is read, but not opened to write
    (path / "a" / "metadata.json").write_text(later)
    parquet(to)[-1].unlink()  # of c
    report = archive(here, path, to, drop=True)
    assert [log.dropped_below > 0 for log in report.logs] == [False, True, False]
    assert [log.topic for log in report.logs if log.droppable_below] == ["a", "b", "c"]
    of_a, of_c = report.failed
    assert f"{path / 'a'}: version 99" in of_a
    assert f"{path / 'c'}: nothing was dropped" in of_c


def test_a_hole_between_archive_and_log(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    archive(spark, path, to, drop=True)
    part = find(path)[0]
    listed = listing.load(to, part)
    last = listed.files[-1]
    listing.store(to, listing.Listing(listed.path, listed.format, listed.topic, 0, listed.files[:-1]))
    with pytest.raises(PySparkException, match=f"offsets {last.first} to {last.next - 1} were removed"):
        read(spark, path, archive=to).collect()
    found = values(read(spark, path, archive=to, failOnDataLoss=False))
    assert found == SENT[: last.first] + SENT[last.next :]


def test_ranges_times_filters_and_columns(spark: SparkSession, path: Path, to: Path) -> None:
    write(path, "queue", SENT)
    log = archive(spark, path, to, drop=True).logs[0]
    lo, hi = log.dropped_below - 5, log.dropped_below + 5
    offsets = {"startingOffsets": f'{{"log": {{"0": {lo}}}}}', "endingOffsets": f'{{"log": {{"0": {hi}}}}}'}
    for parts in (1, 7):
        assert values(read(spark, path, archive=to, minPartitions=parts, **offsets)) == SENT[lo:hi]
    assert values(read(spark, path, archive=to).where("offset in (3, 5999)")) == [SENT[3], SENT[5999]]
    times = [row.timestamp for row in read(spark, path, archive=to).orderBy("offset").collect()]
    assert all(times)
    since = times[lo].replace(tzinfo=UTC).isoformat()
    found = values(read(spark, path, archive=to, startingTimestamp=since))
    assert found == SENT[times.index(times[lo]) :]
    frame = spark.read.format("penstock").schema("offset bigint").option("archive", str(to)).load(str(path))
    assert sorted(row.offset for row in frame.collect()) == list(range(6000))
    rows = read(spark, path, archive=to, includeMetadata=True).where("offset = 1").collect()
    assert rows[0].segment.endswith(".parquet")
    assert rows[0].position is None


def test_a_stream_goes_from_the_archive_into_the_log(spark: SparkSession, path: Path, to: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    archive(spark, path, to, drop=True)
    query = (
        spark.readStream.format("penstock")
        .option("startingOffsets", "earliest")
        .option("archive", str(to))
        .option("maxOffsetsPerTrigger", 2500)
        .load(str(path))
        .select("value")
        .writeStream.format("penstock")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [json.loads(progress.json)["numInputRows"] for progress in query.recentProgress]
    assert [n for n in rows if n] == [2500, 2500, 1000]
    assert values(read(spark, tmp_path / "out")) == SENT


def test_what_cannot_be(spark: SparkSession, path: Path, to: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    with pytest.raises(PySparkException, match="is no directory"):
        read(spark, path, archive=to).collect()
    archive(spark, path, to)
    fd = files.create(to / "_lock", exclusive=False)
    files.lock(fd, shared=False)
    with pytest.raises(LogBusy):
        archive(spark, path, to)
    files.close(fd)
    write(tmp_path / "other" / "log", "queue", SENT[:10])
    with pytest.raises(InvalidOption, match="has the archive of"):
        archive(spark, tmp_path / "other" / "log", to)
    with pytest.raises(PySparkException, match="another log's archive"):
        read(spark, tmp_path / "other" / "log", archive=to).collect()
    write(tmp_path / "later" / "log", "queue", SENT)
    with pytest.raises(PySparkException, match=r"another record \d+ of log"):
        read(spark, tmp_path / "later" / "log", archive=to).collect()
    write(tmp_path / "journal", "journal", SENT[:10])
    with pytest.raises(InvalidOption, match="drop is for queues and topics"):
        archive(spark, tmp_path / "journal", to, drop=True)


def test_beside_publishers(spark: SparkSession, path: Path, to: Path) -> None:
    with Topics(path, segment_bytes=20_000, linger_s=0) as logs:
        t = logs.topic("orders", partitions=1)
        t.publish_many(SENT).wait()
        log = archive(spark, path, to, drop=True).logs[0]
        assert log.dropped_below > 0
        t.publish_many(SENT[:1000]).wait()
        assert values(read(spark, path, archive=to)) == SENT + SENT[:1000]
