"""The long versions of the crash kit's tests: all workloads of up to three operations with all their states, of those with very many
the ones near to all lost and all kept, such that any three places are together in every way, and a sample; random longer ones; and every call
of every kind failing. Everything follows from the seed; a failure comes with the command that tries it again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.testing.failing import KINDS, Fault
from tests.kit import limit
from tests.kit.driver import Saw, Tried, try_workload, workloads
from tests.kit.faults import faults, try_fault
from tests.kit.uses import USES
from tests.kit.uses.scale import small
from tests.queue.crash import Yard, open_yard
from tests.torture_table import Row, add

_OPS = 3
_LONG = 30  # operations of a random workload
_LONG_STATES = 100  # and as many kills, and cuts of the recovery
_SHOWN = 3
_TELL_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.campaign", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--most", "--kills", type=int, default=20_000, help="states of a workload that are all looked at"
    )
    parser.add_argument(
        "--near",
        type=int,
        default=2_000,
        help="of a workload with more, those in which so few files differ from all lost or all kept that there are no more than these",
    )
    parser.add_argument(
        "--together",
        type=int,
        default=3,
        help="and so many that any few sectors, lengths and names are together in every way",
    )
    parser.add_argument("--sample", type=int, default=300, help="and so many by chance")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="stop after this long, whatever is left")
    parser.add_argument("--base", type=Path, help="where to work (in memory, where that can be)")
    parser.add_argument("--use", choices=USES, help="only this one, in this process")
    parser.add_argument(
        "--share", type=_share, default=(0, 1), metavar="I/N", help="of its workloads every N-th from the I-th on"
    )
    parser.add_argument("--without", action="append", default=[], metavar="OP", help="no workload with this operation")
    parser.add_argument("--ops", help="only this workload: operations with commas between")
    parser.add_argument("--done", type=int, help="of it what comes after so many of its operations")
    parser.add_argument("--most-kills", type=int, help="of it at most so many kills")
    parser.add_argument(
        "--cuts", type=int, default=1, help="of so many kills, and as many power cuts, the recovery is cut, too"
    )
    parser.add_argument("--case", type=int, help="of its crashes this one alone")
    parser.add_argument("--fault", choices=KINDS, help="only this fault")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--for-good", action="store_true")
    a = parser.parse_args()
    if not a.use:
        return _side_by_side(a.seed)
    until_s = time.monotonic() + 60 * a.minutes if a.minutes else float("inf")
    failed = 0
    with open_yard(a.base) as yard, small(), limit.limited(at_work := yard.keep()):
        print(f"{a.use}: seed {a.seed}, all states of a workload with up to {a.most}, else {a.sample}", flush=True)
        print(f"{a.use}: a case of more than {limit.CASE_S:g} s ends it, and is named in {at_work}", flush=True)
        for fault, each in _parts(yard, a.use, a):
            tried, progress = Tried(), _Progress(f"{a.use}, {fault}")
            for one in itertools.islice(each, a.share[0], None, a.share[1]):
                tried.add(one(progress.saw))
                if time.monotonic() > until_s:
                    break
            if tried.cases:
                _tell(a.use, fault, tried)
            failed += len(tried.failures)
    return 1 if failed else 0


def _share(text: str) -> tuple[int, int]:
    """I/N, counted from 1, as where to begin and the step."""
    begin, step = map(int, text.split("/"))
    if not 1 <= begin <= step:
        raise ValueError
    return begin - 1, step


def _side_by_side(seed: int) -> int:
    """One use after the other, its workloads shared among as many processes as there are cores."""
    cores = os.cpu_count() or 1

    def run(part: tuple[str, int]) -> int:
        use, share = part
        command = [sys.executable, "-m", "tests.kit.campaign", *sys.argv[1:], "--seed", str(seed), "--use", use]
        return subprocess.run([*command, "--share", f"{share}/{cores}"], check=False).returncode

    with ThreadPoolExecutor(cores) as pool:
        return max(pool.map(run, itertools.product(USES, range(1, cores + 1))))


class _Progress:
    """Says now and then how far it is: a workload may have very many cases."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told_s = time.monotonic()
        self._all = Tried()

    def saw(self, tried: Tried) -> None:
        self._all.add(tried)
        if time.monotonic() - self._told_s > _TELL_S:
            self._told_s = time.monotonic()
            print(f"{self._what}: {self._all.cases} cases so far, {len(self._all.failures)} failures", flush=True)


