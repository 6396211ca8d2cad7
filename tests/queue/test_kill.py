"""SIGKILL of whole processes: at random (the campaign of tests/torture.py), after an append, asleep; and exits without a close.

Death at a chosen place inside the code: test_kill_points, test_kill_stores, test_kill_copying; while a log recovers: test_recovery.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from penstock import Queue, Retention, Roll, Tailer
from penstock.kernel import layout
from penstock.storage import control
from tests import torture
from tests.queue.dying import BEFORE, LATE, SLOW, append_at_once, command, die, open_queue, payloads, roll, run
from tests.support import ROOT, until
from tests.torture_table import again

# ---- what is done in a process of its own ----


def append_and_die(path: str) -> None:
    q = Queue(path)
    q.append(b"single")
    q.append_batch([b"a", b"b"])
    die()


def replace_the_manifest_and_die(path: str) -> None:
    q = open_queue(path)
    log = q._log
    assert log is not None
    control.Control.next_generation = lambda self: die()  # type: ignore[method-assign]
    with log.locked() as c:
        log.manifest.refresh(c.generation)
        log.manifest.rewrite(c.generation + 1)
        c.next_generation()


def sleep(path: str) -> None:
    q = open_queue(path)
    q.tailer().read(timeout_s=None)


unclosed: list[Queue] = []  # named: dropping one would close it


def exit_without_close(path: str) -> None:
    warnings.simplefilter("ignore")
    q = open_queue(path, roll=Roll.count(5), retention=Retention(max_bytes=1 << 20))
    unclosed.append(q)
    for _ in range(200):
        q.append(b"x" * 100)
    sys.exit(7)


# ---- the tests ----


def test_record_survives_kill_after_append_returned(path: Path) -> None:
    assert run(append_and_die, path) == -signal.SIGKILL
    with Queue(path) as q:
        assert q.recovery.how == "same boot"
        assert payloads(q) == [b"single", b"a", b"b"]


def test_manifest_replaced_by_a_process_that_died_over_it_is_noticed(path: Path) -> None:
    """Its rename is done and its new generation is not announced: edits must not go to the file that has no name now."""
    with open_queue(path) as q, open_queue(path) as other:
        q.append_batch(BEFORE)
        assert run(replace_the_manifest_and_die, path) == -signal.SIGKILL
        roll(q)
        q.append(LATE)
        with open_queue(path) as late:  # reads the file that has the name
            assert payloads(late) == [*BEFORE, LATE]
        assert payloads(other) == [*BEFORE, LATE]


def test_reader_that_died_asleep_costs_nobody_anything(path: Path) -> None:
    with open_queue(path) as q:
        assert q._log is not None
        assert q._log.control is not None
        page = q._log.control.page
        with subprocess.Popen(command(sleep, path), cwd=ROOT) as reader:
            if not SLOW:
                until(lambda: page.load(layout.WAITERS) & 0xFFFFFFFF, "the reader falls asleep")
            reader.kill()
        append_at_once(q, b"x")
        assert payloads(q) == [b"x"]
        assert page.load(layout.WAITERS) & 0xFFFFFFFF == 0


def test_campaign_of_random_kills(tmp_path: Path) -> None:
    """Four writers and two readers, killed and replaced: see tests/torture.py."""
    kills = 40 if SLOW else 80
    seed = int(os.environ.get("PENSTOCK_SEED", time.time()))
    result = torture.campaign(tmp_path, kills, seed)
    told = again("tests.torture", kills=kills, seed=seed, stop_s=0)  # its own stops would last longer
    assert not result.failures, "\n".join([*result.failures, told])
    assert result.kills >= kills
    assert result.acknowledged > 1000
    assert result.stops, "nobody was ever stopped"


def test_retention_was_at_work_in_the_campaign(tmp_path: Path) -> None:
    """A campaign in which retention removed nothing would prove nothing of it."""
    one = torture.Round(tmp_path, 1, retain=True)
    one.run(10)
    assert one.result.retired > 0
    assert one.result.acknowledged > 100


def test_unclosed_queue_does_not_hold_up_the_exit_of_its_process(tmp_path: Path) -> None:
    """Python stops the background thread where it stands, perhaps with a lock in hand."""
    for i in range(3 if SLOW else 8):
        assert run(exit_without_close, tmp_path / str(i)) == 7
        with open_queue(tmp_path / str(i)) as q:
            assert len(payloads(q)) == 200


class Killed(BaseException):
    """Here the campaign's reader ends."""


def test_the_campaigns_reader_may_be_killed_before_a_commit_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had noted for the commit that never came is not what its successor stands at."""
    with torture.queue(tmp_path) as q:
        for i in range(2000):
            q.append(torture.make(1, i, i, 0, 1, 3))
    commit, commits = Tailer.commit, iter([True, False, False, False])

    def sometimes(tailer: Tailer) -> None:
        if not next(commits):
            raise Killed
        commit(tailer)

    monkeypatch.setattr(Tailer, "commit", sometimes)
    for seed in range(3):
        with pytest.raises(Killed):
            torture.keep(tmp_path, seed)
