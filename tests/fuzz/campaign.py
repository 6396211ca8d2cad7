"""Hostile logs: files of every format are changed, and then opened, read, verified, repaired and written to.

    python -m tests.fuzz.campaign --kills 2000 --seed 7

A hostile file may cost its records, and may be refused with an error of ours. It may not crash the process, make it loop, or make it
allocate what the file only claims. So the cases run in a process with little memory to have, which is ended when a case takes too
long. Used by tests/fuzz/test_files.py, and a part of `make torture`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import pytest

from penstock import Channel, Journal, PenstockError, Queue, Topics
from penstock.inspect import find
from penstock.inspect.facts import look
from penstock.inspect.rows import Rows
from penstock.repair import apply
from penstock.storage.ledger import Ledger
from penstock.verify import verify
from tests.fuzz import corpus
from tests.queue.crash import open_yard
from tests.repair import logs
from tests.support import ROOT
from tests.torture_table import Row, add, again

CASE_S = 20.0  # at most, on a busy machine
MEMORY_BYTES = 256 << 20  # beyond what the process has when it begins
FILE_BYTES = 512 << 20  # nothing writes a longer file
_PROGRESS = "case "
_COMPRESSED = ("snappy", "gzip", "zstd")  # channels


# ---- what is done with a log ----


def _read(kind: str, path: Path) -> int:
    """How many records there are to read."""
    with Rows(find(path), on_corrupt="skip") as rows:
        return sum(1 for _ in rows.now())


def _open_read_only(kind: str, path: Path) -> None:
    if kind == "queue":
        with Queue(path, read_only=True) as q, q.tailer(on_corrupt="skip") as t:
            for _ in t:
                pass
            back = q.tailer(direction="backward")
            back.to_end()
            back.read_batch(50)
            q.cursors()
    elif kind == "topic":
        with Topics(path, read_only=True) as tops, tops.topic("t").tailer(on_corrupt="skip") as tailer:
            for _ in tailer:
                pass
    elif kind != "journal":
        with Channel[bytes](path, read_only=True) as c:
            rx = c.rx()
            while rx.try_recv() is not None:
                pass


def _write(kind: str, path: Path) -> None:
    """As its program would: go on where its reader stands, and append."""
    if kind == "queue":
        with Queue(path) as q:
            Ledger(q._open_log()).highest("w")
            q.tailer("reader", on_corrupt="skip").read_batch(1000)
            q.append_batch([b"more"] * 20)
            q.sync()
    elif kind == "topic":
        with Topics(path, segment_bytes=1800, linger_s=0) as tops:
            t = tops.topic("t")
            with t.group("reader", on_corrupt="skip") as member:
                member.poll_many(1000)
            t.publish_many([b"more"] * 20, partition=1).wait()
    elif kind == "journal":
        with Journal(path) as j:
            for _ in j.recovered(on_corrupt="skip"):
                pass
            j.append(b"more").result()
            j.checkpoint().result()
    else:
        with Channel[bytes](path, segment_bytes=1800, compression="zstd") as c:
            rx = c.rx("reader")
            with suppress(TimeoutError):
                rx.recv_many(1000, 0)
            c.tx().send_many([b"more"] * 20)


WORK: dict[str, Callable[[str, Path], object]] = {
    "info": lambda kind, path: look(path, processes=False),
    "read": _read,
    "read only": _open_read_only,
    "verify": lambda kind, path: verify(path, deep=True),
    "write": _write,
    "repair": lambda kind, path: apply(path),
    "write again": _write,
}


# ---- cases, in a process of their own ----


class Tried(NamedTuple):
    """What came of something, how it came to it if that may not be, and how many records were read."""

    outcome: str
    trace: str = ""
    records: int = 0


def _try(kind: str, path: Path, what: str) -> Tried:
    try:
        told = WORK[what](kind, path)
    except PenstockError as error:
        return Tried(type(error).__name__)
    except TimeoutError:
        return Tried("TimeoutError")
    except BaseException as error:
        return Tried(type(error).__name__, traceback.format_exc())
    return Tried("fine", records=told if what == "read" and isinstance(told, int) else 0)


def run(cases: range, seed: int, *, limited: bool) -> None:
    """Say what became of each case: a line before it, and one with what it came to."""
    warnings.simplefilter("ignore")
    for kind in corpus.KINDS:
        corpus.image(kind)
    if limited:
        _limit()
    with open_yard() as yard, pytest.MonkeyPatch.context() as patch:
        logs.small(patch)
        for number in cases:
            dice = random.Random(f"{seed} {number}")
            kind = corpus.KINDS[number % len(corpus.KINDS)]
            image, told = corpus.hostile(kind, dice)
            print(f"{_PROGRESS}{number} {kind}: {told}", flush=True)
            path = corpus.lay(image, yard.new() / "log", dice)
            path.mkdir(parents=True, exist_ok=True)
            faulthandler.dump_traceback_later(CASE_S, exit=True)
            tried = {what: _try(kind, path, what) for what in WORK}
            faulthandler.cancel_dump_traceback_later()
            outcomes = {f"{what}: {one.outcome}": one.trace for what, one in tried.items()}
            print(json.dumps([outcomes, sum(one.records for one in tried.values())]), flush=True)


def _limit() -> None:
    """So much more memory, and no more; files of some length, and no longer."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # of its own data: maps of files are no memory
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# ---- the campaign ----


