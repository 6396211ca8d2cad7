"""Logs on object storage, read by tasks of Spark. Without Spark: `tests/spark/test_remote.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spark.conftest import write
from tests.spark.test_remote import SENT
from tests.spark.test_remote import bucket as bucket
from tests.spark.test_remote import settings as settings


def test_on_spark(bucket: Any, settings: dict[str, str], tmp_path: Path) -> None:
    fs, name = bucket
    write(tmp_path / "log", "queue", SENT)
    fs.put(f"{tmp_path}/log", f"{name}/", recursive=True)
    code = (
        "from penstock.spark import session\n"
        "spark = session(master='local[2]')\n"
        f"rows = spark.read.format('penstock').load('s3://{name}/log')\n"
        "print('read', rows.count(), rows.where('offset >= 2990').count())\n"
    )
    environment = {**os.environ, **settings}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "read 3000 10" in ran.stdout
