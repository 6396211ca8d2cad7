"""A full disk, a real one: `DiskFull` from what could not be written, and all else goes on; once there is room so does appending.

Needs root, for a small file system of its own: in memory, and ext4 in a file. The work is done in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Appended, Checkpoint, DiskFull, Journal, RecordsLost, journal
from penstock.storage import files
from tests.journal import by_hand
from tests.queue.test_disk_full import BALLAST, drop_ballast, fill_to_the_brim, free_the_brim
from tests.support import ROOT, until

pytestmark = pytest.mark.root


# ---- what is done in a process of its own ----


def lay_ballast(disk: Path) -> None:
    for name, size in (("ballast", BALLAST), ("reserve", BALLAST // 4)):
        with (disk / name).open("wb") as f:
            f.write(b"b" * size)
            f.flush()
            os.fsync(f.fileno())


def fill(j: Journal, done: list[bytes], size: int, most: int = 1 << 30) -> None:
    """Append one by one until the disk is full."""
    for i in range(most):
        payload = b"%08d" % len(done) + bytes([33 + i % 90]) * size
        appended = j.append(payload)
        try:
            appended.result()
        except DiskFull as error:
            assert "free some space" in str(error)
            return
        done.append(payload)


def stored(disk: Path) -> list[bytes]:
    return [item.payload for item in by_hand.items(disk / "log")[0]]


def reopened(disk: Path, wanted: list[bytes]) -> None:
    with Journal(disk / "log") as j:
        assert [record.payload for record in j.recovered()] == wanted


def singles(disk: Path) -> None:
    """Records of all sizes: the data is full, or the companion, or a new file cannot be made."""
    lay_ballast(disk)
    done: list[bytes] = []
    j = Journal(disk / "log")
    for size in (300_000, 50_000, 5000, 500):
        fill(j, done, size)
        try:
            j.checkpoint()
            raise AssertionError("records were lost")
        except RecordsLost:
            pass
    assert stored(disk) == done
    fill_to_the_brim(disk)
    fill(j, done, 1)
    drop_ballast(disk)
    fill(j, done, 1000, 500)
    assert stored(disk) == done
    try:
        j.checkpoint()
    except RecordsLost:
        number = j.checkpoint()
        assert number.result() == 1
    j.close()
    free_the_brim(disk)
    reopened(disk, done)


def rolls(disk: Path) -> None:
    """Small files: it is their making that fails."""
    journal.MAX_FILE_BYTES = 32_768  # type: ignore[misc]
    lay_ballast(disk)
    done: list[bytes] = []
    with Journal(disk / "log") as j:
        fill(j, done, 15_000)
        fill_to_the_brim(disk)
        for _ in range(3):
            fill(j, done, 15_000)
        assert stored(disk) == done
        drop_ballast(disk)
        fill(j, done, 15_000, 50)
        assert stored(disk) == done
    free_the_brim(disk)
    reopened(disk, done)


def batches(disk: Path) -> None:
    """Many at a time: all of a batch, or nothing; what waited behind it fails with it, and no hole is left."""
    lay_ballast(disk)
    done: list[bytes] = []
    with Journal(disk / "log") as j:
        while True:
            made, payloads = [], []
            for i in range(100):
                many = [b"%d.%d.%d" % (len(done), i, n) + bytes(1000) for n in range(10)]
                payloads.append(many)
                made.append(j.append_many(many))
            failed = False
            for many, appended in zip(payloads, made, strict=True):
                try:
                    appended.result()
                except DiskFull:
                    failed = True
                else:
                    assert not failed, "something after a hole"
                    done += many
            if failed:
                break
        assert stored(disk) == done
        drop_ballast(disk)
        j.append(b"after").result()
        done.append(b"after")
    free_reserve(disk)
    reopened(disk, done)


def free_reserve(disk: Path) -> None:
    (disk / "reserve").unlink()


def walks(disk: Path) -> None:
    """A walk whose replays have no room is not finished, and nothing is lost. Retiring makes room."""
    lay_ballast(disk)
    done: list[bytes] = []
    with Journal(disk / "log") as j:
        fill(j, done, 100_000)
    warnings.simplefilter("ignore")
    free_reserve(disk)
    with Journal(disk / "log") as j:
        made = []
        try:
            for record in j.recovered():
                made.append(j.append(record.payload))
            raise AssertionError("there was room for all of it twice")
        except (DiskFull, RecordsLost):
            pass
        assert any(appended.exception() for appended in made)
    drop_ballast(disk)
    with Journal(disk / "log") as j:
        got = [record.payload for record in j.recovered()]
    assert got[: len(done)] == done
    assert set(got) == set(done)
    with Journal(disk / "log") as j:
        assert list(j.recovered()) == []
        for _ in range(100):  # more than the disk holds: the background may lag behind, but not for ever
            until(lambda: done_with(lambda: j.append(bytes(200_000))), "what is retired makes room")
            until(lambda: done_with(j.checkpoint), "it is registered")
            until(lambda: done_with(j.check), "it is retired")


def done_with(act: Callable[[], Appended | Checkpoint]) -> bool:
    """Whether there was room for it."""
    try:
        act().result()
    except (DiskFull, RecordsLost):
        return False
    return True


def brim(disk: Path) -> None:
    """Opening and closing with not a byte left: it works, or says that the disk is full, and nothing is lost."""
    lay_ballast(disk)
    warnings.simplefilter("ignore")
    done: list[bytes] = []
    j = Journal(disk / "log")
    fill(j, done, 100_000)
    fill(j, done, 5000)
    fill_to_the_brim(disk)
    fill(j, done, 10)
    j.close()
    fill_to_the_brim(disk)
    for _ in range(3):
        try:
            j = Journal(disk / "log")
        except DiskFull:
            continue
        j.close()
    drop_ballast(disk)
    reopened(disk, done)


WORKS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (singles, rolls, batches, walks, brim)}


# ---- the tests ----


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    if request.param == "ext4":
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
def test_a_full_disk_is_told_and_nothing_else_is_lost(disk: Path, work: str) -> None:
    assert files.filesystem(disk) in ("tmpfs", "ext4")
    code = f"from pathlib import Path; from tests.journal import test_disk_full as t; t.WORKS[{work!r}](Path({str(disk)!r}))"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-6000:]
