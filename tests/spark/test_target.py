"""Where a sink writes to, and what it is told there; without Spark."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock import DiskFull, InvalidPayload, Queue, Topics, kernel
from penstock.errors import InvalidOption
from penstock.formats import queue as fmt
from penstock.spark import pins, staging
from penstock.spark.options import write_options
from penstock.spark.sink import BatchWriter, Staged, StreamWriter
from penstock.spark.target import Layout, Target, layout, publish
from penstock.storage import files

VALUE = StructType([StructField("value", BinaryType())])


def put_aside(path: Path, payloads: list[bytes], key: staging.Key = ("", 0)) -> dict[staging.Key, str]:
    with staging.Attempt(staging.Place(str(path / ".staging"), "query", 0)) as attempt:
        attempt.add(key, kernel.encode_many(fmt.SPEC, payloads), None)
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


def test_partitions_may_have_been_added(tmp_path: Path) -> None:
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=4)
    given = {"path": str(tmp_path), "topic": "t"}
    for fewer in ("2", "4"):
        assert layout(write_options({**given, "partitions": fewer})).count("t") == 4
    with pytest.raises(InvalidOption, match="has 4 partitions, not 5"):
        layout(write_options({**given, "partitions": "5"}))


def test_options_of_another_format(tmp_path: Path) -> None:
    for format, option in (("queue", "segmentBytes"), ("channel", "fileSize"), ("journal", "fileSize")):
        with pytest.raises(InvalidOption, match=f"option {option} is not for a {format}"):
            layout(write_options({"path": str(tmp_path / "x"), "format": format, option: "100000"}))


def test_a_batch_that_comes_again_is_shared_out_as_its_tasks_did(tmp_path: Path) -> None:
    """Partitions that were added between the tasks and the commit are none of its own."""
    with Topics(tmp_path) as logs:
        logs.topic("t", partitions=2)
    given = {"path": str(tmp_path), "topic": "t"}
    StreamWriter(given, VALUE)
    with Topics(tmp_path) as logs:
        logs.topic("t").add_partitions(5)
    StreamWriter(given, VALUE).commit([Staged("query", {}, {"t": 2}), None], 7)
    assert pins.load(str(tmp_path)) == {"query": pins.Pin(7, {"t": 2})}
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


def target(path: Path) -> Target:
    return Target(write_options({"path": str(path), "fileSize": "65536"}), Layout("queue"), "", 0)


def test_a_record_that_fits_no_file(tmp_path: Path) -> None:
    path = tmp_path / "q"
    paths = [*put_aside(path, [b"a", bytes(100_000)]).values()]
    with pytest.raises(InvalidPayload, match="a record of 100000 bytes does not fit a file of 65536"):
        publish(target(path), "query", 0, paths, comes_again=True)
    publish(target(path), "query", 0, [*put_aside(path, [b"b"]).values()], comes_again=True)
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"b"]


@pytest.mark.parametrize("what", ["frames", "ledger"])
def test_a_full_disk_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = tmp_path / "q"
    paths = [*put_aside(path, [b"a" * 100] * 50).values()]
    with Queue(path, file_size=65536):
        pass
    real, real_replace = files.write, files.replace

    def full(fd: int, data: Any, offset: int) -> None:
        if what == "frames" and len(data) > 4000:
            raise OSError(errno.ENOSPC, "full")
        real(fd, data, offset)

    def full_replace(path: Path, data: bytes, *, durable: bool = True) -> None:
        if what == "ledger" and path.name == "ledger":
            raise OSError(errno.ENOSPC, "full")
        real_replace(path, data, durable=durable)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "write", full)
        meanwhile.setattr(files, "replace", full_replace)
        with pytest.raises(DiskFull):
            publish(target(path), "query", 0, paths, comes_again=True)
    publish(target(path), "query", 0, [*put_aside(path, [b"b"]).values()], comes_again=True)
    with Queue(path) as q, q.tailer() as tailer:
        assert [m.payload for m in tailer] == [b"b"]
