"""A channel against a list and a few numbers: whatever is done in whatever order, both say the same.

The model is a list of what was sent, and of each receiver where it stands, what it has, and which are done beyond a gap.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock import Channel, InvalidAck, InvalidOffset, Receiver
from penstock.storage import files
from tests.channel.conftest import SLOW

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
sizes = st.integers(0, 40) | st.integers(0, 400)
names = st.sampled_from(["a", "b", "c"])


@dataclass
class Name:
    """A receiver's name in the model. Everything is a number of a message."""

    done: set[int] = field(default_factory=set)
    low: int = 0  # all below is done
    ack: bool = False
    shared: bool = False
    open: list[Mine] = field(default_factory=list)
    next: int = 0  # the next one that nobody has taken
    back: list[int] = field(default_factory=list)

    def settle(self) -> None:
        while self.low in self.done:
            self.done.discard(self.low)
            self.low += 1

    def coming(self, count: int) -> list[int]:
        """What comes, in order."""
        return self.back + [i for i in range(self.next, count) if i not in self.done and i >= self.low]

    def take(self, count: int) -> int | None:
        coming = self.coming(count)
        if not coming:
            return None
        if self.back:
            return self.back.pop(0)
        self.next = coming[0] + 1
        return coming[0]


@dataclass
class Mine:
    """One open receiver."""

    rx: Receiver[bytes]
    unacked: list[int] = field(default_factory=list)


