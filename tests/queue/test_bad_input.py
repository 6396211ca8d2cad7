"""Bad input: each gets an error that says what is wrong, and nothing on disk changes."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Channel,
    Flush,
    InvalidPayload,
    Journal,
    LogClosed,
    LogNotFound,
    NotALog,
    PayloadTypeError,
    PenstockError,
    Queue,
    ReadOnly,
    Retention,
    Roll,
    SettingsMismatch,
    Topics,
    UnknownVersion,
    UnsupportedFileSystem,
)
from penstock.storage import files
from tests.support import data_files


def digest(top: Path, live: bool = False) -> dict[str, str]:
    """Every name below a directory, with what it holds, but for what the background of a live queue does."""
    found = {".": oct(top.stat().st_mode)} if top.exists() else {}
    if top.is_file():
        found["."] = hashlib.sha256(top.read_bytes()).hexdigest()
    for p in top.rglob("*") if top.is_dir() else ():
        if live and (p.name == ".lock" or re.fullmatch(r"\d{8}-\d{4}\.(data|index|time).*\.(next|tmp)", p.name)):
            continue
        found[p.relative_to(top).as_posix()] = (
            hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() and not p.is_symlink() else "not a file"
        )
    return found


@contextmanager
def unchanged(top: Path, live: bool = False) -> Iterator[None]:
    before = digest(top, live)
    yield
    assert digest(top, live) == before


@pytest.fixture
def small(path: Path) -> Path:
    """A closed log of three records in two files."""
    with Queue(path, file_size=8192, roll=Roll.count(2)) as q:
        for p in (b"a", b"b", b"c"):
            q.append(p)
    return path


# ---- payloads ----


@pytest.mark.parametrize(
    ("payload", "error", "says"),
    [
        (b"", InvalidPayload, "empty"),
        (bytearray(), InvalidPayload, "empty"),
        (memoryview(b""), InvalidPayload, "empty"),
        ("text", PayloadTypeError, "encode"),
        (7, PayloadTypeError, "int"),
        (1.5, PayloadTypeError, "float"),
        (None, PayloadTypeError, "NoneType"),
        ([b"a"], PayloadTypeError, "list"),
        (memoryview(bytes(8))[::2], PayloadTypeError, "memoryview"),
        (bytes(4085), InvalidPayload, "at most 4084"),
        (bytearray(1 << 20), InvalidPayload, "at most 4084"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str | type) else None,
)
@pytest.mark.parametrize("how", ["append", "batch of one", "last of a batch", "appender", "flush each"])
def test_a_payload_that_cannot_be_stored(path: Path, payload: Any, error: type[Exception], says: str, how: str) -> None:
    with Queue(path, file_size=8192, flush=Flush.each() if how == "flush each" else None) as q:
        q.append(b"first")
        q.sync()
        call: dict[str, Callable[[], object]] = {
            "append": lambda: q.append(payload),
            "flush each": lambda: q.append(payload),
            "batch of one": lambda: q.append_batch([payload]),
            "last of a batch": lambda: q.append_batch([b"fine", payload]),
            "appender": lambda: q.appender().append(payload),
        }
        with unchanged(path, live=True), pytest.raises(error, match=says) as caught:
            call[how]()
        assert isinstance(caught.value, PenstockError)
        assert q.next_sequence == 1
        assert q.append(b"second") == 1


@pytest.mark.parametrize("batch", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", 5, None, iter([b"a"])])
def test_a_batch_that_is_none(path: Path, batch: Any) -> None:
    with Queue(path, file_size=8192) as q, unchanged(path, live=True), pytest.raises(TypeError):
        q.append_batch(batch)


# ---- a closed queue ----


@pytest.mark.parametrize("read_only", [False, True])
def test_every_method_of_a_closed_queue_says_that_it_is_closed(small: Path, read_only: bool) -> None:
    q = Queue(small, read_only=read_only)
    t, back = q.tailer(), q.tailer(direction="backward")
    named = q.tailer("n") if not read_only else q.tailer()
    assert len(list(t)) == 3
    append = q.append
    q.close()
    calls: list[Callable[[], object]] = [
        lambda: q.append(b"x"),
        lambda: append(b"x"),
        lambda: q.append_batch([b"x"]),
        lambda: q.append_batch([]),
        lambda: q.append_batch([b"x" * 3000] * 3),
        q.appender,
        q.sync,
        lambda: q.durable_sequence,
        lambda: q.first_sequence,
        lambda: q.next_sequence,
        lambda: q.recovery,
        q.tailer,
        lambda: q.tailer("n"),
        q.cursors,
        lambda: q.forget("n"),
        t.read,
        lambda: t.read(timeout_s=1),
        lambda: t.read(timeout_s=None),
        lambda: list(t),
        lambda: t.read_batch(1),
        lambda: t.read_arrow(1),
        t.read_view,
        lambda: next(t.follow()),
        lambda: asyncio.run(anext(t.afollow())),  # type: ignore[arg-type]
        lambda: t.seek(0),
        lambda: t.seek_time(datetime.now(UTC)),
        t.to_start,
        t.to_end,
        lambda: back.seek(0),
        back.to_end,
        lambda: list(back),
    ]
    if not read_only:
        calls.append(named.commit)
    with unchanged(small):
        for call in calls:
            with pytest.raises(LogClosed, match="open the log again"):
                call()
    assert t.position == 3
    assert t.losses == []
    t.close()
    q.close()


# ---- paths ----


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    with unchanged(tmp_path):
        for read_only in (False, True):
            with pytest.raises(NotALog, match="a file, not a directory"):
                Queue(file, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_below_a_file(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "file").write_text("hello")
    with unchanged(tmp_path), pytest.raises((PenstockError, NotADirectoryError)):
        Queue(tmp_path / "file" / "log", read_only=read_only)


def test_a_missing_path_cannot_be_opened_read_only(tmp_path: Path) -> None:
    with unchanged(tmp_path), pytest.raises(LogNotFound, match="no such directory"):
        Queue(tmp_path / "log", read_only=True)


def test_an_empty_directory_cannot_be_opened_read_only(tmp_path: Path) -> None:
    with unchanged(tmp_path), pytest.raises(LogNotFound, match="no data files"):
        Queue(tmp_path, read_only=True)


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with Queue(tmp_path / "a" / "b" / "log") as q:
        q.append(b"x")
    with Queue(str(tmp_path / "a" / "b" / "log"), read_only=True) as q:
        assert [m.payload for m in q.tailer()] == [b"x"]


@pytest.mark.parametrize("bad", [None, 5, b"bytes path" * 0 + b"x", "nul\0"])
def test_a_path_that_is_none(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Queue(bad)


@pytest.mark.parametrize("kind", [Queue, Channel, Topics, Journal])
@pytest.mark.parametrize(
    ("bad", "says"),
    [("", "path is empty"), ("nul\0", "NUL"), (None, "path must be"), (5, "path must be"), (b"x", "path must be")],
)
def test_a_path_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Any], object], bad: Any, says: str
) -> None:
    """An empty one would be the working directory."""
    monkeypatch.chdir(tmp_path)
    with unchanged(tmp_path), pytest.raises((TypeError, ValueError), match=says):
        kind(bad)


def test_the_working_directory_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Queue(".", file_size=8192) as q:
        assert q.path == tmp_path
        assert q.append(b"x") == 0


@pytest.mark.parametrize("name", [5, b"n", ["n"], "", "a/b"])
def test_a_name_that_no_reader_can_have(tmp_path: Path, name: Any) -> None:
    with Queue(tmp_path / "q", file_size=8192) as q, Channel(tmp_path / "c") as c, Topics(tmp_path / "t") as logs:
        t = logs.topic("t")
        calls: list[Callable[[], object]] = [
            lambda: q.tailer(name),
            lambda: q.forget(name),
            lambda: c.rx(name),
            lambda: c.forget(name),
            lambda: t.tailer(name),
            lambda: t.group(name),
            lambda: t.committed(name),
            lambda: t.forget(name),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"cursor name .*: use 1 to 128 of"):
                call()


@pytest.mark.parametrize("place", ["0", 1.5, [0]])
def test_a_place_that_is_no_number(tmp_path: Path, place: Any) -> None:
    with Queue(tmp_path / "q", file_size=8192) as q, Channel(tmp_path / "c") as c, Topics(tmp_path / "t") as logs:
        t = logs.topic("t")
        calls: list[Callable[[], object]] = [
            lambda: q.tailer().seek(place),
            lambda: q.tailer(direction="backward").seek(place),
            lambda: c.rx().seek(place),
            lambda: t.tailer().seek(0, place),
            lambda: t.read(0, place, 1),
        ]
        if not isinstance(place, str):
            calls.append(lambda: q.tailer(at=place))
        for call in calls:
            with pytest.raises(TypeError, match=r"(sequence|offset) must be a whole number, not "):
                call()


def test_what_else_lies_in_the_directory_is_left_alone(path: Path) -> None:
    others = ["notes.tmp", "deep/down/file.tmp", "cake.next", "2026/11/15/readme.tmp", "2026/11/15/x.data.next"]
    for name in others:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    for _ in range(2):
        with Queue(path, file_size=8192) as q:
            q.append(b"x")
    assert [(path / name).read_text() for name in others] == ["mine"] * len(others)


NOBODY = """
import os, sys, tempfile
from penstock import Queue, ReadOnly
with tempfile.TemporaryDirectory() as top, Queue(top) as q:
    q.append(b"x")  # what Python imports late is imported before nobody may not
