"""What a stream makes of offsets when logs come, go, end sooner or are removed; without Spark."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import Channel, Journal, Queue, Retention
from penstock.errors import DataLost, InvalidOption, PenstockError
from penstock.inspect import find
from penstock.spark import overwrite
from penstock.spark.options import read_options, write_options
from penstock.spark.progress import progress_of
from penstock.spark.source import BatchReader, PenstockSource
from penstock.spark.stream import StreamReader
from penstock.storage import files, metadata, retention

ALL = ReadAllAvailable()


def fill(path: Path, count: int = 10) -> None:
    with Queue(path, file_size=65536) as q:
        q.append_batch([b"%05d" % i * 20 for i in range(count)])


def given(path: Path | str, **options: str) -> dict[str, str]:
    return {"path": str(path), "startingOffsets": "earliest", **options}


def stream(path: Path | str, **options: str) -> StreamReader:
    return StreamReader(read_options(given(path, **options)), PenstockSource(given(path)).schema())


def plain(offsets: dict[str, Any]) -> dict[str, Any]:
    """Without times."""
    return {log: {p: offset for p, offset in by.items() if p != "us"} for log, by in offsets.items()}


def rows(reader: StreamReader, start: Any, end: Any) -> list[tuple[str, int]]:
    batches = [batch for split in reader.partitions(start, end) for batch in reader.read(split)]
    return [(row["topic"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def test_a_second_log_of_the_same_name(tmp_path: Path) -> None:
    """The first one keeps the name it has in the checkpoint."""
    pattern = tmp_path / "*" / "orders"
    fill(tmp_path / "h1" / "orders")
    reader = stream(pattern)
    start = reader.initialOffset()
    before = reader.latestOffset(start, ALL)
    assert plain(before) == {"orders": {"0": 10}}
    fill(tmp_path / "h2" / "orders", 5)
    after = reader.latestOffset(before, ALL)
    other = str(tmp_path / "h2" / "orders")
    assert plain(after) == {other: {"0": 5}, "orders": {"0": 10}}
    assert len(rows(reader, before, after)) == 5
    again = stream(pattern)  # the query is started again
    assert again.latestOffset(after, ALL) == after
    with pytest.raises(
        InvalidOption, match=r"has offsets of orders, and there are several now: .*h1/orders, .*h2/orders"
    ):
        stream(pattern).latestOffset(before, ALL)


def test_a_log_of_several_names_is_read_once(tmp_path: Path) -> None:
    """It has the name that was given first; in a directory the one that is no link."""
    fill(tmp_path / "orders")
    (tmp_path / "link").symlink_to(tmp_path / "orders")
    for paths, name in (
        ([f"{tmp_path}/link", f"{tmp_path}/orders"], "link"),
        ([f"{tmp_path}/orders", f"{tmp_path}/link", f"file://{tmp_path}/link/../orders"], "orders"),
        ([str(tmp_path)], "orders"),
        ([f"{tmp_path}/*"], "orders"),
    ):
        options = {"paths": json.dumps(paths), "startingOffsets": "earliest"}
        reader = StreamReader(read_options(options), PenstockSource(options).schema())
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert plain(end) == {name: {"0": 10}}
        assert len(rows(reader, start, end)) == 10


def test_a_checkpoint_that_has_a_log_under_several_names(tmp_path: Path) -> None:
    """From a query that read it under each of them: it goes on where the one that was ahead did."""
    fill(tmp_path / "orders")
    (tmp_path / "link").symlink_to(tmp_path / "orders")
    by_path = {f"{tmp_path}/orders": {"0": 7}, f"{tmp_path}/link": {"0": 3}}
    for before in ({"link": {"0": 7}, "orders": {"0": 3}}, by_path):
        reader = stream(tmp_path)
        end = reader.latestOffset(before, ALL)
        assert plain(end) == {"orders": {"0": 10}}
        assert rows(reader, before, end) == [("orders", i) for i in range(7, 10)]


@pytest.mark.parametrize("anew", [False, True], ids=["running", "started again"])
def test_a_log_that_goes_away_and_comes_back(tmp_path: Path, anew: bool) -> None:
    """Its place is kept, and no record of it comes twice."""
    for name in ("a", "b"):
        fill(tmp_path / name)
    reader = stream(tmp_path, failOnDataLoss="false", maxOffsetsPerTrigger="1000")
    before = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1000))
    shutil.move(tmp_path / "a", tmp_path / ".away")
    fill(tmp_path / "b")
    reader = stream(tmp_path, failOnDataLoss="false") if anew else reader
    without = reader.latestOffset(before, ALL)
    assert list(without) == ["a", "b"]
    assert rows(reader, before, without) == [("b", i) for i in range(10, 20)]
    reader.commit(without)
    reader = stream(tmp_path, failOnDataLoss="false") if anew else reader
    assert reader.latestOffset(without, ReadMaxRows(1000)) == without
    shutil.move(tmp_path / ".away", tmp_path / "a")
    fill(tmp_path / "a", 3)
    again = reader.latestOffset(without, ALL)
    assert rows(reader, without, again) == [("a", i) for i in range(10, 13)]
    shutil.move(tmp_path / "a", tmp_path / ".away")
    reader.prepareForTriggerAvailableNow()
    shutil.move(tmp_path / ".away", tmp_path / "a")
    assert reader.latestOffset(again, ALL) == again
    with pytest.raises(InvalidOption, match="partition 0 of a, which is not at"):
        shutil.rmtree(tmp_path / "a")
        stream(tmp_path).latestOffset(again, ALL)


@pytest.mark.parametrize("paths", [["a"], ["a", "b"], ["[ab]"]], ids=["one", "a list", "a glob"])
def test_a_log_that_is_read_by_its_path_goes_away_and_comes_back(tmp_path: Path, paths: list[str]) -> None:
    """While the query runs; it is not started without it. What was planned of it is lost to the query."""
    for name in ("a", "b"):
        fill(tmp_path / name)
    options = {"paths": json.dumps([str(tmp_path / path) for path in paths]), "startingOffsets": "earliest"}
    loose = {**options, "failOnDataLoss": "false"}
    reader = StreamReader(read_options(loose), PenstockSource(loose).schema())
    strict = StreamReader(read_options(options), PenstockSource(options).schema())
    start = reader.initialOffset()
    at = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, at)
    for name in ("a", "b"):
        shutil.move(tmp_path / name, tmp_path / f".{name}")
    assert reader.latestOffset(at, ALL) == at
    assert rows(reader, start, at) == []
    assert [batch for split in planned for batch in reader.read(split)] == []
    reader.prepareForTriggerAvailableNow()
    for call in (lambda: strict.latestOffset(at, ALL), lambda: read_options(loose)):
        with pytest.raises(PenstockError, match=r"no such directory|nothing matches"):
            call()
    with pytest.raises(DataLost, match="offsets 0 to 9 were removed while the query ran"):
        [batch for split in planned for batch in strict.read(split)]
    for name in ("a", "b"):
        shutil.move(tmp_path / f".{name}", tmp_path / name)
        fill(tmp_path / name, 3)
    reader = StreamReader(read_options(loose), PenstockSource(loose).schema())
    names = ["a"] if paths == ["a"] else ["a", "b"]
    assert rows(reader, at, reader.latestOffset(at, ALL)) == [(name, i) for name in names for i in range(10, 13)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_that_ends_before_the_checkpoint(tmp_path: Path, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    """One that says no times: whether it is another one cannot be told."""
    fill(tmp_path / "q", 5)
    reader, at = stream(tmp_path / "q", failOnDataLoss=fail), {"q": {"0": 10}}
    if fail == "true":
        with pytest.raises(DataLost, match="it ends at 5, before offset 10"):
            reader.latestOffset(at, ALL)
    else:
        with caplog.at_level(logging.WARNING, "penstock.spark"):
            assert plain(reader.latestOffset(at, ALL)) == {"q": {"0": 5}}
        assert "it ends at 5, before offset 10" in caplog.text


@pytest.mark.parametrize("anew", [False, True], ids=["running", "started again"])
def test_a_log_that_is_put_back_shorter_goes_on_from_its_end(tmp_path: Path, anew: bool) -> None:
    """What is appended to it comes once, though it has offsets that were read before, and what was read does not come again."""
    path, came = tmp_path / "q", []
    fill(path, 60)
    shutil.copytree(path, tmp_path / "copy")
    fill(path, 40)
    reader = stream(path, failOnDataLoss="false")
    at = reader.latestOffset(reader.initialOffset(), ALL)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    for more in (0, 10, 50, 0):
        if more:
            fill(path, more)
        reader = stream(path, failOnDataLoss="false") if anew else reader
        before, at = at, reader.latestOffset(at, ALL)
        came += rows(reader, before, at)
        reader.commit(at)
    assert came == [("q", i) for i in range(60, 120)]
    assert stream(path).latestOffset(at, ALL) == at


@pytest.mark.parametrize("how", ["made anew", "overwritten"])
@pytest.mark.parametrize("anew", [False, True], ids=["running", "started again"])
@pytest.mark.parametrize("count", [5, 10, 15])
def test_another_log_in_place_of_the_one_that_was_read(
    tmp_path: Path, count: int, anew: bool, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is shorter or longer, its first records are not taken for those that were read."""
    path = tmp_path / "q"
    fill(path)
    reader = stream(path, failOnDataLoss="false")
    at = reader.latestOffset(reader.initialOffset(), ALL)
    if how == "made anew":
        shutil.rmtree(path)
        fill(path, count)
    else:
        fill(tmp_path / "other", count)
        overwrite._change_places(path, tmp_path / "other")
    with pytest.raises(DataLost, match=rf"another log than .* up to offset 10: its record {min(count, 10) - 1} was"):
        stream(path).latestOffset(at, ALL)
    with pytest.raises(DataLost, match="another log than"):
        stream(path).partitions(at, at)
    reader = stream(path, failOnDataLoss="false") if anew else reader
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        end = reader.latestOffset(at, ALL)
    assert "reading it from its beginning" in caplog.text
    reader = stream(path, failOnDataLoss="false") if anew else reader
    assert rows(reader, at, end) == [("q", i) for i in range(count)]
    assert stream(path).latestOffset(end, ALL) == end
    assert rows(reader, at, at) == []  # a batch of the old one that is run again


