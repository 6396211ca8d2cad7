"""`penstock spark …`: jobs over logs too big for one process."""

from __future__ import annotations

import typer

from penstock.cli.arguments import told
from penstock.cli.spark.archive import archive
from penstock.cli.spark.compress import compress
from penstock.cli.spark.convert import convert
from penstock.cli.spark.reindex import reindex
from penstock.cli.spark.replay import replay
from penstock.cli.spark.stats import stats
from penstock.cli.spark.verify import verify

app = typer.Typer(help="Jobs over logs too big for one process, run by Spark.", no_args_is_help=True)
for command in (verify, stats, archive, replay, convert, compress, reindex):
    app.command(help=told(command))(command)
