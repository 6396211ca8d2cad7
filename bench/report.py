"""The tables on the terminal and the JSON file. Rows we lose are printed like any other."""

from __future__ import annotations

import importlib.util
import json
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import units
from bench.files import write_whole
from bench.held import Figure
from bench.peers import PEERS
from bench.results import Gap, Results, Row, present, times_as_good
from bench.scenarios import SCENARIOS, Scenario

BUSY = 0.05
"""The share of the processors in the hands of others above which the reader is warned."""

Cell = Callable[[Row], str]


def _value(key: str, show: Callable[[float], str]) -> Cell:
    def cell(row: Row) -> str:
        value = row.value(key)
        return "" if value is None else show(value)

    return cell


def _nanoseconds(row: Row) -> str:
    """Time per message, from the median rate, so that the two columns always agree."""
    value = row.value("rate")
    return "" if value is None else units.digits(1e9 / value)


def _spread(row: Row) -> str:
    """How far the rounds lie apart, against the median: what a difference must exceed to mean something."""
    middle = row.headline()
    if not middle or len(row.samples) < 2:
        return ""
    values = [sample[SCENARIOS[row.scenario].headline] for sample in row.samples]
    return f"{(min(values) / middle - 1) * 100:+.0f}/{(max(values) / middle - 1) * 100:+.0f} %"


_MICROSECONDS: tuple[tuple[str, Cell], ...] = (
    ("p50 µs", _value("p50_us", units.digits)),
    ("p99 µs", _value("p99_us", units.digits)),
    ("p99.9 µs", _value("p999_us", units.digits)),
    ("max µs", _value("max_us", units.digits)),
)
_RATE: tuple[tuple[str, Cell], ...] = (
    ("rate", _value("rate", units.rate)),
    ("ns/message", _nanoseconds),
)
_WRITE = (
    *_RATE,
    ("in bursts", _value("bursts", units.rate)),
    ("sustained", _value("sustained", units.rate)),
)
_COLUMNS: dict[str, tuple[tuple[str, Cell], ...]] = {
    "append": _WRITE,
    "append-batch": _WRITE,
    "tail-latency": _MICROSECONDS,
    "latency": _MICROSECONDS,
    "two-writers": (
        ("one alone", _value("one_rate", units.rate)),
        ("two together", _value("rate", units.rate)),
        ("two/one", _value("ratio", units.times)),
        ("ns/message", _nanoseconds),
    ),
    "open-clean": (("ms", _value("ms", units.digits)), ("messages", _value("records", units.thousands))),
    "recovery": (
        ("GB/s", _value("gb_per_s", units.digits)),
        ("ms", _value("ms", units.digits)),
        ("payload MB", _value("bytes", lambda count: units.thousands(count / 1e6))),
    ),
}
_COMPARED_BY = {"p50_us": "p50", "p999_us": "p99.9", "rate": "rate", "ms": "time", "gb_per_s": "GB/s"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table before it is drawn. `styles` holds one rich style per row, for those who can show it."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str]


_STYLES = {"penstock": "bold", "limit": "dim", "peer": ""}


def scenario_table(results: Results, scenario: Scenario, size: int) -> Table:
    """One scenario at one size."""
    rows = results.of(scenario.name, size)
    columns = _COLUMNS.get(scenario.name, _RATE)
    ours = results.value(scenario.name, size, "penstock", scenario.headline)
    best = results.best_peer(scenario.name, size)
    theirs = best.headline() if best else None
    body = []
    for row in rows:
        if row.error or not row.samples:
            why = row.error or "the run ended before its turn"
            body.append([row.label, *[""] * (len(columns) + 3), f"not measured: {why}"])
            continue
        body.append(
            [
                row.label,
                *(cell(row) for _, cell in columns),
                units.times(times_as_good(scenario, row.headline(), ours)),
                units.times(times_as_good(scenario, row.headline(), theirs)),
                _spread(row),
                row.note,
            ]
        )
    by = _COMPARED_BY[scenario.headline]
    return Table(
        f"{scenario.name}, {units.size(size)}: {scenario.title} (ratios by {by})",
        ["", *(header for header, _ in columns), "vs penstock", "vs best peer", "spread", ""],
        body,
        [_STYLES[row.group] for row in rows],
    )


def held_table(figures: Sequence[Figure]) -> Table:
    """The held figures with their verdicts."""
    verdicts = {True: "pass", False: "FAIL", None: "-"}
    styles = {True: "green", False: "bold red", None: "dim"}
    return Table(
        "Held figures",
        ["", "need", "got", "verdict"],
        [[figure.name, figure.need, figure.got, verdicts[figure.passed]] for figure in figures],
        [styles[figure.passed] for figure in figures],
    )


def _draw_plain(table: Table) -> None:
    lines = [list(table.headers), *map(list, table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headers) - 1)]
    print(f"\n{table.title}")
    for line in lines:
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        print("  ".join([*cells, line[-1]]).rstrip())


