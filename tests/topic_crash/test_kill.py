"""SIGKILL of publishers and of members of a group at random moments: see campaign.py, which kills as often as it is told."""

from __future__ import annotations

import os
import time

import pytest

from tests.queue.crash import NATIVE, Yard
from tests.topic_crash.campaign import Round
from tests.torture_table import as_test

KILLS = int(os.environ.get("PENSTOCK_KILLS", "20" if NATIVE else "8"))
SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))


@pytest.mark.parametrize(("partitions", "retain"), [(3, False), (2, True)])
def test_what_was_acknowledged_or_committed_holds_whoever_is_killed(yard: Yard, partitions: int, retain: bool) -> None:
    one = Round(yard.keep(), SEED, partitions, retain=retain)
    again = as_test("tests/topic_crash/test_kill.py", seed=SEED, kills=KILLS)
    try:
        for times in range(1, 10):
            one.run(times * KILLS)
            if one.result.again and (one.result.retired or not retain):
                break  # of few kills it may be that none left anything to be handed over, or to be retired
    except Exception as error:
        raise AssertionError(f"{error}\n{again}") from error
    assert one.result.kills >= times * KILLS  # the last one may be of two at once
    assert one.result.ends
    assert one.result.stops, "nobody was ever stopped"
    assert one.result.acknowledged > 20 * KILLS, again
    assert one.result.delivered > 20 * KILLS, again
    assert one.result.again, f"nothing was ever handed over uncommitted: it proves nothing of that; {again}"
    assert one.result.retired or not retain, again
