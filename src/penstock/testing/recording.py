"""Recording storage: notes what a crash at each moment of a run may leave.

After each call that changes a file, and before it for what was stored through a map meanwhile, it looks at the whole directory; so
keep the logs in it small. If asked to, it looks after each store into a map too: those of the reference kernel and of the engine are
lines of Python, and it looks after each of them.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest import mock

from penstock.kernel.reference import buffers, frames, page, writer
from penstock.storage import bulk, control, mapped, offsets, segment, span
from penstock.testing.disk import Disk
from penstock.testing.moment import Moment
from penstock.testing.standing_in import CHANGING, Janitors, Real, standing_in

_STORING: Final = {
    str(module.__file__) for module in (buffers, frames, page, writer, bulk, control, mapped, offsets, segment, span)
}
# What is seen when it is asked of the system, whoever asks, and the functions of `files` that come to nothing else. A tree is removed name
# by name, and a crash may come between any two.
_ASKED: Final = {
    "write": "write",
    "pwrite": "write",
    "truncate": "truncate",
    "ftruncate": "truncate",
    "fsync": "sync",
    "fdatasync": "sync",
    "mkdir": "make_directory",
    "link": "link",
    "rename": "rename",
    "replace": "rename",
    "unlink": "remove",
    "remove": "remove",
    "rmdir": "remove",
}
_SEEN_THERE: Final = {*_ASKED.values(), "sync_directory", "remove_tree"}


class Recording:
    """The moments of a run, for a directory and all below it."""

    def __init__(self, top: Path, note: Callable[[], object], left_by: Moment | None) -> None:
        """`note` is asked at each moment: what was promised by then."""
        self.moments: list[Moment] = []
        self._note = note
        self._disk = Disk(top, left_by)
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
        @functools.wraps(real)  # storage that fails stands in front of it, and fails as the real one would
        def call(*args: Any, **options: Any) -> Any:
            self.look(f"stores before {name}")
            synced = self._disk.syncing(os.fstat(args[0]).st_ino) if name == "sync" else None
            out = real(*args, **options)
            with self._lock:
                changed = self._disk.look()
                if synced:
                    synced()
                if changed or synced:
                    self._add(name)
            return out

        return call

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._after_line if frame.f_code.co_filename in _STORING else None

    def _after_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.look(f"{Path(frame.f_code.co_filename).name}, before line {frame.f_lineno}")
        return self._after_line

    @contextmanager
    def _each_store(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._traced)
        try:
            yield
        finally:
            sys.settrace(before)

    @contextmanager
    def _installed(self, *, stores: bool) -> Iterator[None]:
        try:
            with ExitStack() as stack:
                if stores:
                    stack.enter_context(self._each_store())
                for name, call in _ASKED.items():
                    stack.enter_context(mock.patch.object(os, name, self._called(call, getattr(os, name))))
                others = [name for name in CHANGING if name not in _SEEN_THERE]
                self._janitors = stack.enter_context(standing_in(others, self._called))
                yield
            self.look("the end")
        finally:
            self._disk.close()


@contextmanager
def recorded(
    top: Path, note: Callable[[], object] = lambda: None, *, stores: bool = False, left_by: Moment | None = None
) -> Iterator[Recording]:
    """Record what is done below a directory, which is made if it is not there. What lies there is on the disk, unless it was `left_by` a
    kill at a moment of an earlier recording: then a power cut may still take what was not synced at that moment. With `stores` also
    between stores into maps, by this thread, for which no debugger or coverage tool may be at work."""
    top.mkdir(parents=True, exist_ok=True)
    recording = Recording(top, note, left_by)
    with recording._installed(stores=stores):
        yield recording