def test_the_same_log_elsewhere_goes_on(tmp_path: Path) -> None:
    """Copied back from a backup, in a checkpoint of an earlier version, after its record was removed or its times were lost."""
    path = tmp_path / "q"
    fill(path, 3000)
    at = stream(path).latestOffset(stream(path).initialOffset(), ReadMaxRows(1 << 62))
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    assert stream(path).latestOffset(at, ALL) == at
    assert stream(path).latestOffset(plain(at), ALL) == plain(at)
    with Queue(path) as q:
        gone = retention.drop(q._open_log(), 1 << 40)[-1].next
    before = {"q": {"0": gone, "us": {"0": 17}}}
    assert plain(stream(path).latestOffset(before, ALL)) == plain(at)
    for companion in path.rglob("*.time"):
        companion.unlink()
    assert stream(path).latestOffset(at, ALL) == at


def test_offsets_of_a_querys_progress_are_such_to_start_from(tmp_path: Path) -> None:
    fill(tmp_path / "q")
    at = stream(tmp_path / "q").latestOffset({"q": {"0": 3}}, ALL)
    assert set(at["q"]) == {"0", "us"}
    assert stream(tmp_path / "q", startingOffsets=json.dumps(at)).initialOffset() == at
    report = {"id": "a", "batchId": 0, "sources": [{"endOffset": at, "latestOffset": {"q": {"0": 12}}}]}
    assert progress_of(report).lag == {"q": {0: 2}}


