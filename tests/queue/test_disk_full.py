"""A full disk: `DiskFull` from the append, before anything is changed; everything else goes on, and so does the append once
there is room. Needs root, for a small file system of its own: in memory, and ext4 in a file.

The work is done in a process of its own, so that an access to a page without a block, which kills (SIGBUS), fails the test.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import DiskFull, Flush, Queue, RecordGone, Retention, Roll
from penstock.storage import companion, files, index
from tests.support import ROOT

pytestmark = pytest.mark.root

FILE_SIZE = 1 << 20
BALLAST = 3 << 20


# ---- what is done in a process of its own ----


def open_queue(disk: Path, **options: Any) -> Queue:
    return Queue(disk / "log", file_size=FILE_SIZE, index_interval=16, **options)


def record(i: int, size: int = 1000) -> bytes:
    return b"%08d" % i + bytes([33 + i % 90]) * (size - 8)


def lay_ballast(disk: Path) -> None:
    for name, size in (("ballast", BALLAST), ("reserve", BALLAST // 4)):
        with (disk / name).open("wb") as f:
            f.write(b"b" * size)
            f.flush()
            os.fsync(f.fileno())


def drop_ballast(disk: Path) -> None:
    (disk / "ballast").unlink()


def fill_to_the_brim(disk: Path) -> None:
    """What is left of the disk goes to a file of somebody else's."""
    fd = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for size in (1 << 16, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, b"f" * size)
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def free_the_brim(disk: Path) -> None:
    (disk / "filler").unlink()
    (disk / "reserve").unlink()


def fill(q: Queue, acknowledged: list[bytes], size: int = 1000) -> DiskFull:
    """Append until the disk is full."""
    while True:
        payload = record(len(acknowledged), size)
        try:
            sequence = q.append(payload)
        except DiskFull as error:
            return error
        assert sequence == len(acknowledged)
        acknowledged.append(payload)


def fill_with_batches(q: Queue, acknowledged: list[bytes], count: int, size: int = 1000) -> list[bytes]:
    """Append batches until the disk is full: the batch that had no room."""
    while True:
        payloads = [record(len(acknowledged) + i, size) for i in range(count)]
        try:
            q.append_batch(payloads)
        except DiskFull as error:
            check_error(error)
            return payloads
        acknowledged += payloads


def append_more(q: Queue, acknowledged: list[bytes], count: int, size: int = 1000) -> None:
    """Append where there is room."""
    for _ in range(count):
        payload = record(len(acknowledged), size)
        assert q.append(payload) == len(acknowledged)
        acknowledged.append(payload)


def check_error(error: DiskFull) -> None:
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert error.filename
    assert "free some space" in str(error)


def check_readable(q: Queue, acknowledged: list[bytes]) -> None:
    with q.tailer() as tailer:
        assert [m.payload for m in tailer] == acknowledged
    assert q.next_sequence == len(acknowledged)


