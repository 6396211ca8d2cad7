"""A topic against lists and a few numbers: whatever is done in whatever order, both say the same.

The model is, for each partition, a list of what is there and of what waits to be written; for each name, places.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
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

from penstock import GroupMember, InvalidPayload, Publication, Publications, RecordGone, Topic, Topics, TopicTailer
from penstock.formats.topic import partition_of
from penstock.storage import files
from penstock.topic import topics
from tests.support import until
from tests.topic.conftest import FOREVER_S, SLOW, on_disk, segments

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
SIZES = st.integers(0, 12) | st.integers(0, 70)
KEYS = st.sampled_from([b"", b"a", b"key", b"customer-7"])
NAMES = st.sampled_from(["a", "b"])
SEGMENTS = st.sampled_from([80, 200, 1000])


class TopicMachine(RuleBasedStateMachine):
    """Its rules are what a user may do."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.logs: Topics | None = None
        self.there: list[list[bytes]] = []
        self.waiting: list[list[bytes]] = []
        self.made: list[tuple[int, int, Publication]] = []  # those that wait: partition, offset to be
        self.lists: list[tuple[int, int, int, Publications]] = []
        self.turns = 0
        self.count = 0
        self.segment_bytes = 80
        self.committed: dict[str, dict[int, int]] = {}
        self.tailers: dict[str, tuple[TopicTailer, dict[int, int]]] = {}
        self.member: tuple[GroupMember, dict[int, int]] | None = None
        self.boot_id, self.reboots = files.boot_id, 0

    @property
    def t(self) -> Topic:
        assert self.logs is not None
        return self.logs.topic("t")

    @initialize(partitions=st.integers(1, 3), segment_bytes=SEGMENTS)
    def start(self, partitions: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.there, self.waiting = ([[] for _ in range(partitions)] for _ in range(2))
        self.open(partitions)

    def open(self, partitions: int | None = None) -> None:
        self.logs = Topics(self.top, linger_s=FOREVER_S, batch=10**6, segment_bytes=self.segment_bytes)
        t = self.logs.topic("t", partitions)
        assert all(t.recovery(p).clean for p in range(t.partitions))
        self.turns = 0

    def message(self, size: int) -> bytes:
        self.count += 1
        return (b"%d." % self.count * size)[:size]

    # ---- publishing ----

    def goes_to(self, data: st.DataObject) -> tuple[dict[str, Any], int]:
        """How a message is addressed, and where it goes."""
        how = data.draw(st.sampled_from(["turn", "key", "partition"]))
        if how == "key":
            key = data.draw(KEYS)
            return {"key": key}, partition_of(key, len(self.there))
        if how == "partition":
            p = data.draw(st.integers(0, len(self.there) - 1))
            return {"partition": p}, p
        self.turns += 1
        return {}, (self.turns - 1) % len(self.there)

    @rule(data=st.data(), size=SIZES)
    def publish(self, data: st.DataObject, size: int) -> None:
        to, p = self.goes_to(data)
        message = self.message(size)
        made = self.t.publish(message, **to)
        assert made.partition == p
        self.made.append((p, len(self.there[p]) + len(self.waiting[p]), made))
        self.put(p, [message])

    @rule(data=st.data(), sizes=st.lists(SIZES, max_size=15), arrow=st.booleans())
    def publish_many(self, data: st.DataObject, sizes: list[int], arrow: bool) -> None:
        to, p = self.goes_to(data)
        some = [self.message(size) for size in sizes]
        made = self.t.publish_many(pa.array(some, pa.binary()) if arrow else some, **to)
        assert made.partition == p
        self.lists.append((p, len(self.there[p]) + len(self.waiting[p]), len(some), made))
        piece: list[bytes] = []
        for message in some:
            if self.size([*piece, message]) > self.segment_bytes:
                self.put(p, piece)
                piece = []
            piece.append(message)
        if piece:
            self.put(p, piece)

    @staticmethod
    def size(some: list[bytes]) -> int:
        return sum(4 + len(message) for message in some)

    def put(self, p: int, some: list[bytes]) -> None:
        """Some messages that are written together: what waits and has no room for them is written before."""
        if self.size(self.waiting[p] + some) > self.segment_bytes:
            self.there[p] += self.waiting[p]
            self.waiting[p] = []
        self.waiting[p] += some

    @rule(data=st.data(), sizes=st.lists(SIZES, max_size=5))
    def publish_too_much(self, data: st.DataObject, sizes: list[int]) -> None:
        to, _ = self.goes_to(data)
        with pytest.raises(InvalidPayload):
            self.t.publish_many([*(self.message(s) for s in sizes), b"x" * (self.segment_bytes - 3)], **to)

    @rule()
    def flush(self) -> None:
        self.t.flush()
        self.written()

    def written(self) -> None:
        for p, waiting in enumerate(self.waiting):
            self.there[p] += waiting
            waiting.clear()
        for p, offset, made in self.made:
            assert (made.partition, made.offset, made.wait(0)) == (p, offset, offset)
        for p, offset, size, many in self.lists:
            assert many.wait(0) == ([range(offset, offset + size)] if size else [])
            assert many.partition == p
        self.made, self.lists = [], []

    # ---- reading ----

    @rule(data=st.data(), most=st.integers(0, 30))
    def read(self, data: st.DataObject, most: int) -> None:
        p = data.draw(st.integers(0, len(self.there) - 1))
        offset = data.draw(st.integers(0, len(self.there[p]) + 1))
        if offset > len(self.there[p]):
            with pytest.raises(RecordGone):
                self.t.read(p, offset, most)
            return
        found = self.t.read(p, offset, most)
        assert [m.payload for m in found] == self.there[p][offset : offset + most]
        assert [(m.partition, m.offset) for m in found] == [(p, offset + i) for i in range(len(found))]
        assert all(m.timestamp_us for m in found)

    @rule(name=NAMES, at=st.sampled_from(["start", "end"]))
    def tail(self, name: str, at: Any) -> None:
        if name in self.tailers:
            self.tailers.pop(name)[0].close()
        tailer = self.t.tailer(name, at=at)
        places = self.committed.setdefault(name, {})
        for p, there in enumerate(self.there):
            places.setdefault(p, 0 if at == "start" else len(there))
        self.tailers[name] = tailer, dict(places)

    @precondition(lambda self: self.tailers)
    @rule(data=st.data(), n=st.integers(1, 20), batch=st.booleans())
    def tailer_reads(self, data: st.DataObject, n: int, batch: bool) -> None:
        tailer, places = self.tailers[data.draw(st.sampled_from(sorted(self.tailers)))]
        for _ in range(1 if batch else n):
            some = tailer.read_batch(n) if batch else [m for m in [tailer.read()] if m]
            if not some:
                assert all(place == len(self.there[p]) for p, place in places.items())
            for m in some:
                assert (m.offset, m.payload) == (places[m.partition], self.there[m.partition][m.offset])
                places[m.partition] += 1

    @precondition(lambda self: self.tailers)
    @rule(data=st.data())
    def tailer_seeks(self, data: st.DataObject) -> None:
        tailer, places = self.tailers[data.draw(st.sampled_from(sorted(self.tailers)))]
        p = data.draw(st.sampled_from(sorted(places)))
        places[p] = data.draw(st.integers(0, len(self.there[p])))
        tailer.seek(p, places[p])

    @precondition(lambda self: self.tailers)
    @rule(data=st.data())
    def tailer_commits(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tailers)))
        tailer, places = self.tailers[name]
        tailer.commit()
        self.committed[name].update(places)

    @rule(n=st.integers(1, 30), commit=st.booleans(), leave=st.booleans())
    def group(self, n: int, commit: bool, leave: bool) -> None:
        kept = self.committed.setdefault("g", {})
        if self.member is None:
            for p in range(len(self.there)):
                kept.setdefault(p, 0)
            self.member = self.t.group("g"), dict(kept)
        member, places = self.member
        got = member.poll_many(n)
        if not got:
            assert all(place == len(self.there[p]) for p, place in places.items())
        for m in got:
            assert (m.offset, m.payload) == (places[m.partition], self.there[m.partition][m.offset])
            places[m.partition] += 1
        assert member.uncommitted == sum(places[p] - kept[p] for p in places)
        if commit:
            member.commit()
            kept.update(places)
        if leave:
            member.close()
            self.member = None

    # ---- the topic itself ----

    @precondition(lambda self: len(self.there) < 6)
    @rule(more=st.integers(1, 2))
    def add_partitions(self, more: int) -> None:
        self.t.add_partitions(len(self.there) + more)
        for _ in range(more):
            self.there.append([])
            self.waiting.append([])

    def closed(self) -> None:
        assert self.logs is not None
        self.logs.close()
        self.written()
        self.tailers, self.member = {}, None

    @rule(segment_bytes=SEGMENTS)
    def reopen(self, segment_bytes: int) -> None:
        self.closed()
        with Topics(self.top, read_only=True) as logs:
            self.agrees(logs.topic("t"))
        self.segment_bytes = segment_bytes
        self.open()

    @rule()
    def reopen_after_a_reboot(self) -> None:
        self.closed()
        self.reboots += 1
        files.boot_id = lambda n=self.reboots: n.to_bytes(16, "big")  # type: ignore[assignment, misc]
        with Topics(self.top, read_only=True) as logs:
            self.agrees(logs.topic("t"))
        self.open()

    # ---- always ----

    def agrees(self, t: Topic) -> None:
        assert t.ends() == {p: len(there) for p, there in enumerate(self.there)}
        for name, places in self.committed.items():
            assert t.committed(name) == places
        for p, stats in t.stats().items():
            assert stats.first_offset == 0
            assert stats.end_offset == stats.durable_offset == len(self.there[p])
            if not t._topics.read_only:
                assert stats.buffered_messages == len(self.waiting[p])
            assert stats.lag == {n: len(self.there[p]) - at[p] for n, at in self.committed.items() if p in at}
            assert stats.segments == len(segments(t.path, p)) or not self.there[p]

    @invariant()
    def everything_agrees(self) -> None:
        if self.logs is None:
            return
        # A batch can be read a moment before it no longer counts as waiting.
        due = {p: (len(there), len(self.waiting[p])) for p, there in enumerate(self.there)}

        def written() -> bool:
            return due == {p: (s.end_offset, s.buffered_messages) for p, s in self.t.stats().items()}

        until(written, f"full batches are written: {due}", 10)
        self.agrees(self.t)
        for p, there in enumerate(self.there):
            assert on_disk(self.t.path, p) == there
        for tailer, places in self.tailers.values():
            assert tailer.positions == places

    def teardown(self) -> None:
        try:
            if self.logs is not None:
                self.logs.close()
        finally:
            files.boot_id = self.boot_id
            shutil.rmtree(self.top)


def test_a_topic_behaves_like_lists_and_a_few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "INDEX_INTERVAL", 3)
    run_state_machine_as_test(
        TopicMachine,
        settings=settings(
            max_examples=EXAMPLES or (4 if SLOW else 15),
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=not EXAMPLES,
            suppress_health_check=list(HealthCheck),
        ),
    )
