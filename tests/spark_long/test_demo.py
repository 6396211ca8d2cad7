"""The demo, one of whose drivers is killed by somebody else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.test_demo import proved
from tests.support import until


@pytest.mark.usefixtures("spark")
def test_a_driver_killed_from_outside_in_a_micro_batch(tmp_path: Path) -> None:
    """The first is killed by the demo. The one after it is killed as it begins a micro-batch: the demo starts a third."""
    top, errors = tmp_path / "work", tmp_path / "stderr"
    command = [sys.executable, "-W", "error", "-m", "penstock.demo", "--records", "6000", "--dir", str(top)]
    with errors.open("w") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as ran:
        assert ran.stdout is not None
        out = ""
        for line in ran.stdout:
            out += line
            again = re.search(r"driver (\d+) starts from the checkpoints", line)
            if again and "unasked" not in out:
                _next_begins(top)
                os.kill(int(again[1]), signal.SIGKILL)
    assert ran.returncode == 0, out + errors.read_text()
    assert re.search(r"drivers that ended unasked, and were started again +[1-3]$", out, re.MULTILINE)
    proved(out)


def _next_begins(top: Path) -> None:
    """Wait for the next micro-batch of any query."""

    def begun() -> int:
        return len(list((top / "checkpoints").glob("*/offsets/[0-9]*")))

    before = begun()
    until(lambda: begun() > before, "a micro-batch", 120)
