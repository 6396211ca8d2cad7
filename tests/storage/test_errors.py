"""What the system refuses is an error of ours, which names the file, also of one that is open already (of that the system says nothing),
and says the next step."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import (
    Channel,
    DiskFull,
    FilesMissing,
    Flush,
    Journal,
    PenstockError,
    Queue,
    StorageDenied,
    StorageFailed,
    Topics,
    kernel,
)
from penstock.storage import files
from penstock.storage.offsets import Offsets
from tests.support import until

WRITES: dict[str, Callable[[int], object]] = {
    "write": lambda fd: files.write(fd, b"x", 0),
    "truncate": lambda fd: files.truncate(fd, 1),
    "allocate": lambda fd: files.allocate(fd, 0, 1),
    "lengthen": lambda fd: files.lengthen(fd, 1),
    "map_write": lambda fd: files.map_write(fd, 1),
}
if not files.PORTABLE:
    WRITES["reserve"] = lambda fd: files.reserve(fd, 0, 1)
    WRITES["reserve_beyond"] = lambda fd: files.reserve_beyond(fd, 0, 1)
    WRITES["give_back"] = lambda fd: files.give_back(fd, 0, 1)
READS: dict[str, Callable[[int], object]] = {
    "read": lambda fd: files.read(fd, 0, 1),
    "map_read": lambda fd: files.map_read(fd, 1),
}
ASKS: dict[str, Callable[[int], object]] = {  # what fails by itself on no file that could be made here
    "dup": files.duplicate,
    "fdatasync": files.sync,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"some")
    return tmp_path / "file"


@pytest.fixture
def fds(file: Path) -> Iterator[dict[int, int]]:
    """The file, open for reading alone and for writing alone."""
    opened = {flags: os.open(file, flags) for flags in (os.O_RDONLY, os.O_WRONLY)}
    yield opened
    for fd in opened.values():
        os.close(fd)


@pytest.mark.parametrize(
    ("flags", "call"), [*((os.O_RDONLY, name) for name in WRITES), *((os.O_WRONLY, name) for name in READS)]
)
def test_of_an_open_file(file: Path, fds: dict[int, int], flags: int, call: str) -> None:
    with pytest.raises(StorageFailed) as told:
        {**WRITES, **READS}[call](fds[flags])
    assert told.value.filename == str(file)
    assert told.value.errno
    assert pickle.loads(pickle.dumps(told.value)).filename == str(file)


def _refused(*_: object) -> int:
    raise OSError(errno.EIO, "planted")


@pytest.mark.parametrize("call", ASKS)
def test_of_what_the_system_refuses(
    file: Path, fds: dict[int, int], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), call: _refused}))
    with pytest.raises(StorageFailed, match="planted; look at") as told:
        ASKS[call](fds[os.O_RDONLY])
    assert told.value.filename == str(file)


def test_of_a_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "fsync": _refused}))
    with pytest.raises(StorageFailed, match="planted; look at") as told:
        files.sync_directory(file.parent)
    assert told.value.filename == str(file.parent)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_finds_no_room_is_no_full_disk(
    file: Path, fds: dict[int, int], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before may be gone: nobody may be told that nothing was changed."""

    def full(*_: object) -> None:
        raise OSError(code, "planted")

    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "fdatasync": full, "fsync": full}))
    for call, where in (
        (lambda: files.sync(fds[os.O_RDONLY]), file),
        (lambda: files.sync_directory(file.parent), file.parent),
    ):
        with pytest.raises(StorageFailed, match="planted; look at") as told:
            call()
        assert (told.value.errno, told.value.filename) == (code, str(where))
        assert not isinstance(told.value, DiskFull)
        assert not files.is_full(told.value)


def test_of_one_that_is_closed() -> None:
    with pytest.raises(OSError) as told:
        files.read(-1, 0, 1)
    assert told.value.filename == "file descriptor -1"


def test_of_a_sync_of_offsets_that_failed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = Offsets(tmp_path / "offset")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "os", SimpleNamespace(**{**vars(os), "fdatasync": _refused}))
        with pytest.raises(StorageFailed, match="planted; look at"):
            offsets.sync()
    with pytest.raises(StorageFailed, match="planted; look at") as told:
        offsets.sync()
    assert told.value.filename == str(tmp_path / "offset")
    offsets.close()


