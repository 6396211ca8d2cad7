"""An error of the system names the file that it is about, also of one that is open already: of that the system says nothing."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock import Flush, Queue, kernel
from penstock.storage import files
from penstock.storage.offsets import Offsets

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
    with pytest.raises(OSError) as told:
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
    with pytest.raises(OSError, match="planted") as told:
        ASKS[call](fds[os.O_RDONLY])
    assert told.value.filename == str(file)


def test_of_a_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "fsync": _refused}))
    with pytest.raises(OSError, match="planted") as told:
        files.sync_directory(file.parent)
    assert told.value.filename == str(file.parent)


def test_of_one_that_is_closed() -> None:
    with pytest.raises(OSError) as told:
        files.read(-1, 0, 1)
    assert told.value.filename == "file descriptor -1"


def test_of_a_sync_of_offsets_that_failed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = Offsets(tmp_path / "offset")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(files, "os", SimpleNamespace(**{**vars(os), "fdatasync": _refused}))
        with pytest.raises(OSError, match="planted"):
            offsets.sync()
    with pytest.raises(OSError, match="planted") as told:
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
                with pytest.raises(OSError, match="nothing was appended") as told:
                    q.append_batch(pa.array(batch, pa.binary()) if arrow else batch)
                assert told.value.filename == str(tmp_path / "log")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        q.append(b"after")
        assert [m.payload for m in q.tailer()] == [b"before", b"after"]
