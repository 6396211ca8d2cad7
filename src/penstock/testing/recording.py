"""Recording storage: notes what a crash at each moment of a run may leave.

After each call that changes a file, and before it for what was stored through a map meanwhile, it looks at the whole directory; so
keep the logs in it small.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from penstock.testing.disk import Disk, Moment
from penstock.testing.standing_in import CHANGING, Janitors, Real, standing_in


class Recording:
    """The moments of a run, for a directory and all below it."""

    def __init__(self, top: Path, note: Callable[[], object]) -> None:
        """`note` is asked at each moment: what was promised by then."""
        self.moments: list[Moment] = []
        self._note = note
        self._disk = Disk(top)
        self._lock = threading.RLock()
        self._janitors = Janitors()
        self._add("begin")

    def moment(self, call: str) -> None:
        """One more: what was promised has changed, if nothing else."""
        with self._lock:
            self._disk.look()
            self._add(call)

    def work(self) -> None:
        """All that the background of the open logs has to do."""
        self._janitors.work()

    def look(self, call: str) -> None:
        """One more, if anything was changed since the last one."""
        with self._lock:
            if self._disk.look():
                self._add(call)

    def _add(self, call: str) -> None:
        self.moments.append(self._disk.moment(len(self.moments), call, self._note()))

    def _called(self, name: str, real: Real) -> Real:
        def call(*args: Any, **options: Any) -> Any:
            self.look(f"stores before {name}")
            out = real(*args, **options)
            with self._lock:
                changed = self._disk.look()
                if name == "sync":
                    inode = os.fstat(args[0]).st_ino
                    self._disk.sync(inode)
                    self._disk.sync_names(inode)
                if changed or name == "sync":
                    self._add(name)
            return out

        return call

    @contextmanager
    def _installed(self) -> Iterator[None]:
        try:
            with ExitStack() as stack:
                for name in ("fsync", "fdatasync"):  # what is asked of the system counts, whoever asks
                    stack.enter_context(mock.patch.object(os, name, self._called("sync", getattr(os, name))))
                changing = [name for name in CHANGING if not name.startswith("sync")]
                self._janitors = stack.enter_context(standing_in(changing, self._called))
                yield
            self.look("the end")
        finally:
            self._disk.close()


@contextmanager
def recorded(top: Path, note: Callable[[], object] = lambda: None) -> Iterator[Recording]:
    """Record what is done below a directory, which is made if it is not there; what lies there is on the disk."""
    top.mkdir(parents=True, exist_ok=True)
    recording = Recording(top, note)
    with recording._installed():
        yield recording
