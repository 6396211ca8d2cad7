"""SIGKILL of the driver at each step of the sink's commit, and of a worker over a task: every record is there exactly once.

With PENSTOCK_KILLS set it dies at every moment that `dying` knows, which takes longer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Queue
from tests.spark.conftest import read, values
from tests.spark.dying import MOMENTS, SOME
from tests.torture import ROOT

SENT = [b"%06d" % i for i in range(3000)]
EVERY = "PENSTOCK_KILLS" in os.environ


def drive(top: Path, moment: str | None, number: int) -> int:
    """Run the driver until it dies at that moment, or is done; how it ended."""
    hook = top / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text("from tests.spark.dying import arm\narm()\n")
    code = "import sys; from tests.spark.dying import run; run(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *(str(top / name) for name in ("in", "out", "checkpoint")), "500"]
    environment = {**os.environ, "PYTHONPATH": f"{hook}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    if moment is not None:
        environment |= {"DYING_MOMENT": moment, "DYING_MARK": str(top / f"dead-{number}")}
    ran = subprocess.run(command, env=environment, start_new_session=True, capture_output=True, timeout=120)
    assert moment is not None or ran.returncode == 0, ran.stderr.decode()[-4000:]
    return ran.returncode


@pytest.mark.timeout(600)
def test_a_driver_that_dies_at_each_step_of_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT)
    for number, moment in enumerate(MOMENTS if EVERY else SOME):
        ended = drive(tmp_path, moment, number)
        assert (tmp_path / f"dead-{number}").exists(), f"it never came to {moment!r}"
        assert ended == (0 if moment == "in a task" else -signal.SIGKILL)
        found = values(read(spark, tmp_path / "out")) if (tmp_path / "out" / "metadata.json").exists() else []
        assert found == SENT[: len(found)], "whole batches, in order, none twice"
        assert len(found) % 500 == 0
    assert values(read(spark, tmp_path / "out")) == SENT
    assert not (tmp_path / "out" / ".staging").exists()
