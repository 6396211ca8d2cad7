"""The kill campaign: processes write and read one queue, are killed with SIGKILL at random moments and replaced; some stand still for
a while instead.

    python -m tests.torture --kills 2000 --seed 7

Each writer notes what it is about to append and what was acknowledged in two small files of its own, which outlive it. From
these the log is judged whenever everything was killed at once and the queue was reopened: nothing acknowledged lost,
nothing doubled, invented or out of order, batches whole, every checksum right. Readers judge what they see while it
happens. PENSTOCK_KERNEL and PENSTOCK_PORTABLE are passed on to the processes. Used by tests/queue/test_kill.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Flush, Message, Queue, RecordGone, Retention, Roll, kernel
from penstock.storage import files
from tests.lives import Life, Lives, note, noted, open_lives
from tests.stopping import Stops, add_option, add_row
from tests.torture_table import Row, add, again

FILE_SIZE = 256 << 10
WRITERS = 4
KILLS_A_ROUND = 100  # then a new queue, so that a campaign of any length needs little disk
KILLS_TO_AN_END = 20
STALL_S = 30.0
KEPT_BYTES = 1 << 20  # by retention, beyond what the keeper has not passed

_HEAD = struct.Struct("<IQIII")  # writer, its counter, batch, place in the batch, size of the batch
_INTENT = struct.Struct("<QI")  # first counter, records
_ACK = struct.Struct("<QIQ")  # first counter, records, first sequence


class Broken(Exception):
    """The log broke a promise."""


# ---- records that can be judged ----


def make(writer: int, counter: int, batch: int, place: int, size: int, pad: int) -> bytes:
    return _HEAD.pack(writer, counter, batch, place, size) + bytes([(writer * 31 + counter) & 255]) * pad


class Judge:
    """Takes records in order and says when something is wrong with them."""

    def __init__(self, at: int, expect: dict[int, int] | None = None, batch: list[int] | None = None) -> None:
        self.sequence = at
        self.expect = expect  # by writer; None: the first record of each says where it starts
        self.seen: dict[int, int] = dict(expect or {})
        self.batch = batch  # [writer, batch, places seen, size] of a batch under way

    def take(self, message: Message) -> tuple[int, int]:
        """(writer, counter) of a record that is right."""
        if message.sequence != self.sequence:
            raise Broken(f"sequence {message.sequence} follows {self.sequence - 1}")
        writer, counter, batch, place, size = _HEAD.unpack_from(message.payload)
        where = f"sequence {self.sequence}, record {counter} of writer {writer}"
        if message.payload.count((writer * 31 + counter) & 255, _HEAD.size) != len(message.payload) - _HEAD.size:
            raise Broken(f"{where}: not the bytes that were appended")
        wanted = self.seen.get(writer, 0 if self.expect is not None else counter)
        if counter != wanted:
            raise Broken(f"{where}: expected its record {wanted}")
        if self.batch is not None:
            if [writer, batch, place, size] != self.batch:
                raise Broken(f"{where}: place {place} of batch {batch} came inside {self.batch}")
        elif place and (self.expect is not None or self.seen):
            raise Broken(f"{where}: place {place} of batch {batch}, whose beginning is missing")
        self.batch = [writer, batch, place + 1, size] if place + 1 < size else None
        self.seen[writer] = counter + 1
        self.sequence += 1
        return writer, counter

    def at_end(self) -> None:
        """Here the log ended, as far as could be read."""
        if self.batch is not None:
            raise Broken(f"sequence {self.sequence}: the log was seen to end inside batch {self.batch}")


# ---- what the processes do ----


def queue(base: Path, **options: Any) -> Queue:
    """The round's queue. Whoever comes first makes it, so all give the settings that are fixed."""
    return Queue(base / "log", file_size=FILE_SIZE, index_interval=16, **options)


