"""`penstock info`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import FAILED, as_json, errors_told, lasting, size, when
from penstock.inspect.facts import LogFacts, look

if TYPE_CHECKING:
    from rich.console import Console

_MARGIN = 2
_STATES = {"open": "open", "closed": "closed", "not closed": "not closed; all of it is on the disk"}


def info(path: LogPath, json: Json = False) -> None:
    """Show what a log holds, how fast it grows, who reads it and how far, who has it open, and whether it is well.

    Nothing is changed, and writers and readers are not disturbed. Exits with 1 if something is wrong.

    Example: penstock info /data/orders
    """
    from rich.console import Console

    with errors_told():
        found = look(path)
    if json:
        as_json({"path": str(path), "logs": [facts.to_dict() for facts in found]})
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
        _tell(console, found)
    if any(facts.problems for facts in found):
        raise typer.Exit(FAILED)


def _tell(console: Console, found: list[LogFacts]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    from penstock.cli.drawing import draw, legend

    for facts in found:
        part = f", partition {facts.partition}" if facts.format == "topic" else ""
        topic, path = escape(facts.topic), escape(facts.path)
        console.print(f"[bold]{topic}[/]  {facts.format}{part}  [dim]{path}[/]", soft_wrap=True)
        for name, words in _lines(facts, short=len(found) > 1):
            console.print(f"  [dim]{name:<9}[/] ", end="", soft_wrap=True)
            console.print(words, style="red" if name == "wrong" else None, markup=False, soft_wrap=True)
        for line in draw(facts, console.width - 2 * _MARGIN):
            console.print(Padding(line, (0, _MARGIN)))
    console.print(Padding(legend(found), (0, _MARGIN)))


def _lines(facts: LogFacts, *, short: bool) -> list[tuple[str, str]]:
    """What there is to say, by name; the least of it if it is one log of many."""
    undurable = facts.next - facts.durable
    out = [("records", f"{facts.records:,}" + (f", {undurable:,} of them not durable yet" if undurable > 0 else ""))]
    if facts.checkpoints is not None:
        out.append(("groups", f"first unchecked {facts.checkpoints.checked + 1}, current {facts.checkpoints.current}"))
    if facts.records and not short:
        span = lasting((facts.last_us - facts.first_us) / 1e6) if facts.first_us and facts.last_us else ""
        out.append(("times", f"{when(facts.first_us)} to {when(facts.last_us)} UTC{f' ({span})' if span else ''}"))
    if not short or any(rate.records for rate in facts.rates):
        rates = (f"{r.records:,.1f}/s {size(r.bytes)}/s in {r.seconds // 60} min" for r in facts.rates)
        out.append(("rate", ", ".join(rates)))
    out.append(("files", _files(facts)))
    out += [("lost", f"{loss.first} to {loss.last}: {loss.reason}") for loss in facts.losses]
    for process in facts.processes:
        does = {True: "writes", False: "reads", None: "has it open"}[process.writes]
        out.append(("open", f"{process.pid} {does}: {process.command}"))
    out += [("wrong", problem) for problem in facts.problems]
    return out if facts.problems or short else [*out, ("health", f"good, {_STATES[facts.state]}")]


def _files(facts: LogFacts) -> str:
    kinds = {kind: sum(s.state == kind for s in facts.segments) for kind in ("sealed", "finished", "active")}
    packed = sum(s.compressed for s in facts.segments)
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    used, reserved = (sum(getattr(s, name) for s in facts.segments) for name in ("disk_bytes", "reserved_bytes"))
    compressed = f", {packed} compressed" if packed else ""
    return f"{said or 'none'}{compressed}; {size(used)} of the disk, {size(reserved)} of it reserved"
