"""A log of any size is written, opened, verified and read within 200 MiB.

The large logs are sparse: their records are zeros, whose checksum is computed once, and the zeros are holes. 20 GiB are one
file of 1 GiB under twenty names, in the layout that has no sequence in its header (a foreign log), so that reading them
fills no more than 1 GiB of the page cache.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from fastcrc.crc64 import xz

from penstock.kernel import NAME
from penstock.storage import files

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SLOW = NAME == "reference" or files.PORTABLE

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc, to measure memory")


def sparse_file(file: Path, record: int, base: int | None) -> int:
    """A 1 GiB data file of records of zeros; with `base` it is ours, without it a foreign one. How many records."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<I", record)
    checksum = struct.pack("<Q", xz(head + bytes(record)))
    count = (GIB - 4096) // (record + 12)
    fd = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, GIB)
        if base is not None:
            header = struct.pack("<8sIIQQ", b"PENSTOCK", 1, 0, base, 1)
            os.pwrite(fd, header + struct.pack("<I", zlib.crc32(header)), 0)
        for i in range(count):
            at = 4096 + i * (record + 12)
            os.pwrite(fd, head, at)
            os.pwrite(fd, checksum, at + 4 + record)
    finally:
        os.close(fd)
    return count


def name(i: int) -> str:
    return f"2026/01/01/20260101-{i + 1:04}.data"


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A foreign file of 1 GiB, and how many records it has."""
    file = tmp_path_factory.mktemp("hollow") / "data"
    return file, sparse_file(file, 8 * MIB, None)


def foreign_log(path: Path, hollow: tuple[Path, int], gib: int) -> int:
    (path / name(0)).parent.mkdir(parents=True)
    for i in range(gib):
        os.link(hollow[0], path / name(i))
    return hollow[1] * gib


def our_log(path: Path, gib: int, record: int) -> int:
    count = 0
    for i in range(gib):
        count += sparse_file(path / name(i), record, count)
    (path / "metadata.json").write_text(
        f'{{"format": "queue", "version": 1, "file_size": {GIB}, "index_interval": 1024}}'
    )
    return count


MEASURE = """
import re, sys
from pathlib import Path
import pyarrow
from penstock import Queue, Roll
path = sys.argv[1]

def status(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def count(items):
    return sum(1 for _ in items)

def arrow(t):
    rows = 0
    while (batch := t.read_arrow(65536)).num_rows:
        rows += batch.num_rows
    return rows

before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
"""


def measure(code: str, path: Path, most: int = 200 * MIB, timeout_s: float = 120) -> list[int]:
    """Run code in a process of its own: the numbers it prints. Its memory must not grow by more than `most`."""
    code = MEASURE + textwrap.dedent(code) + "\nprint(status('VmHWM') - before)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *numbers, grown = (int(word) for word in done.stdout.split())
    assert grown < most, f"memory grew by {grown / MIB:.0f} MiB"
    return numbers


def test_20_gib_are_verified_and_read_within_200_mib(path: Path, hollow: tuple[Path, int]) -> None:
    total = foreign_log(path, hollow, 3 if SLOW else 20)
    code = """
    with Queue(path, read_only=True) as q:  # a foreign log is verified whenever it is opened
        print(q.recovery.records_scanned, q.next_sequence, len(q.recovery.damage))
        print(count(q.tailer()))
    """
    assert measure(code, path) == [total, total, 0, total]


@pytest.mark.parametrize("way", ["view", "arrow", "backward"])
def test_every_way_of_reading_keeps_within_200_mib(path: Path, hollow: tuple[Path, int], way: str) -> None:
    total = foreign_log(path, hollow, 2)
    ways = {
        "view": "count(iter(q.tailer().read_view, None))",
        "arrow": "arrow(q.tailer())",
        "backward": "count(q.tailer(direction='backward'))",
    }
    code = f"""
    with Queue(path, read_only=True) as q:
        print({ways[way]})
    """
    assert measure(code, path) == [total]


@pytest.mark.parametrize("record", [16 * MIB, 256 * KIB])
def test_a_log_without_its_manifest_is_opened_and_verified_within_200_mib(path: Path, record: int) -> None:
    total = our_log(path, 1, record)
    code = """
    with Queue(path) as q:
        print(q.recovery.records_scanned, q.next_sequence, len(q.recovery.damage))
    with Queue(path, verify_on_startup=True) as q:
        print(q.recovery.records_scanned, len(q.recovery.damage))
        t = q.tailer()
        for i in range(0, q.next_sequence, q.next_sequence // 20):
            t.seek(i)
            assert t.read().sequence == i
    """
    assert measure(code, path) == [total, total, 0, total, 0]


def test_a_record_of_64_mib_is_read_within_200_mib(path: Path) -> None:
    """It is in memory once as what is mapped and once as what is handed out, and once more while the one before is held."""
    total = our_log(path, 1, 64 * MIB)
    code = """
    with Queue(path, read_only=True) as q:
        t = q.tailer()
        n = 0
        while t.read() is not None:
            n += 1
        print(n, count(iter(q.tailer().read_view, None)), count(q.tailer(direction="backward")))
    """
    assert measure(code, path) == [total, total, total]


def test_writing_keeps_within_300_mib_however_much_is_written(path: Path) -> None:
    """More than reading: pages are touched ahead of the writer, up to 128 MiB."""
    mib = 128 if SLOW else 448
    code = f"""
    payload = bytes(range(256)) * 4096
    with Queue(path, roll=Roll.size(256 << 20)) as q:
        for i in range({mib} // 4):
            q.append(payload)
            q.append_batch([payload[: 1 << 16]] * 48)
        print(q.next_sequence)
    """
    assert measure(code, path, 300 * MIB) == [mib // 4 * 49]