class ChannelMachine(RuleBasedStateMachine):
    """Its rules are what a user may do."""

    compression: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp())
        self.path = self.top / "log"
        self.sent: list[bytes] = []
        self.at = [0]
        self.first = 0  # what comes before was certainly not removed
        self.names: dict[str, Name] = {}
        self.ch: Channel[bytes] | None = None
        self.boot_id, self.reboots = files.boot_id, 0
        self.segment_bytes = 1

    @property
    def channel(self) -> Channel[bytes]:
        assert self.ch is not None
        return self.ch

    @initialize(segment_bytes=st.sampled_from([1, 60, 300, 5000]))
    def start(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.open()

    def open(self) -> None:
        self.ch = Channel(self.path, segment_bytes=self.segment_bytes, compression=self.compression)
        assert self.ch.recovery.clean, self.ch.recovery

    def message(self, size: int) -> bytes:
        return (b"%d." % len(self.sent) * (size // 2 + 1))[:size]

    def note(self, message: bytes) -> None:
        self.sent.append(message)
        self.at.append(self.at[-1] + 8 + len(message))

    # ---- sending ----

    @rule(size=sizes)
    def send(self, size: int) -> None:
        message = self.message(size)
        self.channel.tx().send(message)
        self.note(message)

    @rule(parts=st.lists(sizes, max_size=10))
    def send_many(self, parts: list[int]) -> None:
        batch = [self.message(size) for size in parts]
        self.channel.tx().send_many(batch)
        for message in batch:
            self.note(message)

    # ---- receivers ----

    @rule(name=names, ack=st.booleans(), shared=st.booleans())
    def make(self, name: str, ack: bool, shared: bool) -> None:
        found = self.names.get(name)
        if found is not None and found.open and not (shared and found.shared and ack == found.ack):
            return
        rx = self.channel.rx(name, ack=ack, shared=shared)
        if found is None:
            begins = self.at.index(rx.offset)
            found = self.names[name] = Name(low=begins, next=begins)
        if not found.open:
            found.ack, found.shared, found.next, found.back = ack, shared, found.low, []
        found.open.append(Mine(rx))

    def some(self, data: st.DataObject, acks: bool | None = None) -> tuple[Name, Mine]:
        every = [(n, m) for n in self.names.values() for m in n.open if acks is None or n.ack == acks]
        return data.draw(st.sampled_from(every), label="receiver")

    def any_open(self, acks: bool | None = None) -> bool:
        return any(n.open for n in self.names.values() if acks is None or n.ack == acks)

    @precondition(lambda self: self.any_open())
    @rule(data=st.data(), n=st.integers(1, 12), many=st.booleans())
    def receive(self, data: st.DataObject, n: int, many: bool) -> None:
        name, mine = self.some(data)
        if many and name.coming(len(self.sent)):
            got = mine.rx.recv_many(n, timeout_s=10)
            assert got
        else:
            got = [obj for _ in range(n) if (obj := mine.rx.try_recv()) is not None]
            n = max(n, len(got))
        for message in got:
            i = name.take(len(self.sent))
            assert i is not None
            assert message == self.sent[i]
            if name.ack:
                mine.unacked.append(i)
            else:
                name.done.add(i)
        name.settle()
        if len(got) < n and not many:
            assert name.coming(len(self.sent)) == []

    @precondition(lambda self: self.any_open())
    @rule(data=st.data(), n=st.integers(0, 12))
    def peek(self, data: st.DataObject, n: int) -> None:
        name, mine = self.some(data)
        assert mine.rx.peek(n) == [self.sent[i] for i in name.coming(len(self.sent))[:n]]

    @precondition(lambda self: self.any_open(acks=True))
    @rule(data=st.data(), n=st.integers(0, 12))
    def ack(self, data: st.DataObject, n: int) -> None:
        name, mine = self.some(data, acks=True)
        if n > len(mine.unacked):
            with pytest.raises(InvalidAck):
                mine.rx.ack(n)
            n = len(mine.unacked)
        mine.rx.ack(n)
        name.done.update(mine.unacked[:n])
        del mine.unacked[:n]
        name.settle()

    @precondition(lambda self: self.any_open())
    @rule(data=st.data(), place=st.floats(0, 1), off=st.integers(0, 9))
    def seek(self, data: st.DataObject, place: float, off: int) -> None:
        name, mine = self.some(data)
        self.look()
        i = self.first + round(place * (len(self.sent) - self.first))
        try:
            mine.rx.seek(self.at[i])
        except InvalidOffset:
            # Removed since. Not if this receiver itself still holds it.
            assert i < name.low
            self.look()
            assert self.at[i] < self.at[self.first]
            return
        name.done, name.low, name.next, name.back = set(), i, i, []
        for other in name.open:
            other.unacked = []
        if self.at[i] + off not in self.at:
            with pytest.raises(InvalidOffset):
                mine.rx.seek(self.at[i] + off)

    @precondition(lambda self: self.any_open())
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name, mine = self.some(data)
        mine.rx.close()
        name.open.remove(mine)
        name.back = sorted(name.back + mine.unacked)

    @precondition(lambda self: any(not n.open for n in self.names.values()))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(k for k, n in self.names.items() if not n.open)))
        self.channel.forget(name)
        del self.names[name]

    # ---- opening again ----

    def closed(self) -> None:
        self.channel.close()
        for name in self.names.values():
            name.open = []

    @rule(segment_bytes=st.sampled_from([1, 60, 300, 5000]))
    def reopen(self, segment_bytes: int) -> None:
        self.closed()
        with Channel(self.path, read_only=True) as ch:
            self.agrees(ch)
        self.segment_bytes = segment_bytes
        self.open()

    @rule()
    def reopen_after_a_reboot(self) -> None:
        self.closed()
        self.reboots += 1
        files.boot_id = lambda n=self.reboots: n.to_bytes(16, "big")  # type: ignore[assignment, misc]
        with Channel(self.path, read_only=True) as ch:
            self.agrees(ch)
        self.open()

    # ---- always ----

    def look(self) -> None:
        """Note what was removed: only what every name has passed, and never while there is none."""
        first = self.at.index(self.channel.stats().first_offset)
        assert first >= self.first
        if first > self.first:
            assert all(name.low >= first for name in self.names.values())
        self.first = first

    def agrees(self, ch: Channel[bytes]) -> None:
        stats = ch.stats()
        assert stats.write_offset == self.at[-1]
        assert {k: r.offset for k, r in stats.receivers.items()} == {k: self.at[n.low] for k, n in self.names.items()}

    @invariant()
    def everything_agrees(self) -> None:
        if self.ch is None:
            return
        self.look()
        self.agrees(self.channel)
        for name in self.names.values():
            for mine in name.open:
                assert mine.rx.offset == self.at[name.low]
                assert mine.rx.unacked == len(mine.unacked)

    def teardown(self) -> None:
        try:
            if self.ch is not None:
                self.ch.close()
        finally:
            files.boot_id = self.boot_id
            shutil.rmtree(self.top)


@pytest.mark.parametrize("compression", [None, "snappy", "gzip", "zstd"])
def test_a_channel_behaves_like_a_list_and_a_few_numbers(compression: Any) -> None:
    machine = type("Machine", (ChannelMachine,), {"compression": compression})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or (3 if SLOW else 12),
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=not EXAMPLES,
            suppress_health_check=list(HealthCheck),
        ),
    )
