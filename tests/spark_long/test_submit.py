"""From `spark-submit`, with nothing but the package installed: no session of ours, no call to register."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Queue
from penstock.spark import java

SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("penstock").load(sys.argv[1])
frame.where("offset >= 5").select("value").write.format("penstock").mode("append").save(sys.argv[2])
print("read", frame.count(), "copied", spark.read.format("penstock").load(sys.argv[2]).count())
"""


@pytest.mark.usefixtures("spark")
def test_a_script_that_is_submitted(tmp_path: Path) -> None:
    with Queue(tmp_path / "in") as q:
        q.append_batch([b"x"] * 12)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if (home := java.find()) is not None:
        environment["JAVA_HOME"] = home
    command = [str(Path(sys.executable).with_name("spark-submit")), str(tmp_path / "script.py")]
    ran = subprocess.run(
        [*command, str(tmp_path / "in"), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "read 12 copied 7" in ran.stdout


def test_known_to_a_session_that_was_running(spark: SparkSession) -> None:
    from penstock.spark import register

    register(spark)  # it is known already: again is fine
    with pytest.raises(Exception, match="needs a path"):
        spark.read.format("penstock").load()
