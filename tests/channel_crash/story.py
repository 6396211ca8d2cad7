"""A random story of a channel, and what must be left of it after a crash at any moment.

It is told with the channel's own methods, and notes what they are about to do and what they have acknowledged by returning.
A kill leaves all of that. So does a power cut if the channel is crash consistent; if not, an exact prefix of what was sent.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Channel, Receiver, Sender
from tests.channel_crash.wreck import SEGMENT_BYTES, drain, messages, offsets, open_channel, strays, work
from tests.queue.crash import payload

SIZES = [0, 0, 0, 1, 5, 24, 56, 56, 56, 120, 130]


@dataclass
class Reader:
    """A name, whether it acknowledges, and which messages are done."""

    ack: bool
    done: set[int] = field(default_factory=set)
    doing: set[int] = field(default_factory=set)  # under way: they may be done
    making: bool = True  # under way: the name may be there
    forgetting: bool = False  # under way: it may be gone
    taken: dict[int, list[int]] = field(default_factory=dict)  # by receiver: what it has and did not acknowledge
    receivers: dict[int, Receiver[bytes]] = field(default_factory=dict)


class Story:
    """What was done, and what of it was acknowledged."""

    def __init__(self, path: Path, seed: int, **options: Any) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.options = {"segment_bytes": SEGMENT_BYTES, **options}
        self.sent: list[bytes] = []
        self.sending: list[
            bytes
        ] = []  # under way: they may be there, all or none; and before them what has failed and is there
        self.ends = {0}  # where it may end: no batch is cut in two
        self.readers: dict[str, Reader] = {}
        self._ids: Iterator[int] = iter(range(1 << 30))
        self.retired = 0
        self.gaps = 0
        self._tx: Sender[bytes] | None = None
        self._ch: Channel[bytes] | None = None

    # ---- telling it ----

    @property
    def ch(self) -> Channel[bytes]:
        assert self._ch is not None
        return self._ch

    def open(self) -> None:
        self._ch = Channel(self.path, **self.options)
        self._tx = self._ch.tx()
        for name, reader in self.readers.items():
            self._join(name, reader)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.receivers, reader.taken = {}, {}
        self.ch.close()

    def told(self) -> Story:
        """What was acknowledged and what is under way, just now: plain data, by which what is left can be judged."""
        story = copy.copy(self)
        story._ch = story._tx = None
        story._ids = iter(())
        story.readers = {
            name: Reader(r.ack, set(r.done), set(r.doing), r.making, r.forgetting) for name, r in self.readers.items()
        }
        story.ends = set(self.ends)
        return story

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        acts: list[tuple[Callable[[], None], int]] = [
            (self._send, 10),
            (self._send_many, 4),
            (self._receive, 14),
            (self._acknowledge, 8),
            (self._new_reader, 1),
            (self._forget, 1),
            (self._leave, 1),
            (self._work, 4),
            (self._reopen, 1),
        ]
        act = self.rng.choices([a for a, _ in acts], [w for _, w in acts])[0]
        act()

    def send(self, size: int) -> None:
        assert self._tx is not None
        failed = self._failed()
        new = payload(len(self.sent) + len(failed), size)
        self.sending = [*failed, new]
        self._tx.send(new)
        self._is_sent()

    def send_many(self, sizes: list[int]) -> None:
        assert self._tx is not None
        failed = self._failed()
        new = [payload(len(self.sent) + len(failed) + i, size) for i, size in enumerate(sizes)]
        self.sending = [*failed, *new]
        self._tx.send_many(new)
        self._is_sent()

    def _failed(self) -> list[bytes]:
        """Of what was sent and not acknowledged, what is there; the next that is acknowledged puts it on the disk, too."""
        if not self.sending:
            return []
        ends = offsets([*self.sent, *self.sending])
        there = ends.index(self.ch.stats().write_offset)
        assert there in {*self.ends, len(ends) - 1}, "a batch is there whole or not at all"
        self.ends.add(there)
        return self.sending[: there - len(self.sent)]

    def look(self) -> None:
        """A receiver of its own sees all that was acknowledged, and all or nothing of what was not."""
        got = messages(self.ch)
        first = offsets(self.sent).index(self.ch.stats().first_offset)
        assert got in (self.sent[first:], [*self.sent, *self.sending][first:])

    def _send(self) -> None:
        self.send(self.rng.choice(SIZES))

    def _send_many(self) -> None:
        self.send_many([self.rng.choice(SIZES) for _ in range(self.rng.randrange(1, 6))])

    def _is_sent(self) -> None:
        self.sent = [*self.sent, *self.sending]
        self.sending = []
        self.ends.add(len(self.sent))

    def _some(self, *, ack: bool | None = None) -> str | None:
        found = [name for name, r in self.readers.items() if r.receivers and ack in (None, r.ack)]
        return self.rng.choice(found) if found else None

    def receive(self, name: str, many: int = 1, of: int | None = None) -> None:
        """One of those who share a name receives."""
        reader = self.readers[name]
        me = list(reader.receivers)[self.rng.randrange(len(reader.receivers)) if of is None else of]
        taken = {i for some in reader.taken.values() for i in some}
        left = [i for i in range(len(self.sent)) if i not in reader.done and i not in taken]
        if not reader.ack:
            reader.doing = set(left[:many])
            got = reader.receivers[me].recv_many(many, 0.0) if left else drain(reader.receivers[me])
            assert got == [self.sent[i] for i in left[: len(got)]]
            reader.done |= set(left[: len(got)])
            reader.doing = set()
        else:
            found = reader.receivers[me].try_recv()
            assert found == (self.sent[left[0]] if left else None)
            if left:
                reader.taken[me].append(left[0])

    def receive_all(self, name: str) -> None:
        """And acknowledge all."""
        reader = self.readers[name]
        for _ in self.sent:
            self.receive(name)
        for of, taken in enumerate(reader.taken.values()):
            if reader.ack:
                self.acknowledge(name, len(taken), of=of)

    def acknowledge(self, name: str, n: int, of: int | None = None) -> None:
        """One of those who share a name acknowledges its first `n`."""
        reader = self.readers[name]
        me = list(reader.receivers)[self.rng.randrange(len(reader.receivers)) if of is None else of]
        n = min(n, len(reader.taken[me]))
        reader.doing = set(reader.taken[me][:n])
        reader.receivers[me].ack(n)
        reader.done |= reader.doing
        reader.doing = set()
        del reader.taken[me][:n]
        self.gaps += reader.done != set(range(len(reader.done)))

    def new_reader(self, name: str, *, ack: bool) -> None:
        first = offsets(self.sent).index(self.ch.stats().first_offset)
        reader = Reader(ack)
        reader.done = set(range(first))  # what is gone already it does not get
        self.readers[name] = reader
        self._join(name, reader)
        reader.making = False

    def forget(self, name: str) -> None:
        reader = self.readers[name]
        reader.forgetting = True
        for receiver in reader.receivers.values():
            receiver.close()
        self.ch.forget(name)
        del self.readers[name]

    def _receive(self) -> None:
        if name := self._some():
            self.receive(name, self.rng.choice([1, 1, 1, 3]))

    def _acknowledge(self) -> None:
        if name := self._some(ack=True):
            self.acknowledge(name, self.rng.randrange(4))

    def _new_reader(self) -> None:
        free = [n for n in ("ada", "bob", "eve") if n not in self.readers]
        if free:
            self.new_reader(self.rng.choice(free), ack=self.rng.random() < 0.6)

    def _forget(self) -> None:
        if len(self.readers) > 1:
            self.forget(self.rng.choice(list(self.readers)))

    def _join(self, name: str, reader: Reader) -> None:
        for _ in range(2 if reader.ack else 1):
            me = next(self._ids)
            reader.receivers[me] = self.ch.rx(name, ack=reader.ack, shared=reader.ack)
            reader.taken[me] = []

    def _leave(self) -> None:
        if name := self._some(ack=True):
            self.leave(name, self.rng.randrange(len(self.readers[name].receivers)))

    def leave(self, name: str, of: int) -> None:
        """One of those who share a name closes, and another one comes: what it had goes back to all."""
        reader = self.readers[name]
        me = list(reader.receivers)[of]
        reader.receivers.pop(me).close()
        del reader.taken[me]
        me = next(self._ids)
        reader.taken[me] = []
        reader.receivers[me] = self.ch.rx(name, ack=True, shared=True)

    def _work(self) -> None:
        work(self.ch)
        self.retired = max(self.retired, self.ch.stats().first_offset)

    def _reopen(self) -> None:
        self.close()
        self.open()

    # ---- judging what is left ----

    def judge(self, path: Path, *, strict: bool, expect_how: str | None = None) -> None:
        """Open what a crash left; `strict`: everything acknowledged is there, else an exact prefix is."""
        everything = [*self.sent, *self.sending]
        with open_channel(path, **self.options) as ch:
            assert ch.recovery.damage == []
            assert expect_how in (None, ch.recovery.how)
            first = offsets(everything).index(ch.stats().first_offset)
            got = messages(ch)
            end = first + len(got)
            assert got == everything[first:end]
            assert ch.stats().write_offset == offsets(everything)[end]
            if strict:
                assert end >= len(self.sent)
                assert end in self.ends or end == len(everything)
            else:
                assert end in self.ends or end == len(everything)
            receivers = self._judge_readers(ch, everything, end, strict)
            after = [payload(i, 11 * i) for i in range(4)]
            for p in after:  # what comes now comes to everybody: nothing is left beyond the end that could hide it
                ch.tx().send(p)
            for rx in receivers:
                assert drain(rx) == after
            work(ch)
            left = messages(ch)
            assert left == [*got, *after][-len(left) :]
        assert strays(path) == []
        with open_channel(path, **self.options) as ch:
            assert ch.recovery.clean
            assert ch.recovery.how == "clean"
            assert messages(ch) == left

    def _judge_readers(
        self, ch: Channel[bytes], everything: list[bytes], end: int, strict: bool
    ) -> list[Receiver[bytes]]:
        known = ch.stats().receivers
        assert set(known) <= set(self.readers) or not strict
        opened = []
        for name, reader in self.readers.items():
            if name not in known:
                assert not strict or reader.making or reader.forgetting, f"the receiver {name} is gone"
                continue
            rx = ch.rx(name, ack=True)
            again = set() if strict else reader.done  # may come again
            may = again | reader.doing
            must_not = reader.done - again
            came = drain(rx)
            assert _matches(came, everything[:end], may, must_not), (
                f"{name} should have all but {sorted(must_not)}, perhaps not {sorted(may)}, of {everything[:end]}; "
                f"it has {came}"
            )
            opened.append(rx)
        return opened


def _matches(came: list[bytes], everything: list[bytes], may: set[int], must_not: set[int]) -> bool:
    """Whether `came` is everything in order, without those of `must_not` and perhaps without some of `may`."""
    at = {0}  # how many of `came` may be explained so far
    for i, message in enumerate(everything):
        if i in must_not:
            continue
        here = {n + 1 for n in at if n < len(came) and came[n] == message}
        at = here | at if i in may else here
    return len(came) in at


@contextmanager
def told(story: Story) -> Iterator[Story]:
    """Opened; and closed at the end, however it ends."""
    story.open()
    try:
        yield story
    finally:
        story.close()
