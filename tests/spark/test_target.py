"""Where a sink writes to, and what it is told there; without Spark."""

from __future__ import annotations

import errno
import os
import pickle
import random
import resource
import shutil
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from penstock import DiskFull, InvalidPayload, Journal, NotALog, Queue, StagingLost, StorageFailed, Topics, kernel
from penstock.errors import InvalidOption, InvalidTopic, SettingsMismatch
from penstock.formats import queue as fmt
from penstock.formats import topic
from penstock.formats.journal import MAX_PAYLOAD_BYTES
from penstock.inspect import find, format_of
from penstock.kernel.spec import FrameSpec
from penstock.spark import pins, staging
from penstock.spark.options import read_options, write_options
from penstock.spark.overwrite import replace_log
from penstock.spark.sink import BatchWriter, Staged, StreamWriter
from penstock.spark.source import BatchReader, PenstockSource
from penstock.spark.target import Layout, Target, layout, publish
from penstock.storage import files
from penstock.testing.failing import Fault, failing
from penstock.verify import verify
from tests.fuzz import corpus
from tests.queue.crash import Image
from tests.support import until

VALUE = StructType([StructField("value", BinaryType())])
SHARED_OUT = StructType([StructField("value", BinaryType()), StructField("partition", IntegerType())])


def put_aside(path: Path, payloads: list[bytes], spec: FrameSpec = fmt.SPEC) -> dict[staging.Key, staging.Put]:
    with staging.Attempt(staging.Place(str(path / ".staging"), "query", 0)) as attempt:
        attempt.add(("", 0), kernel.encode_many(spec, payloads), None)
    return attempt.files


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_of_something_else_stays(tmp_path: Path, overwrite: bool) -> None:
    """It would become a log itself, or be removed with all that is in it."""
    with Queue(tmp_path / "orders", file_size=65536) as q:
        q.append(b"x")
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(InvalidOption, match="no log, but there is something in it"):
            BatchWriter({"path": str(tmp_path)}, VALUE, overwrite=overwrite)
        assert {path.name for path in tmp_path.iterdir()} == {"orders", "notes.txt"}


def test_what_a_sink_puts_there_itself_is_nothing_else(tmp_path: Path) -> None:
    put_aside(tmp_path / "new", [b"a"])
    assert layout(write_options({"path": str(tmp_path / "new")})) == Layout("queue")


def test_one_format_is_not_overwritten_by_another(tmp_path: Path) -> None:
    with Queue(tmp_path / "orders", file_size=65536) as q:
        q.append(b"x")
    writer = BatchWriter({"path": str(tmp_path), "topic": "orders"}, VALUE, overwrite=True)
    with pytest.raises(InvalidOption, match="a queue, not a topic"):
        writer.commit([Staged("query", {}, {})])
    with Queue(tmp_path / "orders") as q:
        assert q.next_sequence == 1


def overwritten(top: Path) -> None:
    """Two topics, which change places one after the other."""
    options = write_options({"path": str(top), "format": "topic", "partitions": "1"})
    staged = {(name, 0): [*put_aside(top.parent / "aside", [b"new"], topic.SPEC).values()] for name in ("a", "b")}
    replace_log(options, layout(options), "job", staged)


def there(top: Path) -> dict[str, list[bytes]]:
    with Topics(top) as logs:
        return {name: [m.payload for m in logs.topic(name).tailer()] for name in ("a", "b")}


@pytest.mark.parametrize(("kind", "step"), [("EACCES on rename", 1), ("ENOSPC", 7)])
def test_a_log_that_could_not_be_overwritten_is_the_old_one_or_the_new_one(
    tmp_path: Path, kind: str, step: int
) -> None:
    """At each call that may fail, or some of them; nothing is left beside it."""
    failed, nth = True, 0
    while failed:
        nth += step
        top = tmp_path / str(nth) / "log"
        with Topics(top) as logs:
            for name in ("a", "b"):
                logs.topic(name, partitions=1).publish(b"old").wait()
        with failing(Fault(kind, nth)) as storage, suppress(OSError):
            overwritten(top)
        failed = bool(storage.failed)
        assert set(map(tuple, there(top).values())) <= {(b"old",), (b"new",)}
        assert not [*top.parent.glob(".log.*")]
    assert nth > 2
    assert there(top) == {"a": [b"new"], "b": [b"new"]}


