"""`penstock demo`: what `python -m penstock.demo` does; its options are told there."""

from __future__ import annotations

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def demo(context: typer.Context) -> None:
    """Run a whole pipeline on Spark, kill it halfway, and prove that nothing is lost. `penstock demo --help` lists the options."""
    from penstock.demo.command import main

    raise typer.Exit(main(context.args))
