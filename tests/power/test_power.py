"""A short campaign of power cuts, and the proof that one notices what is lost. Needs root: see tests/power/disk.py."""

from __future__ import annotations

import pytest

from tests.power.campaign import campaign, one_round
from tests.power.disk import missing
from tests.power.uses import HONEST, LIAR
from tests.torture_table import again

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(missing() is not None, reason=f"no power to cut: {missing()}"),
]


def test_what_was_promised_survives_a_power_cut() -> None:
    result = campaign(2, seed=1, kinds=["ext4"])
    told = again("tests.power.campaign", snapshots=2, seed=1, file_systems="ext4")
    assert not result.failures, "\n".join([*result.failures, told])
    assert (result.cuts, result.logs) == (2, 2 * len(HONEST))
    assert result.checked > 1000


def test_what_was_promised_and_is_lost_is_noticed() -> None:
    """A cut is one: what was only in memory is gone. (One that comes just when all was written finds nothing to lose.)"""
    result = one_round("ext4", [LIAR], cuts=5, seed=1)
    assert result.failures
    assert all("Broken: the end: " in failure for failure in result.failures), result.failures
