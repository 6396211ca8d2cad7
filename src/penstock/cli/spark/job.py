"""What the commands that are Spark jobs have in common: a session, its options, and how far a job is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from penstock import extras
from penstock.cli.output import errors_told, fail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.status import Status

_LOOK_EVERY_S: Final = 0.2

Master = Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master to run on.")]
LOCAL: Final = "local[*]"
TargetFormat = Literal["queue", "channel", "topic"]  # what a job can write


def utc(when: datetime | None) -> datetime | None:
    """A time as it was typed, which is in UTC."""
    return when.replace(tzinfo=UTC) if when is not None else None


@contextmanager
def job(what: str, master: str) -> Iterator[SparkSession]:
    """A Spark session for one job; on a terminal, with a line on stderr that says how far it is."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from penstock.spark import session
    except ImportError as error:
        fail(f"this needs {(error.name or '').partition('.')[0]}: {extras.install('spark')}")
    ours = SparkSession.getActiveSession() is None
    with errors_told():
        try:
            spark = session(master=master, app_name=f"penstock {what}")
            try:
                with _followed(spark, what):
                    yield spark
            finally:
                if ours:
                    spark.stop()
        except PySparkException as error:
            fail(_reason(str(error)))


def _reason(message: str) -> str:
    """The line of a long message that says what went wrong in a worker."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("penstock.errors.")]
    return own[-1].partition(": ")[2] if own else lines[0]


@contextmanager
def _followed(spark: SparkSession, what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    stop = threading.Event()
    with Console(stderr=True).status(what) as status:
        follower = threading.Thread(target=_follow, args=(spark, what, status, stop), daemon=True)
        follower.start()
        try:
            yield
        finally:
            stop.set()
            follower.join()


def _follow(spark: SparkSession, what: str, status: Status, stop: threading.Event) -> None:
    from pyspark.errors import PySparkException

    try:
        tracker = spark.sparkContext.statusTracker()
    except PySparkException:
        return  # Spark Connect does not tell
    while not stop.wait(_LOOK_EVERY_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        if stages:
            done, tasks = sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
            status.update(f"{what}: {done} of {tasks} tasks")
