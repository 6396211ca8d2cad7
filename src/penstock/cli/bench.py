"""`penstock bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.arguments import Json
from penstock.cli.output import as_json, errors_told, line, size
from penstock.cli.progress import progress
from penstock.quickbench import BATCH, SIZES, BenchReport, Figure, measure, rounds

_MOST_BAR: Final = 40


def bench(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="A directory on the disk to measure.")] = Path(),
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, metavar="S", help="About how long to measure.")
    ] = 45.0,
    json: Json = False,
) -> None:
    """Measure on your own disk, in a minute: append, append_batch, durable batches, read.

    A queue is made at PATH, at most 512 MiB at a time, and removed. Medians of three rounds that take turns; machines are noisy.

    Example: penstock bench /data --seconds 20
    """
    with errors_told(), progress("bench", rounds()) as advance:
        report = measure(path, seconds, advance)
    if json:
        as_json(report.to_dict())
    else:
        _tell(report)


def _tell(report: BenchReport) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
    line(f"{report.path}: {report.file_system}, {report.kernel} kernel, batches of {BATCH}")
    for length in SIZES:
        figures = [figure for figure in report.figures if figure.size == length]
        most = max(figure.records_s for figure in figures)
        line(f"\nrecords of {length} bytes a second")
        for figure in figures:
            console.print(plotted(figure, most, console.width), no_wrap=True, crop=True, markup=False)


def plotted(figure: Figure, most: float, width: int) -> str:
    """A figure and its bar, as long as its part of the most."""
    words = f"{figure.name:<16}{figure.records_s:>13,.0f} {size(figure.bytes_s):>10}/s "
    room = max(1, min(_MOST_BAR, width - len(words)))
    eighths = max(1, round(8 * room * figure.records_s / most))
    bar = "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return words + bar
