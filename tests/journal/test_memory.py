"""Memory and time do not grow with what was written: only with the checkpoints and files there are.

Done in processes of their own, whose memory is measured.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Journal, journal
from tests.journal import by_hand
from tests.journal.conftest import SLOW, log_of, small_files
from tests.queue.test_memory import MIB, measure

New = Callable[..., Journal]

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc, to measure memory")


def large(path: Path, mib: int, record: int) -> int:
    """A journal as another implementation might have left it, of files of 4 MiB with records of one length; how many."""
    path.mkdir()
    one = by_hand.data(b"x" * record)
    each = ((4 << 20) - 40) // len(one)
    for n in range(mib // 4):
        body = [by_hand.checkpoint(0, n), one * each, by_hand.checkpoint(0, n + 1)]
        (path / f"{n}.journal").write_bytes(b"".join(body))
    return mib // 4 * each


@pytest.mark.parametrize("record", [1 << 10, (1 << 20) - 8])
def test_a_large_journal_is_recovered_within_little_memory(path: Path, record: int) -> None:
    mib = 64 if SLOW else 256
    total = large(path, mib, record)
    code = """
    from penstock import Journal
    n = size = 0
    with Journal(path) as j:
        for r in j.recovered():
            n += 1
            size += len(r.payload)
            if n % 1000 == 0:
                j.append(r.payload)
    print(n, size, r.group)
    """
    assert measure(code, path, 64 * MIB) == [total, total * record, mib // 4]


def test_our_own_files_are_recovered_within_little_memory(path: Path) -> None:
    """With companions, and many small records."""
    count = 20_000 if SLOW else 400_000
    code = f"""
    from penstock import Journal
    with Journal(path) as j:
        for i in range({count} // 100):
            j.append_many([b"%d" % i * 10] * 100)
    n = 0
    with Journal(path) as j:
        for r in j.recovered():
            n += 1
    print(n)
    """
    assert measure(code, path, 128 * MIB) == [count]


def test_appending_and_retiring_many_files_keeps_within_the_buffer(path: Path) -> None:
    """Some 200 MiB through a buffer of 8."""
    mib = 40 if SLOW else 200
    code = f"""
    from penstock import Journal
    payload = bytes(1 << 16)
    most = 0
    with Journal(path, buffer_bytes=8 << 20) as j:
        for i in range({mib}):
            for _ in range(16):
                j.append(payload)
            j.checkpoint()
            j.check()
        j.flush()
        print(j.first_unchecked, j.current, len(j._marks), len(j._changes))
    print(len(list(Path(path).glob("*.journal"))) <= 2)
    """.replace("print(len(", "print(1 * (len(").replace(") <= 2)", ") <= 2))")
    checked, current, marks, changes, few = measure(code, path, 64 * MIB)
    assert (checked, current) == (mib + 1, mib)
    assert marks + changes <= 2
    assert few


def test_what_is_kept_in_memory_is_as_much_as_there_are_checkpoints(new: New, path: Path) -> None:
    j = new()
    for i in range(2000):
        j.append(b"%d" % i)
        j.checkpoint()
        if i >= 50:
            j.check()
    j.flush()
    assert j.first_unchecked == 1951
    assert len(j._marks) + len(j._changes) <= 52
    while j.first_unchecked <= j.current:
        j.check()
    j.flush()
    assert j.first_unchecked == 2001
    assert len(j._marks) + len(j._changes) == 0


def test_time_for_an_append_does_not_grow_with_the_number_of_files(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 400)
    j = new()

    def some() -> float:
        """Seconds for appends that fill some files."""
        began = time.process_time()
        for _ in range(100):
            j.append(bytes(80))
            j.checkpoint()
        j.flush()
        return time.process_time() - began

    few = min(some() for _ in range(4))
    for _ in range(6 if SLOW else 60):
        for _ in range(50):
            j.append_many([bytes(80)] * 4)
        j.flush()
    assert log_of(j).active().segment > (300 if SLOW else 3000)
    log_of(j).seal_finished()
    many = min(some() for _ in range(4))
    assert many < 4 * few + 0.05, f"{few:.4f} s with few files, {many:.4f} s with many"


def test_recovery_is_linear_in_what_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen times as many files take no more than so many times as long, give or take a factor of two."""
    small_files(monkeypatch, 4096)

    def seconds(files: int) -> float:
        top = path / str(files)
        top.mkdir(parents=True)
        body = by_hand.data(b"x" * 100) * 30
        for n in range(files):
            (top / f"{n}.journal").write_bytes(struct.pack("<IQQ", 1, 0, n) + body)
        began = time.process_time()
        with Journal(top) as j:
            assert sum(1 for _ in j.recovered()) == 30 * files
        return time.process_time() - began

    small = min(seconds(n) for n in (99, 100, 101))
    assert seconds(1600) < 2 * 16 * small + 0.1


def test_the_limits_that_are_documented() -> None:
    assert journal.MAX_FILE_BYTES == 4 << 20
    assert journal.MAX_PAYLOAD_BYTES == (1 << 20) - 4