os.setgid(65534)
os.setuid(65534)
with Queue(sys.argv[1], read_only=True) as q:
    assert [m.payload for m in q.tailer()] == [b"a", b"b", b"c"]
    assert [m.payload for m in q.tailer(direction="backward")] == [b"c", b"b", b"a"]
for path in (sys.argv[1], sys.argv[2]):
    try:
        Queue(path)
    except ReadOnly as error:
        assert "cannot be written (Permission denied: " in str(error)
        assert str(error).count("read_only") == 1
    else:
        raise SystemExit(f"{path} was opened for writing")
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become nobody")
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    for p in (tmp_path, *tmp_path.parents):
        if not p.stat().st_mode & 0o005:
            p.chmod(p.stat().st_mode | 0o055)
    with Queue(tmp_path / "log", file_size=8192, roll=Roll.count(2)) as q:
        for p in (b"a", b"b", b"c"):
            q.append(p)
    for top in (tmp_path / "log").rglob("*"):
        top.chmod(0o755 if top.is_dir() else 0o644)
    with unchanged(tmp_path):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", NOBODY, str(tmp_path / "log"), str(tmp_path / "new")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr


def test_a_network_file_system_is_refused_for_writing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("nfs4", "cifs", "fuse.sshfs", "9p"):
        monkeypatch.setattr(files, "filesystem", lambda _, kind=kind: kind)
        with unchanged(tmp_path):
            for path in (small, tmp_path / "new"):
                with pytest.raises(UnsupportedFileSystem, match=rf"{kind}.*local disk"):
                    Queue(path)
        with Queue(small, read_only=True) as q:
            assert len(list(q.tailer())) == 3