def test_the_old_log_goes_when_the_new_one_is_sure_to_be_in_its_place(tmp_path: Path) -> None:
    """Where the second of two could not take its place, too."""
    top = tmp_path / "log"
    with Topics(top) as logs:
        for name in ("a", "b"):
            logs.topic(name, partitions=1).publish(b"old").wait()
    real, exchanged = files.sync_directory, []

    def exchange(one: Path, other: Path) -> None:
        if exchanged:
            raise OSError(errno.EACCES, "planted")
        files_exchange(one, other)
        exchanged.append(one)

    def sync_directory(path: Path) -> None:
        if exchanged:
            raise OSError(errno.EIO, "planted")
        real(path)

    files_exchange = files.exchange
    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(files, "exchange", exchange)
        meanwhile.setattr(files, "sync_directory", sync_directory)
        with pytest.raises(OSError, match="a power cut may leave the old log here or the new one") as told:
            overwritten(top)
    assert told.value.filename == str(top)
    name = exchanged[0].name
    assert there(top)[name] == [b"new"]
    files.exchange(top / name, top.with_name(".log.job") / name)  # what a power cut may do
    assert there(top)[name] == [b"old"]


def over(path: Path | str, values: list[bytes]) -> None:
    """An overwrite by one task, in whose place `Task` must stand."""
    writer = BatchWriter({"path": str(path)}, VALUE, overwrite=True)
    writer.commit([writer.write(iter([pa.record_batch([pa.array(values, pa.binary())], ["value"])]))])


def payloads(path: Path) -> list[bytes]:
    with Queue(path) as q, q.tailer() as tailer:
        return [m.payload for m in tailer]


@pytest.mark.parametrize("how", ["a link", "a link among what is above", "dots", "dots at its end"])
def test_a_log_is_overwritten_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Whatever name leads there; a link goes on leading there."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    real = tmp_path / "disk" / "orders"
    with Queue(real, file_size=65536) as q:
        q.append(b"old")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "above").symlink_to(tmp_path / "disk")
    (real / "x").mkdir()
    path = {"a link": "link", "a link among what is above": "above/orders", "dots": "disk/../disk/orders"}
    over(tmp_path / path.get(how, "disk/orders/x/.."), [b"new", b"newer"])
    assert payloads(real) == [b"new", b"newer"]
    assert (tmp_path / "link").readlink() == real
    assert {path.name for path in tmp_path.rglob("*") if path.parent in (tmp_path, real.parent)} == {
        "disk",
        "link",
        "above",
        "orders",
    }