def test_a_log_that_is_just_being_made_is_empty(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    reader = stream(tmp_path)
    start = reader.initialOffset()
    (tmp_path / "b").mkdir()
    settings = metadata.load(tmp_path / "a")
    assert settings is not None
    metadata.change(tmp_path / "b", settings)
    at = reader.latestOffset(start, ALL)
    assert plain(at) == {"a": {"0": 10}, "b": {"0": 0}}
    assert reader.reportLatestOffset() == plain(at)
    fill(tmp_path / "b")
    assert plain(reader.latestOffset(at, ALL)) == {"a": {"0": 10}, "b": {"0": 10}}
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(PenstockError, match="a"):
        reader.latestOffset(at, ALL)


def test_a_cursor_holds_back_retention_from_the_start(tmp_path: Path) -> None:
    fill(tmp_path / "q", 3000)
    reader = stream(tmp_path / "q", cursor="query")
    start = reader.initialOffset()
    with Queue(tmp_path / "q", retention=Retention(max_bytes=1)) as q:
        assert retention.drop(q._open_log(), 1 << 40) == []
    assert len(rows(reader, start, reader.latestOffset(start, ALL))) == 3000
    reader.commit({"q": {"0": 3000}})
    (part,) = find(tmp_path / "q")
    assert part.look(lambda view: view.cursors()) == {"query": 3000}
    assert stream(tmp_path / "q", cursor="query", startingOffsets="latest").initialOffset()["q"]["0"] == 3000
    assert part.look(lambda view: view.cursors()) == {"query": 3000}


def test_a_cursor_of_a_name_that_was_used_before(tmp_path: Path) -> None:
    """A query that is begun anew holds what it starts from, though the one before it had come further; not what lies before."""
    fill(tmp_path / "q", 3000)
    (part,) = find(tmp_path / "q")
    part.move_cursor("query", 3000)
    assert stream(tmp_path / "q", cursor="query").initialOffset() == {"q": {"0": 0}}
    assert part.look(lambda view: view.cursors()) == {"query": 0}
    stream(tmp_path / "q", cursor="query", startingOffsets="latest").initialOffset()
    assert part.look(lambda view: view.cursors()) == {"query": 0}


@pytest.mark.parametrize("format", ["channel", "journal"])
def test_a_cursor_is_of_logs_that_keep_what_it_holds(tmp_path: Path, format: str) -> None:
    """Also of those that come while the query runs: a receiver of the same name keeps its place."""
    fill(tmp_path / "q")
    reader = stream(tmp_path, cursor="bars")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    if format == "channel":
        with Channel[bytes](tmp_path / "new") as channel:
            channel.tx().send_many([b"%d" % i for i in range(100)])
            channel.rx("bars").recv_many(60)
    else:
        with Journal(tmp_path / "new") as journal:
            journal.append(b"x").result()
    message = f"cursor: .*new is a {format}, and .*; leave the option out"
    for call in (
        lambda: stream(tmp_path, cursor="bars"),
        lambda: reader.latestOffset(start, ALL),
        lambda: reader.partitions(start, start),
        lambda: reader.prepareForTriggerAvailableNow(),
    ):
        with pytest.raises(InvalidOption, match=message):
            call()
    if format == "channel":
        with Channel[bytes](tmp_path / "new") as channel:
            assert channel.rx("bars").try_recv() == b"60"


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_removed_between_planning_and_reading(tmp_path: Path, fail: str, on_corrupt: str) -> None:
    """That is no damage, and `onCorrupt` says nothing of it."""
    fill(tmp_path / "q", 3000)
    reader = BatchReader(
        read_options(given(tmp_path / "q", failOnDataLoss=fail, onCorrupt=on_corrupt)),
        PenstockSource(given(tmp_path / "q")).schema(),
    )
    splits = reader.partitions()
    with Queue(tmp_path / "q") as q:
        gone = retention.drop(q._open_log(), 1 << 40)[-1].next
    assert 0 < gone < 3000
    if fail == "true":
        with pytest.raises(DataLost, match=r"offsets 0 to \d+ were removed while the query ran"):
            [batch for split in splits for batch in reader.read(split)]
    else:
        assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 3000 - gone


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    ("how", "count"),
    [("another", 1000), ("another", 9000), ("the same times", 3000), ("elsewhere", 3000), ("elsewhere", 9000)],
)
def test_replaced_between_planning_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, count: int, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A task sees the log that was planned with, or none: of a batch query and of a stream."""
    path, other = tmp_path / "q", tmp_path / "other"
    fill(path, 3000)
    if how == "the same times":
        shutil.copytree(path, other)
    else:
        fill(other, count)
    options = given(path, failOnDataLoss=fail, minPartitions="2")
    batch = BatchReader(read_options(options), PenstockSource(options).schema())
    reader = stream(path, failOnDataLoss=fail, minPartitions="2")
    start = reader.initialOffset()
    planned = [(batch, batch.partitions()), (reader, reader.partitions(start, reader.latestOffset(start, ALL)))]
    before = [sum(rows.num_rows for rows in one.read(splits[0])) for one, splits in planned]
    if how == "elsewhere":  # directories cannot be compared
        monkeypatch.setattr(files, "boot_id", lambda: b"another")
    overwrite._change_places(path, other)
    for one, (_, second) in planned:
        if fail == "true":
            with pytest.raises(DataLost, match=r"offsets \d+ to \d+ are another log's now: it was replaced while"):
                list(one.read(second))
        else:
            assert list(one.read(second)) == []
            assert "it was replaced while the query ran; going on" in caplog.text
    overwrite._change_places(path, other)  # put back, it is the one
    after = [sum(rows.num_rows for rows in one.read(splits[1])) for one, splits in planned]
    assert [a + b for a, b in zip(before, after, strict=True)] == [3000, 3000]


@pytest.mark.parametrize(("had", "has"), [(3, 3), ("x", 2), (None, 2), (1 << 60, 2), (1, 2)], ids=str)
def test_the_new_log_has_the_partitions_that_were_added_to_the_old_one(tmp_path: Path, had: object, has: int) -> None:
    """If what its settings say of them can be."""
    for name, partitions in (("old", had), ("new", 2)):
        (tmp_path / name).mkdir()
        metadata.change(
            tmp_path / name, {"format": "topic", "version": 1, "partitions": partitions, "index_interval": 7}
        )
    overwrite._as_many_partitions(tmp_path / "old", tmp_path / "new")
    wanted = {"format": "topic", "version": 1, "partitions": has, "index_interval": 7}
    assert metadata.load(tmp_path / "new") == wanted


@pytest.mark.parametrize("fail", ["true", "false"])
def test_removed_from_a_log_that_came_while_the_query_ran(tmp_path: Path, fail: str) -> None:
    """Its first batch has no start in the checkpoint; what it had when that was planned is missed all the same."""
    fill(tmp_path / "a")
    reader = stream(tmp_path, failOnDataLoss=fail)
    before = reader.latestOffset(reader.initialOffset(), ALL)
    fill(tmp_path / "b", 3000)
    after = reader.latestOffset(before, ALL)
    with Queue(tmp_path / "b") as q:
        gone = retention.drop(q._open_log(), 1 << 40)[-1].next
    if fail == "true":
        with pytest.raises(DataLost, match=f"offsets 0 to {gone - 1} were removed"):
            rows(reader, before, after)
    else:
        assert rows(reader, before, after) == [("b", i) for i in range(gone, 3000)]


def test_available_now_does_not_wait_for_more(tmp_path: Path) -> None:
    fill(tmp_path / "q")
    reader = stream(tmp_path / "q", minOffsetsPerTrigger="100")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    reader.prepareForTriggerAvailableNow()
    assert plain(reader.latestOffset(start, reader.getDefaultReadLimit())) == {"q": {"0": 10}}


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "700"}])
def test_a_limit_below_the_number_of_logs(tmp_path: Path, limit: dict[str, str]) -> None:
    """Of logs that are written as fast as they are read, no one waits for ever, whether it has much or little."""
    counts = {f"q{i}": 500 if i % 3 == 0 else 1 for i in range(8)}
    for name, count in counts.items():
        fill(tmp_path / name, count)
    reader = stream(tmp_path, **limit)
    at = reader.initialOffset()
    for _ in range(16):
        before, at = at, reader.latestOffset(at, reader.getDefaultReadLimit())
        took = {name: by["0"] - before[name]["0"] for name, by in at.items()}
        assert 0 < sum(took.values()) <= 7
        for name in (name for name, count in took.items() if count):
            fill(tmp_path / name, took[name])
    assert all(by["0"] > 1 for by in at.values()), at


def test_a_limit_is_shared_out_by_how_much_there_is(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("f", 100), ("g", 100), ("h", 900)):
        fill(tmp_path / name, count)
    for most in (8, 50, 1104):
        reader = stream(tmp_path, maxOffsetsPerTrigger=str(most))
        took = {name: by["0"] for name, by in reader.latestOffset(reader.initialOffset(), ReadMaxRows(most)).items()}
        assert most - 8 < sum(took.values()) <= most
        assert min(took.values()) == 1
        assert took["f"] == took["g"] <= took["h"]


def test_a_glob_means_logs(tmp_path: Path) -> None:
    for name in ("orders", ".orders.batch-1", ".sinks"):
        fill(tmp_path / name)
    (tmp_path / "README").write_text("of logs")
    assert [part.topic for part in read_options(given(tmp_path / "*")).parts] == ["orders"]
    assert [part.topic for part in read_options(given(tmp_path / ".o*")).parts] == [".orders.batch-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": '{"q": {"0": 1}}'}, "a stream has no end"),
        ({"endingTimestamp": "1000"}, "a stream has no end"),
        ({"startingTimestamp": "1000"}, "startingOffsets and startingTimestamp; give one"),
        ({"cursor": "../x"}, "cursor: cursor name"),
    ],
)
def test_what_a_stream_refuses(tmp_path: Path, options: dict[str, str], message: str) -> None:
    fill(tmp_path / "q")
    with pytest.raises(InvalidOption, match=message):
        stream(tmp_path / "q", **options)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_a_batch_refuses_offsets_of_what_is_not_there(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "q")
    for wrong in ('{"other": {"0": 1}}', '{"q": {"1": 1}}'):
        with pytest.raises(InvalidOption, match=f"{name}: partition . of .* is not there"):
            BatchReader(
                read_options(given(tmp_path / "q") | {name: wrong}), PenstockSource(given(tmp_path / "q")).schema()
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"q": {"0": 23.7}}'}, "23.7 is no offset"),
        ({"startingOffsets": '{"q": {"0": 1e400}}'}, "Infinity is no offset"),
        ({"startingOffsets": '{"q": {"0": true}}'}, "true is no offset"),
        ({"endingOffsets": '{"q": {"0": -2}}'}, "nothing lies before the earliest"),
        ({"endingOffsets": "earliest"}, "nothing lies before the earliest"),
        ({"maxTriggerDelay": "-5m"}, "maxTriggerDelay must be 0 or more, such as 15m, not '-5m'"),
        ({"maxTriggerDelay": "1e400s"}, "maxTriggerDelay must be 0 or more"),
        ({"cursor": "../x"}, "cursor: cursor name"),
    ],
)
def test_what_no_query_can_mean(tmp_path: Path, options: dict[str, str], message: str) -> None:
    fill(tmp_path / "q")
    with pytest.raises(InvalidOption, match=message):
        read_options({"path": str(tmp_path / "q"), **options})


def test_where_a_sink_writes() -> None:
    assert write_options({"path": "file:/data/q"}).path == write_options({"path": "file:///data/q"}).path == "/data/q"
    with pytest.raises(InvalidOption, match="logs are written on a local file system"):
        write_options({"path": "s3://bucket/q"})
