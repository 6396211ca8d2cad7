"""Which case is at work: for whoever finds that it hangs, and then sees nothing else of it.

What interrupts a case, as pytest does when a test takes too long, is told with the command that tries it again. In a campaign nobody
interrupts it: there each case has a limit, beyond which the process ends with the stacks of all its threads, and no line of Python runs any
more that could say which it was. So it is written down before.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CASE_S = 120.0

_noted_in: Path | None = None


@contextmanager
def limited(path: Path) -> Iterator[None]:
    """Cases have a limit meanwhile, and the file names the one at work."""
    global _noted_in
    _noted_in = path
    try:
        yield
    finally:
        _noted_in = None


@contextmanager
def case(again: str) -> Iterator[None]:
    """A case, and the command that tries it again."""
    if _noted_in is not None:
        _noted_in.write_text(f"{again}\n")
        # To the real one: what stands in for it in a test has no descriptor.
        faulthandler.dump_traceback_later(CASE_S, exit=True, file=sys.__stderr__)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):  # a failure comes with it anyway
            error.add_note(f"again with: {again}")
        raise
    finally:
        if _noted_in is not None:
            faulthandler.cancel_dump_traceback_later()
