"""What the campaign of kills counts; no Spark is started for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock import Queue
from tests.spark import campaign
from tests.spark.campaign import BATCH, RANDOMLY
from tests.spark.dying import MOMENTS

KILLS = 2 * len(MOMENTS)


def drive(top: Path, moment: str | None = None, number: int = 0, *, ended: int, **how: float | None) -> int:
    """In place of a driver: copies one batch, or all there is if nothing kills it, and ends."""
    if moment is not None:
        (top / f"dead-{number}").touch()
    with Queue(top / "in") as source, Queue(top / "out") as target:
        left = source.tailer(at=target.next_sequence).read_batch(1 << 20)
        target.append_batch([m.payload for m in (left[:BATCH] if moment or how else left)])
    (top / "said").write_text("what it said")
    return 0 if moment == "in a task" else -signal.SIGKILL if moment else ended


def run(top: Path, monkeypatch: pytest.MonkeyPatch, ended: int) -> tuple[dict[str, campaign.Row], str | None]:
    monkeypatch.setattr(campaign, "drive", lambda *args, **how: drive(*args, ended=ended, **how))
    return campaign.campaign(top, KILLS, 1)


def test_a_driver_that_was_killed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, failure = run(tmp_path, monkeypatch, -signal.SIGKILL)
    assert failure is None
    assert sum(row.cases for row in rows.values()) == KILLS


def test_one_that_was_done_before_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, failure = run(tmp_path, monkeypatch, 0)
    assert failure is None
    assert RANDOMLY not in rows
    assert sum(row.cases for row in rows.values()) == KILLS // 2


def test_one_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = run(tmp_path, monkeypatch, 1)[1]
    assert failure == "kill 0, at random: the driver ended with 1:\nwhat it said"
