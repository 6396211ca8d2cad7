"""What is being measured, on stderr: one line rewritten on a terminal, one line per step elsewhere."""

from __future__ import annotations

import shutil
import sys
from time import monotonic

from bench import units
from bench.runner import Step

WIDTH = 16


class Progress:
    """Prints steps as they begin."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.start = monotonic()

    def __call__(self, step: Step) -> None:
        """Show one step."""
        what = f"{step.scenario}, {units.size(step.size)}: {step.peer}, {step.stage}"
        time = f"{monotonic() - self.start:.0f} s"
        if step.left is not None:
            time += f", about {units.duration(step.left)} left"
        if self.terminal:
            done = WIDTH * (step.number - 1) // max(1, step.total)
            bar = "#" * done + "." * (WIDTH - done)
            line = f"[{bar}] {step.number}/{step.total} {time}  {what}"
            room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be rewritten
            print(f"\r\x1b[K{line[:room]}", end="", file=sys.stderr)
        else:
            print(f"[{step.number}/{step.total}] {time}  {what}", file=sys.stderr)
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """Show something else on a line of its own."""
        print(f"\r\x1b[K{text}" if self.terminal else text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal clean."""
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