def write(base: Path, me: int, seed: int, retain: bool) -> None:
    """Append for ever."""
    rng = random.Random(f"{seed} writer {me}")
    intend, acknowledge = note(base / f"{me}.intent"), note(base / f"{me}.ack")
    q = queue(
        base,
        roll=rng.choice([Roll(), Roll.size(64 << 10), Roll.count(500), Roll.every(0.05)]),
        flush=rng.choices([Flush.none(), Flush.batch(bytes=1 << 16, interval_s=0.01), Flush.each()], [6, 3, 1])[0],
        retention=Retention(max_bytes=KEPT_BYTES) if retain else None,
    )
    counter = batch = 0
    while True:
        kind = rng.random()
        if kind < 0.02:
            q.sync()
            continue
        if kind < 0.7:
            pads = [rng.randrange(8192) if rng.random() < 0.05 else rng.randrange(300)]
        elif kind < 0.965:
            pads = [rng.randrange(300) for _ in range(rng.randrange(2, 40))]
        elif kind < 0.985:
            pads = [rng.randrange(4000) for _ in range(rng.randrange(30, 70))]
        else:  # larger than a file
            pads = [rng.randrange(10_000, 30_000) for _ in range(rng.randrange(20, 40))]
        batch += 1
        records = [make(me, counter + i, batch, i, len(pads), pad) for i, pad in enumerate(pads)]
        intend(_INTENT.pack(counter, len(pads)))
        first = q.append(records[0]) if len(records) == 1 else q.append_batch(records)[0]
        acknowledge(_ACK.pack(counter, len(pads), first))
        counter += len(pads)
        if rng.random() < 0.2:
            time.sleep(rng.expovariate(400))  # some 2.5 ms: the log is to be read again and again, so not too long


def keep(base: Path, seed: int) -> None:
    """Read as a named tailer and commit. What it has seen is noted before each commit, so that its successor can go on."""
    rng = random.Random(f"{seed} keeper {os.getpid()}")
    state = base / "keeper.json"
    kept = json.loads(state.read_text()) if state.exists() else [fresh()]
    with contextlib.closing(queue(base)) as q:
        tailer = q.tailer("keeper")
        stood_at = last_committed(kept, tailer.position)
        kept, judge = [stood_at], judge_from(stood_at)
        alive = note(base / "keeper.ack")
        while True:
            for _ in range(rng.randrange(1, 400)):
                message = tailer.read()
                if message is None:
                    judge.at_end()
                    with contextlib.suppress(TimeoutError):
                        message = tailer.read(timeout_s=0.05)
                    if message is None:
                        break
                judge.take(message)
            kept = [kept[-1], {"at": judge.sequence, "seen": dict(judge.seen), "batch": judge.batch}]
            files.replace(state, json.dumps(kept).encode())
            tailer.commit()
            alive(b".")


def fresh() -> dict[str, object]:
    return {"at": 0, "seen": {}, "batch": None}


def last_committed(kept: list[dict[str, object]], position: int) -> dict[str, object]:
    """The note that the keeper committed: its last one or, if it was killed in between, the one before."""
    for one in reversed(kept):
        if one["at"] == position:
            return one
    raise Broken(f"the cursor stands at {position}, but what was committed is {[n['at'] for n in kept]}")


def judge_from(note: dict[str, object]) -> Judge:
    """A judge that goes on there."""
    return Judge(int(note["at"]), {int(k): v for k, v in note["seen"].items()}, note["batch"])  # type: ignore[attr-defined, call-overload]


def roam(base: Path, seed: int, retain: bool) -> None:
    """Read here and there, forward and backward, with and without a hand on the log."""
    rng = random.Random(f"{seed} roamer {os.getpid()}")
    alive = note(base / "roamer.ack")
    while True:
        with contextlib.closing(
            queue(base, read_only=rng.random() < 0.3 and any(p.stat().st_size for p in base.glob("*.ack")))
        ) as q:
            for _ in range(rng.randrange(1, 20)):
                try:
                    (_backward if rng.random() < 0.2 else _forward)(q, rng)
                except RecordGone:
                    if not retain:
                        raise
                alive(b".")


