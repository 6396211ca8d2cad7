"""The demo: an order flow through a queue, Spark, Parquet and topics, with a kill in the middle and a proof at the end.

`python -m penstock.demo` runs it; `main` is the same as a function.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo with these arguments, or the command line's; returns the exit status."""
    from penstock.demo.command import main

    return main(argv)


__all__ = ["main"]