@pytest.mark.parametrize("arrow", [False, True])
def test_of_a_batch_that_the_kernel_writes_itself(tmp_path: Path, arrow: bool) -> None:
    """As the native one does where each append is synced. Nothing of it stays."""
    batch = [b"batch" * 100] * 10
    with Queue(tmp_path / "log", file_size=1 << 16, flush=Flush.each()) as q:
        q.append(b"before")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            if kernel.NAME == "native":
                with pytest.raises(StorageFailed, match="nothing was appended; raise the limit") as told:
                    q.append_batch(pa.array(batch, pa.binary()) if arrow else batch)
                assert told.value.filename == str(tmp_path / "log")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        q.append(b"after")
        assert [m.payload for m in q.tailer()] == [b"before", b"after"]


# ---- as an error of ours, with the next step ----

OPENED: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "queue": Queue,
    "channel": Channel,
    "journal": Journal,
    "topic": Topics,
}
SCRIPT = """
import os, sys
from pathlib import Path
from penstock import Queue, Channel, Journal, Topics, StorageDenied
top = Path(sys.argv[1])
if os.geteuid() == 0:
    os.seteuid(65534)
open_queue = Queue(top / "writable" / "queue", file_size=8192)
open_queue.append(b"a")
(top / "writable" / "queue").chmod(0)
for call in (
    lambda: Queue(top / "queue", read_only=True),
    lambda: Channel(top / "channel", read_only=True),
    lambda: Topics(top / "topic", read_only=True).topic("a"),
    lambda: Topics(top / "topic").topic("a"),
    lambda: Queue(top / "queue" / "within", read_only=True),
    lambda: Channel(top / "queue" / "within", read_only=True),
    lambda: Journal(top / "queue" / "within"),
    lambda: [open_queue.append(bytes(1000)) for _ in range(20)],
):
    try:
        call()
    except StorageDenied as error:
        assert isinstance(error, PermissionError) and error.filename, error
        assert "check its owner and permissions" in str(error), error
    else:
        raise AssertionError("it was not refused")
"""


def ever_more_files() -> Generator[None, None, None]:
    """May be open: none more than now, then one, and so on, each time until the next is asked for."""
    before, free = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0) for _ in range(64)]
    for fd in free:
        os.close(fd)
    for limit in free:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kind", OPENED)
def test_too_many_open_files(tmp_path: Path, kind: str) -> None:
    """At each number of files that are too few, and then it works."""
    told: list[str] = []  # not the errors: they hold what was open
    with closing(ever_more_files()) as tries:
        for i, _ in enumerate(tries):
            try:
                with OPENED[kind](tmp_path / str(i)) as log:
                    if isinstance(log, Topics):
                        log.topic("a").publish(b"some")
                break
            except StorageFailed as error:
                assert error.errno == errno.EMFILE
                assert Path(error.filename).exists() or Path(error.filename).parent.exists()
                told.append(str(error))
        else:
            raise AssertionError(f"it never works: {told[-1]}")
    assert told
    assert all("raise the limit (`ulimit -n`)" in each for each in told)


def put_into_queue(path: Path, *payloads: bytes) -> list[bytes]:
    with Queue(path) as queue:
        for payload in payloads:
            queue.append(payload)
        return [message.payload for message in queue.tailer()]


def put_into_topic(path: Path, *payloads: bytes) -> list[bytes]:
    with Topics(path) as topics:
        topic = topics.topic("a")
        for payload in payloads:
            topic.publish(payload).wait()
        return [message.payload for message in topic.tailer(partitions=[0])]


@pytest.mark.parametrize("put", [put_into_queue, put_into_topic])
def test_a_log_is_not_taken_for_empty_with_too_many_open_files(tmp_path: Path, put: Callable[..., list[bytes]]) -> None:
    """Also where it is a directory that cannot be listed."""
    assert put(tmp_path / "log", b"first") == [b"first"]
    refused = 0
    with closing(ever_more_files()) as tries:
        for _ in tries:
            try:
                put(tmp_path / "log", b"then")
                break
            except StorageFailed:
                refused += 1
    assert refused > 3
    found = put(tmp_path / "log")
    assert found[0] == b"first"
    assert set(found[1:]) == {b"then"}  # once or more: an append may be done, and closing fail


@pytest.mark.parametrize("name", ["lost+found", "2026"])
def test_what_cannot_be_listed_is_an_error_unless_it_is_the_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "seen").touch()
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith(name):
            raise PermissionError(errno.EACCES, "planted", path)
        return real(path)

    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "scandir": scandir}))
    if name == "lost+found":
        assert list(files.walk(tmp_path)) == ["seen"]
    else:
        with pytest.raises(StorageDenied) as told:
            list(files.walk(tmp_path))
        assert told.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", [Queue, Channel, Journal, Topics])
