"""What runs while the power is cut: one process a use, which notes what it begins and what it was told is durable; and what is
judged of the files that are left.

    python -m tests.power.uses work queue DIRECTORY NOTES SEED
    python -m tests.power.uses judge DIRECTORY queue NOTES_BEFORE NOTES_AFTER topic …
"""

from __future__ import annotations

import json
import mmap
import random
import struct
import sys
import time
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from penstock import Channel, Flush, Journal, Queue, Retention, Roll, Topics
from penstock.verify import verify

_HEAD = struct.Struct("<QII")  # number, place in its batch, size of the batch
_NOTE = struct.Struct("<Q")
FILE_SIZE = 256 << 10
KEPT_BYTES = 2 << 20
PARTITIONS = 2
LIAR = "liar"  # shows that a cut loses what was not synced, and that this is noticed


class Slot(IntEnum):
    """What is noted, each as how many records: that many were begun before the call, or done when it returned."""

    BEGUN = 0
    DURABLE = 1
    TAKING = 2
    TAKEN = 3
    HELD_TAKING = 4  # a channel's second receiver
    HELD_TAKEN = 5


class Notes:
    """Numbers that outlive the process, and are seen by another one at once."""

    COUNT = 6 * PARTITIONS

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NOTE.size * self.COUNT))
        with path.open("r+b") as f:
            self._map = mmap.mmap(f.fileno(), _NOTE.size * self.COUNT)

    def set(self, slot: Slot, value: int, partition: int = 0) -> None:
        _NOTE.pack_into(self._map, _NOTE.size * (slot * PARTITIONS + partition), value)

    def get(self, slot: Slot, partition: int = 0) -> int:
        return int(_NOTE.unpack_from(self._map, _NOTE.size * (slot * PARTITIONS + partition))[0])

    def now(self) -> bytes:
        """All of them, as they are at this moment."""
        return bytes(self._map)


class Noted(NamedTuple):
    """The notes as they were at a moment."""

    values: bytes

    def of(self, slot: Slot, partition: int = 0) -> int:
        return int(_NOTE.unpack_from(self.values, _NOTE.size * (slot * PARTITIONS + partition))[0])


class Bounds(NamedTuple):
    """What was noted before the power was cut, and after."""

    before: Noted
    after: Noted


class Broken(Exception):
    """A promise was not kept."""


def make(number: int, place: int = 0, size: int = 1) -> bytes:
    pad = number * 7919 % 400
    return _HEAD.pack(number, place, size) + bytes([1 + number % 255]) * pad


def in_order(payloads: Iterable[bytes], first: int | None = None, *, whole: bool = False) -> range:
    """Which records these are; each as it was made, one behind the other, the last one the end of its batch if `whole`."""
    begin = at = first
    place, size = 0, 1
    for payload in payloads:
        number, place, size = _HEAD.unpack_from(payload)
        if at is None:
            begin = at = number
        if number != at:
            raise Broken(f"record {number} where {at} should be")
        if payload != make(number, place, size):
            raise Broken(f"record {number} is not what was appended: {difference(payload, make(number, place, size))}")
        at += 1
    if whole and place + 1 != size:
        raise Broken(f"the last record is number {place} of a batch of {size}")
    return range(begin or 0, at or 0)


def difference(found: bytes, made: bytes) -> str:
    if len(found) != len(made):
        return f"{len(found)} bytes, not {len(made)}"
    wrong = [i for i in range(len(made)) if found[i] != made[i]]
    zeros = "zeros" if not any(found[i] for i in wrong) else "other bytes"
    return f"{zeros} in {len(wrong)} of its {len(made)} bytes, from byte {wrong[0]}"


def between(what: str, low: int, value: int, high: int) -> None:
    if not low <= value <= high:
        raise Broken(f"{what}: {value}, and must be {low} to {high}")


def whole_log(path: Path) -> None:
    found = [f for f in verify(path).findings if f.kind not in ("index", "companion")]
    if found:
        raise Broken(f"verify: {found[0]}")


class Use:
    """One way to write, and how what is left of it is judged."""

    def work(self, path: Path, notes: Notes, dice: random.Random) -> None:
        raise NotImplementedError

    def judge(self, path: Path, bounds: Bounds) -> int:
        """How many records were there; raises Broken."""
        raise NotImplementedError


