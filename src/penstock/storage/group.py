"""Those who read a log under one name: each record goes to exactly one of them, and is done when that one says so.

A group has one position, however many its members: all below `low` is done, and what was done beyond a gap is kept as ranges.
What a member took and did not acknowledge goes back when it leaves, and comes again after a restart. Without acknowledging,
what is received is done. One process; threads may share it.

Most messages never come here: while each is simply the next one, and done when it is received, receivers have them from the
`taker`, in one step of the kernel. Whatever else there is to do is done here under a lock, and meanwhile the taker gives nothing.

A call that raises, for whatever reason and at whatever instruction, has taken nothing: what it read is read again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from penstock.errors import DecodeError, InvalidAck, InvalidOffset, LogClosed, PenstockError, RecordGone
from penstock.kernel import Message, Taker
from penstock.storage.kept import Keeps, Told
from penstock.storage.log import Log
from penstock.storage.places import Places
from penstock.storage.ranges import Ranges
from penstock.storage.reader import LogReader, OnCorrupt

T = TypeVar("T")
Decode = Callable[[bytes], T]  # None instead of one: a payload is what it is


class Nothing(Enum):
    """What there is at the end, since a message may be None."""

    NOTHING = 0


NOTHING: Final = Nothing.NOTHING
NEVER: Final = (1 << 64) - 1


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

    def __init__(
        self,
        log: Log,
        places: Places,
        done: Ranges,
        kept: Keeps,
        *,
        acks: bool,
        on_corrupt: OnCorrupt = "raise",
        on_reached: Callable[[], None] = lambda: None,
    ) -> None:
        """`kept` is where its place is kept. `on_reached` is called for what `watch` asks for."""
        self.acks = acks
        self.shared = False  # whether others may join
        self.members: set[Member] = set()  # none: it is closed
        self._log = log
        self._overhead = log.fmt.SPEC.overhead
        self._places = places
        self._kept = kept
        self._sync = kept.sync_offset if not acks else None
        self._done = done
        self._gaps = bool(done.beyond)  # some of what the reader comes to is done already
        self._back: deque[Taken] = deque()  # given back by members that left, to be taken before anything else
        self._under_way = Counter[int]()  # by offset, calls that have received it, and give it back if they raise
        self._waited_for = False  # somebody asked for that
        self._astray: int | None = None  # the sequence to read next, when the reader may stand elsewhere
        self._lock = threading.Lock()
        self._on_reached = on_reached
        self._watched = NEVER
        self._reached = False  # it was, and is still to be told
        self._reader = LogReader(log, on_corrupt)
        self._segment = -1
        self._shift = 0
        self._records = self._reader.records
        self.taker = Taker(self._records, kept.place, done.low)
        self._reader.seek(places.sequence(done.low))
        _all.add(self)

    # ---- where it stands ----

    def _hold(self) -> None:
        """First of all under the lock: nobody takes anything beside this, and what they took is known."""
        if not self.acks:
            self._done.low = self.taker.hold()

    def _allow(self) -> None:
        """Last of all under the lock: from here on messages may be had straight from the taker, if each is simply the next one
        and done when it is received."""
        plain = not (self.acks or self._gaps or self._sync is not None)
        if plain and self._astray is None and self.members:
            self._offset()
            self.taker.allow(self._shift)

    def _keep(self, done: Ranges, *, back: bool = False) -> None:
        """Store what is done. What follows the store calls nothing: no signal's exception comes between the two."""
        before, taker = self.taker.taken, self.taker
        self._kept.keep(done, taker, back=back)
        if done.low < before:
            taker.until = self._watched if done.low < self._watched else NEVER  # it may be reached again
        elif done.low >= taker.until:
            taker.until, self._reached = NEVER, True

    def _tell(self) -> None:
        """Without the lock: when all is done, so that nothing is lost should this be interrupted."""
        if self._reached:
            self._reached = False
            self._on_reached()

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
            self._stand(self._reader, self._astray)
        except RecordGone as gone:
            raise self._told(gone) from None
        self._astray = None

    def _stand(self, reader: LogReader, sequence: int) -> None:
        """Have a reader go on there, or behind that if it is done and gone."""
        try:
            reader.seek(sequence)
        except RecordGone:
            if not self._step_over(reader, sequence):
                raise

    def _step_over(self, reader: LogReader, sequence: int) -> bool:
        """What comes next is gone. If that is since it is done, stand where the rest begins: what was done beyond a gap, in an earlier
        life, is removed when the gap is, and the reader may not have come to it yet."""
        if self._done.low < self._places.first:
            return False
        behind = self._places.sequence(self._done.low)
        if behind <= sequence:
            return False
        reader.seek(behind)
        return True

    @property
    def low(self) -> int:
        """All below this offset is done."""
        return self._done.low if self.acks else self.taker.taken

    @property
    def reader(self) -> LogReader:
        """What it reads with; for whoever waits for several groups at once."""
        return self._reader

    def watch(self, offset: int) -> None:
        """Have it told when this offset is reached, unless it was before."""
        self._watched = offset
        self.taker.watch(offset)

    def seek(self, offset: int) -> None:
        """Go on from a record's offset: all before it counts as done, and nothing from it on."""
        sequence = self._places.sequence(offset)
        with self._lock:
            if not self.members:
                self._refuse()
            self._hold()
            self._astray = self._next_sequence()  # until all of this is done
            with contextlib.suppress(RecordGone):
                self._reader.seek(sequence)
            done, nothing, kept = Ranges(offset), [(member, deque[Taken]()) for member in self.members], False
            none_back = deque[Taken]()
            try:
                with self._holding_segments():
                    if offset < self._places.first:
                        raise InvalidOffset(
                            f"{self._log.path}: offset {offset} is no longer in the log, which begins at "
                            f"{self._places.first}"
                        )
                    self._keep(done)
                    kept = True
                self._done, self._gaps, self._astray, self._back = done, False, None, none_back
            except BaseException:
                if kept:
                    self._keep(self._done, back=True)
                raise
            try:
                self._drop(nothing)
            except BaseException:
                self._drop(nothing)
                raise
            self._allow()
        self._ring()
        self._tell()

    @staticmethod
    def _drop(nothing: list[tuple[Member, deque[Taken]]]) -> None:
        for member, none in nothing:
            member.unacked = none

    def needs(self, end: int) -> bool:
        """Whether something below this offset may still be given back, though it is done. When it no longer may, that is told as what is
        reached is."""
        self._waited_for = True  # first: whoever ends a call looks at it last
        self._waited_for = any(offset < end for offset in tuple(self._under_way))
        return self._waited_for

    def settle(self, some: Iterable[Taken]) -> None:
        """The call that received these has come to its end."""
        with self._lock:
            for taken in some:
                self._has_ended(taken.offset)
        if self._waited_for and not self._under_way:
            self._waited_for = False
            self._on_reached()

    def _has_ended(self, offset: int) -> None:
        left = self._under_way[offset] - 1
        if left > 0:
            self._under_way[offset] = left
        else:
            self._under_way.pop(offset, None)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until there may be more to take; False when the time is over."""
        return bool(self._back) or self._astray is not None or self._reader.wait(timeout_s)

    def _ring(self) -> None:
        """Wake those who wait: there is something for them that was not just written."""
        page = self._log.page
        if page is not None and not self._log.closed:
            page.ring()

    # ---- receiving: what is taken is done ----

    def receive(self, decode: Decode[T] | None) -> T | Nothing:
        """The next object, which is thereby done; NOTHING at the end. What can be had from the taker need not come here."""
        got = self.receive_taken(decode)
        if got is None:
            return NOTHING
        try:
            if self._sync is not None:
                self._sync()
            self.settle([got[0]])
        except BaseException:
            self.unreceive([got[0]])
            raise
        return got[1]

    def receive_taken(self, decode: Decode[T] | None) -> tuple[Taken, T] | None:
        """The same with what `unreceive` takes, or `settle`, and not synced."""
        got = None
        try:
            with self._lock:
                self._hold()
                got = self._receive(decode)
                self._allow()
            self._tell()
            return got
        except BaseException:
            if got is not None:
                self.unreceive([got[0]])
            raise

    def receive_many(self, n: int, decode: Decode[T] | None) -> list[T]:
        """Up to `n` objects, which are thereby done; none at the end. Fewer before one that cannot be had."""
        taken: list[Taken] = []
        try:
            with self._lock:
                self._hold()
                out = self._receive_run(n, decode, taken)
                if out is None:
                    out = self._receive_each(n, decode, taken)
                self._allow()
            self._tell()
            if taken:
                if self._sync is not None:
                    self._sync()
                self.settle(taken)
            return out
        except BaseException:
            if taken:
                self.unreceive(taken)
            raise

    def _receive_run(self, n: int, decode: Decode[T] | None, taken: list[Taken]) -> list[T] | None:
        """As many as can be had in one go; None when that cannot be."""
        if self._astray is not None or self._gaps:
            return None
        before, low = self._records.sequence, self._done.low
        self._astray = before  # until all of this is done
        try:
            batch = self._records.read_batch(n)
            out: list[Any] = [message.payload for message in batch]
            if decode is not None:
                out = [decode(payload) for payload in out]
            if not out:
                self._nothing()
        except Exception:
            return None  # what comes before it is had one by one
        if out:
            taken.append(Taken(low, self._offset(), batch[0]))
            self._under_way[low] += 1
            self._done.low = taken[0].end
            self._keep(self._done)
        self._astray = None
        return out

    def _receive_each(self, n: int, decode: Decode[T] | None, taken: list[Taken]) -> list[T]:
        out: list[T] = []
        try:
            while len(out) < n:
                # Not in the condition: a signal's exception may come between that and the body.
                got = self._receive(decode)
                if got is None:
                    break
                taken.append(got[0])
                out.append(got[1])
        except Exception:
            if not out:
                raise
        return out

    def _receive(self, decode: Decode[T] | None) -> tuple[Taken, T] | None:
        """The next one, done; None at the end."""
        if self._astray is not None:
            self._return()
        before, taken = self._records.sequence, None
        try:
            taken = self._next()
            if taken is None:
                self._nothing()
                return None
            self._under_way[taken.offset] += 1
            done = self._done.copy()
            out = self._decoded(decode, taken)
            done.add(taken.offset, taken.end)
            gaps = bool(done.beyond) or done.low > taken.end
            self._keep(done)
            self._done, self._gaps = done, gaps
            return taken, out
        except BaseException as error:
            self._astray = before
            if taken is not None:
                self._has_ended(taken.offset)
            raise self._told(error) from error.__cause__

    def undo(self, since: int) -> None:
        """After a call was interrupted that may have taken something from the taker: give it back."""
        mine = self.taker.mine(since)
        if mine is not None:
            sequence, offset, end = mine
            self.unreceive([Taken(offset, end, Message(sequence, None, b""))])

    def unreceive(self, some: list[Taken]) -> None:
        """What was received is not done after all, and comes again: its segment is kept as long as a call may raise, but for the moment
        before one that takes it from the taker returns. If its place must survive a power cut that is on the disk on return."""
        if self.put_back(some):
            self.sync_back()

    def put_back(self, some: list[Taken]) -> bool:
        """The same without the disk; whether that is to follow, by `sync_back`."""
        try:
            if not self._put_back(some):
                return False
        finally:
            self.settle(some)
        self._ring()
        return self._sync is not None

    def sync_back(self) -> None:
        """What said that it was done may be on the disk already. Another exception is on its way, which is what the caller is to see: a sync
        that fails has poisoned the log, so the next call tells."""
        assert self._sync is not None
        with contextlib.suppress(PenstockError, OSError):
            self._sync()

    def _put_back(self, some: list[Taken]) -> bool:
        with self._lock:
            if not self.members:
                return False
            self._hold()
            done = self._done.copy()
            with self._holding_segments():
                first = self._places.first
                back = [taken for taken in some if taken.offset >= first]
                for taken in back:
                    done.remove(taken.offset, taken.end)
                self._astray = min([self._next_sequence(), *(taken.message.sequence for taken in back)])
                self._gaps = bool(done.beyond)
                try:
                    self._keep(done, back=True)
                except BaseException:  # a second signal's, while it syncs
                    self._keep(done, back=True)
                    self._done = done
                    raise
                self._done = done
        return True

    def _holding_segments(self) -> AbstractContextManager[object]:
        """Segments are removed under the log's lock: what is kept within this holds those that it needs."""
        return contextlib.nullcontext() if self._log.read_only else self._log.locked()

    # ---- taking: what is taken is done when it is acknowledged ----

    def take(self, member: Member, decode: Decode[T] | None) -> T | Nothing:
        """The next object, which is then this member's to acknowledge; NOTHING at the end."""
        got = None
        try:
            with self._lock:
                got = self._take(member, decode)
            return NOTHING if got is None else got[1]
        except BaseException:
            if got is not None:
                self._take_back(member, [got[0]])
            raise

    def take_many(self, member: Member, n: int, decode: Decode[T] | None) -> list[T]:
        """Up to `n` objects, which are then this member's; none at the end. Fewer before one that cannot be had."""
        taken: list[Taken] = []
        out: list[T] = []
        try:
            with self._lock:
                try:
                    while len(out) < n:
                        got = self._take(member, decode)  # as there
                        if got is None:
                            break
                        taken.append(got[0])
                        out.append(got[1])
                except Exception:
                    if not out:
                        raise
            return out
        except BaseException:
            if taken:
                self._take_back(member, taken)
            raise

    def _take(self, member: Member, decode: Decode[T] | None) -> tuple[Taken, T] | None:
        if member not in self.members:
            self._refuse()
        if self._astray is not None:
            self._return()
        before, given_back = self._records.sequence, bool(self._back)
        taken = None
        try:
            taken = self._back[0] if given_back else self._next()
            if taken is None:
                return None
            out = self._decoded(decode, taken)
            member.unacked.append(taken)
            if given_back:
                self._back.popleft()
            return taken, out
        except BaseException as error:
            if not given_back:
                self._astray = before
            elif taken is not None and (not self._back or self._back[0] is not taken):
                self._back.appendleft(taken)
            if taken is not None and member.unacked and member.unacked[-1] is taken:
                member.unacked.pop()
            raise self._told(error) from error.__cause__

    def give_back(self, member: Member, had: int) -> None:
        """Take back what a member has beyond its first `had`: it comes again, in order."""
        with self._lock:
            while len(member.unacked) > had:
                self._back.appendleft(member.unacked[-1])
                member.unacked.pop()

    def _take_back(self, member: Member, some: list[Taken]) -> None:
        """An interrupt came, and the caller will never see these: they are the next ones again."""
        with self._lock:
            if member in self.members:  # else it gave back all it had
                member.unacked = deque(taken for taken in member.unacked if taken not in some)
                self._give(some)
        self._ring()

    def _give(self, some: Iterable[Taken]) -> None:
        self._back = deque(sorted([*self._back, *some], key=lambda taken: taken.offset))

    # ---- the next one ----

    def _next(self, reader: LogReader | None = None) -> Taken | None:
        """The next record that is not done yet; of another reader, if one is given."""
        records, done = self._records if reader is None else reader.records, self._done
        while True:
            segment, position, losses = records.segment, records.position, len(self._reader.losses)
            try:
                message = records.read()
            except RecordGone:
                if not self._step_over(reader or self._reader, records.sequence):
                    raise
                continue
            if message is None:
                return None
            if reader is None:
                end = self._offset()
            else:
                end = self._places.shift(records.segment, reader.segment.header.begin) + records.position
            offset = end - self._overhead - len(message.payload)
            if reader is None and len(self._reader.losses) > losses:  # listed as lost: nobody will ever take that
                done.add(self._places.shift(segment) + position, offset)
            if (offset >= done.low and not done.beyond) or done.end_of(offset) is None:
                return Taken(offset, end, message)

    def _nothing(self) -> None:
        """It is at the end, unless it is closed."""
        if not self.members:
            self._refuse()

    def _refuse(self) -> NoReturn:
        self._log.check_open()
        raise LogClosed(f"{self._log.path}: this receiver was closed; make a new one with rx()")

    def _decoded(self, decode: Decode[T] | None, taken: Taken) -> T:
        if decode is None:
            return cast("T", taken.message.payload)
        try:
            return decode(taken.message.payload)
        except DecodeError as error:
            raise error.at(taken.offset, taken.end) from error.__cause__

    def _told(self, error: BaseException) -> BaseException:
        """An error as this log's readers know places: by offset."""
        if isinstance(error, RecordGone):
            first = self._places.first
            return RecordGone(
                f"{self._log.path}: what comes next was removed; seek({first}), or close this member and join again, to go on with the first"
            )
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
        self._tell()

    def peek(self, n: int, decode: Decode[T] | None) -> list[T]:
        """Up to `n` objects that are not taken yet, which stay so. Fewer before one that cannot be had."""
        with self._lock:
            if not self.members:
                self._refuse()
            self._hold()
            back = deque(self._back)
            ahead = LogReader(self._log)
            out: list[T] = []
            try:
                self._stand(ahead, self._next_sequence())
                while len(out) < n and (taken := back.popleft() if back else self._next(ahead)) is not None:
                    out.append(self._decoded(decode, taken))
            except Exception as error:
                if not out:
                    raise self._told(error) from error.__cause__
            finally:
                ahead.close()
            self._allow()
            return out

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
            self._give(member.unacked)
            member.unacked = deque()
            last = not self.members
            if last:
                self._close()
        self._ring()
        return last

    def close(self) -> None:
        """Nobody is in it any more: whoever still asks is told so."""
        with self._lock:
            self.members.clear()
            self._close()

    def _close(self) -> None:
        self.taker.hold()
        self._reader.close()

    def forked(self) -> None:
        """In the child: what is done is the parent's to say, and a thread that held the lock is not there any more."""
        self._lock = threading.Lock()
        self.close()


class CountedGroup(Group):
    """The same where offsets count records. `keep` is called, under the group's lock, whenever what is done is about to
    change."""

    def __init__(
        self,
        log: Log,
        places: Places,
        done: Ranges,
        keep: Callable[[Ranges], None],
        *,
        acks: bool,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        super().__init__(log, places, done, Told(keep), acks=acks, on_corrupt=on_corrupt)

    def _allow(self) -> None:
        """The taker counts bytes, so nothing is had from it."""

    def _offset(self) -> int:
        return self._records.sequence

    def _next(self, reader: LogReader | None = None) -> Taken | None:
        records = self._records if reader is None else reader.records
        while True:
            before, message = records.sequence, records.read()
            reached = records.sequence if message is None else message.sequence
            if reader is None and reached > before:  # it stepped over damage: nobody will ever take that
                self._done.add(before, reached)
            if message is None:
                return None
            if self._done.end_of(message.sequence) is None:
                return Taken(message.sequence, message.sequence + 1, message)


_all: weakref.WeakSet[Group] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for group in list(_all):
        group.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
