"""How far long work is: a bar on stderr if that is a terminal, else nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """`with progress("dump", records) as advance: advance(10)`. A total of 0 is not known."""
    if not shown or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda step: bar.advance(task, step)


@contextmanager
def progress_bytes(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Something to tell (bytes done, bytes in all) to; None when nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