def _forward(q: Queue, rng: random.Random) -> None:
    first, last = q.first_sequence, q.next_sequence
    with q.tailer(at=rng.choice([first, last, rng.randint(first, last)])) as tailer:
        judge = Judge(tailer.position)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            kind = rng.random()
            if kind < 0.4:
                messages = tailer.read_batch(rng.randrange(1, 300))
            elif kind < 0.8:
                messages = list(itertools.islice(tailer, 300))
            else:
                message = None
                with contextlib.suppress(TimeoutError):
                    message = tailer.read(timeout_s=0.02)
                messages = [message] if message else []
            judge_all(judge, messages)
            if not messages:
                judge.at_end()


def judge_all(judge: Judge, messages: list[Message]) -> None:
    for message in messages:
        judge.take(message)


def _backward(q: Queue, rng: random.Random) -> None:
    with q.tailer(direction="backward") as tailer:
        messages = tailer.read_batch(rng.randrange(1, 500))
    messages.reverse()
    if messages:
        judge = Judge(messages[0].sequence)
        judge_all(judge, messages)
        judge.at_end()


# ---- the campaign ----


def live(role: str, base: str, me: int, seed: int, retain: bool) -> None:
    if role == "writer":
        write(Path(base), me, seed, retain)
    elif role == "keeper":
        keep(Path(base), seed)
    else:
        roam(Path(base), seed, retain)