@pytest.mark.parametrize("path", [".", "x/.."])
def test_the_working_directory_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """It would be removed under the process; told before anything is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match="the working directory is in it"):
        BatchWriter({"path": path, "format": "queue"}, VALUE, overwrite=True)
    BatchWriter({"path": ".", "topic": "t"}, VALUE, overwrite=True)


def test_what_killed_overwrites_left_goes_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this log, and with the next overwrite: of others, and what changed since, nothing does."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    job = f"batch-{'0' * 32}"
    kept = [f".others.{job}", ".orders.batch-mine", ".orders.backup", f".orders.batch-{'1' * 32}"]
    for name in ("orders", f".orders.{job}", *kept):
        with Queue(tmp_path / name, file_size=65536) as q:
            q.append(b"old")
        for path in (tmp_path / name, *(tmp_path / name).rglob("*")):
            stale(path)
    os.utime(next((tmp_path / kept[-1]).rglob("*.time")))
    over(tmp_path / "orders", [b"new"])
    assert {path.name for path in tmp_path.iterdir()} == {"orders", *kept}
    assert payloads(tmp_path / "orders") == [b"new"]


def test_partitions_may_have_been_added(tmp_path: Path) -> None:
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=4)
    given = {"path": str(tmp_path), "topic": "t"}
    for fewer in ("2", "4"):
        assert layout(write_options({**given, "partitions": fewer})).count("t") == 4
    with pytest.raises(InvalidOption, match="has 4 partitions, not 5"):
        layout(write_options({**given, "partitions": "5"}))


@pytest.mark.parametrize("overwrite", [False, True])
def test_partitions_that_are_added_while_a_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Between the plan, which Spark commits with, and the commit: the rows go where they were shared out to, and none of them is lost."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=2)
    writer = BatchWriter({"path": str(tmp_path), "topic": "t"}, SHARED_OUT, overwrite=overwrite)
    rows = pa.record_batch([pa.array([b"a", b"b"]), pa.array([0, 1], pa.int32())], ["value", "partition"])
    staged = writer.write(iter([rows]))
    with Topics(tmp_path) as logs:
        logs.topic("t").add_partitions(4)
    pickle.loads(pickle.dumps(writer)).commit([staged])
    assert partitions(tmp_path) == [[b"a"], [b"b"], [], []]
    shutil.rmtree(tmp_path / "t")
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=1)
    staged = writer.write(iter([rows]))
    if not overwrite:
        with pytest.raises(SettingsMismatch, match="made with partitions=1"):
            writer.commit([staged])


def test_options_of_another_format(tmp_path: Path) -> None:
    both = ("fileSize", "segmentBytes")
    of = {"queue": both[1:], "channel": both[:1], "topic": both[:1], "journal": both}
    for format, option in ((format, option) for format, options in of.items() for option in options):
        with pytest.raises(InvalidOption, match=f"option {option} is not for a {format}"):
            layout(write_options({"path": str(tmp_path / "x"), "format": format, option: "65536"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t", "partitions": "99999999"}, "partitions must be 1 to 4096, not 99999999"),
        ({"topic": "t", "segmentBytes": "3"}, "segmentBytes must be a whole number from 4 to"),
        ({"format": "channel", "segmentBytes": str(1 << 50)}, "segmentBytes must be a whole number from 1 to"),
        ({"fileSize": "1"}, "fileSize must be a multiple of 4096 from 8192 to"),
        ({"fileSize": "65537"}, "fileSize must be a multiple of 4096"),
        ({"fileSize": str(1 << 50)}, "fileSize must be a multiple of 4096"),
        ({"staging": "s3://bucket/aside"}, "staging: 's3://bucket/aside' is no directory"),
        ({"staging": ""}, "staging: '' is no directory"),
        ({"path": "file"}, "a file; a log is a directory"),
        ({"path": "made", "fileSize": "131072"}, "made with files of 65536 bytes, which is fixed"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(tmp_path: Path, options: dict[str, str], message: str) -> None:
    (tmp_path / "file").write_text("x")
    with Queue(tmp_path / "made", file_size=65536):
        pass
    given = {**options, "path": str(tmp_path / options.get("path", "new"))}
    for make in (lambda: BatchWriter(given, VALUE, overwrite=False), lambda: StreamWriter(given, VALUE)):
        with pytest.raises(InvalidOption, match=message):
            make()
    BatchWriter({"path": str(tmp_path / "made"), "fileSize": "65536"}, VALUE, overwrite=False)
    assert not (tmp_path / "new").exists()


def test_rows_that_have_no_topic_are_refused_before_any_work(tmp_path: Path) -> None:
    """Neither an option nor a column says which; also where topics are there already."""
    with Topics(tmp_path / "topics") as logs:
        logs.topic("t")
    for given in ({"format": "topic", "path": str(tmp_path / "new")}, {"path": str(tmp_path / "topics")}):
        for make in (
            lambda given=given: BatchWriter(given, VALUE, overwrite=False),
            lambda given=given: BatchWriter(given, VALUE, overwrite=True),
            lambda given=given: StreamWriter(given, VALUE),
        ):
            with pytest.raises(InvalidOption, match="rows without a topic; give option topic, or a column topic"):
                make()
        named = StructType([*VALUE.fields, StructField("topic", StringType())])
        BatchWriter(given, named, overwrite=False)
        BatchWriter({**given, "topic": "t"}, VALUE, overwrite=False)
    assert not (tmp_path / "new").exists()


def test_staging_may_be_written_as_paths_are(tmp_path: Path) -> None:
    assert write_options({"path": "q", "staging": f"file:{tmp_path}"}).staging == str(tmp_path)
    assert write_options({"path": "q", "staging": f"file://{tmp_path}"}).staging == str(tmp_path)


def test_a_stream_that_would_replace_everything_with_every_batch(tmp_path: Path) -> None:
    source = PenstockSource({"path": str(tmp_path / "q")})
    assert isinstance(source.streamWriter(VALUE, False), StreamWriter)
    with pytest.raises(InvalidOption, match=r'outputMode\("complete"\): a log is appended to'):
        source.streamWriter(VALUE, True)


def test_a_batch_that_comes_again_is_shared_out_as_its_tasks_did(tmp_path: Path) -> None:
    """Partitions that were added between the tasks and the commit are none of its own."""
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=2)
    given = {"path": str(tmp_path), "topic": "t"}
    StreamWriter(given, VALUE)
    with Topics(tmp_path) as logs:
        logs.topic("t").add_partitions(5)
    StreamWriter(given, VALUE).commit([Staged("query", {}, {"t": 2}), None], 7)
    assert pins.load(tmp_path / "t", "query") == pins.Pin(7, 2, done=True)
    assert StreamWriter(given, VALUE)._layout.count("t", "query", 7) == 2
    assert StreamWriter(given, VALUE)._layout.count("t", "query", 8) == 5


def test_a_batch_write_within_a_stream_is_a_job_of_its_own(tmp_path: Path) -> None:
    """Else what it stages would lie under a number that its commit does not sweep."""

    class Context:
        def getLocalProperty(self, name: str) -> str:
            return {"sql.streaming.queryId": "query", "streaming.sql.batchId": "3"}[name]

    context: Any = Context()
    writer = BatchWriter({"path": str(tmp_path / "q")}, VALUE, overwrite=False)
    assert writer._run_by(context) == (writer._job, None)
    assert StreamWriter({"path": str(tmp_path / "q")}, VALUE)._run_by(context) == ("query", "3")


class Task:
    """What a task is told by Spark."""

    number = 0

    def partitionId(self) -> int:
        return self.number


def run(given: dict[str, str], values: list[bytes], tasks: int = 1) -> None:
    """A job that appends these, by so many tasks."""
    schema = StructType(
        [StructField("value", BinaryType()), *([StructField("key", BinaryType())] * ("topic" in given))]
    )
    writer = BatchWriter(given, schema, overwrite=False)
    staged = []
    for Task.number in range(tasks):
        some = pa.array(values[Task.number :: tasks])
        names = [field.name for field in schema.fields]
        staged.append(writer.write(iter([pa.record_batch([some] * len(names), names)])))
    Task.number = 0
    BatchWriter(given, schema, overwrite=False).commit(staged)  # made anew, as Spark does


@pytest.mark.parametrize("topic", [False, True])
def test_a_write_that_is_run_again_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: bool) -> None:
    """In `foreachBatch`, when it says whose it is and which: by other tasks, and to more partitions, too."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    given = {"path": str(tmp_path / "q")} | ({"topic": "t", "partitions": "2"} if topic else {})
    numbers = [b"%03d" % i for i in range(90)]
    for version in range(3):
        for tasks in (1, 3):
            run({**given, "txnAppId": "bars/of a day", "txnVersion": str(version)}, numbers[version * 30 :][:30], tasks)
            if topic:
                with Topics(tmp_path / "q") as logs:
                    logs.topic("t").add_partitions(logs.topic("t").partitions + 1)
    run({**given, "txnAppId": "bars/of a day", "txnVersion": "1"}, [b"late"])
    run({**given, "txnAppId": "another", "txnVersion": "1"}, [b"other"])
    reader = BatchReader(read_options({"path": given["path"]}), PenstockSource({"path": given["path"]}).schema())
    batches = [batch for split in reader.partitions() for batch in reader.read(split)]
    found = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert sorted(found) == [*numbers, b"other"]
    assert not list(tmp_path.glob("q/.staging/*"))


