"""`penstock repair`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.output import FAILED, as_json, errors_told, line, table, tell_failed
from penstock.cli.progress import progress_bytes
from penstock.cli.verify import Json, LogPath
from penstock.repair import Step
from penstock.repair import apply as run
from penstock.repair import plan as look
from penstock.verify import Finding

Apply = Annotated[bool, typer.Option("--apply", help="Make the changes. Without it, only say what would be done.")]


def repair(path: LogPath, apply: Apply = False, json: Json = False) -> None:
    """Put right what `penstock verify --deep` finds in the logs at PATH, which nobody may have open meanwhile.

    Records that cannot be read are listed as lost, and readers step over them. What is changed is copied to *.broken first. Exits
    with 1 if there is something to do and --apply was not given, or if something is left.

    Example: penstock repair /data/orders --apply
    """
    if not apply:
        with errors_told(), progress_bytes("repair") as told:
            plan = look(path, progress=told)
        if json:
            as_json(plan.to_dict())
        else:
            _tell("would be done", plan.steps, plan.beyond)
            if plan.steps:
                line("nothing was changed; `--apply` does it")
        if plan.steps or plan.beyond:
            raise typer.Exit(FAILED)
        return
    with errors_told(), progress_bytes("repair") as told:
        report = run(path, progress=told)
    if json:
        as_json(report.to_dict())
    else:
        _tell("done", report.steps, report.left)
        for copy in report.copies:
            line(f"kept: {copy}")
        for cut in report.torn:
            line(f"cut: {cut}")
    tell_failed(report.failed, quiet=json)
    if report.left:
        raise typer.Exit(FAILED)


def _tell(what: str, steps: Sequence[Step], left: Sequence[Finding]) -> None:
    if steps:
        found = [(step.finding.file, step.finding.kind, step.finding.what, step.finding.repair) for step in steps]
        table(("file", "kind", "what", what), found)
    for finding in left:
        line(f"cannot be repaired: {finding}")
    line(f"{len(steps)} steps {what}" if steps else "nothing to repair" if not left else "nothing that repair can do")
