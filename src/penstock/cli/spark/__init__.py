"""`penstock spark …`: jobs over logs too big for one process."""

from __future__ import annotations

import typer

from penstock.cli.spark.archive import archive
from penstock.cli.spark.stats import stats
from penstock.cli.spark.verify import verify

app = typer.Typer(help="Jobs over logs too big for one process, run by Spark.", no_args_is_help=True)
for command in (verify, stats, archive):
    app.command()(command)
