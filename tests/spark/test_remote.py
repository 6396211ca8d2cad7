"""Logs on object storage: copied to a real S3 server on this machine, and read from there by ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from penstock import Queue, Retention, Topics
from penstock.errors import CorruptRecord, FilesMissing, NotALog
from penstock.inspect import FormatName
from penstock.spark.options import read_options
from penstock.spark.source import FilteringReader, PenstockSource
from penstock.storage import retention
from tests.spark.conftest import write

SENT = [b"%05d" % i + bytes(40) for i in range(3000)]


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """What the environment must say for fsspec to find the server."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server.stop()


@pytest.fixture
def bucket(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The file system, and a bucket of its own."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": settings["FSSPEC_S3_ENDPOINT_URL"]})
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    fs = fsspec.filesystem("s3")
    name = f"bucket-{abs(hash(request.node.name))}"
    fs.mkdir(name)
    yield fs, name
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def read(url: str, *filters: Any, **options: str) -> tuple[list[bytes], list[int]]:
    """(values, offsets) of what a query would give, read here."""
    given = {"path": url, **options}
    reader = FilteringReader(read_options(given), PenstockSource(given).schema())
    reader.pushFilters(list(filters))
    batches = [batch for split in reader.partitions() for batch in reader.read(split)]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    return values, [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("format", ["queue", "channel", "topic"])
def test_every_record(bucket: Any, tmp_path: Path, format: FormatName) -> None:
    fs, name = bucket
    write(tmp_path / "log", format, SENT)
    fs.put(f"{tmp_path}/log", f"{name}/", recursive=True)
    assert read(f"s3://{name}/log") == (SENT, list(range(3000)))


@pytest.mark.parametrize("format", ["queue", "topic"])
def test_all_finished_files_were_removed(bucket: Any, tmp_path: Path, format: FormatName) -> None:
    """What is left begins where the last one that is gone ended."""
    fs, name = bucket
    write(tmp_path / "log", format, SENT)
    kept = Retention(max_bytes=1)
    if format == "queue":
        with Queue(tmp_path / "log", retention=kept) as q:
            retention.drop(q._open_log(), 1 << 40)
    else:
        with Topics(tmp_path / "log", retention=kept) as logs:
            retention.drop(logs.topic("orders")._part(1).log, 1 << 40)
    fs.put(f"{tmp_path}/log", f"{name}/", recursive=True)
    values, offsets = read(f"s3://{name}/log")
    assert (values, offsets) == read(str(tmp_path / "log"))
    assert 0 < offsets[0] < 3000
    assert values == SENT[offsets[0] :]


def test_only_what_is_read_is_fetched(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    fs, name = bucket
    write(tmp_path / "log", "queue", SENT)
    fs.put(f"{tmp_path}/log", f"{name}/", recursive=True)
    fetched: list[int] = []
    real = type(fs).cat_file

    def cat_file(self: Any, *args: Any, **options: Any) -> Any:
        found = real(self, *args, **options)
        fetched.append(len(found))
        return found

    monkeypatch.setattr(type(fs), "cat_file", cat_file)
    read(f"s3://{name}/log")
    whole = sum(fetched)
    fetched.clear()
    some = [GreaterThanOrEqual(("offset",), 500), LessThan(("offset",), 520)]
    assert read(f"s3://{name}/log", *some) == (SENT[500:520], list(range(500, 520)))
    planning = 3 * 65536  # the last file, which no manifest lists, is looked through
    assert sum(fetched) < whole / 3 + planning


def test_wrong_places(bucket: Any) -> None:
    _, name = bucket
    with pytest.raises(Exception, match="no log there; copy a log's whole directory"):
        read(f"s3://{name}/nothing")
    with pytest.raises(Exception, match="nosuchthing://"):
        read("nosuchthing://x/y")


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def retain(path: Path, format: str) -> None:
    """Remove the first finished files."""
    kept = Retention(max_bytes=100_000)
    if format == "queue":
        with Queue(path, retention=kept) as q:
            retention.drop(q._open_log(), 1 << 40)
    else:
        with Topics(path, retention=kept) as logs:
            retention.drop(logs.topic("orders")._part(1).log, 1 << 40)


@pytest.mark.parametrize(
    ("format", "removed"), [("queue", False), ("queue", True), ("channel", False), ("topic", True)]
)
def test_a_damaged_manifest_hides_no_record(memory: Any, tmp_path: Path, format: str, removed: bool) -> None:
    """What an edit said that cannot be read is told by the segments, as where the log is."""
    write(tmp_path / "log", format, SENT)
    if removed:
        retain(tmp_path / "log", format)
    memory.put(f"{tmp_path}/log", "/log", recursive=True)
    whole = read("memory://log")
    assert (whole[1][0] > 0, whole[1][-1]) == (removed, 2999)
    (name,) = [name for name in memory.find("/log") if name.endswith("manifest") and memory.size(name) > 64]
    raw = memory.cat_file(name)
    for at in range(0, len(raw), 64):
        memory.pipe_file(name, raw[: at + 9] + bytes([raw[at + 9] ^ 4]) + raw[at + 10 :])
        assert read("memory://log") == whole, at
    for at in range(0, len(raw), 64):  # a later one was copied, or none; it may say that less was removed than is gone
        memory.pipe_file(name, raw[:at])
        try:
            assert read("memory://log") == whole, at
        except (CorruptRecord, FilesMissing):
            assert removed
    memory.rm_file(name)
    assert read("memory://log") == whole


@pytest.mark.parametrize("format", ["channel", "topic"])
def test_an_empty_record_is_not_the_end(memory: Any, tmp_path: Path, format: FormatName) -> None:
    """Though zeros are in a file which nothing says the end of."""
    sent = [b"before", b"", b"after"]
    write(tmp_path / "log", format, sent)
    memory.put(f"{tmp_path}/log", "/", recursive=True)
    assert read("memory://log") == (sent, [0, 1, 2])


@pytest.mark.parametrize("format", ["queue", "channel", "topic"])
def test_damage_in_the_last_file_is_not_its_end(memory: Any, tmp_path: Path, format: FormatName) -> None:
    write(tmp_path / "log", format, [b"first", b"second", b"third"])
    file = next(file for file in (tmp_path / "log").rglob("*") if file.is_file() and b"second" in file.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"second", b"sicond"))
    memory.put(f"{tmp_path}/log", "/", recursive=True)
    with pytest.raises(CorruptRecord, match=r"offset 1|sequence 1"):
        read("memory://log")


@pytest.mark.parametrize("page", [b"", None])
def test_a_copy_without_its_control_page_is_read_as_far_as_records_go(
    memory: Any, tmp_path: Path, page: bytes | None
) -> None:
    write(tmp_path / "log", "queue", SENT)
    (tmp_path / "log" / ".lock").unlink()
    if page is not None:
        (tmp_path / "log" / ".lock").write_bytes(page)
    memory.put(f"{tmp_path}/log", "/", recursive=True)
    assert read("memory://log") == (SENT, list(range(3000)))


@pytest.mark.parametrize("manifest", [True, False])
def test_a_file_that_was_not_copied_is_no_silent_gap(memory: Any, tmp_path: Path, manifest: bool) -> None:
    write(tmp_path / "log", "queue", SENT)
    memory.put(f"{tmp_path}/log", "/log", recursive=True)
    data = sorted(name for name in memory.find("/log") if name.endswith(".data"))
    assert len(data) == 3
    memory.rm_file(data[1])
    if not manifest:
        memory.rm_file("/log/manifest")
    with pytest.raises((CorruptRecord, FilesMissing), match=r"copy the log's whole directory again|cut short"):
        read("memory://log")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ("{}", "not a log's metadata"),
        ("{", "not JSON"),
        ('{"format": "topic"}', "it does not say how many partitions"),
        ('{"format": "topic", "partitions": "3"}', "it does not say how many partitions"),
        ('{"format": "scroll"}', "format 'scroll'"),
    ],
)
def test_settings_that_cannot_be_read(memory: Any, tmp_path: Path, settings: str, what: str) -> None:
    """They are told with the name that the copy has, not with that of what was fetched of it."""
    write(tmp_path / "log", "queue", SENT[:10])
    (tmp_path / "log" / "metadata.json").write_text(settings)
    memory.put(f"{tmp_path}/log", "/", recursive=True)
    with pytest.raises(NotALog, match=f"^memory://log/metadata.json: {what}"):
        read("memory://log")


def test_a_broken_header_is_told_with_the_name_that_the_copy_has(memory: Any, tmp_path: Path) -> None:
    write(tmp_path / "log", "queue", SENT[:10])
    (file,) = (tmp_path / "log").rglob("*.data")
    file.write_bytes(file.read_bytes()[:10] + b"\xff" + file.read_bytes()[11:])
    memory.put(f"{tmp_path}/log", "/", recursive=True)
    with pytest.raises(NotALog, match=f"^memory://log/{file.relative_to(tmp_path / 'log')}: "):
        read("memory://log")
