"""Recording storage: stands in for `storage.files` and the kernel, and notes what a crash at each moment of a run may leave.

While a `Recording` is open, the process works on the reference kernel, whose writes and syncs of growing files can be seen, and
without a background: `work` does what that would. After each call that changes a file, and before it for what was stored through a
map meanwhile, it looks at the whole directory; so keep the logs in it small.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from penstock import kernel
from penstock.kernel import _reference, _reference_buffered, _reference_taker
from penstock.storage import files
from penstock.storage.janitor import Janitor
from penstock.testing.disk import Disk, Moment

# The functions of `files` that change anything; all others are made of these.
CHANGING: Final = (
    *("create", "write", "truncate", "allocate", "reserve", "punch"),
    *("sync", "sync_directory", "rename", "exchange", "remove", "remove_tree"),
)
_SYSTEM: Final = {"pwrite": "write", "ftruncate": "truncate", "fdatasync": "sync"}  # what the kernel calls itself


class Recording:
    """The moments of a run, for a directory and all below it."""

    def __init__(self, top: Path, note: Callable[[], object]) -> None:
        """`note` is asked at each moment: what was promised by then."""
        self.moments: list[Moment] = []
        self._note = note
        self._disk = Disk(top)
        self._lock = threading.RLock()
        self._janitors: list[Janitor] = []
        self._add("begin")

    def moment(self, call: str) -> None:
        """One more: what was promised has changed, if nothing else."""
        with self._lock:
            self._disk.look()
            self._add(call)

    def _look(self, call: str) -> None:
        """One more, if anything was changed since the last one."""
        with self._lock:
            if self._disk.look():
                self._add(call)

    def _add(self, call: str) -> None:
        self.moments.append(self._disk.moment(len(self.moments), call, self._note()))

    def work(self) -> None:
        """All that the background of the open logs has to do."""
        for janitor in self._janitors:
            if janitor._log is not None and not janitor._log.closed:
                janitor.look_again()
                janitor._turn()

    # ---- what is called in place of the real functions ----

    def _called(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._look(f"stores before {name}")
            out = real(*args, **options)
            with self._lock:
                changed = self._disk.look()
                if name == "sync":
                    self._disk.sync(os.fstat(args[0]).st_ino)
                elif name == "sync_directory":
                    self._disk.sync_names(args[0].stat().st_ino)
                if changed or name in ("sync", "sync_directory"):
                    self._add(name)
            return out

        return call

    @contextmanager
    def _installed(self) -> Iterator[None]:
        def serve(janitor: Janitor, log: Any) -> None:
            janitor._log = log
            self._janitors.append(janitor)

        with ExitStack() as stack:
            for name in CHANGING:
                stack.enter_context(mock.patch.object(files, name, self._called(name, getattr(files, name))))
            system = _System({ours: self._called(name, getattr(os, ours)) for ours, name in _SYSTEM.items()})
            stack.enter_context(mock.patch.object(_reference_buffered, "os", system))
            stack.enter_context(mock.patch.object(Janitor, "serve", serve))
            stack.enter_context(reference_kernel())
            yield
        self._look("end")
        self._disk.close()


class _System:
    """The module `os`, but for a few of its functions."""

    def __init__(self, replaced: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def recorded(top: Path, note: Callable[[], object] = lambda: None) -> Iterator[Recording]:
    """Record what is done below a directory, which is made if it is not there; what lies there is on the disk."""
    top.mkdir(parents=True, exist_ok=True)
    recording = Recording(top, note)
    with recording._installed():
        yield recording


@contextmanager
def reference_kernel() -> Iterator[None]:
    """What is opened meanwhile works on the reference kernel."""
    if kernel.NAME == "reference":
        yield
        return
    homes = (_reference_buffered, _reference_taker, _reference)
    swapped = {
        id(getattr(kernel, name)): next(getattr(home, name) for home in homes if name in vars(home))
        for name in ("Batch", "Buffered", "ControlPage", "Reader", "Taker", "Writer", "wait_any")
    }
    loaded = [
        m for name, m in sys.modules.items() if name.split(".")[0] == "penstock" and name != "penstock.kernel._native"
    ]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(kernel, "ROBUST", False))
        for module in loaded:
            for name, value in list(vars(module).items()):
                if id(value) in swapped:
                    stack.enter_context(mock.patch.object(module, name, swapped[id(value)]))
        yield
