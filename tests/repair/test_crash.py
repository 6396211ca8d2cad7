"""A repair that dies at any of its calls that change a file, by SIGKILL: run again, it comes to what it would have come to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.repair import apply, plan
from penstock.verify import verify
from tests.queue.crash import NATIVE, open_yard
from tests.queue.dying import Countdown, open_zygote
from tests.repair import logs
from tests.repair.test_damage import tree
from tests.repair.test_losses import break_record
from tests.repair.test_verify import flip
from tests.topic_crash.wreck import EVERY


def run(path: str, after: int) -> None:
    """In a child: repair, and die at the n-th call."""
    countdown = Countdown(after)
    countdown.lay()
    countdown.begin()
    apply(path)
    os._exit(7)


def wreck(kind: str, path: Path) -> Path:
    """One damage of each sort that one log can have."""
    logs.lay(kind, path)
    first, second, third, *_ = [segment.paths() for segment in logs.segments(path) if segment.next > segment.base]
    break_record(path, 50)
    flip(first.times, 3)
    if third.data.exists():
        third.data.unlink()
    if kind != "journal":
        flip(second.index, 256 + 3)
        (cursor,) = path.rglob("cursors/reader")
        flip(cursor, 20)
    (manifest,) = path.rglob("manifest")
    manifest.write_bytes(manifest.read_bytes()[:-10])
    (settings,) = path.rglob("metadata.json")
    flip(settings, 3)
    return path


def outcome(path: Path) -> dict[str, bytes]:
    """What a repair comes to: all but copies, times, what says when, and what only lives while a log is open."""
    found = tree(path)
    left_out = (".broken", ".tmp", ".lock", "losses", ".writer")
    return {name: data for name, data in found.items() if not any(part in name for part in left_out)}


@pytest.mark.parametrize("kind", ["queue", "zstd", "journal", "topic"])
def test_dying_over_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.small(monkeypatch)
    with open_yard() as yard, open_zygote(run) as repair:
        whole = wreck(kind, yard.keep() / "log")
        assert apply(whole).left == ()
        wanted, read = outcome(whole), logs.read(kind, whole)
        ended, at, died = 0, 0, 0
        while ended != 7:
            at += 1 if EVERY else 1 + at % (7 if NATIVE else 29)
            path = wreck(kind, yard.new() / "log")
            ended = repair(path, at)
            assert ended in (7, -signal.SIGKILL)
            died += ended != 7
            told = apply(path)
            assert (told.left, told.failed) == ((), ()), at
            assert verify(path, deep=True).findings == (), at
            assert plan(path).steps == ()
            assert outcome(path) == wanted, at
            again = logs.read(kind, path)
            assert (again.records, again.lost) == (read.records, read.lost), at
        assert died > 5