Case = Callable[[Saw], Tried]


def _parts(yard: Yard, use: str, a: argparse.Namespace) -> Iterator[tuple[str, Iterator[Case]]]:
    """What is tried of a use, by fault."""
    if a.fault:
        yield a.fault, iter([lambda saw: _fault(yard, use, Fault(a.fault, a.nth, a.for_good), saw)])
    elif a.ops is not None:
        ops = tuple(filter(None, a.ops.split(",")))
        yield "crash", iter([lambda saw: _one(yard, use, ops, a, a.done, None, saw)])
    else:
        yield f"crash, up to {_OPS} operations", _short(yard, use, a)
        yield "crash, many operations", _long(yard, use, a)
        for kind in KINDS:
            yield kind, _faults(yard, use, kind)


def _short(yard: Yard, use: str, a: argparse.Namespace) -> Iterator[Case]:
    """What lies before the last operation is looked at with the workload that ends there; what comes to the same, once."""
    seen: set[bytes] = set()
    for ops in (ops for ops in workloads(use, _OPS) if not set(a.without).intersection(ops)):
        done = len(ops) - 1 if ops else None
        yield lambda saw, ops=ops, done=done: _one(yard, use, ops, a, done, seen, saw)  # type: ignore[misc]


def _one(
    yard: Yard,
    use: str,
    ops: tuple[str, ...],
    a: argparse.Namespace,
    done: int | None,
    seen: set[bytes] | None,
    saw: Saw,
) -> Tried:
    return try_workload(
        yard,
        use,
        ops,
        a.seed,
        a.most,
        sample=a.sample,
        most_near=a.near,
        together=a.together,
        most_kills=a.most_kills,
        during_recovery=a.cuts,
        done=done,
        seen=seen,
        only=a.case,
        saw=saw,
    )


def _long(yard: Yard, use: str, a: argparse.Namespace) -> Iterator[Case]:
    rng = random.Random(f"{a.seed} {use}")
    for _ in range(max(1, a.sample // 30)):
        ops = by_chance(use, rng)
        yield lambda saw, ops=ops: try_workload(  # type: ignore[misc]
            yard,
            use,
            ops,
            a.seed,
            _LONG_STATES,
            most_kills=_LONG_STATES,
            during_recovery=1,
            most_cuts=_LONG_STATES,
            saw=saw,
        )


def by_chance(use: str, rng: random.Random) -> tuple[str, ...]:
    """Many operations."""
    kind = USES[use]
    ops = (*kind.ops, *kind.at_end)
    return tuple(rng.choices(ops, [1 if op in kind.rarely else 3 for op in ops], k=_LONG))


def _faults(yard: Yard, use: str, kind: str) -> Iterator[Case]:
    for fault in faults(yard, use, 1, 0, kind):
        yield lambda saw, fault=fault: _fault(yard, use, fault, saw)  # type: ignore[misc]


def _fault(yard: Yard, use: str, fault: Fault, saw: Saw) -> Tried:
    tried = try_fault(yard, use, fault)
    saw(tried)
    return tried


def _tell(use: str, fault: str, tried: Tried) -> None:
    how = f", of {tried.whole} of {tried.workloads} workloads every state" if tried.workloads else ""
    for (some, together), count in sorted(tried.near.items(), reverse=True):
        if some or together:
            how += f", of {count} all with up to {some} files unlike the rest and any {together} places together"
    print(f"{use}, {fault}: {tried.cases} cases{how}, {len(tried.failures)} failures", flush=True)
    for told in tried.failures[:_SHOWN]:
        print(told, flush=True)
    add(Row(use, fault, tried.cases, len(tried.failures), tried.records))


if __name__ == "__main__":
    sys.exit(main())