def check_reopened(disk: Path, acknowledged: list[bytes]) -> None:
    with open_queue(disk, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        check_readable(q, acknowledged)


def state(q: Queue) -> object:
    """Every byte of the log up to its end, and that nothing lies beyond it."""
    assert q._log is not None
    assert q._log.control is not None
    now = q._log.active()
    data = {}
    for path in sorted(q.path.rglob("*.data")):
        content = path.read_bytes()
        if path == q.path / q._log.fmt.name(now.segment):
            assert not content[now.end :].strip(b"\0")
        if frames := content[q._log.fmt.HEADER_BYTES :].rstrip(b"\0"):  # an empty file more does not count
            data[path.name] = frames
    return data, now.next, q.first_sequence, q._log.control.dirty, q._log.control.span


def refused(q: Queue, acknowledged: list[bytes], payloads: list[bytes]) -> None:
    """An append that the disk has no room for changes nothing. What the background gives back may be room for a few more:
    it is done here, so that there is an end to it."""
    assert q._log is not None
    for _ in range(20):
        with contextlib.suppress(OSError):
            q._log.seal_finished()
        if len(payloads) == 1:
            fill(q, acknowledged, len(payloads[0]))
        before = state(q)
        try:
            if len(payloads) == 1:
                q.append(payloads[0])
            else:
                q.append_batch(payloads)
        except DiskFull as error:
            check_error(error)
            assert state(q) == before
            return
        acknowledged += payloads
    raise AssertionError("there is always room")


def singles(disk: Path) -> None:
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        check_error(fill(q, acknowledged))
        assert len(acknowledged) > 1000
        fill_to_the_brim(disk)
        fill(q, acknowledged)
        refused(q, acknowledged, [record(0)])
        check_readable(q, acknowledged)
        drop_ballast(disk)
        free_the_brim(disk)
        before = len(acknowledged)
        append_more(q, acknowledged, 500)
        assert len(acknowledged) == before + 500
        check_readable(q, acknowledged)
    with open_queue(disk, verify_on_startup=True) as q:
        assert q.recovery.how == "clean"
        assert q.recovery.damage == []
        check_readable(q, acknowledged)


def small(disk: Path) -> None:
    """Tiny records: companion and index are as large as the data, and need room of their own."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        check_error(fill(q, acknowledged, 9))
        fill_to_the_brim(disk)
        fill(q, acknowledged, 9)
        refused(q, acknowledged, [record(0, 9)] * 20_000)
        drop_ballast(disk)
        fill(q, acknowledged, 9)
        check_readable(q, acknowledged)
    free_the_brim(disk)
    check_reopened(disk, acknowledged)


def pages(disk: Path) -> None:
    """What counts as allocated is so by whole pages, though blocks may be smaller: else a store may need one more block."""

    def check(q: Queue) -> None:
        assert q._log is not None
        assert q._log.control is not None
        with q._log.mapped.growing, q._log.locked():  # type: ignore[union-attr]
            now, (size, entries) = q._log.active(), q._log.control.allocated
            reach = {
                "data": size,
                "time": companion.HEADER_BYTES + companion.ENTRY_BYTES * (entries - now.base),
                "index": index.bytes_for(entries - now.base, q._log.interval),
            }
            for suffix, upto in reach.items():
                path = (q.path / q._log.fmt.name(now.segment)).with_suffix(f".{suffix}")
                whole = min(-(-upto // mmap.PAGESIZE) * mmap.PAGESIZE, path.stat().st_size)
                with path.open("rb") as f:
                    assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) >= whole, (suffix, upto)

    with open_queue(disk) as q:
        q.append(b"first")
        check(q)
        for i in range(45_000):
            q.append(b"%d" % i)
            if i % 3001 == 0:
                check(q)
        q.append_batch([record(i, 50_000) for i in range(40)])
        q.append(b"more")
        check(q)
    with open_queue(disk) as q:
        q.append(b"again")
        check(q)


def large(disk: Path) -> None:
    """Records of half a megabyte: each needs new blocks."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        check_error(fill(q, acknowledged, 400_000))
        refused(q, acknowledged, [record(0, 500_000)])
        refused(q, acknowledged, [record(0, 900_000)])
        check_readable(q, acknowledged)
        drop_ballast(disk)
        append_more(q, acknowledged, 3, 400_000)
        check_readable(q, acknowledged)
    check_reopened(disk, acknowledged)


def batches(disk: Path) -> None:
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        payloads = fill_with_batches(q, acknowledged, 100)
        fill(q, acknowledged)
        fill_to_the_brim(disk)
        fill(q, acknowledged)
        refused(q, acknowledged, [record(i) for i in range(100)])
        refused(q, acknowledged, [record(i, 100_000) for i in range(9)])
        check_readable(q, acknowledged)
        drop_ballast(disk)
        acknowledged += payloads
        q.append_batch(payloads)
        check_readable(q, acknowledged)
    check_reopened(disk, acknowledged)


def spans(disk: Path) -> None:
    """Batches larger than a file."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        payloads = fill_with_batches(q, acknowledged, 25, 100_000)
        assert acknowledged
        for _ in range(3):
            refused(q, acknowledged, payloads)
            names = state_of_files(q)
            refused(q, acknowledged, payloads)
            assert state_of_files(q) == names, "files of a batch that is not there"
        check_readable(q, acknowledged)
        drop_ballast(disk)
        q.append_batch(payloads)
        acknowledged += payloads
        q.append(b"and one more")
        acknowledged.append(b"and one more")
        check_readable(q, acknowledged)
    check_reopened(disk, acknowledged)


def state_of_files(q: Queue) -> list[str]:
    return sorted(p.name for p in q.path.rglob("*.data"))


def rolls(disk: Path) -> None:
    """Many small files: the disk is full when a new one is made, or its companion, index or manifest entry written."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk, roll=Roll.count(200)) as q:
        check_error(fill(q, acknowledged, 700))
        fill_to_the_brim(disk)
        fill(q, acknowledged, 700)
        refused(q, acknowledged, [record(0, 700)])
        check_readable(q, acknowledged)
        drop_ballast(disk)
        append_more(q, acknowledged, 100, 700)
        check_readable(q, acknowledged)
    check_reopened(disk, acknowledged)


def flushed(disk: Path) -> None:
    """With syncs in the background and after each append."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk, flush=Flush.batch(bytes=1 << 16, interval_s=0.001)) as q:
        check_error(fill(q, acknowledged))
        refused(q, acknowledged, [record(0)])
        assert q.sync() == len(acknowledged)
        with open_queue(disk, flush=Flush.each()) as durable:
            refused(durable, acknowledged, [record(0)])
            drop_ballast(disk)
            append_more(durable, acknowledged, 1)
            assert durable.durable_sequence == len(acknowledged)
        check_readable(q, acknowledged)


def tailers(disk: Path) -> None:
    """Readers go on, and commits go on or say what is wrong."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        named = q.tailer("named")
        new = q.tailer()
        fill(q, acknowledged)
        fill_to_the_brim(disk)
        fill(q, acknowledged)
        assert len(new.read_batch(100)) == 100
        named.read_batch(10)
        committed = 0
        try:
            named.commit()
            committed = 10
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert isinstance(error, DiskFull)
        assert q.cursors() == {"named": committed}
        assert not list((q.path / "cursors").glob("*.tmp"))
        named.read_batch(10)
        assert [m.payload for m in new] == acknowledged[100:]
        with Queue(disk / "log", read_only=True) as reader:
            check_readable(reader, acknowledged)
        drop_ballast(disk)
        named.commit()
        assert q.cursors() == {"named": 20}
        q.append(b"more")


def brim(disk: Path) -> None:
    """Closing and opening with not a byte left: it works or says that the disk is full, and nothing is lost."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    q = open_queue(disk)
    fill(q, acknowledged)
    fill_to_the_brim(disk)
    fill(q, acknowledged)
    q.close()  # it may leave sealing to the next one, but it is no reason to fail
    assert q.closed
    fill_to_the_brim(disk)
    try:
        q = open_queue(disk)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert isinstance(error, DiskFull)
    else:
        check_readable(q, acknowledged)
        q.close()
    with Queue(disk / "log", read_only=True) as reader:
        check_readable(reader, acknowledged)
    drop_ballast(disk)
    with open_queue(disk, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        check_readable(q, acknowledged)
        q.append(b"more")


def crowd(disk: Path) -> None:
    """Somebody else fills the disk while the log is open: what was allocated ahead still works, then the append says so."""
    acknowledged: list[bytes] = []
    lay_ballast(disk)
    with open_queue(disk) as q:
        append_more(q, acknowledged, 100)
        fill_to_the_brim(disk)
        fill(q, acknowledged)
        refused(q, acknowledged, [record(0)])
        check_readable(q, acknowledged)
        drop_ballast(disk)
        fill(q, acknowledged)
        check_readable(q, acknowledged)
    free_the_brim(disk)
    with open_queue(disk) as q:
        check_readable(q, acknowledged)


def retained(disk: Path) -> None:
    """Retention makes room by itself: the disk is never full."""
    keep = Retention(max_bytes=2 << 20)
    lay_ballast(disk)
    with open_queue(disk, retention=keep) as q:
        written = 0
        for _ in range(8):
            with contextlib.suppress(
                DiskFull
            ):  # the background may lag behind; then the append says so and can be repeated
                for _ in range(2000):
                    q.append(record(written))
                    written += 1
        assert written > 5000
        with q.tailer() as tailer, contextlib.suppress(RecordGone):
            for message in tailer:
                assert message.payload == record(message.sequence)


WORKS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (singles, small, pages, large, batches, spans, rolls, flushed, tailers, brim, crowd, retained)
}


# ---- the tests ----


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as f:
            f.truncate(16 << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", "1024", str(image)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"mkfs.ext4: {error}")
        command = ["mount", "-o", "loop", str(image), str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a {request.param}: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("work", WORKS)
def test_full_disk_is_said_before_anything_is_changed_and_everything_else_goes_on(disk: Path, work: str) -> None:
    assert files.filesystem(disk) in ("tmpfs", "ext4")
    code = (
        f"from pathlib import Path; from tests.queue import test_disk_full as t; t.WORKS[{work!r}](Path({str(disk)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def test_a_full_disk_when_a_batch_over_several_files_is_listed_takes_it_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit word is written, and nobody has seen it: DiskFull must mean that nothing was appended."""
    with Queue(path, file_size=8192) as q, q.tailer() as t:
        q.append(b"before")
        manifest = q._log.manifest  # type: ignore[union-attr]
        real = files.write

        def full(fd: int, data: bytes, offset: int) -> None:
            if fd == manifest._fd and len(data) > 64:
                real(fd, data[:100], offset)
                raise DiskFull("planted", 0)
            real(fd, data, offset)

        with monkeypatch.context() as m, pytest.raises(DiskFull):
            m.setattr(files, "write", full)
            q.append_batch([b"y" * 1000] * 20)
        assert q.next_sequence == 1
        assert len(list(path.rglob("*.data"))) == 2  # the batch begins in a new one
        assert q.append_batch([b"z" * 1000] * 20) == range(1, 21)
        assert [m.payload for m in t] == [b"before", *[b"z" * 1000] * 20]
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert q.next_sequence == 21
