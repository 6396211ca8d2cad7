"""SIGKILL of whole processes at random moments, some forty times: see campaign.py, which kills as often as it is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.journal_crash.campaign import campaign
from tests.queue.crash import NATIVE, Yard
from tests.stopping import ONE_IN
from tests.torture_table import as_test

KILLS = int(os.environ.get("PENSTOCK_KILLS", "40" if NATIVE else "15"))
SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))


def judge(base: Path, kills: int) -> None:
    result = campaign(base, kills, SEED)
    again = as_test("tests/journal_crash/test_kill.py", seed=SEED, kills=KILLS)
    assert not result.failures, "\n".join([*result.failures, again])
    assert result.kills == kills
    assert result.stops == kills // ONE_IN
    assert result.lived > kills // 4
    assert result.appended > 20 * kills
    assert result.retired > kills
    assert result.unfinished > kills // 8, "hardly ever was there more than one session: it proves nothing of that"


def test_what_was_acknowledged_holds_however_often_the_process_is_killed(yard: Yard) -> None:
    judge(yard.keep(), KILLS)


def test_the_same_on_a_disk(tmp_path: Path) -> None:
    """Where syncs take their time, a kill comes over one."""
    judge(tmp_path / "base", KILLS // 2)
