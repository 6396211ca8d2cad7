"""A kill after each single instruction of the native kernel; see `tests.kit.stepping`. Of the reference kernel, after each line: `test_states`."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pytest

from tests.kit.stepping import NOT_ALLOWED
from tests.queue.crash import NATIVE


@pytest.mark.skipif(not NATIVE, reason="there are no instructions to look at without the native kernel")
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="traces by Linux's ptrace; where an exchange is a loop of instructions, as on ARM, a step never leaves it",
)
@pytest.mark.parametrize(
    ("use", "ops", "least"),
    [
        ("queue", "append,append", 15),
        ("queue", "append,batch", 20),
        ("queue", "append,sync,batch", 15),  # after a sync a batch is put into a buffer, and written
        ("queue", "append,span", 40),
        ("channel", "send,send", 30),
        ("channel", "send,send_many", 30),
        ("journal", "append,many", 15),
        ("topic", "publish,many", 15),
    ],
)
def test_a_kill_after_any_instruction(use: str, ops: str, least: int) -> None:
    command = [sys.executable, "-m", "tests.kit.stepping", use, ops]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode == NOT_ALLOWED:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, f"{ran.stderr}\nagain with: {' '.join(command)}"
    steps, states = map(int, re.findall(r"\d+", ran.stdout))
    assert steps > 1000
    assert states > least