def test_of_a_name_that_is_too_long(tmp_path: Path, kind: Any, read_only: bool) -> None:
    if kind is Journal and read_only:
        pytest.skip("a journal is not opened so")
    options = {"read_only": True} if read_only else {}
    with pytest.raises(StorageFailed, match="choose a shorter path"):
        opened = kind(tmp_path / ("x" * 300), **options)
        opened.topic("a")  # only topics get here


def test_of_a_channel_that_was_removed_when_it_rolls(tmp_path: Path) -> None:
    with Channel[bytes](tmp_path / "log", segment_bytes=1000) as c:
        tx = c.tx()
        tx.send(b"1")
        shutil.rmtree(tmp_path / "log")
        with pytest.raises(FilesMissing, match="removed while the log was open"):
            for _ in range(20):
                tx.send(bytes(300))
        with suppress(PenstockError):
            c.close()


def test_of_a_topic_that_was_removed(tmp_path: Path) -> None:
    logs = Topics(tmp_path, linger_s=0)
    t = logs.topic("a", 2)
    member = t.group("g")
    member.poll()
    shutil.rmtree(tmp_path / "a" / ".groups")
    with pytest.raises(FilesMissing, match="join again"):
        until(lambda: member.poll() and False, "the member looks around", 5.0)
    member.close()
    with t.group("g") as again:
        again.poll()
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FilesMissing, match="removed while it is open"):
        t.add_partitions(3)
    with suppress(PenstockError):
        logs.close()


def test_a_journal_that_was_removed_is_closed_all_the_same(tmp_path: Path) -> None:
    j = Journal(tmp_path / "log")
    j.append(b"1").result()
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(FilesMissing):
        j.close()
    assert j.closed
    j.close()


def test_of_what_may_not_be_read() -> None:
    """Asked by somebody who is not root."""
    with tempfile.TemporaryDirectory() as made:  # below nothing that is hidden from others
        top = Path(made)
        for kind in ("queue", "channel"):
            OPENED[kind](top / kind).__exit__(None, None, None)
        with Topics(top / "topic") as topics:
            topics.topic("a")
        top.chmod(0o755)
        for path in list(top.iterdir()):
            path.chmod(0)
        (top / "writable").mkdir()
        (top / "writable").chmod(0o777)
        try:
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT, made], capture_output=True, text=True)
        finally:
            for path in [*top.iterdir(), top / "writable" / "queue"]:
                path.chmod(0o700)
    assert done.returncode == 0, done.stderr


def test_of_a_full_device() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(DiskFull, match="free some space") as told:
            files.write(fd, b"x", 0)
    finally:
        os.close(fd)
    assert told.value.filename == "/dev/full"


@pytest.mark.parametrize(
    ("code", "kind", "step"),
    [
        (errno.ENOSPC, DiskFull, "free some space"),
        (errno.EDQUOT, DiskFull, "free some space"),
        (errno.EMFILE, StorageFailed, "ulimit -n"),
        (errno.EACCES, StorageDenied, "owner and permissions"),
        (errno.EPERM, StorageDenied, "owner and permissions"),
        (errno.EROFS, StorageFailed, "owner and permissions"),
        (errno.EIO, StorageFailed, "check the disk"),
        (errno.ENODEV, StorageFailed, "check the disk"),
    ],
)
def test_each_says_the_next_step_in_another_process_too(code: int, kind: type[PenstockError], step: str) -> None:
    error = files.told(OSError(code, os.strerror(code)), Path("/some/file"))
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert type(each) is kind
        assert (str(each), each.errno, each.filename) == (str(error), error.errno, "/some/file")
        assert step in str(each)
        assert kind is DiskFull or os.strerror(code) in str(each)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EAGAIN])
def test_what_callers_ask_to_know_stays_what_it_is(code: int) -> None:
    error = OSError(code, "so")
    assert files.told(error, Path("/some/file")) is error


def test_an_error_holds_nothing_of_those_it_went_through(tmp_path: Path) -> None:
    """Or what they have open stays so until the collector comes."""
    gc.collect()
    gc.disable()
    try:
        for path in (tmp_path / "none", tmp_path):  # one that is left as it is, and one that is told
            held = Held()
            gone = weakref.ref(held)
            with suppress(OSError):
                _asks(path, held)
            del held
            assert gone() is None
    finally:
        gc.enable()


class Held:
    """What can be looked for."""


def _asks(path: Path, held: Held) -> None:
    files.open_write(path) if not path.is_dir() else files.read(-1, 0, 1)
