"""The campaign of kills of a Spark job that copies a queue to a queue: of its driver, with all its processes, at random moments and at
each step of a commit, and of a worker over a task; sometimes all of it stands still before. After each the copy is held against what it copies: whole batches, in order, none twice.

    python -m tests.spark.campaign --kills 30 --seed 7
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from penstock import Queue
from tests import torture_table
from tests.spark.dying import MOMENTS, drive
from tests.stopping import FAULT
from tests.torture_table import Row

BATCH = 500  # as `dying` has it
MORE = 20 * BATCH  # appended whenever all is copied
RANDOMLY = "driver killed at random moments"
UP_TO_S = 4.0  # after its first batch began
STOPPED_S = 20.0


def copied(top: Path, sent: int) -> int:
    """How many records the copy has, if they are what it should have."""
    if not (top / "out" / "metadata.json").exists():
        return 0
    with Queue(top / "out", read_only=True) as q:
        found = [int(message.payload) for message in q.tailer(at=0)]
    assert found == list(range(len(found))), "records are lost, twice there, or out of order"
    assert len(found) <= sent
    assert len(found) % BATCH == 0, f"a batch is there in part: {len(found)} records"
    return len(found)


def fault_of(moment: str | None) -> str:
    if moment is None:
        return RANDOMLY
    return "worker killed over a task" if moment == "in a task" else "driver killed at a step of a commit"


def was_killed(top: Path, moment: str | None, number: int, ended: int) -> bool:
    """Whether a driver died as it should: one that was to die at a random moment may have been done before."""
    if moment is None and ended == 0:
        return False
    said = (top / "said").read_text(errors="replace")[-4000:]
    wanted = 0 if moment == "in a task" else -signal.SIGKILL  # another worker takes the task
    assert ended == wanted, f"the driver ended with {ended}:\n{said}"
    assert moment is None or (top / f"dead-{number}").exists(), f"it never came to {moment!r}"
    return True


def campaign(top: Path, kills: int, seed: int) -> tuple[dict[str, Row], str | None]:
    """So many drivers to be killed; what is to be told of those that were, and the first failure."""
    rng = random.Random(seed)
    rows: dict[str, Row] = {}
    sent = there = 0
    for number in range(kills):
        if sent - there < MORE // 2:
            with Queue(top / "in") as q:
                q.append_batch([b"%d" % i for i in range(sent, sent + MORE)])
            sent += MORE
        moment = MOMENTS[number // 2 % len(MOMENTS)] if number % 2 else None
        after_s = rng.uniform(0.0, UP_TO_S) if moment is None else None
        stop_s = rng.uniform(0.5, STOPPED_S) if moment is None and number % 4 == 0 else 0.0
        failure, killed = None, True
        try:
            ended = drive(top, moment, number, after_s=after_s, stop_s=stop_s)
            before, there = there, copied(top, sent)
            assert there >= before, f"{before} records were there, now {there}"
            killed = was_killed(top, moment, number, ended)
        except AssertionError as error:
            failure = f"kill {number}, {moment or 'at random'}: {error}"
        fault = fault_of(moment) if not stop_s else FAULT
        row = rows.get(fault, Row("Spark sink", fault, 0, 0, 0))
        if killed:
            rows[fault] = Row(row.use, fault, row.cases + 1, row.failures + (failure is not None), row.records + there)
        when = f"{moment or 'at random'}{'' if killed else ', but it was done before'}"
        print(f"{number + 1}/{kills}: {when}: {there:,} of {sent:,} copied", flush=True)
        if failure is not None:
            return rows, failure
    drive(top)
    there = copied(top, sent)
    return rows, None if there == sent else f"at the end {there:,} of {sent:,} records are copied"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    a = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="penstock-spark-kills"))
    rows, failure = campaign(top, a.kills, a.seed)
    for row in rows.values():
        torture_table.add(row)
    if failure is not None:
        print(f"{failure}\nwhat is left of it: {top}")
        print(torture_table.again("tests.spark.campaign", kills=a.kills, seed=a.seed))
        return 1
    shutil.rmtree(top)
    killed, records = (sum(getattr(row, name) for row in rows.values()) for name in ("cases", "records"))
    print(f"{killed} kills of Spark processes, {records:,} records checked, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
