"""The background of an open log: only what may block, and would otherwise make an append wait.

One daemon thread per writing log object. It makes the next segment's files, syncs by the flush policy, seals what is finished
and tidies up as the log's use says. If it lags, a roll makes its own file; nothing is lost. (What must keep pace with every append,
allocating and touching pages, is the native kernel's own thread.)
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from penstock.errors import DiskFull, LogClosed, PenstockError, SyncFailed
from penstock.options import Flush
from penstock.storage.dropping import ready
from penstock.storage.log import Log
from penstock.storage.syncing import undurable_bytes
from penstock.storage.weakly import all_of

_SOONER = 1 << 62
_AGAIN_S = 0.1
_MOST_S = 60.0


class Janitor(threading.Thread):
    """Wakes when an append passes `notify_at`, when a flush is due, and now and then to tidy up.

    `tidy`, if there is something to tidy, is called at first, when segments were sealed, when `look_again` asks for it, and
    every `every_s` seconds if that is given. Without it nothing waits for segments to be sealed: then that is done `together`,
    so many at a time, and at the close.
    """

    def __init__(
        self,
        flush: Flush,
        tidy: Callable[[Log], object] | None = None,
        every_s: float | None = None,
        *,
        together: int = 1,
    ) -> None:
        super().__init__(name="penstock", daemon=True)
        self._flush = flush
        self._tidy = tidy
        self._every_s = every_s
        self._together = together if tidy is None else 1
        self._wakes: SimpleQueue[None] = SimpleQueue()  # in C: a signal's exception leaves no lock behind in it
        self._stopping = False
        self._again = True  # tidy up, also when nothing was sealed
        self._due_s: float | None = None  # when what is not durable must be
        self._retry_s: float | None = None  # how long after a turn that failed the next one comes at the latest
        self._log: Log | None = None

    def serve(self, log: Log) -> None:
        self._log = log
        _at_work.add(self)
        ready()
        if self._tidy is not None:
            self.wake()
        self.start()

    def wake(self) -> None:
        if self._wakes.empty():
            self._wakes.put(None)

    def look_again(self) -> None:
        """Something no longer holds files back."""
        self._again = True
        self.wake()

    @property
    def is_wanted(self) -> bool:
        """Whether something waits for this turn's end; a tidying that takes long leaves the rest to the next one."""
        return self._stopping or not self._wakes.empty()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        if self.is_alive():
            self.join()
        self._log = None

    def run(self) -> None:
        while not self._stopping:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=self._timeout_s())
            if self._stopping:
                return
            try:
                self._turn()
            except LogClosed:
                return
            except SyncFailed:
                self._retry_s = None  # the log is poisoned: every append and sync says so, and its close
            except (PenstockError, OSError):
                # Nothing is lost by not looking ahead; the append that needs it meets the error itself. But what is to be sealed and
                # removed has nobody else to see to it, and perhaps nothing is ever appended again.
                self._again = True
                self._retry_s = min(_MOST_S, 2 * self._retry_s) if self._retry_s is not None else _AGAIN_S
            else:
                self._retry_s = None

    def _timeout_s(self) -> float | None:
        due_s = max(0.0, self._due_s - time.monotonic()) if self._due_s is not None else self._every_s
        return min((s for s in (due_s, self._retry_s) if s is not None), default=None)

    def _turn(self) -> None:
        log = self._log
        assert log is not None
        log.writable()
        with contextlib.suppress(Empty):  # what has woken it until now has this turn
            while True:
                self._wakes.get_nowait()
        try:
            with log.syncing.untold():
                self._flush_if_due(log)
                try:
                    log.prepare_next()
                finally:  # also if there is no room for another file: this may make some
                    self._put_in_order(log)
        finally:
            log.notify_at(min(log.prepare_at(), self._flush_at(log)))
            # An append between looking and setting notify_at would go unseen, so look once more; but not in vain.
            behind = log.next_sequence > log.durable_sequence and not log.writable().poison
            if self._flush.kind == "batch" and self._due_s is None and behind:
                self.wake()

    def _put_in_order(self, log: Log) -> None:
        sealed, full = 0, None
        try:
            sealed = log.seal_finished(self._together)
        except DiskFull as error:
            full = error  # those that are sealed may go all the same
        if self._tidy is not None and (sealed or full or self._again or self._every_s is not None):
            self._again = False
            self._tidy(log)
        if full is not None:
            raise full

    def _flush_if_due(self, log: Log) -> None:
        if self._flush.kind != "batch":
            return
        if log.durable_sequence >= log.next_sequence:
            self._due_s = None
            return
        now = time.monotonic()
        if self._due_s is None:
            self._due_s = now + (self._flush.interval_s or 0.0)
        if now >= self._due_s or undurable_bytes(log) >= (self._flush.size_bytes or 1):
            self._due_s = now + _AGAIN_S  # if it cannot be tried: no descriptor may be left for it
            try:
                log.sync()
            except SyncFailed:
                self._due_s = None  # or a poisoned log would be tried again and again
                raise
            self._due_s = None

    def _flush_at(self, log: Log) -> int:
        """The end of the active segment at which the flush policy wants to be told."""
        if self._flush.kind != "batch":
            return _SOONER
        now = log.active()
        if self._due_s is None:
            return now.end  # all is durable: the next append starts the clock
        return now.end + max(0, (self._flush.size_bytes or 1) - undurable_bytes(log))


_at_work: weakref.WeakSet[Janitor] = weakref.WeakSet()


def _at_exit() -> None:
    """Python stops daemon threads where they stand: with a lock in hand, closing a forgotten log would wait for ever."""
    for janitor in all_of(_at_work):
        janitor.stop()


atexit.register(_at_exit)
