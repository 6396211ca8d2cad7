"""`penstock doctor`: what it finds here, and that it fails where something is missing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Queue, doctor
from penstock.spark import java
from penstock.storage import files
from tests.cli.conftest import Live, Terminal, piped

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is started: that takes longer than all the rest."""
    monkeypatch.setattr(java, "find", lambda: None)


def test_here_it_holds_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    told = run("doctor", tmp_path, "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["holds"]
    names = {check["name"] for check in found["checks"]}
    assert {
        "kernel",
        "file system",
        "maps",
        "locks",
        "sync",
        "allocation",
        "names",
        "a queue",
        "clock",
        "java",
    } <= names
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_not_there_yet_and_a_log(path: Path) -> None:
    assert doctor.examine(path / "deep" / "log").path == str(path.parent)
    Queue(path).close()
    before = sorted(path.rglob("*"))
    assert doctor.examine(path).path == str(path.parent)
    assert sorted(path.rglob("*")) == before


def test_no_log_can_be_where_a_file_is(run: Run, path: Path) -> None:
    path.write_bytes(b"x")
    told = run("doctor", path)
    assert (told.exit_code, told.stderr.startswith(f"penstock: {path}: a file; ")) == (2, True), told.output


@pytest.mark.parametrize(
    ("call", "does", "check"),
    [
        ("lock", lambda fd, shared, wait=True: True, "locks"),
        ("allocate", lambda fd, offset, length: files.truncate(fd, offset + length), "allocation"),
        ("is_network", lambda kind: True, "file system"),
        ("create_once", lambda path, data: True, "names"),
    ],
)
def test_what_is_missing_is_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, does: Callable[..., object], check: str
) -> None:
    monkeypatch.setattr(files, call, does)
    told = run("doctor", tmp_path, "--json")
    assert told.exit_code == 1
    bad = {c["name"] for c in json.loads(told.stdout)["checks"] if c["needed"] and not c["ok"]}
    assert check in bad


def test_a_sync_that_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync", fail)
    told = run("doctor", tmp_path)
    assert told.exit_code == 1
    assert "✗ sync" in told.stdout
    assert "CANNOT be held" in told.stdout


def test_a_clock_that_goes_back_is_told_and_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time_ns", lambda: next(readings) * 1000)
    found = doctor.examine(tmp_path)
    [clock] = [check for check in found.checks if check.name == "clock"]
    assert (clock.ok, "went back" in clock.says, found.holds) == (False, True, True)


def test_on_a_terminal_and_in_a_pipe(live: Live, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("doctor", live.top)
    assert shown.ended() == 0
    assert "the contract holds here" in shown.shown
    told = piped("doctor", live.path("queue"))
    assert (told.returncode, told.stderr) == (0, b"")
    live.append("queue", "undisturbed")


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock doctor " in run("doctor", "--help").stdout
