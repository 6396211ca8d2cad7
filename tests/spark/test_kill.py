"""SIGKILL of the driver at each step of the sink's commit, and of a worker over a task: every record is there exactly once.

With PENSTOCK_KILLS set it dies at every moment that `dying` knows, which takes longer.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Queue
from tests.spark.conftest import read, values
from tests.spark.dying import MOMENTS, SOME, drive

SENT = [b"%06d" % i for i in range(3000)]
EVERY = "PENSTOCK_KILLS" in os.environ


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
