"""The fixtures for users' own tests, as the page about them shows them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
# A consumer that believes its place alone, and syncs nothing: what it has passed may be lost.
CARELESS = """            for message in tailer:
                totals.append(b"total of " + message.payload)
            tailer.commit()
"""


def example() -> str:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


def run(where: Path, code: str, *options: str, below: str = "") -> subprocess.CompletedProcess[str]:
    """In a directory, or in one below it."""
    (where / below).mkdir(exist_ok=True)
    (where / below / "test_consumer.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "penstock.testing.plugin",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    return subprocess.run(command, cwd=where / below, capture_output=True, text=True, timeout=120)


def test_the_example_holds(tmp_path: Path) -> None:
    code = example().replace("prepare=prepare)", "prepare=prepare, most=40)")
    done = run(tmp_path, code, "-W", "error")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_careless_consumer_is_found_out_and_the_command_finds_it_again(tmp_path: Path) -> None:
    code = re.sub(r"            tailer\.seek.*?\.commit\(\)\n", CARELESS, example(), flags=re.DOTALL)
    assert code != example()
    done = run(tmp_path, code, "-k", "crash", "--penstock-seed", "1")
    assert done.returncode == 1, done.stdout
    command = re.search(r"again with: pytest (\S+) (--penstock-seed 1 --penstock-case \d+)", done.stdout)
    assert command is not None, done.stdout
    again = run(tmp_path, code, command[1], *command[2].split())
    assert again.returncode == 1
    assert command[0] in again.stdout


ENDS = """
import sys

import pytest

from penstock import Queue


def run(top):
    with Queue(top / "q", file_size=8192) as q:
        q.append(b"x")


def test_fails(crash_states):
    crash_states(run, lambda top: pytest.fail("no"))


def test_exits(failing_storage):
    failing_storage(run, lambda top: sys.exit(3))
"""


def test_however_a_test_ends_the_command_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, ENDS)
    assert "2 failed" in done.stdout
    told = re.findall(r"E .*again with: pytest (\S+) --penstock-seed \d+ --penstock-case \d+", done.stdout)
    assert told == ["test_consumer.py::test_fails", "test_consumer.py::test_exits"], done.stdout


def test_below_the_root_the_command_is_one_that_is_to_be_given_there(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run(tmp_path, ENDS, "-k", "test_fails", "--penstock-seed", "1", below="tests")
    assert "again with: pytest test_consumer.py::test_fails --penstock-seed 1" in done.stdout


def test_of_two_calls_in_a_test_the_command_says_which(tmp_path: Path) -> None:
    code = (
        ENDS
        + """

def test_two(crash_states, failing_storage):
    crash_states(run, lambda top: None, most=5)
    failing_storage(run, lambda top: pytest.fail("no"), most=5)
"""
    )
    done = run(tmp_path, code, "-k", "test_two", "--penstock-seed", "1")
    command = re.search(r"again with: pytest (\S+) (--penstock-seed 1 --penstock-case 2:\d+)", done.stdout)
    assert command is not None, done.stdout
    again = run(tmp_path, code, command[1], *command[2].split())
    assert command[0] in again.stdout
    third = run(tmp_path, code, command[1], "--penstock-seed", "1", "--penstock-case", "3:0")
    assert "case 0 of call 3: there were 2 calls" in third.stdout


def test_a_case_that_there_is_not_does_not_pass(tmp_path: Path) -> None:
    done = run(tmp_path, example(), "-k", "fails", "--penstock-seed", "1", "--penstock-case", "1000000")
    assert done.returncode == 1, done.stdout
    assert "case 1000000 is not among the" in done.stdout
