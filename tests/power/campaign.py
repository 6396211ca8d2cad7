"""The campaign of power cuts: while every use writes to a real file system, what its disk holds is copied at random moments; each
copy is mounted, the logs in it are opened, and what they hold is held against what was promised before the copy was begun.

    python -m tests.power.campaign --snapshots 500 --seed 7

Needs root (tests/power/disk.py says what else). Used by tests/power/test_power.py.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests import torture_table
from tests.power.disk import FILE_SYSTEMS, Disk, Writeback, missing, new_disk
from tests.power.uses import HONEST, Notes, Slot
from tests.support import ROOT
from tests.torture_table import Row, again

CUTS_A_ROUND = 25  # at most, then a new file system
PAUSE_S = 0.25  # at most, between two cuts
STALL_S = 60.0
TOLD = {
    "none": "queue, nothing synced",
    "each": "queue-each",
    "batch": "queue-batch",
    "packed": "channel, compressed",
}  # in the table, where the name says too little
_USES = [sys.executable, "-X", "faulthandler", "-m", "tests.power.uses"]


@dataclass
class Result:
    """How many cuts there were, of which uses how many logs with how many records were looked at, and what was broken."""

    cuts: int = 0
    logs: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.cuts += other.cuts
        self.logs += other.logs
        self.checked += other.checked
        self.failures += other.failures


class Failure(NamedTuple):
    """What was broken after a cut; the use whose log it is, if that is known."""

    told: str
    use: str | None

    def __str__(self) -> str:
        return self.told


class Workers:
    """A process for each use."""

    def __init__(self, top: Path, notes: Path, uses: Sequence[str], seed: int) -> None:
        self.notes = {use: Notes(notes / use) for use in uses}
        self._all = {use: self._start(use, top / use, notes / use, seed) for use in uses}

    def _start(self, use: str, path: Path, notes: Path, seed: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*_USES, "work", use, path, notes, str(seed)], cwd=ROOT)

    def check(self) -> None:
        for use, process in self._all.items():
            if process.poll() is not None:
                raise RuntimeError(f"the process of {use} ended by itself, with {process.returncode}")

    def wait_until_begun(self) -> None:
        """Until each has appended something, and been promised something if it asks for that."""
        give_up = time.monotonic() + STALL_S
        wanted = {use: Slot.BEGUN if use == "none" else Slot.DURABLE for use in self.notes}
        while any(not self.notes[use].get(slot) for use, slot in wanted.items()):
            self.check()
            if time.monotonic() > give_up:
                raise RuntimeError(f"nothing was written in {STALL_S:.0f} s")
            time.sleep(0.01)

    def end(self) -> None:
        for process in self._all.values():
            process.kill()
            process.wait()


def one_round(kind: str, uses: Sequence[str], cuts: int, seed: int) -> Result:
    """One file system, cut so many times, then looked at."""
    result, dice, taken = Result(), random.Random(seed), []
    with ExitStack() as stack:
        notes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-notes-")))
        disk = stack.enter_context(new_disk(kind))
        workers = Workers(disk.place, notes, uses, seed)
        stack.callback(workers.end)
        workers.wait_until_begun()
        writeback = Writeback(disk.place, seed)
        writeback.start()
        stack.callback(writeback.stop)
        for _ in range(cuts):
            time.sleep(dice.uniform(0, PAUSE_S))
            workers.check()
            before = {use: notes.now() for use, notes in workers.notes.items()}
            copy = disk.cut()
            after = {use: notes.now() for use, notes in workers.notes.items()}
            taken.append((copy, {use: (before[use], after[use]) for use in uses}))
        workers.end()
        writeback.stop()
        for number, (copy, bounds) in enumerate(taken):
            result.add(_look(disk, copy, bounds, f"{kind}, seed {seed}, cut {number} of {cuts}"))
    return result


def _look(disk: Disk, copy: Path, bounds: dict[str, tuple[bytes, bytes]], where: str) -> Result:
    """Logs are judged in a process of their own: one that dies of what it reads is told, too."""
    result = Result(cuts=1, logs=Counter(bounds.keys()))
    with disk.after(copy) as place:
        noted = [part for use, (before, after) in bounds.items() for part in (use, before.hex(), after.hex())]
        command = [*_USES, "judge", place, *noted]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STALL_S)
    if done.returncode:
        told = done.stderr.strip()[-3000:]
        use = next((use for use in bounds if f"use: {use}" in told.splitlines()), None)
        result.failures.append(Failure(f"{where}: {told}", use))
    else:
        result.checked = Counter(json.loads(done.stdout))
    return result


def campaign(
    snapshots: int,
    seed: int,
    *,
    kinds: Sequence[str] = FILE_SYSTEMS,
    uses: Sequence[str] = HONEST,
    each: Callable[[Result], None] = lambda _: None,
) -> Result:
    """So many cuts: every use on one disk, where each one's syncs also write what others left unwritten; then each alone; on every kind of
    file system."""
    total = Result()
    for number, (kind, some, cuts) in enumerate(planned(snapshots, kinds, uses)):
        total.add(one_round(kind, some, cuts, seed * 1_000_003 + number))
        each(total)
        if total.failures:
            break
    return total


def planned(snapshots: int, kinds: Sequence[str], uses: Sequence[str]) -> Iterator[tuple[str, Sequence[str], int]]:
    """The rounds, and how many cuts each has: as many for each as there are for all of them, but for one more of the first ones."""
    plan = [(kind, some) for some in ([uses] if len(uses) > 1 else []) + [[use] for use in uses] for kind in kinds]
    times = -(-snapshots // (CUTS_A_ROUND * len(plan)))
    rounds = plan * times
    for number, (kind, some) in enumerate(rounds):
        if cuts := (snapshots + len(rounds) - 1 - number) // len(rounds):
            yield kind, some, cuts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--snapshots", "--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--uses", nargs="+", choices=HONEST, default=HONEST)
    parser.add_argument("--file-systems", nargs="+", choices=FILE_SYSTEMS, default=FILE_SYSTEMS)
    a = parser.parse_args()
    kinds = [kind for kind in a.file_systems if missing(kind) is None]
    for kind in a.file_systems:
        if why := missing(kind):
            torture_table.leave_out(f"power cuts on {kind}", why)
    if not kinds:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else what is mounted would stay so
    began = time.monotonic()

    def tell(now: Result) -> None:
        print(
            f"{time.monotonic() - began:7.1f} s  {now.cuts:6} cuts  {now.logs.total():7} logs  "
            f"{now.checked.total():10} records checked",
            flush=True,
        )

    print(f"seed {a.seed}, {a.snapshots} cuts, on {' and '.join(kinds)}", flush=True)
    result = campaign(a.snapshots, a.seed, kinds=kinds, uses=a.uses, each=tell)
    failed = Counter(failure.use for failure in result.failures)
    for use in a.uses:
        torture_table.add(Row(TOLD.get(use, use), "power cut", result.logs[use], failed[use], result.checked[use]))
    if failed[None]:
        torture_table.add(Row("a process", "power cut", failed[None], failed[None], 0))
    print(f"{'failures':24}{len(result.failures)}")
    for failure in result.failures:
        print(f"\n{failure}")
    if result.failures:
        told = again("tests.power.campaign", snapshots=a.snapshots, seed=a.seed)
        print(f"\n{told} --file-systems {' '.join(kinds)} --uses {' '.join(a.uses)}")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