# ---- settings ----


@pytest.mark.parametrize(
    "other", [{"file_size": 16384}, {"index_interval": 7}, {"file_size": 8192, "index_interval": 1}]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_other_fixed_settings_are_refused(small: Path, other: dict[str, int], read_only: bool) -> None:
    with unchanged(small), pytest.raises(SettingsMismatch, match="made with"):
        Queue(small, read_only=read_only, **other)  # type: ignore[arg-type]


def test_the_same_or_no_settings_are_taken(small: Path) -> None:
    with Queue(small, file_size=8192, index_interval=1024) as q, Queue(small) as other:
        with pytest.raises(SettingsMismatch):
            Queue(small, file_size=16384)
        assert q.append(b"d") == 3
        assert other.append(b"e") == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"file_size": 0},
        {"file_size": 4096},
        {"file_size": 8193},
        {"file_size": -8192},
        {"file_size": 1 << 50},
        {"file_size": 8192.0},
        {"file_size": "8192"},
        {"file_size": True},
        {"index_interval": 0},
        {"index_interval": -1},
        {"index_interval": 1.5},
        {"index_interval": 1 << 40},
        {"index_interval": "7"},
        {"roll": "daily"},
        {"roll": 5},
        {"roll": Flush.none()},
        {"flush": "each"},
        {"flush": Roll()},
        {"verify_on_startup": "yes"},
        {"retention": 5},
        {"retention": {"max_bytes": 5}},
        {"rol": Roll()},
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_made(tmp_path: Path, bad: dict[str, Any]) -> None:
    with unchanged(tmp_path), pytest.raises((ValueError, TypeError)):
        Queue(tmp_path / "log", **bad)


