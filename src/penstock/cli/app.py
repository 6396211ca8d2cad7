"""All commands, put together. A new one is a module beside this one, and a line here."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from penstock.cli import demo, spark
from penstock.cli.append import append
from penstock.cli.arguments import told
from penstock.cli.bench import bench
from penstock.cli.compress import compress
from penstock.cli.convert import convert
from penstock.cli.cursors import cursors
from penstock.cli.doctor import doctor
from penstock.cli.dump import dump
from penstock.cli.info import info
from penstock.cli.output import line
from penstock.cli.repair import repair
from penstock.cli.retain import retain
from penstock.cli.tail import tail
from penstock.cli.top import top
from penstock.cli.verify import verify

app = typer.Typer(
    name="penstock",
    help="An embedded, crash-safe, append-only log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(spark.app, name="spark")
for command in (info, tail, dump, append, verify, repair, cursors, retain, compress, convert, doctor, top, bench):
    app.command(help=told(command))(command)
app.command(context_settings=demo.PASSED_ON)(demo.demo)


def _tell_version(asked: bool) -> None:
    if asked:
        line(f"penstock {version('penstock')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version.")]


@app.callback()
def penstock(version: Version = False) -> None:
    """An embedded, crash-safe, append-only log."""
