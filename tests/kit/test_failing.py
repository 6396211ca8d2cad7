"""Each use on storage that fails, at some of its calls: others in each run. All of them: `python -m tests.kit.campaign`."""

from __future__ import annotations

import os
import time

import pytest

from tests.kit.faults import faults, try_fault
from tests.kit.uses import USES
from tests.queue.crash import Yard

EVERY = 31


@pytest.mark.parametrize("use", USES)
def test_the_nth_call_fails(yard: Yard, use: str) -> None:
    start = int(os.environ.get("PENSTOCK_SEED", time.time()))
    tried = 0
    for fault in faults(yard, use, EVERY, start):
        came = try_fault(yard, use, fault)
        assert not came.failures, came.failures[0]
        tried += 1
    assert tried >= 10
