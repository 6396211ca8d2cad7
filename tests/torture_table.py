"""Runs every campaign of `make torture`, and ends with one table: of each use and fault, cases tried, failures, records checked.

A campaign is a module to run; it takes the same arguments and adds its rows with `add`, which it does wherever it is run from, and with
`leave_out` what it could not try here: below the table stands what is not in it. A new one is a line in CAMPAIGNS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_AT_ONCE = 2  # those that kill wait much of the time
_FILE = "PENSTOCK_TORTURE_TABLE"  # where rows are collected, a line of JSON each
CAMPAIGNS = {  # and how many kills or power cuts each makes, or states of a workload or hostile logs it looks at, unless told otherwise
    "tests.kit.campaign": 200_000,
    "tests.torture": 4_000,
    "tests.topic_crash.campaign": 2_000,
    "tests.channel_crash.campaign": 2_000,
    "tests.journal_crash.campaign": 2_000,
    "tests.looking.campaign": 200,
    "tests.fuzz.campaign": 5_000,
    "tests.power.campaign": 200,
    "tests.spark.campaign": 30,
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    use: str
    fault: str
    cases: int
    failures: int
    records: int


def forced() -> str:
    """What the environment says of the kernel, to begin a command with."""
    return "".join(f"{k}={os.environ[k]} " for k in ("PENSTOCK_KERNEL", "PENSTOCK_PORTABLE") if k in os.environ)


def again(module: str, **options: object) -> str:
    """The command that runs a campaign once more, on the same kernel."""
    given = "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items() if value is not None)
    return f"again with: {forced()}python -m {module}{given}"


def as_test(where: str, **told: object) -> str:
    """The command that runs a test once more, told by the environment what it was told, on the same kernel."""
    given = "".join(f"PENSTOCK_{name.upper()}={value} " for name, value in told.items())
    return f"again with: {forced()}{given}pytest {where}"


@dataclass(frozen=True)
class LeftOut:
    """What was not run, and why."""

    left_out: str
    why: str


def add(row: Row) -> None:
    """A line for the table, if one is to be printed at the end."""
    _note(row)


def leave_out(what: str, why: str) -> None:
    """Say so, and again below the table, if there is to be one: nobody misses a line that is not there."""
    print(f"not run: {what}: {why}", flush=True)
    _note(LeftOut(what, why))


def _note(line: Row | LeftOut) -> None:
    if _FILE in os.environ:
        with Path(os.environ[_FILE]).open("a") as f:
            f.write(json.dumps(asdict(line)) + "\n")


def table(rows: Iterable[Row]) -> str:
    """Rows of the same use and fault are one line, and those of a use stand together."""
    sums: dict[tuple[str, str], Row] = {}
    for row in rows:
        so_far = sums.get((row.use, row.fault), Row(row.use, row.fault, 0, 0, 0))
        added = {name: getattr(so_far, name) + getattr(row, name) for name in ("cases", "failures", "records")}
        sums[row.use, row.fault] = replace(so_far, **added)
    uses = list(dict.fromkeys(use for use, _ in sums))
    ordered = sorted(sums.values(), key=lambda row: uses.index(row.use))
    lines = [("use", "fault", "cases", "failures", "records")]
    lines += [(r.use, r.fault, f"{r.cases:,}", f"{r.failures:,}", f"{r.records:,}") for r in ordered]
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    return "\n".join(
        f"{use:{widths[0]}}  {fault:{widths[1]}}  {cases:>{widths[2]}}  {failures:>{widths[3]}}  {records:>{widths[4]}}"
        for use, fault, cases, failures, records in lines
    )


def run(module: str, arguments: list[str], rows: Path) -> int:
    """One campaign, each of its lines with its name; how it ended."""
    name = module.removeprefix("tests.").removesuffix(".campaign")
    command, env = [sys.executable, "-m", module, *arguments], {**os.environ, _FILE: str(rows)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{name:14} {line}", end="", flush=True)
    return process.returncode


def main(arguments: list[str]) -> int:
    """Each campaign gets these arguments; without any, the number that is usual for it. `--part 10` is ten percent of that."""
    part = int(arguments[1]) if arguments[:1] == ["--part"] else 100
    arguments = arguments[2:] if arguments[:1] == ["--part"] else arguments
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = {module: Path(top) / module for module in CAMPAIGNS}
        ended = {
            module: pool.submit(run, module, arguments or ["--kills", str(-(-kills * part // 100))], rows[module])
            for module, kills in CAMPAIGNS.items()
        }
        failed = [module for module, code in ended.items() if code.result()]
        texts = [path.read_text() for path in rows.values() if path.exists()]
    noted = [json.loads(line) for text in texts for line in text.splitlines()]
    print("\n" + table(Row(**line) for line in noted if "left_out" not in line))
    for line in noted:
        if "left_out" in line:
            print(f"not run: {line['left_out']}: {line['why']}")
    if failed:
        print(f"\nfailed, see above: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
