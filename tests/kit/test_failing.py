"""Each use on storage that fails, at some of its calls: others in each run. All of them: `python -m tests.kit.campaign`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.storage import files
from penstock.testing.failing import KINDS, Fault, failing
from penstock.testing.standing_in import CHANGING
from tests.kit.faults import faults, try_fault
from tests.kit.uses import USES
from tests.queue.crash import Yard

EVERY = 149


@pytest.mark.parametrize("use", USES)
def test_the_nth_call_fails(yard: Yard, use: str) -> None:
    start = int(os.environ.get("PENSTOCK_SEED", time.time()))
    tried = 0
    for fault in faults(yard, use, EVERY, start):
        came = try_fault(yard, use, fault)
        assert not came.failures, came.failures[0]
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize("use", ["topic", "journal"])
def test_the_kernel_is_given_short_writes_too(yard: Yard, use: str) -> None:
    """Where files grow it writes them itself; each batch is one write at least."""
    made = USES[use](yard.new() / "log")
    with failing(Fault("short write", 1, for_good=True)) as failed:
        made.open()
        before = failed.failed
        made.do(made.ops[0])
        assert failed.failed > before
        made.close()
    assert made.judge(made.path, made.now(), "same") == 1


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("ENOSPC", lambda top: files.make_directories(top / "a" / "b", top)),
        ("ENOSPC", lambda top: files.link(top / "x", top / "y")),
        ("ENOSPC", lambda top: files.rename(top / "x", top / "y")),
        ("ENOSPC", lambda top: files.create_unnamed(top)),
        ("ENOSPC", lambda top: files.reserve_beyond(-1, 0, 1)),
        ("EMFILE", lambda top: files.create_unnamed(top)),
        ("EMFILE", lambda top: files.sync_directory(top)),
        ("EMFILE", lambda top: files.open_to_lock(top, make=False)),
        ("EMFILE", lambda top: files.children(top)),
        ("EMFILE", lambda top: files.walk(top)),
        ("EMFILE", lambda top: files.map_read(-1, 1)),
        ("EMFILE", lambda top: files.map_write(-1, 1)),
        ("EMFILE", lambda top: files.duplicate(-1)),
        ("EIO on write", lambda top: files.truncate(-1, 0)),
        ("EIO on write", lambda top: files.punch(-1, 0, 1)),
        ("EACCES on rename", lambda top: files.exchange(top / "x", top / "y")),
        ("EACCES on remove", lambda top: files.remove(top / "x")),
        ("EACCES on remove", lambda top: files.remove_tree(top / "x")),
    ],
)
def test_what_each_fault_fails(yard: Yard, kind: str, call: Callable[[Path], None]) -> None:
    with failing(Fault(kind, 1)), pytest.raises(OSError) as told:
        call(yard.new())
    assert told.value.errno == KINDS[kind][1]


def test_after_a_failed_write_a_sink_is_refused_before_its_batch_is_there(yard: Yard) -> None:
    """Somebody else's write, of the same process: it is told that the log takes no more."""
    for fault in faults(yard, "topic-sink", 1, 0, "EIO on write"):
        if not fault.for_good:
            came = try_fault(yard, "topic-sink", fault)
            assert not came.failures, came.failures[0]


def test_every_call_that_changes_anything_is_failed_by_some_fault() -> None:
    assert {name for functions, _ in KINDS.values() for name in functions} >= set(CHANGING)


def test_an_error_that_names_no_file_is_found(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "name_of", lambda fd: "")
    came = [try_fault(yard, "queue", fault) for fault in faults(yard, "queue", 10, 0, "EIO on write")]
    told = [failure for tried in came for failure in tried.failures]
    assert any("an error names the file, and says what happened to it" in failure for failure in told), told
