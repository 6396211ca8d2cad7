"""Through Spark Connect: a client that talks to a server, in a process of its own since a process is one or the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="the extra `pipelines` is not installed")

SCRIPT = """
import sys
from penstock import Queue
from penstock.spark import session
from penstock.spark.jobs import verify

top = sys.argv[1]
with Queue(top + "/in") as q:
    q.append_batch([b"x"] * 100)
spark = session(remote="local[2]", **{"spark.sql.shuffle.partitions": 2})
assert "connect" in type(spark).__module__
assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
rows = spark.read.format("penstock").load(top + "/in")
assert rows.where("offset > 90").count() == 9
rows.select("value").write.format("penstock").mode("append").save(top + "/copy")
stream = spark.readStream.format("penstock").option("startingOffsets", "earliest").load(top + "/in").select("value")
writer = stream.writeStream.format("penstock").option("checkpointLocation", top + "/checkpoint")
writer.option("path", top + "/copy").trigger(availableNow=True).start().awaitTermination()
print("there", verify(spark, top + "/copy").records)
spark.stop()
"""


def test_reading_writing_streaming_and_a_job(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "there 200" in ran.stdout
