"""`penstock verify`: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Queue
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


def test_logs_further_down_are_named(run: Run, tmp_path: Path) -> None:
    """A directory has its logs directly in it; the command looks no deeper, and says where there are some."""
    for name in ("a/b/queue", "a/b/queue/inside", "a/.hidden/queue", "a/b/c/d/too-deep", "z/y/queue"):
        Queue(tmp_path / "top" / name).close()
    (tmp_path / "top" / "a" / "loop").symlink_to(tmp_path / "top")
    told = run("verify", tmp_path / "top" / "a")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"penstock: {tmp_path / 'top' / 'a'}: neither a log nor a directory of logs; there is one further down, b/queue: "
        "give its path, or the directory that it is in\n"
    )
    told = run("verify", tmp_path / "top")
    assert "; there are some further down, a/b/queue, z/y/queue: give" in told.stderr
    (tmp_path / "none").mkdir()
    told = run("verify", tmp_path / "none")
    assert told.stderr == f"penstock: {tmp_path / 'none'}: neither a log nor a directory of logs\n"


FINDING = """
import os, sys
from penstock.inspect import find
from penstock.errors import LogNotFound
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    find(sys.argv[1])
except LogNotFound as error:
    print(error)
"""


def test_what_may_not_be_looked_at_is_no_log_further_down(tmp_path: Path) -> None:
    """Nor does it end the look."""
    for p in (tmp_path, *tmp_path.parents):
        if not p.stat().st_mode & 0o005:
            p.chmod(p.stat().st_mode | 0o055)
    Queue(tmp_path / "top" / "a" / "queue").close()
    private = tmp_path / "top" / "a" / "private"
    private.mkdir()
    private.chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", FINDING, str(tmp_path / "top")], capture_output=True, text=True, timeout=60, check=False
    )
    private.chmod(0o700)
    assert "there is one further down, a/queue: give" in done.stdout, done.stderr


def test_no_more_is_looked_at_than_a_look_may_take(run: Run, tmp_path: Path) -> None:
    """However many directories there are, and names of a few logs are enough."""
    for i in range(9):
        Queue(tmp_path / "some" / "a" / f"q{i}").close()
    told = run("verify", tmp_path / "some")
    assert "there are some further down, a/q0, a/q1, a/q2 and more: give" in told.stderr
    for i in range(500):
        (tmp_path / "many" / f"{i:03}" / "x").mkdir(parents=True)
    Queue(tmp_path / "many" / "499" / "x" / "queue").close()
    told = run("verify", tmp_path / "many")
    assert told.stderr == f"penstock: {tmp_path / 'many'}: neither a log nor a directory of logs\n"


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
