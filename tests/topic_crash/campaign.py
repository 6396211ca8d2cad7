"""The kill campaign of topics: processes publish to one topic and share its partitions as a group, and die by SIGKILL.

    python -m tests.topic_crash.campaign --kills 2000 --seed 7

Publishers and members come, leave, are stopped for a while, killed at random moments and replaced. Each notes in a small file of
its own, which outlives it, what it is about to do and what was acknowledged. From these the topic is judged whenever all were
killed at once: of what each published to a partition an exact prefix is there, with all that was acknowledged, where it was said
to be; every message went to one member at a time, came again while it was not committed, and never after that.
PENSTOCK_KERNEL and PENSTOCK_PORTABLE are passed on. Used by test_kill.py, and by `make torture`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Retention, Topics, kernel
from penstock.storage import files
from tests.lives import Life, Lives, note, noted, open_lives
from tests.stopping import Stops, add_option, add_row
from tests.torture_table import Row, add, again

PUBLISHERS, MEMBERS = 2, 3
KILLS_TO_AN_END = 15
KILLS_A_ROUND = 60
STALL_S = 30.0
GROUP = "g"

_HEAD = struct.Struct("<IQ")  # publisher, its counter
_INTENT = struct.Struct("<QB")  # counter, partition
_ACK = struct.Struct("<QBQ")  # counter, partition, offset


class Broken(Exception):
    """The topic broke a promise."""


def message(publisher: int, counter: int) -> bytes:
    mixed = (publisher * 7919 + counter) * 2654435761 >> 7 & 0xFFFF
    return _HEAD.pack(publisher, counter) + bytes([counter & 255]) * (mixed % 1500 if mixed % 41 == 0 else mixed % 120)


# ---- what the processes do ----


def _topics(base: Path, rng: random.Random, retain: bool) -> Topics:
    return Topics(
        base / "topics",
        segment_bytes=rng.choice([2000, 5000, 20_000]),
        batch=rng.choice([1, 10, 500]),
        linger_s=rng.choice([0.0, 0.0, 0.002]),
        buffer_messages=rng.choice([20, 1000]),
        flush=rng.choices(["fsync", "none"], [4, 1])[0],
        retention=Retention(max_bytes=20_000) if retain else None,
    )


def publish(base: Path, me: int, rng: random.Random, retain: bool) -> None:
    """Publish for ever, with some not yet acknowledged at any time."""
    intend, acknowledge = note(base / f"{me}.intent"), note(base / f"{me}.ack")
    t = _topics(base, rng, retain).topic("t")
    counter, waiting = 0, []
    while True:
        partition = rng.randrange(t.partitions)
        count = rng.choices([1, rng.randrange(2, 20), 100], [20, 6, 1])[0]
        counters = range(counter, counter + count)
        counter += count
        intend(b"".join(_INTENT.pack(n, partition) for n in counters))
        some = [message(me, n) for n in counters]
        if count == 1:
            one = t.publish(some[0], partition=partition)
            waiting.append((counters, partition, lambda one=one: [range(one.wait(), one.wait() + 1)]))
        else:
            waiting.append((counters, partition, t.publish_many(some, partition=partition).wait))
        while len(waiting) > rng.choice([0, 5, 40]):
            counters, partition, wait = waiting.pop(0)
            offsets = [o for r in wait() for o in r]
            acknowledge(b"".join(_ACK.pack(n, partition, o) for n, o in zip(counters, offsets, strict=True)))
        if rng.random() < 0.3:
            time.sleep(rng.expovariate(300))  # it is all read again and again, so not too much of it


def share(base: Path, me: int, rng: random.Random, retain: bool) -> None:
    """Be a member for ever: poll, commit now and then, leave and come again."""
    write = note(base / f"{me}.member")

    def tell(kind: str, *numbers: int) -> None:
        write((" ".join([kind, str(time.monotonic_ns()), *map(str, numbers)]) + "\n").encode())

    t = _topics(base, rng, retain).topic("t")
    while True:
        member = t.group(GROUP)
        until = time.monotonic() + rng.expovariate(3)
        while time.monotonic() < until:
            got = member.poll_many(rng.randrange(1, 60))
            if not got:
                with contextlib.suppress(TimeoutError):
                    got = [m for m in [member.poll(0.02)] if m]
            for m in got:
                publisher, counter = _HEAD.unpack_from(m.payload)
                if m.payload != message(publisher, counter):
                    raise Broken(f"partition {m.partition}, offset {m.offset}: not what was published")
            tell("got", *(n for m in got for n in (m.partition, m.offset)))
            if rng.random() < 0.6:
                tell("committing")
                member.commit()
                tell("committed")
        tell("closing")
        member.close()


def live(role: str, base: str, me: int, seed: str, retain: bool) -> None:
    act = publish if role == "publisher" else share
    act(Path(base), me, random.Random(seed), retain)


# ---- the campaign ----


@dataclass
class Result:
    """What a campaign did."""

    kills: int = 0
    ends: int = 0  # all killed at once, and the topic judged
    stops: int = 0  # of one, which then went on or was killed as it stood
    acknowledged: int = 0
    delivered: int = 0
    again: int = 0  # deliveries of what another one had not committed
    retired: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        for name in ("kills", "ends", "stops", "acknowledged", "delivered", "again", "retired"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures


@dataclass
class One:
    """One process."""

    role: str
    me: int
    life: Life

    def __str__(self) -> str:
        return f"{self.role} {self.me}"


class Round:
    """One topic."""

    def __init__(self, base: Path, seed: int, partitions: int, *, retain: bool, stops: Stops | None = None) -> None:
        self.base = base
        self.seed = seed
        self.partitions = partitions
        self.retain = retain
        self.rng = random.Random(seed)
        self.stops = stops or Stops(self.rng)
        self.result = Result()
        self.ended: dict[int, int] = {}  # by member: when it was killed
        self._ids = iter(range(1, 1 << 30))
        self._all: list[One] = []

    def run(self, kills: int) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        with Topics(self.base / "topics") as logs:
            t = logs.topic("t", self.partitions)
            t.group(GROUP).close()  # from now on retention keeps what it has not passed
        with open_lives("tests.topic_crash.campaign") as lives:
            try:
                while self.result.kills < kills:
                    goal = min(kills, self.result.kills + KILLS_TO_AN_END)
                    while self.result.kills < goal:
                        self._fill_up(lives)
                        self._disturb()
                    for one in list(self._all):
                        self._kill(one, count=False)
                    self.result.ends += 1
                    self._check()
            finally:
                for one in list(self._all):
                    self._kill(one, count=False)

    def _fill_up(self, lives: Lives) -> None:
        for role, count in (("publisher", PUBLISHERS), ("member", MEMBERS)):
            while sum(one.role == role for one in self._all) < count:
                me = next(self._ids)
                words = self.base / f"{me}.failure"
                life = lives.begin(words, role, self.base, me, f"{self.seed} {me}", self.retain)
                self._all.append(One(role, me, life))

    def _disturb(self) -> None:
        """Kill one at a random moment: mostly at work, sometimes while it comes. Some are stopped for a while instead."""
        one = self.rng.choice(self._all)
        if self.rng.random() < 0.8:
            self._await_work(one)
        time.sleep(self.rng.expovariate(60))
        if self.stops.due():
            self._stop(one)
        else:
            self._kill(one)

    def _stop(self, stopped: One) -> None:
        """At work, perhaps with a lock in hand; one beside it may die waiting, and so may it."""
        others = [other for other in self._all if other is not stopped]
        doomed = [one for one, odds in ((others.pop(), 0.3), (stopped, 0.2)) if self.rng.random() < odds]

        def meanwhile() -> None:
            for one in doomed:
                time.sleep(self.rng.expovariate(100))
                self._kill(one)

        self.stops.stop(stopped.life.pid, [other.life.pid for other in others], meanwhile)
        self.result.stops += 1

    def _await_work(self, one: One) -> None:
        path = self.base / f"{one.me}.{'ack' if one.role == 'publisher' else 'member'}"

        def size() -> int:
            return path.stat().st_size if path.exists() else 0

        before, deadline = size(), time.monotonic() + STALL_S
        while size() == before:
            if one.life.ended:
                raise Broken(f"{one} ended by itself:\n{one.life.last_words}")
            if time.monotonic() > deadline:
                raise Broken(f"{one} did nothing for {STALL_S:.0f} s")
            time.sleep(0.001)

    def _kill(self, one: One, *, count: bool = True) -> None:
        self.ended[one.me] = time.monotonic_ns()
        self._all.remove(one)
        status = one.life.kill()
        self.result.kills += count
        if status != -signal.SIGKILL:
            raise Broken(f"{one} ended by itself with {status}:\n{one.life.last_words}")

    # ---- judging ----

    def _check(self) -> None:
        with Topics(self.base / "topics") as logs:
            t = logs.topic("t")
            ends = t.ends()
            for p in range(self.partitions):
                report = t.recovery(p)
                if report.damage or report.torn or report.cursors_set_back:
                    raise Broken(f"partition {p}, after a kill: {report}")
            firsts = {p: stats.first_offset for p, stats in t.stats().items()}
            if any(firsts.values()) and not self.retain:
                raise Broken(f"messages are gone: {firsts}")
            there = {p: [_HEAD.unpack_from(m.payload) for m in t.read(p, firsts[p], 1 << 30)] for p in ends}
            for p, end in ends.items():
                if firsts[p] + len(there[p]) != end:
                    raise Broken(f"partition {p}: {len(there[p])} messages from {firsts[p]} on, the end is {end}")
            self.result.retired = sum(firsts.values())
            self._check_published(there, firsts)
            committed = t.committed(GROUP)
            with t.group(GROUP) as member:
                comes: dict[int, list[int]] = {p: [] for p in ends}
                for m in member:
                    comes[m.partition].append(m.offset)
            for p, end in ends.items():
                if comes[p] != list(range(committed[p], end)):
                    raise Broken(f"partition {p}: committed to {committed[p]} of {end}, but {comes[p][:9]}... come")
        self._check_delivered(committed)

    def _check_published(self, there: dict[int, list[tuple[int, int]]], firsts: dict[int, int]) -> None:
        self.result.acknowledged = 0
        for path in self.base.glob("*.intent"):
            me = int(path.stem)
            acks = noted(_ACK, path.with_suffix(".ack"))
            self.result.acknowledged += len(acks)
            for p, messages in there.items():
                meant = [n for n, to in noted(_INTENT, path) if to == p]
                mine = [counter for publisher, counter in messages if publisher == me]
                at = meant.index(mine[0]) if mine and mine[0] in meant else 0
                if mine != meant[at : at + len(mine)] or (at and not firsts[p]):
                    raise Broken(
                        f"publisher {me}, partition {p}: {mine[:9]}... are there, {meant[at : at + 9]}... were meant"
                    )
                told = [(n, o) for n, to, o in acks if to == p and o >= firsts[p]]
                if len(told) > len(mine):
                    raise Broken(f"publisher {me}, partition {p}: {len(told)} were acknowledged, {len(mine)} are there")
                for n, o in told:
                    if messages[o - firsts[p]] != (me, n):
                        raise Broken(
                            f"publisher {me}: message {n} was said to be {o} of partition {p}, which it is not"
                        )
        known = {int(path.stem) for path in self.base.glob("*.intent")}
        if strangers := {who for messages in there.values() for who, _ in messages} - known:
            raise Broken(f"nobody published as {strangers}")

    def _check_delivered(self, committed: dict[int, int]) -> None:
        """Every message to one member at a time, and to none after it was committed."""
        deliveries: dict[tuple[int, int], list[Delivery]] = {}
        self.result.delivered = self.result.again = 0
        for path in self.base.glob("*.member"):
            for delivery in _deliveries(path, self.ended.get(int(path.stem))):
                deliveries.setdefault((delivery.partition, delivery.offset), []).append(delivery)
        done = dict.fromkeys(range(self.partitions), 0)
        for (p, o), some in deliveries.items():
            some.sort(key=lambda d: d.at)
            self.result.delivered += 1
            self.result.again += len(some) - 1
            for one, other in itertools.pairwise(some):
                where = f"partition {p}, offset {o}: member {one.member} had it, then member {other.member}"
                if one.committed:
                    raise Broken(f"{where}, though it was committed before")
                if one.ended is None or one.ended > other.at:
                    raise Broken(f"{where}, though the first one had neither left nor died")
            if any(d.committed for d in some):
                done[p] = max(done[p], o + 1)
                if o >= committed[p]:
                    raise Broken(f"partition {p}, offset {o}: was committed, but the group stands at {committed[p]}")
            elif o < committed[p] and not any(d.committing for d in some):
                raise Broken(f"partition {p}, offset {o}: nobody committed it, but the group stands at {committed[p]}")
        for p, place in committed.items():
            missing = [o for o in range(place) if (p, o) not in deliveries]
            if missing:
                raise Broken(f"partition {p}: nobody was given {missing[:9]}, but the group stands at {place}")


@dataclass
class Delivery:
    """A message that a member was given: when, what became of it, and when the member gave up what it had."""

    partition: int
    offset: int
    member: int
    at: int
    committing: bool = False
    committed: bool = False
    ended: int | None = None


def _deliveries(path: Path, killed: int | None) -> list[Delivery]:
    out: list[Delivery] = []
    mine: list[Delivery] = []
    for line in path.read_text().split("\n")[:-1]:
        kind, at, *numbers = line.split(" ")
        if kind == "got":
            places = iter(map(int, numbers))
            mine += [Delivery(p, o, int(path.stem), int(at)) for p, o in zip(places, places, strict=True)]
        for delivery in mine:
            delivery.committing = delivery.committing or kind == "committing"
            delivery.committed = kind == "committed"
            if kind == "closing":
                delivery.ended = int(at)
        if kind in ("committed", "closing"):
            out += mine
            mine = []
    for delivery in mine:
        delivery.ended = killed
    return out + mine


def campaign(
    top: Path,
    kills: int,
    seed: int,
    *,
    minutes: float | None = None,
    stop_s: float = 0.0,
    each: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Rounds until so many kills are done (or the time is over), each with a topic of its own, every third one with retention. The broken round's
    directory is left, the others are removed."""
    total, number, stops = Result(), 0, Stops(random.Random(f"{seed} stops"), stop_s)
    until_s = None if minutes is None else time.monotonic() + 60 * minutes
    while total.kills < kills and (until_s is None or time.monotonic() < until_s):
        base = top / f"topic{number}"
        one = Round(base, seed * 1_000_003 + number, 1 + (seed + number) % 5, retain=number % 3 == 2, stops=stops)
        try:
            one.run(min(KILLS_A_ROUND, kills - total.kills))
        except Exception as error:
            one.result.failures.append(f"{base}: {type(error).__name__}: {error}")
        total.add(one.result)
        each(total)
        if one.result.failures:
            break
        shutil.rmtree(base)
        number += 1
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.topic_crash.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="stop after this long, however many kills are done")
    parser.add_argument("--base", type=Path, help="where to work (a new directory under /tmp)")
    add_option(parser)
    a = parser.parse_args()
    top = a.base or Path(tempfile.mkdtemp(prefix="campaign"))
    kind = kernel.NAME + (", portable" if files.PORTABLE else "")
    print(f"topics: seed {a.seed}, {a.kills} kills, {kind} kernel, in {top}", flush=True)

    def tell(now: Result) -> None:
        print(
            f"{now.kills:6} kills  {now.stops:4} stops  {now.acknowledged:8} acknowledged  {now.delivered:8} delivered, {now.again:6} again",
            flush=True,
        )

    result = campaign(top, a.kills, a.seed, minutes=a.minutes, stop_s=a.stop_s, each=tell)
    add(Row("topic", "kill", result.kills, len(result.failures), result.delivered))
    add_row("topic", result.stops, len(result.failures), result.delivered)
    if result.failures:
        print(
            "\n".join(result.failures),
            "\n" + again("tests.topic_crash.campaign", kills=a.kills, seed=a.seed, stop_s=a.stop_s),
        )
        return 1
    shutil.rmtree(top, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
