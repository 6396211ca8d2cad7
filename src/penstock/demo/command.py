"""The demo's command line: options, what is printed, and the exit status."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock import extras
from penstock.demo.run import RECORDS, SEED, DemoFailed, Result, run
from penstock.demo.screen import Screen
from penstock.demo.words import told
from penstock.errors import PenstockError

_ABOUT = """\
Two processes append a synthetic order flow (JSON; some orders late, some records malformed) to a Penstock queue. A Spark
driver, a third process, follows the queue with three streaming queries:

  bars          open, high, low, close, volume, count and VWAP of each symbol and minute, by event time, to Parquet
  alerts        orders of much money, to a Penstock topic
  dead-letters  records that are no orders, to a Penstock topic

Halfway the driver is killed with SIGKILL and started again from its checkpoints. At the end every figure is compared with a
recomputation from the queue in plain Python."""
_STATUS = """\
exit status: 0 if every record came through exactly once and every figure is right, 1 if not, 2 if it could not be run.

examples:
  python -m penstock.demo                              200,000 records, about a minute on 2 cores
  python -m penstock.demo --records 1000000            more to do
  python -m penstock.demo --dir /data/demo --seed 8    elsewhere, with another flow"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo with these arguments; returns the exit status."""
    options = _parser().parse_args(argv)
    screen = Screen(sys.stdout)
    try:
        _check_spark()
        result = run(screen, records=options.records, seed=options.seed, directory=options.dir)
    except PenstockError as error:
        screen.line()
        print(f"penstock demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        screen.line()
        return 130
    from penstock.demo.report import page

    result.places.report.write_text(page(result), encoding="utf-8")
    for line in told(result):
        screen.line(line)
    screen.line()
    if options.remove and result.proof.holds:
        _remove(result)
    else:
        screen.line(f"everything is kept in {result.places.top}")
    screen.line(f"report: {result.places.report}")
    return 0 if result.proof.holds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.demo",
        description=_ABOUT,
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--records", type=_count, default=RECORDS, metavar="N", help=f"how many records are sent (default {RECORDS:,})"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, metavar="N", help=f"the same seed, the same records (default {SEED})"
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where everything goes: an empty directory (default: a temporary one)"
    )
    parser.add_argument("--remove", action="store_true", help="once the proof holds, remove everything but the report")
    return parser


def _count(text: str) -> int:
    number = int(text.replace(",", "").replace("_", ""))
    if number < 1000:
        raise argparse.ArgumentTypeError("at least 1000, so that every minute has some")
    return number


def _check_spark() -> None:
    """Say what is missing now, not in a driver's log."""
    for needed in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(needed) is None:
            raise DemoFailed(f"it needs Spark, and {needed} is not installed: {extras.install('spark')}")
    from penstock.spark import java

    java.find()


def _remove(result: Result) -> None:
    for path in result.places.top.iterdir():
        if path != result.places.report:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
