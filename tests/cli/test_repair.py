"""`penstock repair`: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Queue
from tests.cli.conftest import FORMATS, Live, Terminal, piped
from tests.repair import logs
from tests.repair.test_damage import tree
from tests.repair.test_losses import break_record

Run = Callable[..., Result]


@pytest.mark.parametrize("kind", logs.KINDS)
def test_nothing_to_repair(run: Run, path: Path, kind: str) -> None:
    logs.lay(kind, path)
    before = tree(path)
    for arguments in ([], ["--apply"]):
        done = run("repair", path, *arguments)
        assert (done.exit_code, done.stdout) == (0, "nothing to repair\n")
    assert tree(path) == before


def test_first_it_is_said_and_then_done(run: Run, path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 50)
    before = tree(path)
    told = run("repair", path)
    assert told.exit_code == 1
    assert "1 steps would be done\nnothing was changed; `--apply` does it\n" in told.stdout
    assert tree(path) == before
    (step,) = json.loads(run("repair", path, "--json").stdout)["steps"]
    assert (step["finding"]["kind"], step["finding"]["first"], step["finding"]["last"]) == ("record", 50, 50)
    done = run("repair", path, "--apply")
    assert done.exit_code == 0, done.output
    assert "1 steps done" in done.stdout
    assert run("verify", path, "--deep").exit_code == 0
    assert run("repair", path).exit_code == 0


def test_copies_are_told(run: Run, path: Path) -> None:
    logs.lay("queue", path)
    (path / "manifest").write_bytes(b"no manifest")
    done = run("repair", path, "--apply", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["copies"] == [str(path / "manifest.broken")]
    assert (path / "manifest.broken").read_bytes() == b"no manifest"


def test_what_cannot_be_repaired_is_said(run: Run, path: Path) -> None:
    logs.lay("queue", path)
    (path / "ledger").write_bytes(b"no ledger\n")
    for arguments in ([], ["--apply"]):
        done = run("repair", path, *arguments)
        assert done.exit_code == 1
        assert f"cannot be repaired: {path / 'ledger'}" in done.stdout


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    missing = run("repair", tmp_path / "nothing", "--apply")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == f"penstock: {tmp_path / 'nothing'}: no such directory\n"
    assert run("repair").exit_code == 2


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock repair " in " ".join(run("repair", "--help").stdout.split())


@pytest.mark.parametrize("format", FORMATS)
def test_beside_a_live_writer_nothing_is_to_be_done(live: Live, terminal: Callable[..., Terminal], format: str) -> None:
    assert (done := piped("repair", live.path(format))).returncode == 0, done
    shown = terminal("repair", live.path(format))
    assert shown.ended() == 0


def test_beside_a_live_writer_it_is_refused_and_the_plan_is_not(path: Path, terminal: Callable[..., Terminal]) -> None:
    logs.lay("queue", path)
    break_record(path, 50)
    with Queue(path) as q:
        refused = piped("repair", path, "--apply")
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert b"has this queue open; close it there first" in refused.stderr
        planned = piped("repair", path)
        assert (planned.returncode, planned.stderr) == (1, b"")
        assert q.append(b"more") == logs.COUNT
    shown = terminal("repair", path, "--apply")
    assert shown.ended() == 0
    assert "1 steps done" in shown.shown
