"""The bytes, in both directions: what is said of them is what is written, and what another implementation wrote is read.

Nothing but `by_hand`, which knows only the standard library, makes and reads them here; over both kernels, which this test
runs in processes of their own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Journal, kernel
from penstock.storage import files
from tests.journal import by_hand
from tests.journal.by_hand import checkpoint, data
from tests.journal.conftest import payloads, small_files, tree, walked

New = Callable[..., Journal]
FIRST = bytes.fromhex("0110000000000000000000000000000000000000")
HI = bytes.fromhex("000200006869")
KERNELS = ["native", "reference"] if kernel.NAME == "native" else ["reference"]


def run(name: str, path: Path, code: str) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            f"import sys\nfrom penstock import *\npath = sys.argv[1]\n{code}",
            str(path),
        ],
        env={**os.environ, "PENSTOCK_KERNEL": name},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITE = """
with Journal(path) as j:
    j.append(b"hi")
    j.checkpoint()
    j.append(b"")
    j.append_many([b"x" * 300, b"y"])
    j.checkpoint()
    j.check()
"""

READ = """
with Journal(path) as j:
    print(j.first_unchecked, j.current, [tuple(r) for r in j.recovered()])
"""

WRITTEN = (
    FIRST
    + HI
    + bytes.fromhex("01100000 0000000000000000 0100000000000000")
    + bytes.fromhex("00000000 002c0100")
    + b"x" * 300
    + bytes.fromhex("00010000 79")
    + bytes.fromhex("01100000 0000000000000000 0200000000000000")
    + bytes.fromhex("01100000 0100000000000000 0200000000000000")
)


def test_a_new_file_and_data(new: New, path: Path) -> None:
    j = new()
    assert (path / "0.journal").read_bytes() == FIRST
    j.append(b"hi").result()
    assert (path / "0.journal").read_bytes() == FIRST + HI
    j.close()
    assert (path / "0.journal").read_bytes() == FIRST + HI


@pytest.mark.parametrize("name", KERNELS)
def test_every_byte_is_as_said(path: Path, name: str) -> None:
    run(name, path, WRITE)
    assert (path / "0.journal").read_bytes() == WRITTEN
    assert by_hand.numbers(path) == [0]


@pytest.mark.parametrize("reading", KERNELS)
@pytest.mark.parametrize("writing", KERNELS)
def test_each_kernel_reads_what_the_other_wrote(path: Path, writing: str, reading: str) -> None:
    run(writing, path, WRITE)
    wanted = [(b"", 2, True, 0), (b"x" * 300, 2, True, 0), (b"y", 2, True, 0)]
    assert run(reading, path, READ) == f"2 2 {wanted}\n"


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [0, 16])
def test_a_directory_that_somebody_else_wrote(path: Path, name: str, size: int) -> None:
    """No companion, no control page, nothing of ours; checkpoint records may say that they have no body."""
    path.mkdir()
    (path / "7.journal").write_bytes(
        checkpoint(2, 3, size=size)
        + data(b"three")
        + checkpoint(2, 4, size=size)
        + data(b"")
        + data(b"five" * 100)
        + checkpoint(3, 4, size=size)
    )
    (path / "8.journal").write_bytes(
        checkpoint(3, 4, size=size) + data(b"more of five") + checkpoint(3, 5, size=size) + data(b"open") + data(b"")
    )
    wanted = [
        (b"three", 4, True, 0),
        (b"", 5, True, 0),
        (b"five" * 100, 5, True, 0),
        (b"more of five", 5, True, 0),
        (b"open", 6, False, 0),
        (b"", 6, False, 0),
    ]
    assert run(name, path, READ) == f"4 5 {wanted}\n"
    assert by_hand.numbers(path) == [9]
    assert by_hand.items(path) == ([], 5, 5)
    assert not (path / "recovery").exists()


def test_a_foreign_directory_whose_walk_is_not_finished(new: New, path: Path) -> None:
    path.mkdir()
    (path / "0.journal").write_bytes(checkpoint(0, 0, size=0) + data(b"a") + checkpoint(0, 1, size=0) + data(b"b"))
    for i in range(3):
        j = new()
        assert [(r.payload, r.group, r.session) for records in j._walk("raise", []) for r in records] == [
            (b"a", 1, 0),
            (b"b", 2, 0),
            *((b"again %d" % n, 2, n + 1) for n in range(i)),
        ]
        j.append(b"again %d" % i)
        with pytest.warns(match="not walked"):
            j.close()
    assert len(walked(new())) == 5


def test_a_foreign_file_that_is_cut_short_loses_only_what_is_cut(new: New, path: Path) -> None:
    path.mkdir()
    content = checkpoint(0, 0) + data(b"whole") + data(b"cut short")
    for cut in range(1, 13):
        (path / "0.journal").write_bytes(content[:-cut])
        j = new()
        assert payloads(walked(j)) == [b"whole"], cut
        j.close()
        for name in files.walk(path):
            (path / name).unlink()


def test_what_we_write_is_read_by_twenty_lines(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 3000)
    rng = random.Random(5)
    j = new()
    sent: list[tuple[bytes, int]] = []
    for _ in range(300):
        act = rng.random()
        if act < 0.7:
            sent.append((rng.randbytes(rng.choice([0, 1, 3, 50, 900])), j.current + 1))
            j.append(sent[-1][0])
        elif act < 0.85:
            j.checkpoint()
        elif j.first_unchecked < j.current - 30:
            j.check()
    j.flush()
    found, checked, current = by_hand.items(path)
    assert (checked, current) == (j.first_unchecked - 1, j.current)
    first = found[0].file
    assert [item[:2] for item in found] == sent[len(sent) - len(found) :]
    assert first == 0 or len(found) < len(sent)
    assert len(by_hand.numbers(path)) > 4


def test_nothing_is_written_beside_the_files_but_what_is_said(new: New, path: Path) -> None:
    j = new()
    j.append(b"x").result()
    names = set(tree(path)) - {".append"}  # where a file lock stands in for the mutex
    assert names == {"0.journal", "0.journal.time", ".lock", ".writer", "manifest", "metadata.json"}
