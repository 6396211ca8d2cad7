"""The command line: `python -m bench`, which is what `make bench` runs."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bench import machine, native, plot, report
from bench.ballast import Ballast, fresh_page_us
from bench.held import figures
from bench.peers import PEERS
from bench.plan import FULL, QUICK
from bench.progress import Progress
from bench.results import Gap, Results
from bench.runner import Options, Runner, workspace
from bench.scenarios import GROUPS, SCENARIOS

RESULTS = Path(__file__).parent / "results"
SIZES = (100, 1000)

ABOUT = """\
Measures Penstock, its peers and the machine's own limits side by side, in rounds over all of
them, each measurement in a process of its own. Prints a table per scenario and the held figures,
and writes JSON and a plot to bench/results. The JSON is written anew after every round; a run that
is interrupted (Ctrl-C) shows what it has.
"""

EXAMPLES = """\
examples:
  python -m bench --quick                       a first look, in about a minute
  python -m bench                               everything, in under 20 minutes; leave the machine alone
  python -m bench --only append,read --size 100
  python -m bench --peers penstock,lmdb,noop    only these rows
  python -m bench --only channel --peers penstock-channel,queue.Queue,asyncio.Queue --size 16,64,512
  python -m bench --dir /mnt/nvme/bench         on another file system (the logs go there and are removed)

how to read it:
  Rates are medians of the rounds. Every peer is used as its own manual advises; "How each was
  used", under the tables, says how. Slow peers do fewer messages in the same time. A row that
  could not be measured says why. The held figures are computed from this run at the smallest
  size; "-" means that this run left something out.

exit codes: 0 done, 1 a held figure failed (only with --check), 2 wrong arguments, 130 interrupted
"""


def _known(names: Iterable[str]) -> str:
    return ", ".join(names)


def _parser() -> argparse.ArgumentParser:
    scenarios = "\n".join(f"  {scenario.name:<14} {scenario.title}" for scenario in SCENARIOS.values())
    groups = "\n".join(f"  {name:<14} {', '.join(members)}" for name, members in GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=ABOUT,
        epilog=f"scenarios:\n{scenarios}\n{groups}\n\npeers:\n  {_known(PEERS)}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="A,B", help="scenarios to run (default: all)")
    parser.add_argument("--peers", metavar="A,B", help="rows to measure (default: all)")
    parser.add_argument("--size", metavar="N,M", help="message sizes in bytes (default: 100,1000; --quick: 100)")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds (default: 3; --quick: 1)")
    parser.add_argument("--quick", action="store_true", help="short rounds and small logs: a first look")
    parser.add_argument(
        "--open-records",
        type=int,
        metavar="N",
        help="messages in the log to open (default: 10 million; --quick: 1 million)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("bench-data"),
        help="where the logs are written (default: ./bench-data)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", default=RESULTS / "latest.json", help="where results go")
    parser.add_argument("--no-plot", action="store_true", help="no PNG next to the JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a held figure fails")
    return parser


def _names(parser: argparse.ArgumentParser, option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """Split a list of names; one that is not known ends the program with the ones that are."""
    known = list(known)
    if text is None:
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        parser.error(f"{option} needs at least one name; known: {_known(known)}")
    for name in names:
        if name not in known:
            parser.error(f"{option}: unknown name {name!r}; known: {_known(known)}")
    return [name for name in known if name in names]


def _scenarios(parser: argparse.ArgumentParser, text: str | None) -> list[str]:
    chosen = _names(parser, "--only", text, [*SCENARIOS, *GROUPS]) if text is not None else list(SCENARIOS)
    wanted = {member for name in chosen for member in GROUPS.get(name, (name,))}
    return [name for name in SCENARIOS if name in wanted]


def _sizes(parser: argparse.ArgumentParser, text: str | None, quick: bool) -> list[int]:
    if text is None:
        return [SIZES[0]] if quick else list(SIZES)
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        parser.error(f"--size: {text!r} is not a list of numbers of bytes, such as 100,1000")
    # A message must hold the time stamp of tail-latency, and a file of 1 GiB must hold some batches of it.
    if not all(16 <= size <= 100_000 for size in sizes):
        parser.error(f"--size: {text!r} is out of range; 16 to 100000 bytes")
    return sizes


def _options(arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    parser = _parser()
    given = parser.parse_args(arguments)
    budget = QUICK if given.quick else FULL
    if given.open_records is not None:
        if given.open_records < 1:
            parser.error("--open-records must be at least 1")
        budget = budget.with_records(given.open_records)
    repeats = given.repeats if given.repeats is not None else (1 if given.quick else 3)
    if repeats < 1:
        parser.error("--repeats must be at least 1")
    options = Options(
        scenarios=_scenarios(parser, given.only),
        peers=_names(parser, "--peers", given.peers, PEERS),
        sizes=_sizes(parser, given.size, given.quick),
        repeats=repeats,
        budget=budget,
        directory=given.dir,
    )
    return options, given


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the measuring on Ctrl-C and when terminated. Once: `make` and `timeout` pass the same signal on again."""
    _on_signals(signal.SIG_IGN)
    raise KeyboardInterrupt


