"""Looking at logs whose writers are killed, for a moment: see campaign.py, which goes on for as long as it is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.looking.campaign import WRITERS, campaign
from tests.torture_table import again

SEED = int(time.time())


@pytest.mark.parametrize("use", WRITERS)
def test_nothing_is_found(tmp_path: Path, use: str) -> None:
    result = campaign(use, tmp_path / use, 2, SEED)
    command = again("tests.looking.campaign", use=use, kills=2, seed=SEED)
    assert not result.failures, "\n".join([*result.failures, command])
    assert result.looks > 10
    assert result.records > 0
