"""How the place of those who read under one name is kept. Their group calls `keep` under its lock, whenever what is done is
about to change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Protocol

from penstock.errors import PenstockError
from penstock.kernel import Buffer, Taker
from penstock.storage.cursor import Cursors
from penstock.storage.offsets import Offsets
from penstock.storage.ranges import Ranges


class Keeps(Protocol):
    """What a group asks of whatever keeps its place."""

    @property
    def place(self) -> tuple[Buffer, int, int, int] | None: ...  # where the kernel is to store it, with every record
    @property
    def sync_offset(self) -> Callable[[], None] | None: ...  # if it must survive a power cut, put that on the disk
    def keep(
        self, done: Ranges, taker: Taker, *, back: bool = False
    ) -> None: ...  # `back`: after something else has failed


class Told:
    """Kept by a call, or if there is none to call nowhere."""

    place = None
    sync_offset = None

    def __init__(self, keep: Callable[[Ranges], None] | None = None) -> None:
        self._keep = keep

    def keep(self, done: Ranges, taker: Taker, *, back: bool = False) -> None:
        if self._keep is not None:
            self._keep(done)
        before = taker.taken
        try:
            taker.mark(done.low)
        except BaseException:  # a signal's, when it was done
            taker.mark(before)
            raise


class Kept:
    """Kept as an offset in the `offset` file, and what is done beyond a gap in a file of its name, which the cursors are.

    The offset is one store, the other a file of its own: what says both is done by the former alone where it can, and what
    the latter says of things below the offset is void. `sync_offset` and `sync_names`, if it must survive a power cut too, put
    on the disk what was stored of the two.
    """

    def __init__(
        self,
        name: str,
        slot: int,
        offsets: Offsets,
        cursors: Cursors,
        *,
        sync_offset: Callable[[], None] | None = None,
        sync_names: Callable[[], None] | None = None,
    ) -> None:
        self.place = offsets.place(slot)
        self.sync_offset = sync_offset
        self._name = name
        self._slot = slot
        self._cursors = cursors
        self._sync_names = sync_names
        self._stored = cursors.ranges(name)

    def keep(self, done: Ranges, taker: Taker, *, back: bool = False) -> None:
        """Store what is done. If it raises, what was done before is stored. What is given `back` is stored also if it cannot be synced:
        that may be why it is given back. Where there is no room for a file, the offset alone says it: then more comes again."""
        before, stored = taker.taken, self._stored
        try:
            try:
                if done.beyond or stored:
                    self._keep_ranges(done, before, back)
            except (PenstockError, OSError):
                if not back or not self._says_no_more_than(done):
                    raise
            taker.mark(done.low)
        except BaseException:
            self._put_back(stored)
            if self._stored == stored:  # else, with the old offset, what was done beyond a gap would not be
                taker.mark(before)
            raise

    def _keep_ranges(self, done: Ranges, low: int, back: bool) -> None:
        """Have the file say what, with the new offset, is what is done. Until that is stored the old one, `low`, counts, and a
        crash must not take back what was acknowledged: so the file says for both what lies between them."""
        said = Ranges(done.low, self._stored)
        if said.low == done.low and said.beyond == done.beyond:
            return
        ranges = [*([(low, done.low)] if low < done.low else []), *done.beyond]
        if self.sync_offset is not None:
            with suppress(PenstockError, OSError) if back else nullcontext():
                self.sync_offset()  # what the file leaves to `low`, which may not be on the disk yet, and says itself until now
        try:
            self._cursors.store(self._name, self._slot, ranges)  # synced: a torn one would not say its slot either
        except (PenstockError, OSError):
            if not back:
                raise
            self._cursors.store(self._name, self._slot, ranges, durable=False)
        self._stored = ranges
        if self._sync_names is not None:
            with suppress(PenstockError, OSError) if back else nullcontext():
                self._sync_names()

    def _says_no_more_than(self, done: Ranges) -> bool:
        """Whether with the new offset the file, as it is, takes nothing to be done that is not."""
        self._stored = self._cursors.ranges(self._name)
        said = Ranges(done.low, self._stored)
        return said.low == done.low and all((done.end_of(start) or 0) >= end for start, end in said.beyond)

    def _put_back(self, stored: list[tuple[int, int]]) -> None:
        """Have the file say what it said before; what went wrong may have come when it was replaced."""
        self._stored = self._cursors.ranges(self._name)
        if self._stored != stored:
            self._cursors.store(self._name, self._slot, stored)
            self._stored = self._cursors.ranges(self._name)
