"""Who stands still, and who goes on meanwhile, when a campaign stops a process."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests import stopping
from tests.support import until

TICKS = """
import sys, time
with open(sys.argv[1], "a") as f:
    while True:
        print(time.monotonic(), file=f, flush=True)
        time.sleep(0.01)
"""


@contextmanager
def ticking(path: Path) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", TICKS, str(path)]) as process:
        try:
            until(path.exists, "it begins")
            yield process.pid
        finally:
            process.kill()


def ticks(path: Path, begin_s: float, end_s: float) -> list[float]:
    """Meanwhile; the last line may be half there."""
    return [at for line in path.read_text().splitlines()[:-1] if begin_s < (at := float(line)) < end_s]


@pytest.mark.parametrize(("seconds", "rests"), [(0.2, 0), (2.0, 2)])
def test_the_others_go_on_between_their_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, rests: int
) -> None:
    for name in ("SECONDS_S", "FREELY_S", "REST_S"):
        monkeypatch.setattr(stopping, name, 0.3)
    monkeypatch.setattr(stopping.Stops, "_how_long", lambda self: seconds)
    one, other = tmp_path / "one", tmp_path / "other"
    began_s: list[float] = []
    with ticking(one) as stopped, ticking(other) as beside:
        stopping.Stops(random.Random(1)).stop(stopped, [beside], lambda: began_s.append(time.monotonic()))
        time.sleep(0.1)
    assert not ticks(one, began_s[0], began_s[0] + seconds)
    went_on = ticks(other, began_s[0], began_s[0] + seconds)
    assert went_on
    assert sum(after - before > 0.25 for before, after in pairwise(went_on)) >= rests
