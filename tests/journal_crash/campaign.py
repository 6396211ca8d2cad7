"""The kill campaign of the journal: a process appends, registers and retires, dies by SIGKILL, and another one goes on.

    python -m tests.journal_crash.campaign --kills 2000 --seed 7

Each life begins with judging what the last ones left (`story`), walks over some of it or all, appending it again, and goes on.
It dies at a random moment: while it opens, walks, ends the walk, appends, or is at rest. PENSTOCK_KERNEL and PENSTOCK_PORTABLE
are passed on. Used by test_kill.py.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Journal, LogBusy, journal, kernel
from penstock.storage import files
from tests.journal_crash.story import Broken, Life, Notes
from tests.lives import open_lives
from tests.stopping import Stops, add_option, add_row
from tests.support import until
from tests.torture_table import Row, add, again

FILE_BYTES = 6000
RECORD_BYTES = 1500
BACKLOG = 400  # groups that are not retired


def leaves_it(number: int) -> bool:
    """Whether the so-many-th life does not walk: two in a row, so that the third finds more than one session."""
    return number % 4 in (1, 2)


def live(path: str, seed: str) -> None:
    """Judge what is there, then go on for ever."""
    journal.MAX_FILE_BYTES = FILE_BYTES  # type: ignore[misc]
    warnings.simplefilter("ignore")
    base, rng = Path(path), random.Random(seed)
    life = Life(base)
    life.open()
    leaves = leaves_it(int(seed.split()[1]))
    if leaves:
        life.append(20)
        life.acknowledge(wait=True)
    (base / "lived").write_text(str(life.number))
    how = 1 if leaves else rng.random()
    if how < 0.6 or len(life.coming) > 3000:
        life.walk(again=len(life.coming) < 1000)
    elif how < 0.8 and life.coming:
        life.walk(most=rng.randrange(len(life.coming)))
    while True:
        act = rng.random()
        if act < 0.6:
            life.append(rng.randrange(RECORD_BYTES) if rng.random() < 0.1 else rng.randrange(60))
        elif act < 0.68:
            life.append(*(rng.randrange(60) for _ in range(rng.randrange(2, 30))))
        elif act < 0.8:
            life.acknowledge(wait=rng.random() < 0.3)
        elif act < 0.9:
            life.register(wait=rng.random() < 0.3)
        elif life.journal.first_unchecked <= life.journal.current:
            life.retire(wait=rng.random() < 0.3)
        while life.journal.current - life.journal.first_unchecked > BACKLOG:
            life.retire(wait=False)


# ---- the campaign ----


@dataclass
class Result:
    """What a campaign did."""

    kills: int = 0
    stops: int = 0  # of one that then went on
    lived: int = 0  # lives that came so far as to append
    unfinished: int = 0  # deaths with records of more than one session left
    appended: int = 0
    retired: int = 0
    failures: list[str] = field(default_factory=list)


def campaign(base: Path, kills: int, seed: int, until_s: float | None = None, stops: Stops | None = None) -> Result:
    """So many lives, one after the other, over one journal."""
    base.mkdir(parents=True, exist_ok=True)
    rng, result = random.Random(seed), Result()
    stops = stops or Stops(rng)
    try:
        with open_lives("tests.journal_crash.campaign") as lives:
            while result.kills < kills and (until_s is None or time.monotonic() < until_s):
                one = lives.begin(base / "failure", base, f"{seed} {result.kills}")
                if rng.random() < 0.4 and not leaves_it(result.kills):  # while it is opening or walking
                    time.sleep(rng.uniform(0, 0.03))
                else:
                    until(lambda one=one: (base / "lived").exists() or one.ended, "it gets to work")
                    time.sleep(rng.expovariate(20))
                if stops.due() and not one.ended:
                    result.stops += 1
                    stops.stop(one.pid, meanwhile=lambda: _look_beside(base))
                    time.sleep(rng.expovariate(20))
                if one.kill() != -signal.SIGKILL:
                    result.failures.append(one.last_words)
                    return result
                result.kills += 1
                _look(base, result)
        _judge_the_end(base, result)
    except Broken as broken:
        result.failures.append(str(broken))
    return result


def _look_beside(base: Path) -> None:
    """Once it has the journal, nobody takes its place while it stands still."""
    if (base / "lived").exists():
        with contextlib.suppress(LogBusy):
            Journal(base / "log").close()
            raise Broken("a journal could be opened whose process stands still")


def _look(base: Path, result: Result) -> None:
    state, life = Notes(base).load()
    result.unfinished += sum(1 for s in state.sessions if s.copies) > 1
    lived = base / "lived"
    if lived.exists():
        result.lived += 1
        result.appended += sum(len(s.copies) for s in state.sessions if s.life == life - 1)
        lived.unlink()
    result.retired = max(result.retired, state.checked)


def _judge_the_end(base: Path, result: Result) -> None:
    """What a clean end leaves."""
    before = journal.MAX_FILE_BYTES
    journal.MAX_FILE_BYTES = FILE_BYTES  # type: ignore[misc]
    try:
        life = Life(base)
        life.open()
        life.walk(again=False)
        life.close()
        path = base / "log"
        if left := strays(path):
            raise Broken(f"files that do not belong there: {left}")
        life = Life(base)
        life.open()
        if life.coming or life.journal.first_unchecked != life.journal.current + 1:
            raise Broken("after a walk, something is still there")
        life.close()
    finally:
        journal.MAX_FILE_BYTES = before  # type: ignore[misc]


def strays(top: Path) -> list[str]:
    """Files that no journal has that was walked and closed clean."""
    names = set(files.walk(top))
    numbers = [int(n.removesuffix(".journal")) for n in names if n.endswith(".journal") and "/" not in n]
    ours = {f"{max(numbers)}.journal{suffix}" for suffix in ("", ".time")}
    left = names - ours - {".lock", ".append", ".writer", "manifest", "metadata.json"}
    # The settings are written before anybody has a lock, so what a process that died over them left may be another's.
    return sorted(n for n in left if not n.startswith("metadata.json."))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.journal_crash.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="stop after this long, however many kills are done")
    parser.add_argument("--base", type=Path, help="where to work (a new directory under /tmp)")
    add_option(parser)
    a = parser.parse_args()
    stops = Stops(random.Random(f"{a.seed} stops"), a.stop_s)
    top = a.base or Path(tempfile.mkdtemp(prefix="campaign"))
    until_s = None if a.minutes is None else time.monotonic() + 60 * a.minutes
    kind = kernel.NAME + (", portable" if files.PORTABLE else "")
    print(f"seed {a.seed}, {a.kills} kills, {kind} kernel, in {top}", flush=True)
    left, number = a.kills, 0
    while left > 0 and (until_s is None or time.monotonic() < until_s):
        result = campaign(top / str(number), min(left, 100), a.seed + number, until_s, stops)
        print(
            f"{number:4}  {result.kills} kills, {result.appended} appended, {result.retired} groups retired, "
            f"{result.unfinished} unfinished walks",
            flush=True,
        )
        add(Row("journal", "kill", result.kills, len(result.failures), result.appended))
        add_row("journal", result.stops, len(result.failures), result.appended)
        if result.failures:
            print(
                "\n".join(result.failures),
                "\n" + again("tests.journal_crash.campaign", kills=a.kills, seed=a.seed, stop_s=a.stop_s),
            )
            return 1
        left -= 100
        number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