def test_none_for_the_check_at_startup_is_no_check(path: Path) -> None:
    with Queue(path, file_size=8192, verify_on_startup=None) as q:
        assert q.append(b"x") == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Roll.size(0),
        lambda: Roll.size(-1),
        lambda: Roll.size(1.5),  # type: ignore[arg-type]
        lambda: Roll.size("1"),  # type: ignore[arg-type]
        lambda: Roll.size(True),
        lambda: Roll.every(0),
        lambda: Roll.every(-1),
        lambda: Roll.every(float("nan")),
        lambda: Roll.every(float("inf")),
        lambda: Roll.every(timedelta(0)),
        lambda: Roll.every("soon"),  # type: ignore[arg-type]
        lambda: Roll.every(None),  # type: ignore[arg-type]
        lambda: Roll.count(0),
        lambda: Roll.count(-3),
        lambda: Roll.count(2.0),  # type: ignore[arg-type]
        lambda: Roll.any(),
        lambda: Roll.any(5),  # type: ignore[arg-type]
        lambda: Flush("sometimes"),  # type: ignore[arg-type]
        lambda: Flush.batch(bytes=0),
        lambda: Flush.batch(bytes=1.5),  # type: ignore[arg-type]
        lambda: Flush.batch(interval_s=0),
        lambda: Flush.batch(interval_s=float("nan")),
        lambda: Flush.batch(interval_s="1"),  # type: ignore[arg-type]
        lambda: Retention(max_bytes=0),
        lambda: Retention(max_bytes=-5),
        lambda: Retention(max_bytes=1.5),  # type: ignore[arg-type]
        lambda: Retention(max_age_s=0),
        lambda: Retention(max_age_s=float("inf")),
        lambda: Retention(max_age_s="1h"),  # type: ignore[arg-type]
    ],
)
def test_bad_policies_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        make()


@pytest.mark.parametrize(
    "roll", [Roll.size(1 << 80), Roll.count(1 << 80), Roll.every(1e13), Roll.every(1e300)], ids=str
)
def test_a_limit_that_is_never_reached_is_none(tmp_path: Path, roll: Roll) -> None:
    with Queue(tmp_path / "log", file_size=8192, roll=roll) as q:
        for i in range(5):
            q.append(b"%d" % i)
        assert [m.payload for m in q.tailer().read_batch(1 << 70)] == [b"%d" % i for i in range(5)]
        assert q.tailer().read_arrow(1 << 70).num_rows == 5
        assert len(q.tailer(at="end", direction="backward").read_batch(1 << 70)) == 5
    assert len(data_files(tmp_path / "log")) == 1


def test_policies_cannot_be_changed() -> None:
    for policy in (Roll.count(3), Flush.each(), Retention(max_bytes=5)):
        for field in dataclasses.fields(policy):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(policy, field.name, 5)


# ---- what lies on the disk ----