@dataclass
class Result:
    """What a campaign did."""

    kills: int = 0
    ends: int = 0  # all killed at once, and the log judged
    stops: int = 0  # of one, which then went on or was killed as it stood
    acknowledged: int = 0
    checked: int = 0
    retired: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        for name in ("kills", "ends", "stops", "acknowledged", "checked", "retired"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures


class Round:
    """One queue, killed at until `kills` are done."""

    def __init__(self, base: Path, seed: int, *, retain: bool = False, stops: Stops | None = None) -> None:
        self.base = base
        self.seed = seed
        self.retain = retain
        self.rng = random.Random(seed)
        self.stops = stops or Stops(self.rng)
        self.result = Result()
        self.writers: dict[int, Life] = {}
        self.readers: dict[str, Life] = {}
        self._ids = iter(range(1, 1 << 30))

    def run(self, kills: int, *, until_s: float | None = None, each: Callable[[Result], None] = lambda _: None) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        if self.retain:  # retention keeps what a tailer has not passed from the moment it is there
            with contextlib.closing(queue(self.base)) as q:
                q.tailer("keeper").close()
        with open_lives("tests.torture") as lives:
            try:
                while self.result.kills < kills and (until_s is None or time.monotonic() < until_s):
                    goal = min(kills, self.result.kills + KILLS_TO_AN_END)
                    while self.result.kills < goal:
                        self._fill_up(lives)
                        self._kill_some(lives)
                    self._kill_all()
                    self._check()
                    each(self.result)
            finally:
                for process in [*self.writers.values(), *self.readers.values()]:
                    process.kill()

    def _begin(self, lives: Lives, role: str, me: int = 0) -> Life:
        words = self.base / f"{me or role}.failure"
        return lives.begin(words, role, self.base, me, self.seed, self.retain)

    def _fill_up(self, lives: Lives) -> None:
        """Every process that is missing is started; those that ended by themselves are a failure."""
        for name, process in [*self.writers.items(), *self.readers.items()]:
            self._must_live(name, process)
        while len(self.writers) < WRITERS:
            me = next(self._ids)
            self.writers[me] = self._begin(lives, "writer", me)
        for name in {"keeper", "roamer"} - self.readers.keys():
            self.readers[name] = self._begin(lives, name)

    @staticmethod
    def _must_live(name: object, process: Life) -> None:
        if process.ended:
            raise Broken(f"{name} ended by itself:\n{process.last_words}")

    def _kill_some(self, lives: Lives) -> None:
        """One process (now and then two) at a random moment: mostly a writer at work, sometimes one that is opening."""
        if self.stops.due():
            self._stop_one()
            self._fill_up(lives)
        for _ in range(self.rng.choices([1, 2], [9, 1])[0]):
            if self.rng.random() < 0.2:
                name = self.rng.choice(list(self.readers))
                self._await_work(name, self.readers[name])
                self._kill(self.readers.pop(name))
            elif self.rng.random() < 0.85:
                me = self.rng.choice(list(self.writers))
                self._await_work(me, self.writers[me])
                self._kill(self.writers.pop(me))
            else:
                me = list(self.writers)[-1]
                time.sleep(self.rng.uniform(0, 0.2))
                self._kill(self.writers.pop(me))

    def _stop_one(self) -> None:
        """At work, perhaps with a lock in hand. Those beside it go on or wait; one of them may die waiting, and so may it."""
        everyone = {**self.writers, **self.readers}
        name, other = self.rng.sample(list(everyone), 2)
        self._await_work(name, everyone[name])

        def meanwhile() -> None:
            for one in [n for n, odds in ((other, 0.3), (name, 0.2)) if self.rng.random() < odds]:
                time.sleep(self.rng.expovariate(100))
                self._kill(self.writers.pop(one) if one in self.writers else self.readers.pop(one))

        others = [process.pid for n, process in everyone.items() if n not in (name, other)]
        self.stops.stop(everyone[name].pid, others, meanwhile)
        self.result.stops += 1

    def _await_work(self, name: object, process: Life) -> None:
        """Until it has acknowledged more than now, then a random moment longer."""
        path = self.base / f"{name}.ack"

        def size() -> int:
            return path.stat().st_size if path.exists() else 0

        before, deadline = size(), time.monotonic() + STALL_S
        while size() == before:
            self._must_live(name, process)
            if time.monotonic() > deadline:
                process.kill(signal.SIGABRT)  # faulthandler says where it stands
                raise Broken(f"{name} did nothing for {STALL_S:.0f} s; where it stood is said above")
            time.sleep(0.001)
        time.sleep(self.rng.expovariate(100))

    def _kill(self, process: Life) -> None:
        process.kill()
        self.result.kills += 1

    def _kill_all(self) -> None:
        everyone = [*self.writers.values(), *self.readers.values()]
        self.writers, self.readers = {}, {}
        for process in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # all at once, before any is waited for
        for process in everyone:
            process.kill()
        self.result.kills += len(everyone)
        self.result.ends += 1

    # ---- judging ----

    def _check(self) -> None:
        with contextlib.closing(queue(self.base, verify_on_startup=True)) as q:
            if q.recovery.damage:
                raise Broken(f"damage after a kill: {q.recovery.damage}")
            if q.recovery.cursors_set_back:
                raise Broken(f"cursors were set back: {q.recovery.cursors_set_back}")
            if self.retain:
                state = self.base / "keeper.json"
                kept = json.loads(state.read_text()) if state.exists() else [fresh()]
                tailer = q.tailer("keeper")
                judge = judge_from(last_committed(kept, tailer.position))
                self.result.retired = q.first_sequence
            else:
                if q.first_sequence:
                    raise Broken(f"the log begins with {q.first_sequence}")
                tailer, judge = q.tailer(), Judge(0, {})
            sequences: dict[int, dict[int, int]] = {}
            before = judge.sequence
            for message in tailer:
                writer, counter = judge.take(message)
                sequences.setdefault(writer, {})[counter] = message.sequence
            judge.at_end()
            if judge.sequence != q.next_sequence:
                raise Broken(f"{judge.sequence} records were read, {q.next_sequence} are said to be there")
            tailer.close()
        self.result.checked += judge.sequence - before
        self._compare(judge.seen, sequences)

    def _compare(self, seen: dict[int, int], sequences: dict[int, dict[int, int]]) -> None:
        """What was found against what the writers noted: all they had acknowledged, and at most one append more."""
        self.result.acknowledged = 0
        known = set()
        for path in self.base.glob("*.intent"):
            me = int(path.stem)
            known.add(me)
            intents = noted(_INTENT, path)
            acks = noted(_ACK, path.with_suffix(".ack"))
            acknowledged = sum(count for _, count, _ in acks)
            self.result.acknowledged += acknowledged
            allowed = {acknowledged, acknowledged + (intents[-1][1] if len(intents) > len(acks) else 0)}
            if seen.get(me, 0) not in allowed:
                raise Broken(f"writer {me} has {seen.get(me, 0)} records in the log, it may have {sorted(allowed)}")
            found = sequences.get(me, {})
            for counter, _, first in acks:
                if found.get(counter, first) != first:
                    raise Broken(f"record {counter} of writer {me} was said to be {first} and is {found[counter]}")
        if seen.keys() - known:
            raise Broken(f"nobody wrote as {sorted(seen.keys() - known)}")


def campaign(
    top: Path,
    kills: int,
    seed: int,
    *,
    minutes: float | None = None,
    stop_s: float = 0.0,
    each: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Rounds until so many kills are done (or the time is over), a fifth of them with retention on. The broken round's
    directory is left, the others are removed."""
    total, stops = Result(), Stops(random.Random(f"{seed} stops"), stop_s)
    until_s = None if minutes is None else time.monotonic() + 60 * minutes
    for number, (goal, retain) in enumerate(_rounds(kills)):
        if until_s is not None and time.monotonic() > until_s:
            break
        base = top / f"round{number}"
        one = Round(base, seed * 1_000_003 + number, retain=retain, stops=stops)
        try:
            one.run(goal, until_s=until_s, each=lambda now: each(_sum(total, now)))
        except Exception as error:
            one.result.failures.append(f"{base}: {type(error).__name__}: {error}")
            total.add(one.result)
            return total
        total.add(one.result)
        shutil.rmtree(base)
    return total


def _rounds(kills: int) -> Iterator[tuple[int, bool]]:
    """(kills, with retention?): a round without, a shorter one with, and again."""
    plain = max(1, min(KILLS_A_ROUND, kills * 3 // 4))
    retain = False
    while kills > 0:
        goal = min(kills, max(1, plain // 3) if retain else plain)
        yield goal, retain
        kills -= goal
        retain = not retain


def _sum(a: Result, b: Result) -> Result:
    out = Result()
    out.add(a)
    out.add(b)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="stop after this long, however many kills are done")
    parser.add_argument("--base", type=Path, help="where to work (a new directory under /tmp)")
    add_option(parser)
    a = parser.parse_args()
    top = a.base or Path(tempfile.mkdtemp(prefix="torture"))
    began = time.monotonic()

    def tell(now: Result) -> None:
        print(
            f"{time.monotonic() - began:7.1f} s  {now.kills:6} kills  {now.acknowledged:10} acknowledged  "
            f"{now.checked:10} checked",
            flush=True,
        )

    kind = kernel.NAME + (", portable" if files.PORTABLE else "")
    print(f"seed {a.seed}, {a.kills} kills, {kind} kernel, in {top}", flush=True)
    result = campaign(top, a.kills, a.seed, minutes=a.minutes, stop_s=a.stop_s, each=tell)
    print(f"\n{'kernel':24}{kind}")
    for name in ("kills", "ends", "stops", "acknowledged", "checked", "retired"):
        print(f"{name:24}{getattr(result, name)}")
    print(f"{'failures':24}{len(result.failures)}")
    add(Row("queue", "kill", result.kills, len(result.failures), result.checked))
    add_row("queue", result.stops, len(result.failures), result.checked)
    for failure in result.failures:
        print(f"\n{failure}")
    if result.failures:
        print(f"\n{again('tests.torture', kills=a.kills, seed=a.seed, stop_s=a.stop_s)}")
        return 1
    shutil.rmtree(top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
