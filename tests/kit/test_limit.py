"""A case that hangs is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.limit import case

HANGS = """
import time
from tests.kit import campaign, limit
from tests.kit.uses.sinks import SinkUse
def hang(*_):
    time.sleep(60)
limit.CASE_S = 3.0
SinkUse.judge = hang
campaign.main()
"""


@pytest.mark.parametrize("of", [["--ops", "batch"], ["--fault", "EIO on sync", "--nth", "3"]])
def test_in_a_campaign_with_its_stack_and_its_name(of: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGS, "--use", "sink", "--base", str(tmp_path), *of]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert "Timeout" in ran.stderr
    assert "in hang" in ran.stderr
    named = re.search(r"is named in (.*)", ran.stdout)
    assert named is not None
    told = Path(named[1]).read_text()
    assert told.startswith("python -m tests.kit.campaign --use sink --")
    assert ("--case 0" if of[0] == "--ops" else "--nth 3") in told


def test_in_a_test_with_what_interrupts_it() -> None:
    with pytest.raises(KeyboardInterrupt) as told, case("this command"):
        raise KeyboardInterrupt
    assert told.value.__notes__ == ["again with: this command"]
