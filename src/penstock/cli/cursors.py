"""`penstock cursors`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from penstock.cli.arguments import Json, LogPath
from penstock.cli.output import WRONG_USE, as_json, errors_told, fail, line, table
from penstock.cli.selection import bound
from penstock.cursors import Moved, Place, forget, move
from penstock.inspect.facts import look

Action = Literal["list", "set", "forget"]


def cursors(
    path: LogPath,
    action: Annotated[Action, typer.Argument(metavar="list|set|forget", help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A tailer, receiver or group.")] = None,
    place: Annotated[
        str | None,
        typer.Argument(metavar="PLACE", help="With set: start, end, an offset, a time, or how long ago, such as 15m."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", help="With set: only this partition of a topic.")
    ] = None,
    json: Json = False,
) -> None:
    """List named readers and how far they are, set one back or forward, or forget it so that it holds nothing back.

    Stop a reader before you set its place: what it commits later would count.

    Example: penstock cursors /data/orders set billing 15m
    """
    wanted = {"list": (False, False), "set": (True, True), "forget": (True, False)}[action]
    if wanted != (name is not None, place is not None):
        fail("use `cursors PATH`, `cursors PATH set NAME PLACE` or `cursors PATH forget NAME`", WRONG_USE)
    with errors_told():
        if action == "list" or name is None:
            _list(path, json)
            return
        if action == "set":
            _tell(move(path, name, _where(place or ""), partition), json)
        else:
            _tell(forget(path, name), json)


def _where(place: str) -> Place:
    if place == "start":
        return "start"
    if place == "end":
        return "end"
    found = bound(place)
    assert found is not None
    return found


def _list(path: LogPath, json: bool) -> None:
    found = [(facts, reader) for facts in look(path) for reader in facts.readers]
    if json:
        as_json(
            {"cursors": [{"log": f.topic, "partition": f.partition, **asdict(reader)} for f, reader in found]},
        )
        return
    rows = [
        (f.topic, f.partition, r.name, r.kind, r.position, ("" if r.exact else "about ") + str(r.lag)) for f, r in found
    ]
    table(("log", "partition", "name", "kind", "position", "lag"), rows)


def _tell(moved: list[Moved], json: bool) -> None:
    if json:
        as_json({"cursors": [asdict(one) for one in moved]})
        return
    for one in moved:
        what = "forgotten" if one.after is None else f"goes on from {one.after}"
        line(f"{one.log}, partition {one.partition}: {one.name} {what}")
