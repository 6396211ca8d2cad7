"""Those who read a log under one name: each record goes to exactly one of them, and is done when that one says so.

A group has one position, however many its members: all below `low` is done, and what was done beyond a gap is kept as ranges.
What a member took and did not acknowledge goes back when it leaves, and comes again after a restart. Without acknowledging,
what is received is done. One process; threads may share it. `keep` is called, under the group's lock, whenever what is done
is about to change.

A call that raises, for whatever reason and at whatever instruction, has taken nothing: what it read is read again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, NoReturn, TypeVar

from penstock.errors import DecodeError, InvalidAck, InvalidOffset, LogClosed, RecordGone
from penstock.kernel import Message
from penstock.storage.log import Log
from penstock.storage.places import Places
from penstock.storage.ranges import Ranges
from penstock.storage.reader import LogReader

T = TypeVar("T")
Keep = Callable[[Ranges], None]


class Nothing(Enum):
    """What there is at the end, since a message may be None."""

    NOTHING = 0


NOTHING: Final = Nothing.NOTHING


class Taken(NamedTuple):
    """A record that a member has: its offset, and where the next one begins."""

    offset: int
    end: int
    message: Message


class Member:
    """One of those who read: what it took and has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self.unacked: deque[Taken] = deque()


class Group:
    """See the module's docstring."""

    def __init__(self, log: Log, places: Places, done: Ranges, keep: Keep, *, acks: bool) -> None:
        self.acks = acks
        self.shared = False  # whether others may join
        self.members: set[Member] = set()  # none: it is closed
        self._log = log
        self._places = places
        self._keep = keep
        self._done = done
        self._gaps = bool(done.beyond)  # some of what the reader comes to is done already
        self._back: deque[Taken] = deque()  # given back by members that left, to be taken before anything else
        self._astray: int | None = None  # the sequence to read next, when the reader may stand elsewhere
        self._lock = threading.Lock()
        self._reader = LogReader(log)
        self._records = self._reader.records
        self._segment = -1
        self._shift = 0
        self._reader.seek(places.sequence(done.low))
        _all.add(self)

    # ---- where it stands ----

    def _offset(self) -> int:
        """Where the reader stands."""
        records = self._records
        if records.segment != self._segment:
            self._shift = self._places.shift(records.segment, self._reader.segment.header.begin)
            self._segment = records.segment
        return self._shift + records.position

    def _next_sequence(self) -> int:
        return self._records.sequence if self._astray is None else self._astray

    def _return(self) -> None:
        """Stand where reading goes on, after a call that raised."""
        if not self.members:
            self._refuse()
        assert self._astray is not None
        try:
            self._reader.seek(self._astray)
        except RecordGone as gone:
            raise self._told(gone) from None
        self._astray = None

    @property
    def low(self) -> int:
        """All below this offset is done."""
        return self._done.low

    def seek(self, offset: int) -> None:
        """Go on from a record's offset: all before it counts as done, and nothing from it on."""
        sequence = self._places.sequence(offset)
        with self._lock:
            if not self.members:
                self._refuse()
            self._astray = self._next_sequence()  # until all of this is done
            with contextlib.suppress(RecordGone):
                self._reader.seek(sequence)
            done, nothing = Ranges(offset), [(member, deque[Taken]()) for member in self.members]
            # Segments are removed under the lock: from here on those from the offset on are held.
            with contextlib.nullcontext() if self._log.read_only else self._log.locked():
                if offset < self._places.first:
                    raise InvalidOffset(
                        f"{self._log.path}: offset {offset} is no longer in the log, which begins at {self._places.first}"
                    )
                self._keep(done)
            self._done, self._gaps, self._astray, self._back = done, False, None, deque()
            for member, none in nothing:
                member.unacked = none
        self._ring()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there may be more to take; False when the time is over."""
        return bool(self._back) or self._astray is not None or self._reader.wait(timeout_s)

    def _ring(self) -> None:
        """Wake those who wait: there is something for them that was not just written."""
        page = self._log.page
        if page is not None and not self._log.closed:
            page.ring()

    # ---- taking ----

    def receive(self, decode: Callable[[bytes], T]) -> T | Nothing:
        """The next object, which is thereby done; NOTHING at the end."""
        with self._lock:
            if self._astray is not None:
                self._return()
            done = self._done
            before, low = self._records.sequence, done.low
            message = None
            try:
                if self._gaps:  # left by members that acknowledged
                    return self._receive_beyond(decode)
                message = self._records.read()
                if message is None:
                    return self._nothing()
                out = decode(message.payload)
                done.low = self._offset()
                self._keep(done)
            except BaseException as error:
                self._astray = before
                if done.low != low:
                    done.low = low
                    self._keep(done)
                raise self._told(error, message, low) from error.__cause__
            return out

    def _receive_beyond(self, decode: Callable[[bytes], T]) -> T | Nothing:
        taken = self._next()
        if taken is None:
            return self._nothing()
        out = self._decoded(decode, taken)
        done = self._done.copy()
        done.add(taken.offset, taken.end)
        gaps = bool(done.beyond) or done.low > taken.end
        self._keep(done)
        self._done, self._gaps = done, gaps
        return out

    def receive_many(self, n: int, decode: Callable[[bytes], T]) -> list[T]:
        """Up to `n` objects, which are thereby done; none at the end. Fewer before one that cannot be had."""
        with self._lock:
            if self._astray is None and not self._gaps:
                done = self._done
                before, low = self._records.sequence, done.low
                try:
                    out = [decode(message.payload) for message in self._records.read_batch(n)]
                    if not out:
                        self._nothing()
                        return out
                    done.low = self._offset()
                    self._keep(done)
                except BaseException as error:
                    self._astray = before
                    if done.low != low:
                        done.low = low
                        self._keep(done)
                    if not isinstance(error, Exception):
                        raise
                else:
                    return out
        return self.several(n, lambda: self.receive(decode))

    @staticmethod
    def several(n: int, take: Callable[[], T | Nothing]) -> list[T]:
        """Up to `n` of what `take` gives, fewer before an error, which then comes first the next time."""
        out: list[T] = []
        try:
            while len(out) < n and (obj := take()) is not NOTHING:
                out.append(obj)
        except Exception:
            if not out:
                raise
        return out

    def take(self, member: Member, decode: Callable[[bytes], T]) -> T | Nothing:
        """The next object, which is then this member's to acknowledge; NOTHING at the end."""
        with self._lock:
            return self._take(member, decode)

    def take_many(self, member: Member, n: int, decode: Callable[[bytes], T]) -> list[T]:
        """Up to `n` objects, which are then this member's; none at the end. Fewer before one that cannot be had."""
        with self._lock:
            had = len(member.unacked)
            try:
                return self.several(n, lambda: self._take(member, decode))
            except BaseException:
                while len(member.unacked) > had:  # an interrupt, and the caller will never see them
                    self._back.appendleft(member.unacked.pop())
                raise

    def _take(self, member: Member, decode: Callable[[bytes], T]) -> T | Nothing:
        if member not in self.members:
            self._refuse()
        if self._astray is not None:
            self._return()
        before, given_back = self._records.sequence, bool(self._back)
        taken = None
        try:
            taken = self._back[0] if given_back else self._next()
            if taken is None:
                return NOTHING
            out = self._decoded(decode, taken)
            member.unacked.append(taken)
            if given_back:
                self._back.popleft()
        except BaseException as error:
            if not given_back:
                self._astray = before
            elif taken is not None and (not self._back or self._back[0] is not taken):
                self._back.appendleft(taken)
            if taken is not None and member.unacked and member.unacked[-1] is taken:
                member.unacked.pop()
            raise self._told(error) from error.__cause__
        return out

    def _next(self, reader: LogReader | None = None) -> Taken | None:
        """The next record that is not done yet; of another reader, if one is given."""
        records = self._records if reader is None else reader.records
        while (message := records.read()) is not None:
            if reader is None:
                end = self._offset()
            else:
                end = self._places.shift(records.segment, reader.segment.header.begin) + records.position
            offset = end - self._log.fmt.SPEC.overhead - len(message.payload)
            if self._done.end_of(offset) is None:
                return Taken(offset, end, message)
        return None

    def _nothing(self) -> Nothing:
        """What there is at the end, unless it is closed."""
        if not self.members:
            self._refuse()
        return NOTHING

    def _refuse(self) -> NoReturn:
        self._log.check_open()
        raise LogClosed(f"{self._log.path}: this receiver was closed; make a new one with rx()")

    def _decoded(self, decode: Callable[[bytes], T], taken: Taken) -> T:
        try:
            return decode(taken.message.payload)
        except DecodeError as error:
            raise error.at(taken.offset, taken.end) from error.__cause__

    def _told(self, error: BaseException, message: Message | None = None, offset: int = 0) -> BaseException:
        """An error as this log's readers know places: by offset."""
        if isinstance(error, DecodeError) and message is not None:
            return error.at(offset, offset + self._log.fmt.SPEC.overhead + len(message.payload))
        if isinstance(error, RecordGone):
            first = self._places.first
            return RecordGone(f"{self._log.path}: what comes next was removed; seek({first}) to go on with the first")
        return error

    # ---- acknowledging ----

    def ack(self, member: Member, n: int) -> None:
        """The first `n` of what this member took are done."""
        with self._lock:
            if member not in self.members:
                self._refuse()
            if not 0 <= n <= len(member.unacked):
                raise InvalidAck(
                    f"{self._log.path}: ack({n}), but {len(member.unacked)} were received and not acknowledged"
                )
            done, acked, had = self._done.copy(), list(islice(member.unacked, n)), len(member.unacked)
            for taken in acked:
                done.add(taken.offset, taken.end)
            try:
                for _ in acked:
                    member.unacked.popleft()
                if acked:
                    self._keep(done)
                self._done = done
            except BaseException:
                member.unacked.extendleft(reversed(acked[: had - len(member.unacked)]))
                raise

    def peek(self, n: int, decode: Callable[[bytes], T]) -> list[T]:
        """Up to `n` objects that are not taken yet, which stay so. Fewer before one that cannot be had."""
        with self._lock:
            if not self.members:
                self._refuse()
            back = deque(self._back)
            ahead = LogReader(self._log)

            def look() -> T | Nothing:
                taken = back.popleft() if back else self._next(ahead)
                return NOTHING if taken is None else self._decoded(decode, taken)

            try:
                ahead.seek(self._next_sequence())
                return self.several(n, look)
            except RecordGone as gone:
                raise self._told(gone) from None
            finally:
                ahead.close()

    # ---- who is in it ----

    def join(self) -> Member:
        member = Member()
        with self._lock:
            self.members.add(member)
        return member

    def leave(self, member: Member) -> bool:
        """Give back what this member did not acknowledge; whether it was the last one."""
        with self._lock:
            self.members.discard(member)
            self._back = deque(sorted([*self._back, *member.unacked], key=lambda t: t.offset))
            member.unacked.clear()
            last = not self.members
            if last:
                self._reader.close()
        self._ring()
        return last

    def close(self) -> None:
        """Nobody is in it any more: whoever still asks is told so."""
        with self._lock:
            self.members.clear()
            self._reader.close()

    def forked(self) -> None:
        """In the child: what is done is the parent's to say, and a thread that held the lock is not there any more."""
        self._lock = threading.Lock()
        self.close()


_all: weakref.WeakSet[Group] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for group in list(_all):
        group.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
