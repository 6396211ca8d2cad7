"""`penstock bench`: quick figures, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from penstock import quickbench
from penstock.cli.bench import plotted
from penstock.quickbench import Figure
from tests.cli.conftest import Live, Terminal, piped

Run = Callable[..., Result]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little is written that it is quick."""
    monkeypatch.setattr(quickbench, "_MOST_BYTES", 1 << 20)
    monkeypatch.setattr(quickbench, "_LEAST_BYTES", 1 << 16)


def test_figures_for_all_and_nothing_is_left(run: Run, tmp_path: Path, small: None) -> None:
    told = run("bench", tmp_path, "--seconds", 0.5, "--json")
    assert told.exit_code == 0, told.output
    figures: list[dict[str, Any]] = json.loads(told.stdout)["figures"]
    assert {(f["name"], f["size"]) for f in figures} == {(n, s) for n in quickbench.SCENARIOS for s in (100, 1000)}
    assert all(0 < f["least_s"] <= f["records_s"] <= f["most_s"] for f in figures)
    assert list(tmp_path.iterdir()) == []


def test_no_more_is_written_than_may_be(tmp_path: Path) -> None:
    for name in ("append", "append_batch", "durable batches"):
        records, _ = quickbench.SCENARIOS[name](tmp_path / name, bytes(100), 60.0, 1 << 20)
        assert 1 << 20 <= records * 100 < (1 << 20) + 100 * 1000


def test_a_disk_that_is_nearly_full_is_left_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20))  # type: ignore[attr-defined]
    told = run("bench", tmp_path, "--seconds", 1)
    assert (told.exit_code, "nearly full" in told.stderr) == (2, True)


@pytest.mark.parametrize("width", [45, 80, 200])
def test_bars_are_in_proportion_and_fit(width: int) -> None:
    bars = [plotted(Figure("append", 100, rate, rate, rate), 1e6, width) for rate in (1e6, 5e5, 1.0)]
    assert all(len(bar) <= width for bar in bars)
    full, half, least = (sum(bar.count(sign) for sign in "█▏▎▍▌▋▊▉") for bar in bars)
    assert full >= half >= least == 1
    assert width < 80 or half == (full + 1) // 2


def test_on_a_terminal_and_in_a_pipe(live: Live, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("bench", live.top, "--seconds", "0.3")
    assert shown.ended(60) == 0
    assert "durable batches" in shown.shown
    assert "█" in shown.shown
    told = piped("bench", live.top, "--seconds", "0.3")
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"records of 1000 bytes a second" in told.stdout


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    assert run("bench", tmp_path / "nothing").exit_code == 2
    assert "Example: penstock bench " in run("bench", "--help").stdout
