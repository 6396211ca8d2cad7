"""What an append through memory gives back: a promise that is kept when its batch is on the disk.

A promise can be waited for by threads and awaited by coroutines, by any number of either. Its batch is done for all of its
records at once, so one wake-up of an event loop serves them all.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from penstock import kernel
from penstock.storage.buffered import Buffered

if TYPE_CHECKING:
    import asyncio


class Bell:
    """Tells an event loop when batches are done, through a descriptor that it watches while somebody waits.

    One loop at a time has it; a second one, which is rare, waits in a thread.
    """

    def __init__(self, path: Buffered) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[kernel.Batch, list[asyncio.Future[None]]] = {}

    def future(self, batch: kernel.Batch) -> asyncio.Future[Any]:
        """Done when the batch is, whatever became of it."""
        import asyncio  # whoever awaits has it; nobody else needs it

        loop = asyncio.get_running_loop()
        self._path.check_here()
        with self._lock:
            future: asyncio.Future[None] = loop.create_future()
            if batch.done:  # since it was last looked at: another loop may have taken the sound of it
                future.set_result(None)
                return future
            if self._loop is None or self._loop.is_closed():
                with self._path.told():
                    fd = self._path.appends.fileno()
                loop.add_reader(fd, self._look)
                self._loop, self._waiting = loop, {}
            if self._loop is not loop:
                return loop.run_in_executor(None, self._wait, batch)
            self._waiting.setdefault(batch, []).append(future)
        return future

    def _wait(self, batch: kernel.Batch) -> None:
        while not batch.done:
            try:
                self._path.appends.wait(batch)
            except Exception:
                return  # the batch says so itself

    def _look(self) -> None:
        """In the loop: something is done."""
        self._path.appends.drain()
        done: list[asyncio.Future[None]] = []
        with self._lock:
            for batch in [batch for batch in self._waiting if batch.done]:
                done += self._waiting.pop(batch)
            if not self._waiting and self._loop is not None:
                self._loop.remove_reader(self._path.appends.fileno())
                self._loop = None
        for future in done:
            if not future.done():  # by being cancelled
                future.set_result(None)


class Promise:
    """A record, or many in one batch, on the way to the disk."""

    __slots__ = ("_batch", "_bell", "_path")

    def __init__(self, path: Buffered, bell: Bell, batch: kernel.Batch) -> None:
        self._path = path
        self._bell = bell
        self._batch = batch

    def done(self) -> bool:
        """Whether it is durable, or has failed."""
        return self._batch.done

    @property
    def first(self) -> int | None:
        """The sequence of the first record of its batch, once it is durable."""
        return self._batch.first

    def exception(self) -> BaseException | None:
        """What it failed with; None while it has not."""
        error = self._batch.exception
        return None if error is None else self._path.explained(error)

    def _keep(self, timeout_s: float | None = None) -> None:
        """Until it is durable; raises what failed it, or TimeoutError."""
        if not self._path.wait(self._batch, timeout_s):
            raise TimeoutError(f"not on the disk after {timeout_s} s; it is still on the way")

    def _kept(self) -> Generator[Any, None, None]:
        """The same for a coroutine."""
        if not self._batch.done:
            yield from self._bell.future(self._batch).__await__()
        if self._batch.exception is not None:
            self._path.wait(self._batch)
