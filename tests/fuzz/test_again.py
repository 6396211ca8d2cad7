"""What hypothesis finds comes with the command that finds it again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# What is drawn follows from the seed.
PLANTED = """
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

def look(x):
    print("drew", x)
    assert x < 1000

def test_within():
    settings(deadline=None)(given(x=st.integers(0, 1 << 60))(look))()

class Machine(RuleBasedStateMachine):
    @rule(x=st.integers(0, 1 << 60))
    def look(self, x):
        look(x)

TestMachine = Machine.TestCase

def test_not_of_hypothesis():
    assert False
"""


@pytest.fixture
def planted() -> Iterator[Path]:
    """Among the tests, whose hooks it is about."""
    path = Path(__file__).with_name(f"test_planted_{os.getpid()}.py")
    path.write_text(PLANTED)
    yield path
    path.unlink()


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {k: v for k, v in os.environ.items() if k != "PENSTOCK_SEED"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120).stdout


def test_a_failure_comes_with_one_command(planted: Path) -> None:
    told = run("-n", "0", str(planted))
    commands = re.findall(r"-- again with -+\n(.*)", told)
    assert len(commands) == 2, told
    again = []
    for line in commands:
        command = shlex.split(line)
        start = command.index("python")
        assert command[start : start + 3] == ["python", "-m", "pytest"]
        again.append(run(*command[start + 3 :]))
        assert line in again[-1]
    assert drawn(again[0]) + drawn(again[1]) == drawn(told)


def drawn(told: str) -> list[str]:
    return re.findall("^drew [0-9]+", told, re.MULTILINE)
