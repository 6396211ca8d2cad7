"""Replay and convert: the same records, in the same order, somewhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from penstock import Queue, Topics
from penstock.errors import InvalidOption
from penstock.inspect import FormatName, Part, detect
from penstock.spark.jobs import archive, convert, replay
from penstock.spark.options import read_options
from penstock.storage import files
from penstock.storage.ledger import Ledger
from tests.spark.conftest import read, values, write

SENT = [b"%05d" % i * 5 for i in range(6000)]


def test_a_log_its_archive_and_both(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    dropped = archive(spark, path, tmp_path / "archive", drop=True).logs[0].dropped_below
    assert replay(spark, path, tmp_path / "log only").records == 6000 - dropped
    assert values(read(spark, tmp_path / "log only")) == SENT[dropped:]
    assert replay(spark, tmp_path / "archive", tmp_path / "archive only").records == dropped
    assert values(read(spark, tmp_path / "archive only")) == SENT[:dropped]
    report = replay(spark, path, tmp_path / "both", archive=tmp_path / "archive", to="channel")
    assert (report.records, report.format) == (6000, "channel")
    assert values(read(spark, tmp_path / "both")) == SENT
    with pytest.raises(InvalidOption, match="is an archive itself"):
        replay(spark, tmp_path / "archive", tmp_path / "x", archive=tmp_path / "archive")


def test_a_range_of_offsets_and_of_time_into_the_log_itself(spark: SparkSession, path: Path) -> None:
    write(path, "queue", SENT)
    assert replay(spark, path, path, start=10, end=20).records == 10
    assert values(read(spark, path)) == SENT + SENT[10:20]
    times = [row.timestamp.replace(tzinfo=UTC) for row in read(spark, path).orderBy("offset").collect()]
    since, until = times[6000], max(times).replace(year=2099)
    again = replay(spark, path, path, since=since, until=until)
    assert again.records == sum(since <= time for time in times)
    assert values(read(spark, path))[-again.records :] == (SENT + SENT[10:20])[-again.records :]
    assert replay(spark, path, path, until="2001-01-01T00:00:00Z").records == 0


def test_topics_keep_their_partitions(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    with Topics(path, linger_s=0) as logs:
        t = logs.topic("orders", partitions=3)
        t.publish_many(SENT[:100], partition=0).wait()
        t.publish_many(SENT[100:150], partition=2).wait()
    for target in (tmp_path / "replayed", tmp_path / "converted"):
        if target.name == "replayed":
            assert replay(spark, path, target).records == 150
        else:
            assert convert(spark, path, target, to="topic").records == 150
        with Topics(target) as logs:
            assert logs.topic("orders").partitions == 3
        rows = read(spark, target).orderBy("partition", "offset").collect()
        assert [(row.partition, bytes(row.value)) for row in rows] == [
            *((0, value) for value in SENT[:100]),
            *((2, value) for value in SENT[100:150]),
        ]
    with Topics(tmp_path / "few", linger_s=0) as logs:
        logs.topic("orders", partitions=1)
    with pytest.raises(InvalidOption, match=r"has fewer partitions \(1\) than are needed \(3\)"):
        replay(spark, path, tmp_path / "few", to="topic")


@pytest.mark.parametrize(
    ("source", "to"), [("queue", "channel"), ("channel", "topic"), ("journal", "queue"), ("topic", "queue")]
)
def test_converted(spark: SparkSession, path: Path, tmp_path: Path, source: str, to: FormatName) -> None:
    write(path, source, SENT[:1000])
    target = tmp_path / "target"
    report = convert(spark, path, target, to=to)
    assert report.records == 1000
    assert values(read(spark, target)) == SENT[:1000]
    made = {Path(log.target) for log in report.logs if log.records}
    assert {detect(place / "log" if to == "topic" else place) for place in made} == {to}
    assert not list(target.rglob(".convert*"))
    with pytest.raises(InvalidOption, match="there is something already"):
        convert(spark, path, target, to=to)


def test_a_conversion_that_was_cut_short_goes_on(
    spark: SparkSession, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "queue", SENT)
    target = tmp_path / "target"
    job = __import__("sys").modules["penstock.spark.jobs.convert"]
    with monkeypatch.context() as patch:
        patch.setattr(job, "_STEP_BYTES", 100_000)
        patch.setattr(job, "_records", _die)
        with pytest.raises(KeyboardInterrupt):
            convert(spark, path, target, to="queue")
    with Queue(path, file_size=65536, index_interval=16) as q:
        q.append_batch(SENT[:10])
    assert convert(spark, path, target, to="queue").records == 6010
    assert values(read(spark, target)) == SENT + SENT[:10]
    with Queue(target) as q:
        assert Ledger(q._open_log())._load().intent is None


@pytest.mark.parametrize("step", range(1, 13))
def test_a_conversion_that_was_cut_short_at_its_end_is_done(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Whatever of its checkpoints is left: the same call neither appends everything again nor is refused."""
    job = importlib.import_module("penstock.spark.jobs.convert")
    none = cast(SparkSession, None)

    def stream(spark: SparkSession, part: Part, place: Path, to: FormatName) -> None:
        """What a query does that may have run before."""
        if not job._checkpoint(place, part).exists():
            with Queue(place) as q, part.open() as view:
                q.append_batch([b"x"] * view.end)
            (job._checkpoint(place, part) / "offsets").mkdir(parents=True)

    monkeypatch.setattr(job, "_run", stream)
    for name in ("a", "b", "c"):
        write(path / name, "queue", SENT[:10])
    left = [step]

    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            left[0] -= ".convert" in str(args[0])
            if not left[0]:
                raise KeyboardInterrupt
            real(*args, **kwargs)

        return call

    def remove_tree(place: Path) -> None:  # step by step, as the system does it
        for child in [*place.glob("*/*"), *place.glob("*"), place] if place.exists() else []:
            remove(child)

    remove = dying(Path.rmdir)
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_tree", remove_tree)
        patch.setattr(files, "rename", dying(files.rename))
        with suppress(KeyboardInterrupt):
            convert(none, path, tmp_path / "target", to="queue")
    assert left[0] == 0
    assert [log.records for log in convert(none, path, tmp_path / "target", to="queue").logs] == [10, 10, 10]
    assert {place.name for place in tmp_path.rglob(".convert*")} == set()
    with pytest.raises(InvalidOption, match="there is something already"):
        convert(none, path, tmp_path / "target", to="queue")


def test_any_name_of_a_log_is_understood(tmp_path: Path) -> None:
    name = 'day "1"\\'
    write(tmp_path / name, "queue", SENT[:1])
    spark = MagicMock()
    convert(spark, tmp_path / name, tmp_path / "target", to="channel")
    option, offsets = spark.readStream.format.return_value.option.call_args.args
    assert option == "startingOffsets"
    assert read_options({"path": str(tmp_path / name), option: offsets}).starting == {name: {0: -2}}


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT[:10])
    with pytest.raises(InvalidOption, match="`penstock convert` makes a journal"):
        convert(spark, path, tmp_path / "out", to="journal")
