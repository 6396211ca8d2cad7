"""A short campaign of power cuts, and the proof that one notices what is lost. Needs root: see tests/power/disk.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.power.campaign import CUTS_A_ROUND, campaign, one_round, planned
from tests.power.disk import FILE_SYSTEMS, missing
from tests.power.uses import HONEST, LIAR
from tests.torture_table import again


def needs_power(test: Callable[[], None]) -> Callable[[], None]:
    return pytest.mark.root(pytest.mark.skipif(missing() is not None, reason=f"no power to cut: {missing()}")(test))


@needs_power
def test_what_was_promised_survives_a_power_cut() -> None:
    """Of all together, and of the first one alone."""
    result = campaign(2, seed=1, kinds=["ext4"])
    told = again("tests.power.campaign", snapshots=2, seed=1, file_systems="ext4")
    assert not result.failures, f"{result.failures[0]}\n{told}"
    assert (result.cuts, result.logs) == (2, Counter([*HONEST, HONEST[0]]))
    assert result.checked.total() > 1000


@needs_power
def test_what_was_promised_and_is_lost_is_noticed() -> None:
    """A cut is one: what was only in memory is gone. (One that comes just when all was written finds nothing to lose.)"""
    result = one_round("ext4", [LIAR], cuts=5, seed=1)
    assert result.failures
    assert all("Broken: the end: " in failure.told for failure in result.failures), result.failures
    assert {failure.use for failure in result.failures} == {LIAR}


@pytest.mark.parametrize("snapshots", [1, 5, 200, 1000, 1001])
def test_cuts_are_spread_over_every_use_on_every_file_system(snapshots: int) -> None:
    cuts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for kind, uses, count in planned(snapshots, FILE_SYSTEMS, HONEST):
        assert 0 < count <= CUTS_A_ROUND
        cuts[kind, tuple(uses)] += count
    entries = [(kind, uses) for uses in (HONEST, *((use,) for use in HONEST)) for kind in FILE_SYSTEMS]
    assert cuts.total() == snapshots
    assert snapshots < len(entries) or cuts.keys() == set(entries)
    assert max(cuts[entry] for entry in entries) - min(cuts[entry] for entry in entries) <= -(-snapshots // 450)