def change_metadata(path: Path, **changes: Any) -> None:
    found = json.loads((path / "metadata.json").read_text()) | changes
    (path / "metadata.json").write_text(json.dumps({k: v for k, v in found.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": "channel"}, NotALog),
        ({"format": "journal"}, NotALog),
        ({"format": 5}, NotALog),
        ({"format": None}, NotALog),
        ({"version": 2}, UnknownVersion),
        ({"version": "1"}, UnknownVersion),
        ({"version": None}, UnknownVersion),
        ({"file_size": "big"}, NotALog),
        ({"file_size": 5}, NotALog),
        ({"index_interval": 0}, NotALog),
        ({"index_interval": []}, NotALog),
    ],
    ids=str,
)
@pytest.mark.parametrize("read_only", [False, True])
def test_metadata_of_something_else(
    small: Path, changes: dict[str, Any], error: type[Exception], read_only: bool
) -> None:
    change_metadata(small, **changes)
    with unchanged(small), pytest.raises(error):
        Queue(small, read_only=read_only)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '"queue"', "\0" * 10, "\xff\xfe"])
@pytest.mark.parametrize("read_only", [False, True])
def test_metadata_that_is_not_json(small: Path, text: str, read_only: bool) -> None:
    (small / "metadata.json").write_bytes(text.encode("latin-1"))
    with unchanged(small), pytest.raises(NotALog, match=r"metadata\.json"):
        Queue(small, read_only=read_only)


def test_lost_metadata_is_made_anew_from_the_files(path: Path) -> None:
    with Queue(path, file_size=16384, index_interval=3, roll=Roll.count(4)) as q:
        for i in range(10):
            q.append(b"%d" % i)
    before = (path / "metadata.json").read_text()
    (path / "metadata.json").unlink()
    with Queue(path, read_only=True) as q:
        assert len(list(q.tailer())) == 10
    with Queue(path) as q:
        assert len(list(q.tailer())) == 10
        assert q.append(b"x") == 10
    assert (path / "metadata.json").read_text() == before


def strange_file(path: Path, raw: bytes) -> Path:
    data = path / "2026" / "11" / "15" / "20261115-0001.data"
    data.parent.mkdir(parents=True)
    data.write_bytes(raw)
    return data


