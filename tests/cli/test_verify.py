"""`penstock verify`: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.conftest import FORMATS, Live, Terminal, piped
from tests.repair import logs

Run = Callable[..., Result]


@pytest.mark.parametrize("kind", logs.KINDS)
def test_a_whole_log(run: Run, path: Path, kind: str) -> None:
    logs.lay(kind, path)
    done = run("verify", path, "--deep")
    assert done.exit_code == 0, done.output
    assert "all good" in done.stdout
    assert json.loads(run("verify", path, "--json").stdout)["findings"] == []


def test_damage_is_told_with_what_repair_would_do(run: Run, path: Path) -> None:
    logs.lay("queue", path)
    segment = logs.segments(path)[1]
    file = segment.paths().data
    data = bytearray(file.read_bytes())
    data[4096 + 10] ^= 1
    file.write_bytes(data)
    done = run("verify", path)
    assert done.exit_code == 1
    assert "lists these as lost" in done.stdout
    assert "1 findings" in done.stdout
    told = run("verify", path, "--json")
    assert told.exit_code == 1
    (finding,) = json.loads(told.stdout)["findings"]
    assert (finding["file"], finding["first"], finding["last"]) == (str(file), segment.base, segment.base)


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    missing = run("verify", tmp_path / "nothing")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == f"penstock: {tmp_path / 'nothing'}: no such directory\n"
    assert run("verify").exit_code == 2
    assert run("verify", tmp_path, "--fast").exit_code == 2


def test_help_has_an_example(run: Run) -> None:
    assert "Example: penstock verify " in " ".join(run("verify", "--help").stdout.split())


@pytest.mark.parametrize("format", FORMATS)
def test_beside_a_live_writer_on_a_terminal_and_in_a_pipe(
    live: Live, terminal: Callable[..., Terminal], format: str
) -> None:
    done = piped("verify", live.path(format), "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["findings"] == []
    shown = terminal("verify", live.path(format))
    assert shown.ended() == 0
    assert "all good" in shown.shown


def test_a_bar_is_shown_on_a_terminal_alone(path: Path, terminal: Callable[..., Terminal]) -> None:
    logs.lay("queue", path)
    shown = terminal("verify", path)
    assert shown.ended() == 0
    assert "verify" in shown.shown
    assert piped("verify", path).stderr == b""