@dataclass
class Result:
    """What cases there were, what they came to, and what may not be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # a case each

    @property
    def cases(self) -> int:
        return len(self.rows)


def campaign(
    cases: int,
    seed: int,
    *,
    first: int = 0,
    most_failures: int = 1,
    limited: bool = True,
    each: Callable[[Result], None] = lambda _: None,
) -> Result:
    """So many cases. A process that dies of one is replaced, and goes on with the next."""
    result = Result()
    while result.cases < cases and len(result.failures) < most_failures:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.campaign", "--seed", str(seed)]
        command += ["--run", str(first + result.cases), str(first + cases), *([] if limited else ["--unlimited"])]
        with subprocess.Popen(command, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True, env=_env()) as process:
            doing, told = _follow(process, result, most_failures, each, lambda case: _again(case, seed, limited))
        if process.returncode and len(result.failures) < most_failures:
            why = f"{doing}: the process ended with {process.returncode}\n{told[-4000:]}"
            result.failures.append(f"{why}\n{_again(doing, seed, limited)}")
            if not doing:
                break  # it was not a case
            result.rows.append(_row(doing, 1, 0))
    return result


def _follow(
    process: subprocess.Popen[str],
    result: Result,
    most_failures: int,
    each: Callable[[Result], None],
    again: Callable[[str], str],
) -> tuple[str, str]:
    """Take what it says to its end, or until there are failures enough: (the case it was at, what it said of its death)."""
    assert process.stdout is not None and process.stderr is not None
    doing = ""
    for line in process.stdout:
        if line.startswith(_PROGRESS):
            doing = line.strip()
            continue
        outcomes, records = json.loads(line)
        _take(result, doing, outcomes, records, again(doing))
        doing = ""
        each(result)
        if len(result.failures) >= most_failures:
            process.kill()
            break
    return doing, process.stderr.read()


def _take(result: Result, doing: str, outcomes: dict[str, str], records: int, again: str) -> None:
    failures = [f"{doing}: {outcome}\n{trace}\n{again}" for outcome, trace in outcomes.items() if trace]
    result.outcomes.update(outcomes.keys())
    result.failures += failures
    result.rows.append(_row(doing, len(failures), records))


def _row(doing: str, failures: int, records: int) -> Row:
    """What the table says of one case: the logs that it names are of a kind, and a compressed channel is a channel."""
    kind = doing.split(" ")[2].rstrip(":")
    return Row("channel" if kind in _COMPRESSED else kind, "hostile files", 1, failures, records)


def _again(doing: str, seed: int, limited: bool) -> str:
    """The command that tries a case alone."""
    number = doing.removeprefix(_PROGRESS).split(" ")[0] or None
    return again("tests.fuzz.campaign", seed=seed, case=number) + ("" if limited else " --unlimited")


def _env() -> dict[str, str]:
    """One arena: each thread's would take much of what there is of addresses, and of memory nothing."""
    return {**os.environ, "MALLOC_ARENA_MAX": "1"}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=2000, help="how many cases; each may kill its process")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--failures", type=int, default=5, help="how many to look for")
    parser.add_argument(
        "--unlimited", action="store_true", help="without a limit of memory: a sanitizer needs much of its own"
    )
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--run", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> int:
    a = arguments()
    if a.run:
        run(range(*a.run), a.seed, limited=not a.unlimited)
        return 0
    began = time.monotonic()

    def tell(now: Result) -> None:
        if now.cases % 500 == 0:
            print(f"{time.monotonic() - began:7.1f} s  {now.cases:7} cases  {len(now.failures)} failures", flush=True)

    cases, first = (a.kills, 0) if a.case is None else (1, a.case)
    result = campaign(cases, a.seed, first=first, most_failures=a.failures, limited=not a.unlimited, each=tell)
    for outcome, count in sorted(result.outcomes.items()):
        print(f"{count:8}  {outcome}")
    for row in result.rows:
        add(row)
    print(f"seed {a.seed}, {result.cases} cases, {len(result.failures)} failures")
    for failure in result.failures:
        print(f"\n{failure}")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