def _draw_rich(table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    # A pipe has no width of its own: take enough for the longest rows.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    last = len(table.headers) - 1
    for index, header in enumerate(table.headers):
        text = index in (0, last)
        drawn.add_column(header, justify="left" if text else "right", no_wrap=index != last)
    for cells, style in zip(table.rows, table.styles, strict=True):
        drawn.add_row(*cells, style=style or None)
    console.print(drawn)


def draw(table: Table) -> None:
    """Print a table, with rich if it is there."""
    if importlib.util.find_spec("rich"):
        _draw_rich(table)
    else:
        _draw_plain(table)


def print_report(
    results: Results,
    scenarios: Iterable[str],
    peers: Iterable[str],
    figures: Sequence[Figure],
    machine: dict[str, Any],
    missing: Sequence[Gap],
) -> None:
    """Everything, for people."""
    print(
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gib']} GiB; "
        f"{machine['kernel']}; "
        f"{machine['file_system']}; {machine['python']}; load {machine['load_average_at_start'][0]} at start"
    )
    print(
        "Medians of the rounds. 'vs' columns: how many times as fast a row is as the penstock row and as\n"
        "the fastest peer; above 1 is faster. 'spread' is the lowest and highest round against the median.\n"
        "Of bursts (50 ms at most, then a pause of 30 ms) and the sustained rate the better one counts.\n"
        "The no-op call, memcpy, write+fdatasync and FIFO rows are limits of the machine, not peers."
    )
    for scenario, size in present(scenarios, results):
        draw(scenario_table(results, scenario, size))
    width = min(120, shutil.get_terminal_size((120, 24)).columns)
    print("\nHow each was used")
    shown = {row.peer for row in results.known()}
    for name in peers:
        if name in shown:
            text = f"{PEERS[name].label or name}: {PEERS[name].settings}"
            print(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="      "))
    print()
    draw(held_table(figures))
    if machine["others_cpu_share"] > BUSY:
        print(
            f"Other processes used {machine['others_cpu_share']:.0%} of the processors during this run: "
            "neither a pass nor a failure means much."
        )
    if missing:
        text = f"This run is partial: it was interrupted. Missing: {'; '.join(map(str, missing))}."
        print(f"\n{textwrap.fill(text, width, subsequent_indent='  ')}")


def write_json(
    path: Path,
    results: Results,
    figures: Sequence[Figure],
    machine: dict[str, Any],
    run: dict[str, Any],
    missing: Sequence[Gap],
) -> None:
    """Everything, for programs."""
    shown = sorted({row.peer for row in results.known()})
    data = {
        "schema": 1,
        **run,
        "partial": bool(missing),
        "missing": [gap.to_json() for gap in missing],
        "machine": machine,
        "settings": {name: PEERS[name].settings for name in shown},
        "held": [figure.to_json() for figure in figures],
        "results": [row.to_json() for row in results.known()],
    }
    write_whole(path, f"{json.dumps(data, indent=1, ensure_ascii=False)}\n".encode())