@pytest.mark.parametrize(
    "raw",
    [
        b"hello, this is a text\n" * 500,
        b"PENSTOCX" + bytes(9000),
        b"PENSTOCK",
        b"x",
        os.urandom(20000),
        bytes(4096) + b"y",
    ],
    ids=["text", "another magic", "only a magic", "one byte", "noise", "zeros, then something"],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_data_file_of_something_else(path: Path, raw: bytes, read_only: bool) -> None:
    strange_file(path, raw)
    with unchanged(path), pytest.raises(NotALog, match=r"20261115-0001\.data"):
        Queue(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("with_metadata", [False, True])
def test_a_data_file_of_a_later_version(path: Path, read_only: bool, with_metadata: bool) -> None:
    head = struct.pack("<8sIIQQ", b"PENSTOCK", 2, 0, 0, 1)
    strange_file(path, (head + struct.pack("<I", zlib.crc32(head))).ljust(8192, b"\0"))
    if with_metadata:
        (path / "metadata.json").write_text(
            '{"format": "queue", "version": 1, "file_size": 8192, "index_interval": 1024}'
        )
        with pytest.raises(UnknownVersion, match=r"version 2 .*upgrade"):
            Queue(path, read_only=read_only)
    else:
        with unchanged(path), pytest.raises(UnknownVersion, match=r"version 2 .*upgrade"):
            Queue(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_control_page_of_a_later_version(small: Path, read_only: bool) -> None:
    with (small / ".lock").open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 2))
    with unchanged(small), pytest.raises(UnknownVersion, match="upgrade"):
        Queue(small, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_manifest_of_a_later_version(small: Path, read_only: bool) -> None:
    raw = bytearray((small / "manifest").read_bytes())
    struct.pack_into("<I", raw, 8, 2)
    struct.pack_into("<I", raw, 60, zlib.crc32(raw[:60]))
    (small / "manifest").write_bytes(raw)
    with unchanged(small), pytest.raises(UnknownVersion, match="upgrade"):
        Queue(small, read_only=read_only)


# ---- tailers ----


@pytest.mark.parametrize(
    "bad",
    [
        {"at": "middle"},
        {"at": ""},
        {"at": 1.5},
        {"at": b"start"},
        {"at": [1]},
        {"at": datetime(2026, 1, 1)},
        {"direction": "sideways"},
        {"direction": None},
        {"direction": ""},
        {"on_corrupt": "ignore"},
        {"on_corrupt": None},
        {"on_corrupt": True},
        {"name": "../x"},
        {"name": ".."},
        {"name": "."},
        {"name": ".hidden"},
        {"name": ""},
        {"name": "a/b"},
        {"name": "a\\b"},
        {"name": "a b"},
        {"name": "x" * 129},
        {"name": "x" * 100_000},
        {"name": "nul\0"},
        {"name": "new\nline"},
        {"name": "Grüße"},
        {"name": "work.tmp"},
        {"name": 5},
        {"name": b"bytes"},
        {"name": "fine", "at": "middle"},
        {"name": "fine", "on_corrupt": "ignore"},
        {"name": "fine", "direction": "backward"},
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_a_tailer_that_cannot_be(small: Path, bad: dict[str, Any]) -> None:
    with Queue(small) as q, unchanged(small, live=True), pytest.raises((ValueError, TypeError)):
        q.tailer(**bad)


@pytest.mark.parametrize("name", ["../x", ".", "", "x" * 129, "nul\0", 5])
def test_a_name_that_cannot_be_forgotten(small: Path, name: Any) -> None:
    with Queue(small) as q, unchanged(small, live=True), pytest.raises((ValueError, TypeError)):
        q.forget(name)


def test_forgetting_what_is_not_there_does_nothing(small: Path) -> None:
    with Queue(small) as q, unchanged(small, live=True):
        q.forget("nobody")


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 128, "-", "0", "next.next"])
def test_names_that_are_fine(small: Path, name: str) -> None:
    with Queue(small) as q:
        t = q.tailer(name)
        t.read()
        t.commit()
    with Queue(small) as q:
        assert q.cursors() == {name: 1}


def test_numbers_that_are_none_do_not_move_a_tailer(small: Path) -> None:
    with Queue(small) as q, unchanged(small, live=True):
        t = q.tailer(at=1)
        calls: list[Callable[[], object]] = [
            lambda: t.seek("1"),  # type: ignore[arg-type]
            lambda: t.seek(None),  # type: ignore[arg-type]
            lambda: t.seek(1.5),  # type: ignore[arg-type]
            lambda: t.read_batch("1"),  # type: ignore[arg-type]
            lambda: t.read_batch(None),  # type: ignore[arg-type]
            lambda: t.read_arrow("1"),  # type: ignore[arg-type]
            lambda: t.seek_time("now"),  # type: ignore[arg-type]
            lambda: t.seek_time(5),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises((TypeError, ValueError, AttributeError)):
                call()
            assert t.position == 1
        assert t.read_batch(-1) == []
        assert t.read_arrow(-1).num_rows == 0
        m = t.read()
        assert m is not None
        assert m.sequence == 1


# ---- read-only ----


def test_a_read_only_queue_changes_nothing(small: Path) -> None:
    with Queue(small) as q:
        q.tailer("n", at=1)
    with unchanged(small), Queue(small, read_only=True) as q:
        calls: list[Callable[[], object]] = [
            lambda: q.append(b"x"),
            lambda: q.append_batch([b"x"]),
            q.appender,
            q.sync,
            lambda: q.forget("n"),
            q.tailer("n").commit,
            q.tailer("new").commit,
        ]
        for call in calls:
            with pytest.raises(ReadOnly, match="read_only=True"):
                call()
        t = q.tailer("n")
        assert [m.sequence for m in t] == [1, 2]
        assert len(list(q.tailer(direction="backward"))) == 3
        assert t.read_arrow(5).num_rows == 0
        assert q.cursors() == {"n": 1}
        assert (q.first_sequence, q.next_sequence, q.durable_sequence) == (0, 3, 3)


def test_errors_can_be_caught_by_their_old_names(small: Path) -> None:
    with Queue(small) as q:
        with pytest.raises(ValueError, match="empty"):
            q.append(b"")
        with pytest.raises(TypeError, match="encode"):
            q.append("text")  # type: ignore[arg-type]
