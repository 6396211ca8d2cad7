"""What all commands have in common: they start quickly, and bring what is heavy only where it is needed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import Result

from penstock import Queue
from penstock.cli.app import app
from penstock.testing.failing import Fault, failing
from tests.cli.conftest import COMMAND

HEAVY = {"rich", "pyarrow", "pyspark", "msgspec", "cramjam", "numpy", "fsspec"}
COMMANDS = {c.callback.__name__: c.callback for c in app.registered_commands if c.callback is not None}
del COMMANDS["demo"]  # whose options are told elsewhere


def test_nothing_heavy_is_imported_to_begin_with() -> None:
    code = "import sys, penstock.cli.app; print(*{name.split('.')[0] for name in sys.modules})"
    told = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(told.stdout.split())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_json(command: str) -> None:
    assert "json" in COMMANDS[command].__annotations__


def test_the_version_is_told() -> None:
    assert shell("--version").stdout == f"penstock {version('penstock')}\n"


def test_help_is_wrapped_where_the_terminal_ends() -> None:
    words = " ".join(shell("tail --help", COLUMNS="100").stdout.split("\n\n")[0:9]).splitlines()
    [at] = [i for i, text in enumerate(words) if "Partitions and logs are" in text]
    assert "merged by time" in words[at]


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.join(COMMAND)} {line}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def test_closed_streams(tmp_path: Path) -> None:
    """Whoever closed stdout wants to hear nothing, and a closed stdin has nothing to give."""
    path = tmp_path / "q"
    assert shell(f"append {path} --format queue <&-").returncode == 0
    with Queue(path) as q:
        q.append(b"x")
    for line in (f"tail {path} >&-", f"info {path} >&-", f"info {path} 2>&-"):
        told = shell(line)
        assert (told.returncode, "Traceback" in told.stderr) == (0, False), told.stderr


@pytest.mark.parametrize(
    "line",
    ["info {}", "info {} --json", "tail {}", "dump {}", "verify {}", "append {} --json", "top {} --once", "--help"],
)
def test_nobody_reads_what_is_printed(tmp_path: Path, line: str) -> None:
    """As after `head`, which has had enough: that is no failure, and nothing is said of it."""
    with Queue(tmp_path / "q") as q:
        q.append(b"x")
    assert unread(line.replace("{}", str(tmp_path / "q"))) == (0, b"")


@pytest.mark.parametrize("line", ["info {}", "info {} --json", "tail {}", "dump {}", "verify {}", "--help"])
def test_what_is_printed_goes_to_a_full_disk(tmp_path: Path, line: str) -> None:
    """A dump that is cut short there must not look whole."""
    with Queue(tmp_path / "q") as q:
        q.append(b"x")
    told = shell(f"{line.replace('{}', str(tmp_path / 'q'))} >/dev/full")
    assert told.returncode == 1
    assert told.stderr == (
        "penstock: stdout cannot be written: No space left on device; what was printed is not whole\n"
    )


def unread(line: str) -> tuple[int, bytes]:
    """How a command ends that nobody reads from, and what it says of that."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        told = subprocess.run(
            [*COMMAND, *line.split()], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(theirs)
    return told.returncode, told.stderr


def test_what_was_found_is_told_by_the_exit_status_though_nobody_reads_the_rest(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as q:
        q.append(b"x")
    (tmp_path / "q" / "manifest").unlink()
    assert unread(f"verify {tmp_path / 'q'} --json") == (1, b"")


def test_what_stdout_cannot_say_is_escaped(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as q:
        q.append("größer".encode())
    told = shell(f"tail {tmp_path / 'q'}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (told.returncode, told.stdout) == (0, "gr\\xf6\\xdfer\n"), told.stderr


def test_numbers_that_nobody_means(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as q:
        q.append(b"x")
    for line in ("cursors {} set x " + "1" * 5000, "retain {} --max-bytes " + "1" * 400):
        told = shell(line.format(tmp_path / "q"))
        assert (told.returncode, "Traceback" in told.stderr) == (2, False), told.stderr[-500:]


def test_keys_that_json_has_not(tmp_path: Path) -> None:
    import msgspec

    with Queue(tmp_path / "q") as q:
        q.append(msgspec.msgpack.encode({b"a": 1, "b": [{(1, 2): 3}]}))
    told = shell(f"tail {tmp_path / 'q'} --as msgpack")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == {"YQ==": 1, "b": [{"(1, 2)": 3}]}


@pytest.mark.parametrize(("kind", "step"), [("ENOSPC", "free some space"), ("EMFILE", "raise the limit (`ulimit -n`)")])
def test_storage_that_fails_is_one_line(run: Callable[..., Result], tmp_path: Path, kind: str, step: str) -> None:
    with failing(Fault(kind, 1, for_good=True)):
        told = run("append", tmp_path / "log", "--format", "queue", input=b"line\n")
    assert told.exit_code == 1
    [line] = told.stderr.splitlines()
    assert line.startswith("penstock: [Errno ")
    assert step in line
