"""A queue against a list: whatever is done to both, in whatever order, they agree.

PENSTOCK_EXAMPLES=1000 looks further than the suite does, and differently every time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock import Flush, Queue, RecordGone, Retention, Roll, Tailer
from penstock.kernel import NAME
from penstock.storage import files, retention

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
sizes = st.one_of(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4084))
names = st.sampled_from(["a", "b"])
places = st.floats(0, 1)


class QueueMachine(RuleBasedStateMachine):
    """`model[i]` is the payload of sequence i; those before `first` were retired."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.path = self.top / "log-0"
        self.boot_id = files.boot_id
        self.reboots = 0
        self.model: list[bytes] = []
        self.first = 0
        self.durable = 0
        self.committed: dict[str, int] = {}
        self.tailers: list[list[Any]] = []  # [Tailer, position]
        self.q: Queue | None = None

    @initialize(
        interval=st.sampled_from([1, 3, 1024]),
        roll=st.sampled_from([Roll(), Roll.count(1), Roll.count(6), Roll.size(4400), Roll.size(6000)]),
        flush=st.sampled_from([Flush.none(), Flush.each(), Flush.batch(bytes=500, interval_s=0.001)]),
    )
    def create(self, interval: int, roll: Roll, flush: Flush) -> None:
        self.options: dict[str, Any] = {"roll": roll, "flush": flush}
        self.q = Queue(self.path, file_size=8192, index_interval=interval, **self.options)

    @property
    def queue(self) -> Queue:
        assert self.q is not None
        return self.q

    def payload(self, size: int, i: int = 0) -> bytes:
        return (b"%d." % (len(self.model) + i) * (size // 2 + 1))[:size]

    def at(self, place: float) -> int:
        return self.first + round(place * (len(self.model) - self.first))

    def after_append(self) -> None:
        if self.options["flush"].kind == "each":
            self.durable = len(self.model)

    # ---- appending ----

    @rule(size=sizes)
    def append(self, size: int) -> None:
        payload = self.payload(size)
        assert self.queue.append(payload) == len(self.model)
        self.model.append(payload)
        self.after_append()

    @rule(parts=st.lists(sizes, max_size=12), arrow=st.booleans())
    def append_batch(self, parts: list[int], arrow: bool) -> None:
        batch = [self.payload(size, i) for i, size in enumerate(parts)]
        given: Any = pa.array(batch, pa.binary()) if arrow else batch
        assert self.queue.append_batch(given) == range(len(self.model), len(self.model) + len(batch))
        self.model += batch
        self.after_append()

    @rule()
    def roll(self) -> None:
        assert self.queue._log is not None
        self.queue._log.roll_now()

    @rule()
    def sync(self) -> None:
        assert self.queue.sync() == len(self.model)
        self.durable = len(self.model)

    # ---- opening again ----

    def reopened(self) -> None:
        self.q = Queue(self.path, **self.options)
        assert self.q.recovery.clean, self.q.recovery
        self.durable = len(self.model)
        self.tailers = []

    @rule(verify=st.booleans())
    def reopen(self, verify: bool) -> None:
        self.queue.close()
        with Queue(self.path, read_only=True, verify_on_startup=verify) as q:
            self.agrees(q)
        self.reopened()

    @rule()
    def reopen_after_a_reboot(self) -> None:
        self.queue.close()
        self.reboots += 1
        files.boot_id = lambda n=self.reboots: n.to_bytes(16, "big")  # type: ignore[assignment, misc]
        with Queue(self.path, read_only=True) as q:
            self.agrees(q)
        self.reopened()

    @rule()
    def go_on_with_a_copy_made_while_open(self) -> None:
        """What a power cut right after a sync leaves: a copy's control page is not believed, as after a reboot."""
        self.queue.sync()
        copy = self.top / f"log-{self.path.name[4:]}x"
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("*.tmp", "*.next"))
        self.queue.close()
        shutil.rmtree(self.path)
        self.path = copy
        self.q = Queue(self.path, **self.options)
        assert not self.q.recovery.torn
        assert not self.q.recovery.damage
        self.durable = len(self.model)
        self.tailers = []

    # ---- reading ----

    @rule(place=places, skip=st.booleans())
    def open_tailer(self, place: float, skip: bool) -> None:
        t = self.queue.tailer(at=self.at(place), on_corrupt="skip" if skip else "raise")
        self.tailers = [*self.tailers[-3:], [t, self.at(place)]]

    @rule(name=names, place=places)
    def open_named_tailer(self, name: str, place: float) -> None:
        t = self.queue.tailer(name, at=self.at(place))
        wanted = max(self.committed.setdefault(name, self.at(place)), self.first)
        self.tailers = [*self.tailers[-3:], [t, wanted]]

    @precondition(lambda self: self.tailers)
    @rule(data=st.data(), way=st.sampled_from(["read", "batch", "arrow", "view", "iterate"]), n=st.integers(0, 20))
    def read(self, data: st.DataObject, way: str, n: int) -> None:
        pair = data.draw(st.sampled_from(self.tailers), label="tailer")
        t, position = pair
        got, gone = self.take(t, way, n)
        if gone:
            assert position < self.first
            assert got == self.model[position : position + len(got)]
            t.seek(self.first)
            pair[1] = self.first
            return
        lost = sum(loss.last + 1 - loss.first for loss in t.losses if loss.first >= position)
        wanted = self.model[position:]
        if lost:
            (loss,) = [loss for loss in t.losses if loss.first >= position]
            assert loss.last < self.first
            wanted = self.model[position : loss.first] + self.model[loss.last + 1 :]
        assert got == wanted[:n]
        pair[1] = position + len(got) + lost

    def take(self, t: Tailer, way: str, n: int) -> tuple[list[bytes], bool]:
        got: list[bytes] = []
        try:
            if way == "batch":
                got += [m.payload for m in t.read_batch(n)]
            elif way == "arrow":
                got += t.read_arrow(n).column("payload").to_pylist()
            elif way == "iterate" and n:
                for m in t:
                    got.append(m.payload)
                    if len(got) == n:
                        break
            else:
                for _ in range(n):
                    item = t.read_view() if way == "view" else t.read()
                    if item is None:
                        break
                    got.append(bytes(item) if isinstance(item, memoryview) else item.payload)
        except RecordGone:
            return got, True
        return got, False

    @precondition(lambda self: self.tailers)
    @rule(data=st.data(), place=places)
    def seek(self, data: st.DataObject, place: float) -> None:
        pair = data.draw(st.sampled_from(self.tailers), label="tailer")
        pair[0].seek(self.at(place))
        pair[1] = self.at(place)

    @precondition(lambda self: any(t.name for t, _ in self.tailers))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        t, position = data.draw(st.sampled_from([p for p in self.tailers if p[0].name]), label="tailer")
        t.commit()
        self.committed[t.name] = position

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.committed)))
        self.queue.forget(name)
        del self.committed[name]
        self.tailers = [p for p in self.tailers if p[0].name != name]

    @rule(place=places, n=st.integers(0, 50))
    def read_backward(self, place: float, n: int) -> None:
        t = self.queue.tailer(at=self.at(place), direction="backward")
        last = min(self.at(place), len(self.model) - 1)
        wanted = self.model[self.first : last + 1][::-1]
        assert [m.payload for m in t.read_batch(n)] == wanted[:n]

    # ---- retention ----

    @rule(max_bytes=st.integers(1, 40_000), ignore=st.booleans())
    def retire(self, max_bytes: int, ignore: bool) -> None:
        log = self.queue._log
        assert log is not None
        log.seal_finished()
        gone = retention.apply(log, Retention(max_bytes=max_bytes, ignore_cursors=ignore))
        if not gone:
            return
        assert gone[0].base == self.first
        self.first = gone[-1].next
        assert self.first <= log.active().base
        if not ignore:
            assert all(position >= self.first for position in self.committed.values())

    # ---- always ----

    def agrees(self, q: Queue) -> None:
        assert (q.first_sequence, q.next_sequence) == (self.first, len(self.model))
        messages = list(q.tailer())
        assert [m.payload for m in messages] == self.model[self.first :]
        assert [m.sequence for m in messages] == list(range(self.first, len(self.model)))
        times = [m.timestamp_us for m in messages]
        assert None not in times
        assert times == sorted(times)
        assert q.cursors() == self.committed

    @invariant()
    def everything_agrees(self) -> None:
        if self.q is not None:
            self.agrees(self.q)
            assert self.durable <= self.q.durable_sequence <= len(self.model)
            assert [t.position for t, _ in self.tailers] == [position for _, position in self.tailers]

    def teardown(self) -> None:
        try:
            if self.q is not None:
                self.q.close()
        finally:
            files.boot_id = self.boot_id
            shutil.rmtree(self.top)


def test_a_queue_behaves_like_a_list() -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=EXAMPLES or (8 if NAME == "reference" or files.PORTABLE else 20),
            stateful_step_count=25,
            deadline=None,
            database=None,
            derandomize=not EXAMPLES,
            suppress_health_check=list(HealthCheck),
        ),
    )
