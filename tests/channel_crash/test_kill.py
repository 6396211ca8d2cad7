"""SIGKILL of whole processes at random moments, some sixty times: see campaign.py, which kills as often as it is told."""

from __future__ import annotations

import os
import time

import pytest

from tests.channel_crash.campaign import campaign
from tests.queue.crash import NATIVE, Yard
from tests.stopping import ONE_IN
from tests.torture_table import as_test

KILLS = int(os.environ.get("PENSTOCK_KILLS", "30" if NATIVE else "10"))
SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_was_acknowledged_holds_however_often_the_process_is_killed(yard: Yard, compression: str | None) -> None:
    result = campaign(yard.keep(), KILLS, SEED, compression)
    again = as_test("tests/channel_crash/test_kill.py", seed=SEED, kills=KILLS)
    assert not result.failures, "\n".join([*result.failures, again])
    assert result.kills == KILLS
    assert result.stops == KILLS // ONE_IN
    assert result.sent > 20 * KILLS
    assert result.received > 10 * KILLS
    # The slow kernel's ten kills may all come before a whole segment was acknowledged.
    assert result.removed or not NATIVE, "no segment was ever removed"
    if KILLS >= 30:  # or chance may have it otherwise
        assert result.sending, "no kill came in the midst of a send"
        assert result.receiving, "no kill came in the midst of receiving"
        assert result.acking, "no kill came in the midst of acknowledging"
        assert result.beyond_gaps, "nothing was ever acknowledged beyond a gap: it proves nothing of that"
