"""What all commands have in common: they start quickly, and bring what is heavy only where it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.cli.app import app

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
