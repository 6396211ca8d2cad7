"""All commands, put together. A new one is a module beside this one, and a line here."""

from __future__ import annotations

import typer

from penstock.cli import demo, repair, spark, verify

app = typer.Typer(
    name="penstock",
    help="An embedded, crash-safe, append-only log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(spark.app, name="spark")
app.command(context_settings=demo.PASSED_ON)(demo.demo)
app.command()(repair.repair)
app.command()(verify.verify)


@app.callback()
def penstock() -> None:
    """An embedded, crash-safe, append-only log."""
