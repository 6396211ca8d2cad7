"""Append orders to the queue, run the pipeline over it with Spark's `spark-pipelines`, and compare its bars.

Run it with `python examples/pipeline/run.py`, and again. Exit status: 0 if the run was completed and every bar is equal to a
recomputation in plain Python, 1 if not, 2 if something is missing.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock import Queue, extras
from penstock.demo.check import Bar, Key, recompute
from penstock.demo.flow import MINUTES, Flow
from penstock.errors import JavaNotFound

HERE = Path(__file__).parent
SPEC = HERE / "spark-pipeline.yml"
NEEDED = ("pyspark", "pyarrow", "pandas", "yaml", "grpc", "grpc_status", "google.rpc", "zstandard")
FIGURES = [name for name in Bar._fields if name != "vwap"]


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def append_orders(queue: Path) -> list[bytes]:
    """Append some orders, and return all that are there now."""
    with Queue(queue) as q:
        flow = Flow(3000, seed=q.next_sequence)
        for minute in range(MINUTES):
            q.append_batch(flow.chunk(0, minute))
        q.sync()
        return [message.payload for message in q.tailer()]


def run_pipeline() -> int:
    """`spark-pipelines run`, with this Python and the settings beside this file; returns its exit status."""
    import pyspark

    from penstock.spark import java

    home = java.find()
    env = {
        **os.environ,
        "SPARK_CONF_DIR": str(HERE / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **({"JAVA_HOME": home} if home else {}),
    }
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    return subprocess.run([str(command), "run", "--spec", str(SPEC)], env=env, check=False).returncode


def read_bars(table: Path) -> dict[Key, list[Any]]:
    import pyarrow.parquet as pq

    rows = [row for file in table.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return {(row["minute"], row["symbol"]): [row[name] for name in FIGURES] for row in rows}


def main() -> int:
    missing = [module for module in NEEDED if not is_there(module)]
    if missing:
        print(f"spark-pipelines needs {', '.join(missing)}: {extras.install('pipelines')}", file=sys.stderr)
        return 2
    import yaml

    queue = Path(yaml.safe_load(SPEC.read_text())["configuration"]["example.orders"])
    orders = append_orders(queue)
    print(f"{queue} has {len(orders):,} records", flush=True)
    try:
        status = run_pipeline()
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 2
    if status != 0:
        print(f"spark-pipelines ended with status {status}", file=sys.stderr)
        return 1
    expected = {key: [getattr(bar, name) for name in FIGURES] for key, bar in recompute(orders).bars.items()}
    found = read_bars(queue.parent / "warehouse" / "bars")
    differ = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    if differ:
        print(f"{len(differ)} bars differ from a recomputation in plain Python", file=sys.stderr)
        return 1
    print(f"{len(found)} bars, all equal to a recomputation in plain Python")
    return 0


if __name__ == "__main__":
    sys.exit(main())
