"""A driver, in a process of its own, that dies at a named moment of a commit; and a worker that dies over a task.

Every Python process that Spark starts for it imports `sitecustomize` from a directory of the test, which calls `arm` here. When
the moment comes the whole driver, its JVM and its Python processes, is killed with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOMENTS = ("staged", "before the intent", "after the intent", "appended", "done", "in a task")
SOME = ("appended", "in a task")  # between the log and its ledger, and a worker; `make test-spark` has all


def run(source: str, target: str, checkpoint: str, most: str) -> None:
    """The driver: copies what is in a log to another, in small batches, and stops."""
    os.environ["DYING_GROUP"] = str(os.getpgid(0))
    from penstock.spark import session

    spark = session(master="local[2,4]")
    rows = (
        spark.readStream.format("penstock")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .load(source)
        .select("value")
    )
    writer = rows.writeStream.format("penstock").option("checkpointLocation", checkpoint)
    writer.option("path", target).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def arm() -> None:
    """In each Python process of the driver: die when the moment has come, once."""
    moment = os.environ.get("DYING_MOMENT")
    if moment is None or "pyspark" not in " ".join(sys.argv) + " ".join(sys.orig_argv):
        return
    from penstock.spark import staging
    from penstock.storage import bulk, ledger

    if moment == "in a task":
        _wrap(staging.Attempt, "add", before=lambda: _die(os.getpid()))
    elif moment == "staged":
        _wrap(staging, "mapped", before=_die_all)
    elif moment == "before the intent":
        _wrap(bulk, "append", before=_die_all)
    elif moment == "after the intent":
        real = bulk.append

        def append(log: Any, parts: Any, on_place: Callable[[Any], None]) -> Any:
            def noted(batch: Any) -> None:
                on_place(batch)
                _die_all()

            return real(log, parts, noted)

        bulk.append = append
    elif moment == "appended":
        _wrap(bulk, "append", after=_die_all)
    else:
        _wrap(ledger.Ledger, "append", after=_die_all)


def _wrap(
    where: Any, name: str, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
) -> None:
    real = getattr(where, name)

    def call(*args: Any, **options: Any) -> Any:
        before()
        out = real(*args, **options)
        after()
        return out

    setattr(where, name, call)


def _first_time() -> bool:
    """Of all processes, in this run."""
    try:
        Path(os.environ["DYING_MARK"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _die(pid: int) -> None:
    if _first_time():
        os.kill(pid, signal.SIGKILL)


def _die_all() -> None:
    if _first_time():
        os.killpg(int(os.environ["DYING_GROUP"]), signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