class QueueUse(Use):
    def __init__(self, flush: Flush, *, sync: bool, lies: bool = False) -> None:
        self._flush = flush
        self._sync = sync
        self._lies = lies  # it notes as durable what it was never promised

    def work(self, path: Path, notes: Notes, dice: random.Random) -> None:
        with Queue(
            path,
            file_size=FILE_SIZE,
            index_interval=64,
            roll=Roll.size(FILE_SIZE // 2),
            flush=self._flush,
            retention=Retention(max_bytes=KEPT_BYTES),
        ) as q:
            while True:
                at = q.next_sequence
                if dice.random() < 0.5:
                    size = dice.randint(2, 30)
                    notes.set(Slot.BEGUN, at + size)
                    q.append_batch([make(at + i, i, size) for i in range(size)])
                else:
                    notes.set(Slot.BEGUN, at + 1)
                    q.append(make(at))
                if self._sync and dice.random() < 0.2:
                    q.sync()
                notes.set(Slot.DURABLE, q.next_sequence if self._lies else q.durable_sequence)
                if dice.random() < 0.02:
                    time.sleep(0.005)  # else it would be all that the disk does

    def judge(self, path: Path, bounds: Bounds) -> int:
        with Queue(path) as q:
            if q.recovery.how != "new boot" or q.recovery.damage:
                raise Broken(f"recovery: {q.recovery}")
            first, end = q.first_sequence, q.next_sequence
            between("the end", bounds.before.of(Slot.DURABLE), end, bounds.after.of(Slot.BEGUN))
            with q.tailer() as t:
                found = in_order((m.payload for m in t), first, whole=True)
            if found.stop != end:
                raise Broken(f"{found} can be read, and the end is {end}")
            q.append(make(end))
            q.sync()
        whole_log(path)
        return len(found)


class ChannelUse(Use):
    def __init__(self, compression: str | None) -> None:
        self._compression: Any = compression

    def _open(self, path: Path) -> Channel[bytes]:
        return Channel(path, segment_bytes=64 << 10, crash_consistent=True, compression=self._compression)

    def work(self, path: Path, notes: Notes, dice: random.Random) -> None:
        with self._open(path) as c:
            reader, held, tx, at, done, passed = c.rx("reader", ack=True), c.rx("held"), c.tx(), 0, 0, 0
            while True:
                size = dice.choice((1, 1, dice.randint(2, 40)))
                notes.set(Slot.BEGUN, at + size)
                batch = [make(at + i, i, size) for i in range(size)]
                if size > 1:
                    tx.send_many(batch)
                else:
                    tx.send(batch[0])
                at += size
                notes.set(Slot.DURABLE, at)
                if dice.random() < 0.3:
                    done += len(reader.recv_many(at - done))
                    notes.set(Slot.TAKING, done)
                    reader.ack(reader.unacked)
                    notes.set(Slot.TAKEN, done)
                if at - passed > 4000:
                    notes.set(Slot.HELD_TAKING, passed + 2000)
                    passed += len(held.recv_many(2000))
                    notes.set(Slot.HELD_TAKEN, passed)

    def judge(self, path: Path, bounds: Bounds) -> int:
        before, after = bounds
        with self._open(path) as c:
            if c.recovery.damage:
                raise Broken(f"recovery: {c.recovery}")
            found = _received(c, "held")
            between("the end", before.of(Slot.DURABLE), found.stop, after.of(Slot.BEGUN))
            between("held", before.of(Slot.HELD_TAKEN), found.start, after.of(Slot.HELD_TAKING))
            rest = _received(c, "reader")
            start = rest.start if rest else found.stop
            between("the reader", before.of(Slot.TAKEN), start, after.of(Slot.TAKING))
            c.tx().send(make(found.stop))
        whole_log(path)
        return len(found)


def _received(c: Channel[bytes], name: str) -> range:
    rx, got = c.rx(name), []
    while (message := rx.try_recv()) is not None:
        got.append(message)
    return in_order(got, whole=True)


class JournalUse(Use):
    def work(self, path: Path, notes: Notes, dice: random.Random) -> None:
        with Journal(path) as j:
            at, ends = 0, []  # where each group that is not retired ends
            while True:
                size = dice.randint(1, 60)
                notes.set(Slot.BEGUN, at + size)
                j.append_many([make(at + i, i, size) for i in range(size)]).result()
                at += size
                notes.set(Slot.DURABLE, at)
                if dice.random() < 0.2:
                    j.checkpoint().result()
                    ends.append(at)
                if len(ends) > 20:
                    notes.set(Slot.TAKING, ends[0])
                    j.check().result()
                    notes.set(Slot.TAKEN, ends.pop(0))

    def judge(self, path: Path, bounds: Bounds) -> int:
        before, after = bounds
        with Journal(path) as j:
            found = in_order(record.payload for record in j.recovered())
            between("the end", before.of(Slot.DURABLE), found.stop, after.of(Slot.BEGUN))
            between("the start", before.of(Slot.TAKEN), found.start, after.of(Slot.TAKING))
            j.append(make(found.stop)).result()
        whole_log(path)
        return len(found)


class TopicUse(Use):
    def work(self, path: Path, notes: Notes, dice: random.Random) -> None:
        kept = Retention(max_bytes=KEPT_BYTES)
        with Topics(path, segment_bytes=64 << 10, batch=100, linger_s=0.001, retention=kept) as logs:
            t = logs.topic("t", PARTITIONS)
            reader, at = t.tailer("reader"), [0] * PARTITIONS
            while True:
                sizes = [dice.randint(1, 60) for _ in range(PARTITIONS)]
                sent = []
                for p, size in enumerate(sizes):
                    notes.set(Slot.BEGUN, at[p] + size, p)
                    sent.append(t.publish_many([make(at[p] + i, i, size) for i in range(size)], partition=p))
                    at[p] += size
                for p, one in enumerate(sent):
                    one.wait()
                    notes.set(Slot.DURABLE, at[p], p)
                if dice.random() < 0.1:
                    reader.read_batch(dice.randint(1, 3000))
                    for p, place in reader.positions.items():
                        notes.set(Slot.TAKING, place, p)
                    reader.commit()
                    for p, place in reader.positions.items():
                        notes.set(Slot.TAKEN, place, p)

    def judge(self, path: Path, bounds: Bounds) -> int:
        before, after = bounds
        count = 0
        with Topics(path) as logs:
            t = logs.topic("t")
            committed = t.committed("reader")
            for p, end in t.ends().items():
                if t.recovery(p).damage:
                    raise Broken(f"partition {p}: {t.recovery(p)}")
                between(f"the end of {p}", before.of(Slot.DURABLE, p), end, after.of(Slot.BEGUN, p))
                between(f"reader in {p}", before.of(Slot.TAKEN, p), committed.get(p, 0), after.of(Slot.TAKING, p))
                with t.tailer(partitions=[p]) as tailer:
                    found = in_order(m.payload for m in tailer)
                if found and found.stop != end:
                    raise Broken(f"{found} of {p} can be read, and the end is {end}")
                count += len(found)
                t.publish(make(end), partition=p).wait()
        whole_log(path)
        return count


USES: dict[str, Use] = {
    "queue": QueueUse(Flush.none(), sync=True),
    "none": QueueUse(Flush.none(), sync=False),
    "each": QueueUse(Flush.each(), sync=False),
    "batch": QueueUse(Flush.batch(bytes=64 << 10, interval_s=0.02), sync=False),
    "channel": ChannelUse(None),
    "packed": ChannelUse("zstd"),
    "journal": JournalUse(),
    "topic": TopicUse(),
    LIAR: QueueUse(Flush.none(), sync=False, lies=True),
}
HONEST = tuple(use for use in USES if use != LIAR)


def judge_all(top: Path, bounds: dict[str, Bounds]) -> dict[str, int]:
    """How many records were in the log of each of these uses."""
    counts = {}
    for use, bound in bounds.items():
        try:
            counts[use] = USES[use].judge(top / use, bound)
        except Exception as error:
            error.add_note(f"use: {use}")
            raise
    return counts


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "work":
        use, path, notes, seed = rest
        USES[use].work(Path(path), Notes(Path(notes)), random.Random(int(seed)))
    else:
        noted = {use: (before, after) for use, before, after in zip(*[iter(rest[1:])] * 3, strict=True)}
        bounds = {use: Bounds(*(Noted(bytes.fromhex(n)) for n in both)) for use, both in noted.items()}
        print(json.dumps(judge_all(Path(rest[0]), bounds)))


if __name__ == "__main__":
    main()