def run_to(top: Path, version: int, rows: list[tuple[bytes, int]], topic: str = "t") -> None:
    """A job that appends these, each to its partition."""
    given = {"path": str(top), "topic": topic, "partitions": "3", "txnAppId": "bars", "txnVersion": str(version)}
    columns = [pa.array([value for value, _ in rows]), pa.array([place for _, place in rows], pa.int32())]
    writer = BatchWriter(given, SHARED_OUT, overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch(columns, ["value", "partition"])]))])


def partitions(top: Path, topic: str = "t") -> list[list[bytes]]:
    with Topics(top, read_only=True) as logs:
        found = logs.topic(topic)
        return [[m.payload for m in found.read(p, 0, 1000)] for p in range(found.partitions)]


def test_a_number_is_the_topics_also_where_a_partition_had_no_row_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lower one, and the same one again with other rows: a partition's ledger alone knows of none."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    run_to(tmp_path, 5, [(b"5", 0)])
    run_to(tmp_path, 5, [(b"5", 0), (b"5 again", 1)])
    run_to(tmp_path, 3, [(b"3", 0), (b"3", 2)])
    run_to(tmp_path, 5, [(b"5 again", 1)])
    assert partitions(tmp_path) == [[b"5"], [], []]
    run_to(tmp_path, 6, [(b"6", 2)])
    assert partitions(tmp_path) == [[b"5"], [], [b"6"]]
    assert not list(tmp_path.glob(".staging/*"))


