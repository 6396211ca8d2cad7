"""A Spark session with the settings that pay for Penstock, and the source in sessions that run already."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from penstock.spark import java, launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session(**conf: object) -> SparkSession:
    """A Spark session, or the one that runs, with the settings of `defaults`; `conf` adds to them and wins. With `remote` it is
    one of a Spark Connect server, which has its own settings.

    Names of settings have underscores for dots where they are keywords: `session(master="local[4]", app_name="bars")`, and any
    other by `session(**{"spark.sql.shuffle.partitions": 8})`.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers may run another Python
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    remote = str(conf.pop("remote", None) or os.environ.get("SPARK_REMOTE") or "")
    if not remote or remote.startswith("local"):
        home = java.find()
        if home is not None:
            os.environ["JAVA_HOME"] = home
    if remote:
        builder = SparkSession.builder.remote(remote)
        for name, value in conf.items():
            builder = builder.config(name, _told(value))
        return builder.getOrCreate()
    builder = SparkSession.builder.appName(str(conf.pop("app_name", "penstock")))
    master = str(conf.pop("master", "local[*]"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.master(master)
    for name, value in {**defaults(master), **conf}.items():
        builder = builder.config(name, _told(value))
    return builder.getOrCreate()


def _told(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults(master: str = "local[*]") -> dict[str, object]:
    """The settings that `session` starts with, and why: docs/spark.md."""
    cores = _cores(master)
    found: dict[str, object] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.python.unix.domain.socket.enabled": True,
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.ui.showConsoleProgress": False,
    }
    if master.startswith("local"):
        found |= {
            "spark.ui.enabled": False,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": cores,
            "spark.default.parallelism": cores,
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
            "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={launch.LOG_SETTINGS}"',
        }
    return found


def _cores(master: str) -> int:
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    return int(inside) if inside.isdecimal() else os.cpu_count() or 1


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session that runs already, and in a thread of yours. New sessions know it by themselves, in
    the thread that made them: Spark looks for a sink in the session that is active in a thread, and in a new thread none is."""
    from penstock.spark.source import PenstockSource

    spark.dataSource.register(PenstockSource)
    if (jvm := getattr(spark, "_jvm", None)) is not None:  # a Connect server sees to it itself
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
