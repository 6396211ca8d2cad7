"""A real cluster: a standalone master and two workers on this machine, one of which is killed in the middle of a job."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from penstock import Queue
from penstock.errors import JavaNotFound
from penstock.spark import java
from tests.support import ROOT, until

HOST = "127.0.0.1"
SENT = [b"%06d" % i for i in range(4000)]

DRIVER = """
import sys, time
from penstock.spark import session
from penstock.spark.jobs import verify

master, top = sys.argv[1:]
spark = session(master=master, **{"spark.executor.memory": "512m", "spark.executor.cores": 1, "spark.cores.max": 2})

def slowly(batches):
    for batch in batches:
        time.sleep(0.5)
        yield batch

rows = spark.read.format("penstock").option("minPartitions", 16).load(top + "/in").select("value")
rows.mapInArrow(slowly, "value binary").write.format("penstock").mode("append").save(top + "/out")
print("records", verify(spark, top + "/out").records)
stream = spark.readStream.format("penstock").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1500)
writer = stream.load(top + "/in").select("value").writeStream.format("penstock").option("path", top + "/streamed")
writer.option("checkpointLocation", top + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


@contextmanager
def started(tmp_path: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark's, in a group of its own with all that it starts."""
    home = str(Path(pyspark.__file__).parent)
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    found = java.find()
    if found is not None:
        environment["JAVA_HOME"] = found
    with (tmp_path / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [f"{home}/bin/spark-class", *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    try:
        java.find()
    except JavaNotFound as error:
        pytest.skip(str(error))
    with Queue(tmp_path / "in") as q:
        q.append_batch(SENT)
    port = free_port()
    master = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        place = ("--host", HOST, "--webui-port", "0")
        stack.enter_context(started(tmp_path, "master", f"{deploy}.master.Master", *place, "--port", str(port)))
        workers = [
            stack.enter_context(
                started(
                    tmp_path,
                    f"worker{i}",
                    f"{deploy}.worker.Worker",
                    *place,
                    "--cores",
                    "1",
                    "--memory",
                    "700m",
                    master,
                )
            )
            for i in range(2)
        ]
        registered = lambda: (tmp_path / "master.log").read_text().count("Registering worker")  # noqa: E731
        until(lambda: registered() == 2, "both workers are there")
        command = [sys.executable, "-c", DRIVER, master, str(tmp_path)]
        driver = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        staged = tmp_path / "out" / ".staging"
        until(lambda: driver.poll() is not None or len(list(staged.rglob("*.frames"))) >= 4, "tasks are at work", 120)
        kill(workers[0])
        told, errors = driver.communicate(timeout=200)
        assert driver.returncode == 0, errors[-4000:]
    assert "records 4000" in told
    for name in ("out", "streamed"):
        with Queue(tmp_path / name, read_only=True) as q:
            assert [m.payload for m in q.tailer()] == SENT, "every record once, in order"
        assert not (tmp_path / name / ".staging").exists()
