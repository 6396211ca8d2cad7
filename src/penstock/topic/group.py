"""`GroupMember`: one of those who share the partitions of a topic, in whatever process.

Which member has which partition is settled by `storage.claims`: a member that dies holds nothing, one that is slow or stopped
keeps what it has. What a partition's member has done is a `storage.group`, as for a channel's shared receivers: each message goes
to one member, and comes again to another until it was committed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from penstock.errors import LogClosed, PenstockError
from penstock.storage import files
from penstock.storage.claims import Claims
from penstock.storage.closable import Closable
from penstock.storage.damage import Loss
from penstock.storage.group import NOTHING, CountedGroup, Member
from penstock.storage.log import Log
from penstock.storage.merged import wait_for_any
from penstock.storage.places import Counted
from penstock.storage.ranges import Ranges
from penstock.storage.reader import LogReader, OnCorrupt
from penstock.topic.message import TopicMessage
from penstock.topic.partition import OpenPartition

_NAP_S: Final = 0.2  # how soon the death of another member is noticed


class _Held(NamedTuple):
    """A partition that this member has."""

    group: CountedGroup
    member: Member


class GroupMember(Closable):
    """A member of a consumer group, from `Topic.group`. One per thread; another one may close it."""

    def __init__(
        self,
        top: Path,
        name: str,
        count: Callable[[], int],
        at: Literal["start", "end"],
        on_corrupt: OnCorrupt,
        part: Callable[[int], OpenPartition],
    ) -> None:
        if at not in ("start", "end"):
            raise ValueError(f'at must be "start" or "end", not {at!r}')
        self.name = name
        self._path = top
        self._at = at
        self._on_corrupt = on_corrupt
        self._part = part
        self._held: dict[int, _Held] = {}
        self._gained: set[int] = set()  # claimed, and not joined yet
        self._losses: dict[int, list[Loss]] = {}
        self._taking: list[tuple[_Held, int]] = []  # by the call under way: from whom, and how many it had before
        self._next = 0  # whose turn it is
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # one may be closed while it polls; not held while it waits
        LogReader(part(0).log, on_corrupt)  # refuses what there is not
        part(0).log.cursors.load(name)
        self._count = count
        files.refuse_links(top / ".groups" / name, top)
        self._claims = Claims(top / ".groups" / name, count())
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    # ---- which partitions ----

    @property
    def partitions(self) -> list[int]:
        """Those that this member has now."""
        return sorted(self._held)

    def _settle(self) -> None:
        """Take partitions that are free, and give some back if this member has more than its share."""
        self._claims.count = self._count()  # partitions may have been added: every member must know of the same
        gained, lost = self._claims.settle(self._may_give)
        self._gained = (self._gained - lost) | gained
        for partition in lost:
            self._leave(partition)
        self._join_gained()

    def _may_give(self, partition: int) -> bool:
        return partition not in self._held or not self._held[partition].member.unacked

    def _join_gained(self) -> None:
        for partition in sorted(self._gained):
            self._join(partition)  # should it raise, the next call tries again
            self._gained.discard(partition)

    def _join(self, partition: int) -> None:
        log = self._part(partition).log
        place = log.cursors.load(self.name)
        if place is None:
            place = log.hold(self.name, log.first_sequence if self._at == "start" else log.next_sequence)
        done = Ranges(min(max(place, log.first_sequence), log.next_sequence), log.cursors.ranges(self.name))
        keep = _keeper(log, self.name)
        group = CountedGroup(log, Counted(log), done, keep, acks=True, on_corrupt=self._on_corrupt)
        self._held[partition] = _Held(group, group.join())

    def _leave(self, partition: int) -> None:
        held = self._held.pop(partition, None)
        if held is not None:
            self._losses[partition] = self._losses.get(partition, []) + held.group.reader.losses
            held.group.leave(held.member)

    @property
    def losses(self) -> dict[int, list[Loss]]:
        """By partition, what was stepped over."""
        found = dict(self._losses)
        for partition, held in list(self._held.items()):
            found[partition] = found.get(partition, []) + held.group.reader.losses
        return {p: losses for p, losses in sorted(found.items()) if losses}

    # ---- receiving ----

    def poll(self, timeout_s: float | None = 0) -> TopicMessage | None:
        """The next message of this member's partitions, which is then its to commit. With none there, 0 gives None at once,
        None waits for ever, and other times raise TimeoutError."""
        self._taking.clear()
        try:
            return self._poll(timeout_s)
        except BaseException:
            self._give_back()
            raise

    def _poll(self, timeout_s: float | None) -> TopicMessage | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._check_here()
            with self._lock:
                self._check_open()
                if self._claims.changed():
                    self._settle()
                elif self._gained:
                    self._join_gained()
                message = self._take()
                if message is not None or timeout_s == 0:
                    return message
                readers = [held.group.reader for held in self._held.values()]
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self._path}: nothing was published for {timeout_s} s")
            wait_for_any(readers, _NAP_S if left is None else min(left, _NAP_S))

    def poll_many(self, n: int, timeout_s: float | None = 0) -> list[TopicMessage]:
        """Up to `n` messages; waits as `poll` does for the first one. Fewer before one that cannot be had."""
        if n < 1:
            return []
        self._taking.clear()
        out: list[TopicMessage] = []
        try:
            try:
                message = self._poll(timeout_s)
                while message is not None:
                    out.append(message)
                    message = self._take_another() if len(out) < n else None
            except PenstockError:
                if not out:
                    raise
            return out
        except BaseException:
            self._give_back()
            raise

    def _take_another(self) -> TopicMessage | None:
        with self._lock:
            return self._take()

    def _take(self) -> TopicMessage | None:
        order = list(self._held)
        for i in range(len(order)):
            partition = order[(self._next + i) % len(order)]
            held = self._held[partition]
            group, member = held
            self._taking.append((held, len(member.unacked)))
            try:
                found = group.take(member, bytes)
            except PenstockError:
                self._next = (self._next + i + 1) % len(order)  # it keeps no other partition from its turn
                raise
            if found is not NOTHING:
                self._next = (self._next + i + 1) % len(order)
                message = member.unacked[-1].message
                return TopicMessage(partition, message.sequence, message.payload, message.timestamp_us)
            self._taking.pop()
        return None

    def _give_back(self) -> None:
        """What a call that raises took comes again: the caller never saw it."""
        while self._taking:
            held, had = self._taking[-1]
            held.group.give_back(held.member, had)
            self._taking.pop()

    def __iter__(self) -> Iterator[TopicMessage]:
        """The messages that are there now."""
        return iter(self.poll, None)

    # ---- committing ----

    @property
    def uncommitted(self) -> int:
        """How many messages this member was given and has not committed."""
        return sum(len(held.member.unacked) for held in list(self._held.values()))

    def commit(self) -> None:
        """Everything that this member was given is done: none of it comes again, to any member, also after a power cut."""
        self._check_here()
        with self._lock:
            self._check_open()
            for group, member in self._held.values():
                if member.unacked:
                    group.ack(member, len(member.unacked))

    # ---- leaving ----

    def _check_here(self) -> None:
        """Before the lock is taken: in a forked child a thread may hold it that is not there."""
        if self._pid != os.getpid():
            raise LogClosed(
                f"{self._path}: this member of {self.name} joined before a fork; open the topic in the child process"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"{self._path}: this member of {self.name} was closed; join again with group()")

    def close(self) -> None:
        """Leave the group. What was not committed goes to the others."""
        if self._pid != os.getpid():
            return  # what it had is the parent's
        with self._lock:
            if not self._closed:
                self._closed = True
                for partition in self.partitions:
                    self._leave(partition)
                self._claims.close()

    def __repr__(self) -> str:
        return f"GroupMember({str(self._path)!r}, name={self.name!r}, partitions={self.partitions})"


def _keeper(log: Log, name: str) -> Callable[[Ranges], None]:
    def keep(done: Ranges) -> None:
        log.cursors.store(name, done.low, done.beyond)
        log.cursors.sync()

    return keep