def _on_signals(action: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, action)


def _measure(
    options: Options, results: Results, facts: dict[str, Any], progress: Progress, save: Callable[[], None]
) -> None:
    """Measure everything; an interrupt leaves what is there in `results` and `facts`."""
    try:
        native.build()
    except native.CannotBuild as error:
        progress.say(f"no limits of the machine: {error}")
    with workspace(options.directory) as run:
        facts.update(machine.facts(run))
        if facts["load_average_at_start"][0] > 0.5:
            progress.say(f"the machine is busy (load {facts['load_average_at_start'][0]}): figures may be low")
        facts["fresh_page_us"] = round(fresh_page_us(), 2)
        facts["versions"] = machine.versions(name for peer in options.peers for name in PEERS[peer].distributions)
        ballast = Ballast(options.budget.ballast(), facts["fresh_page_us"])
        others = machine.Others()

        def on_round() -> None:
            facts["others_cpu_share"] = round(others.share(), 3)
            save()

        try:
            Runner(options, run, ballast, results, progress, on_round)()
        finally:
            facts["others_cpu_share"] = round(others.share(), 3)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns the exit code."""
    options, given = _options(arguments)
    progress, results = Progress(), Results()
    facts: dict[str, Any] = {}
    about = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "bench", *arguments]),
        "repeats": options.repeats,
        "quick": given.quick,
    }

    def missing() -> list[Gap]:
        return results.missing(options.planned(), options.repeats)

    def save() -> None:
        report.write_json(given.json, results, figures(results), facts, about, missing())

    interrupted = False
    try:
        _on_signals(_interrupt)
        _measure(options, results, facts, progress, save)
        _on_signals(signal.SIG_IGN)  # what is left takes seconds and is worth having
    except KeyboardInterrupt:
        interrupted = True
    progress.end()
    if interrupted and not results.known():
        print("interrupted before anything was measured; nothing written", file=sys.stderr)
        return 130
    save()
    held = figures(results)
    try:
        report.print_report(results, options.scenarios, options.peers, held, facts, missing())
        sys.stdout.flush()
    except BrokenPipeError:  # Ctrl-C ends a `| tee` as well; the files are still worth having
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"\nwritten: {given.json}", file=sys.stderr)
    if not given.no_plot:
        partial = ", partial" if missing() else ""
        _plot(given.json.with_suffix(".png"), options, results, f"{facts['cpu']}, {about['date']}{partial}")
    if interrupted:
        return 130
    return 1 if given.check and any(figure.passed is False for figure in held) else 0


def _plot(path: Path, options: Options, results: Results, caption: str) -> None:
    try:
        drawn = plot.draw(path, results, options.scenarios, caption)
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)
    else:
        print(f"written: {path}" if drawn else "no plot: nothing was measured", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
