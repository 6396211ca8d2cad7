"""`penstock verify`: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Queue
from tests.repair import logs

Run = Callable[..., Result]


def command(*args: object) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "penstock.cli", *map(str, args)]


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


def test_in_a_pipe_beside_a_live_writer(path: Path) -> None:
    with Queue(path, file_size=65536) as q:
        for i in range(3000):
            q.append(b"%050d" % i)
        done = subprocess.run(command("verify", path, "--json"), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["records"] == 3000
        assert q.append(b"more") == 3000


def test_on_a_terminal_a_bar_is_shown_and_in_a_pipe_none(path: Path) -> None:
    logs.lay("queue", path)
    main, other = pty.openpty()
    with subprocess.Popen(command("verify", path), stdout=subprocess.PIPE, stderr=other, text=True) as process:
        os.close(other)
        out, _ = process.communicate(timeout=60)
        shown = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(main)
    assert process.returncode == 0
    assert b"verify" in shown
    assert "all good" in out