def test_every_topic_has_numbers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every log has: one batch may be written to several, and one that was made anew has none yet."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    for version in (7, 8):
        for name in ("t", "u"):
            run_to(tmp_path, version, [(b"%d" % version, 1)], name)
    assert partitions(tmp_path, "t") == partitions(tmp_path, "u") == [[], [b"7", b"8"], []]
    shutil.rmtree(tmp_path / "t")
    overwriting = BatchWriter({"path": str(tmp_path), "topic": "u"}, SHARED_OUT, overwrite=True)
    overwriting.commit([Staged("batch-1", {}, {})])
    for name in ("t", "u"):
        run_to(tmp_path, 0, [(b"0", 1)], name)
    assert partitions(tmp_path, "t") == partitions(tmp_path, "u") == [[], [b"0"], []]


@pytest.mark.parametrize("topics", [False, True])
def test_a_batch_that_is_written_to_several_logs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: bool
) -> None:
    """In `foreachBatch`, under one name and with one directory for staging: the first commit leaves what the second has staged."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    shared = {"staging": str(tmp_path / "aside"), "txnAppId": "bars", "txnVersion": "0"}

    def writer(name: str) -> BatchWriter:
        place = {"path": str(tmp_path / "t"), "topic": name} if topics else {"path": str(tmp_path / name)}
        return BatchWriter({**shared, **place}, VALUE, overwrite=False)

    staged = {name: writer(name).write(iter([pa.record_batch([[b"x"]], ["value"])])) for name in ("a", "b", "c")}
    writer("c").abort([staged["c"]])
    for name in ("a", "b"):
        writer(name).commit([staged[name]])
        assert (partitions(tmp_path / "t", name) if topics else [payloads(tmp_path / name)]) == [[b"x"]]
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("name", [".sinks", ".staging", "metadata.json", "../x", "", "a/b"])
def test_a_topic_of_the_data_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its task is told, before anything of the batch is appended, and the other topics stay what they are."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    schema = StructType([*VALUE.fields, StructField("topic", StringType())])
    top = tmp_path / "t"
    for version, names in enumerate((["good"], ["good", name], ["good"])):
        given = {"path": str(top), "format": "topic", "txnAppId": "bars", "txnVersion": str(version)}
        writer = BatchWriter(given, schema, overwrite=False)
        rows = iter([pa.record_batch([pa.array([b"%d" % version] * len(names)), pa.array(names)], ["value", "topic"])])
        if name in names:
            with pytest.raises(InvalidTopic, match="topic name"):
                writer.write(rows)
            writer.abort([])
        else:
            writer.commit([writer.write(rows)])
    assert partitions(top, "good") == [[b"0", b"2"]]
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    if name:
        with pytest.raises(InvalidTopic, match="topic name"):
            BatchWriter({"path": str(top), "topic": name}, VALUE, overwrite=False)


@pytest.mark.parametrize("name", ["segment.0", "0.journal", "partition_0_segment_0.log", "2026", ".x"])
def test_a_topic_that_is_called_as_a_file_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The directory that it is in stays one of topics."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    for topic_ in (name, "other"):
        run_to(tmp_path, 0, [(b"x", 0)], topic_)
    assert {part.topic for part in find(tmp_path)} == {name, "other"}


class Killed(BaseException):
    """A process that ends here."""


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("step", range(5))
def test_a_write_cut_short_at_each_step_is_completed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, before: bool
) -> None:
    """The pin, three partitions, the pin again; meanwhile partitions are added, and keys would go elsewhere."""
    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    given = {"path": str(tmp_path), "topic": "t", "txnAppId": "bars", "txnVersion": "4"}
    values = [b"%03d" % i for i in range(60)]
    with Topics(tmp_path) as logs:
        logs.topic("t", 3)
    steps = iter(range(5))

    def dying(call: Callable[..., None]) -> Callable[..., None]:
        def die(*args: Any, **options: Any) -> None:
            number = next(steps)
            if not (before and number == step):
                call(*args, **options)
            if number == step:
                raise Killed

        return die

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("penstock.spark.sink.publish", dying(publish))
        meanwhile.setattr(pins, "keep", dying(pins.keep))
        with pytest.raises(Killed):
            run(given, values)
    with Topics(tmp_path) as logs:
        logs.topic("t").add_partitions(5)
    for tasks in (1, 2):
        run(given, values, tasks)
    run({**given, "txnVersion": "3"}, values)
    assert sorted(value for some in partitions(tmp_path) for value in some) == values
    run({**given, "txnVersion": "5"}, values)
    assert all(partitions(tmp_path))
    assert not verify(tmp_path, deep=True).findings


def test_a_topic_is_not_looked_for_behind_a_link(tmp_path: Path) -> None:
    with Topics(tmp_path / "elsewhere") as logs:
        logs.topic("t")
    top = tmp_path / "top"
    writer = StreamWriter({"path": str(top), "topic": "t"}, VALUE)
    top.mkdir()
    (top / "t").symlink_to(tmp_path / "elsewhere" / "t")
    with pytest.raises(NotALog, match="a link, where a log has its own"):
        writer.commit([Staged("query", {}, {"t": 1})], 0)
    assert not (tmp_path / "elsewhere" / "t" / ".sinks").exists()


def test_tasks_are_told_of_no_query_that_they_need_not_know(tmp_path: Path) -> None:
    """Nor does one that does not come again, and whose file is damaged, stop the others."""
    given = {"path": str(tmp_path), "topic": "t"}
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=2)
    for i in range(50):
        pins.keep(tmp_path / "t", f"query {i}", pins.Pin(7, 2, done=True))
    pins.keep(tmp_path / "t", "mine", pins.Pin(7, 1))
    (tmp_path / "t" / ".sinks" / "damaged").write_bytes(b"x")
    assert StreamWriter(given, VALUE)._layout.pins == {"mine": {"t": pins.Pin(7, 1)}}
    assert BatchWriter(given, VALUE, overwrite=False)._layout.pins == {}
    run = {"txnAppId": "bars", "txnVersion": "7"}
    pins.keep(tmp_path / "t", staging.name_of("bars"), pins.Pin(7, 1))
    assert [*BatchWriter({**given, **run}, VALUE, overwrite=False)._layout.pins] == [staging.name_of("bars")]
    with pytest.raises(NotALog, match="damaged: fails its checksum; restore it from a copy, or remove it if the query"):
        StreamWriter(given, VALUE).commit([Staged("damaged", {}, {"t": 2})], 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "bars"}, "give both or neither"),
        ({"txnVersion": "3"}, "give both or neither"),
        ({"txnAppId": "", "txnVersion": "3"}, "give both or neither"),
        ({"txnAppId": "bars", "txnVersion": "-3"}, "a whole number from 0 on"),
        ({"txnAppId": "bars", "txnVersion": "three"}, "a whole number from 0 on"),
        ({"txnAppId": "bars", "txnVersion": str(1 << 63)}, "a whole number from 0 on"),
    ],
)
def test_a_write_that_does_not_say_which_it_is(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        write_options({"path": str(tmp_path / "q"), **options})


def test_who_needs_not_say_which_it_is(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "q"), "txnAppId": "bars", "txnVersion": "3"}
    with pytest.raises(InvalidOption, match="are for append"):
        BatchWriter(given, VALUE, overwrite=True)
    with pytest.raises(InvalidOption, match="a streaming query has an id"):
        StreamWriter(given, VALUE)


def target(path: Path) -> Target:
    return Target(write_options({"path": str(path), "fileSize": "65536"}), Layout("queue"), "", 0)


def spoil(put: staging.Put, dice: random.Random) -> None:
    """Change a staged file, or have it gone."""
    suffix = dice.choice(sorted(put.seals))
    path = Path(put.path + suffix)
    content = path.read_bytes()
    data = bytearray(content)
    while data == content:
        dice.choice(corpus.MUTATIONS)(data, dice, Image({"x": content}))
    path.unlink()
    if dice.random() < 0.9:
        path.write_bytes(data)


@pytest.mark.parametrize("seed", range(25))
def test_hostile_staged_files_are_refused(tmp_path: Path, seed: int) -> None:
    """Nothing of them is appended, and the log goes on."""
    path, dice = tmp_path / "q", random.Random(seed)
    payloads = [bytes([i]) * (i * 7 % 50 + 1) for i in range(40)]
    times = array("q", range(1, 41)).tobytes()
    with staging.Attempt(staging.Place(str(path / ".staging"), "query", 0)) as attempt:
        attempt.add(("", 0), kernel.encode_many(fmt.SPEC, payloads), times)
    (put,) = attempt.files.values()
    spoil(put, dice)
    with pytest.raises(StagingLost):
        publish(target(path), "query", 0, [put], comes_again=True)
    publish(target(path), "query", 1, [*put_aside(path, [b"good"]).values()], comes_again=True)
    assert not verify(path, deep=True).findings
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"good"]


def test_a_record_that_fits_no_file(tmp_path: Path) -> None:
    path = tmp_path / "q"
    puts = [*put_aside(path, [b"a", bytes(100_000)]).values()]
    with pytest.raises(InvalidPayload, match="a record of 100000 bytes does not fit a file of 65536"):
        publish(target(path), "query", 0, puts, comes_again=True)
    publish(target(path), "query", 0, [*put_aside(path, [b"b"]).values()], comes_again=True)
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"b"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
def test_a_journal_takes_what_its_own_append_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    """The task is told, before anything of its batch is appended."""

    monkeypatch.setattr("pyspark.TaskContext.get", Task)
    writer = BatchWriter({"path": str(tmp_path / "j"), "format": "journal"}, VALUE, overwrite=False)
    fits, larger = bytes(MAX_PAYLOAD_BYTES), bytes(MAX_PAYLOAD_BYTES + 1)
    with Journal(tmp_path / "other") as journal, pytest.raises(InvalidPayload) as refused:
        journal.append(larger)
    rows = pa.record_batch([pa.array([b"a", larger]).cast(kind)], ["value"])
    with pytest.raises(InvalidPayload) as told:
        writer.write(iter([rows]))
    assert str(told.value) == str(refused.value).replace("other", "j")
    rows = pa.record_batch([pa.array([b"a", fits]).cast(kind)], ["value"])
    writer.commit([writer.write(iter([rows]))])
    with Journal(tmp_path / "j") as journal:
        assert [record.payload for record in journal.recovered()] == [b"a", fits]


@pytest.mark.parametrize("what", ["frames", "ledger"])
def test_a_full_disk_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = tmp_path / "q"
    puts = [*put_aside(path, [b"a" * 100] * 50).values()]
    with Queue(path, file_size=65536):
        pass
    real, real_replace = files.write, files.replace

    def full(fd: int, data: Any, offset: int) -> None:
        if what == "frames" and len(data) > 4000:
            raise DiskFull("planted", 0)
        real(fd, data, offset)

    def full_replace(path: Path, data: bytes, *, durable: bool = True) -> None:
        if what == "ledger" and path.name == "ledger":
            raise DiskFull(path, 0)
        real_replace(path, data, durable=durable)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "write", full)
        meanwhile.setattr(files, "replace", full_replace)
        with pytest.raises(DiskFull):
            publish(target(path), "query", 0, puts, comes_again=True)
    publish(target(path), "query", 0, [*put_aside(path, [b"b"]).values()], comes_again=True)
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"b"]


def stale(path: Path) -> None:
    long_ago = time.time() - 90_000
    os.utime(path, (long_ago, long_ago))


QUERY = "6f1ed002-ab5f-4a3e-9f0c-0123456789ab"


@pytest.mark.parametrize("left", ["batch-1", QUERY])
def test_what_nobody_keeps_fresh_goes_a_day_later(tmp_path: Path, left: str) -> None:
    """Of jobs and of queries that do not come again; nothing else that lies in a directory given for staging."""
    top = tmp_path / "staging"
    for name in (left, f"{left}-notes", "batch-9"):
        (top / name / "0").mkdir(parents=True)
        (top / name / "0" / "x.frames").write_bytes(b"x")
    (top / left / "1").mkdir()
    for name in (left, f"{left}-notes"):
        stale(top / name)
    if left == "batch-1":
        (top / "batch-1-notes").rename(top / "notes")
    staging.Place(str(top), "batch-2", 0).sweep()
    assert {path.name for path in top.iterdir()} == {"batch-9", "notes" if left == "batch-1" else f"{left}-notes"}


def test_others_files_in_a_staging_directory_stay(tmp_path: Path) -> None:
    (tmp_path / QUERY / "0").mkdir(parents=True)
    (tmp_path / QUERY / "state").mkdir()
    (tmp_path / QUERY / "0" / "1.delta").write_bytes(b"a state of Spark's own")
    stale(tmp_path / QUERY)
    staging.Place(str(tmp_path), "batch-2", 0).sweep()
    staging.Place(str(tmp_path), QUERY, 7).sweep()
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1
    assert (tmp_path / QUERY / "state").is_dir()


@pytest.mark.parametrize("query", ["batch-1", QUERY])
def test_what_a_running_task_may_need_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """For as long as it runs: one that waits for its rows keeps what the others of its job have staged."""
    monkeypatch.setattr(staging, "_FRESH_S", 0.001)
    place, other = (staging.Place(str(tmp_path), name, 0) for name in (query, "batch-2"))
    with staging.Attempt(place) as done:
        done.add(("", 0), b"x", None)
    with staging.Attempt(place):
        stale(tmp_path / query)
        until(lambda: time.time() - (tmp_path / query).stat().st_mtime < 3600, "a sign of the task that waits")
        other.sweep()
        done.files["", 0].check_there()
    stale(tmp_path / query)
    other.sweep()
    with pytest.raises(StagingLost, match="it is gone"):
        done.files["", 0].check_there()


def gone(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a whole number of frames, and of times


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def one_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 + 6] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("format", ["queue", "channel", "journal", "topic"])
@pytest.mark.parametrize("suffix", [".frames", ".times"])
@pytest.mark.parametrize("harm", [gone, shorter, zeros, one_bit])
def test_what_was_staged_is_appended_or_an_error(
    tmp_path: Path, format: str, suffix: str, harm: Callable[[Path], None]
) -> None:
    """Never a part of it, something else, or other times. Of several targets none has any."""
    given = {"path": str(tmp_path / "log"), "format": format} | (
        {"topic": "t", "partitions": "2"} if format == "topic" else {}
    )
    writer = StreamWriter(given, VALUE)
    targets = [("t", 0), ("t", 1)] if format == "topic" else [("", 0)]

    def staged(payloads: list[bytes]) -> Staged:
        spec = format_of(writer._layout.format).SPEC
        with staging.Attempt(writer._place("query", 0)) as attempt:
            for key in targets:
                attempt.add(key, kernel.encode_many(spec, payloads), array("q", range(1, 1 + len(payloads))).tobytes())
        return Staged("query", attempt.files, {"t": 2} if format == "topic" else {})

    broken = staged([b"first", b"other"])
    harm(Path(broken.files[targets[-1]].path + suffix))
    with pytest.raises(StagingLost):
        writer.commit([broken], 0)
    if harm in (gone, shorter):
        assert not (tmp_path / "log" / "metadata.json").exists()
        assert not (tmp_path / "log" / "t").exists()
    writer.abort([broken], 0)
    writer.commit([staged([b"again"])], 0)
    source = {"path": str(tmp_path / "log")}
    reader = BatchReader(read_options(source), PenstockSource(source).schema())
    rows = [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]
    assert [row["value"] for row in rows if row["partition"] == targets[-1][1]] == [b"again"]
    assert not (tmp_path / "log" / ".staging").exists()


def test_a_commit_that_finds_its_files_gone_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = [*put_aside(tmp_path / "q", [b"a"]).values()]
    monkeypatch.setattr(staging.Put, "check_there", lambda put: Path(put.path + ".frames").unlink())
    with pytest.raises(StagingLost, match="frames: staged for this batch, but it is gone"):
        publish(target(tmp_path / "q"), "query", 0, puts, comes_again=True)


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """So many more may be opened."""
    before, free = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0) for _ in range(more)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_targets_than_a_task_may_have_files(tmp_path: Path) -> None:
    """Each has its frames and times in the order in which they came, also those that came late."""
    with few_files(80), staging.Attempt(staging.Place(str(tmp_path), "query", 0)) as attempt:
        for turn in range(3):
            for i in (*range(150), 7):
                attempt.add(("t", i), b"%d of %d;" % (turn, i), array("q", [turn]).tobytes())
    assert len(attempt.files) == 150
    for (_, i), put in attempt.files.items():
        twice = 1 + (i == 7)
        part = staging.mapped(put)
        assert bytes(part.frames) == b"".join(b"%d of %d;" % (turn, i) * twice for turn in range(3))
        assert part.times is not None
        assert [*memoryview(part.times).cast("B").cast("q")] == [turn for turn in range(3) for _ in range(twice)]


def test_what_staging_is_refused_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for top in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageFailed, match="move it away, or give another one as option staging"):
            staging.Attempt(staging.Place(str(top), "query", 0)).__enter__()
    with (
        failing(Fault("ENOSPC", 2)),
        pytest.raises(DiskFull),
        staging.Attempt(staging.Place(str(tmp_path / "top"), "query", 0)) as attempt,
    ):
        attempt.add(("", 0), b"frames", None)


def test_more_tasks_than_a_process_may_have_files(tmp_path: Path) -> None:
    path, times = tmp_path / "q", array("q", [1, 2]).tobytes()
    puts = []
    for i in range(100):
        with staging.Attempt(staging.Place(str(path / ".staging"), "query", 0)) as attempt:
            attempt.add(("", 0), kernel.encode_many(fmt.SPEC, [b"%d" % i] * 2), times)
        puts += attempt.files.values()
    with few_files(60):
        publish(target(path), "query", 0, puts, comes_again=True)
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"%d" % (i // 2) for i in range(200)]
