"""The kill campaign of the channel: a process sends and receives, dies by SIGKILL at a random moment, and another goes on.

    python -m tests.channel_crash.campaign --kills 2000 --seed 7

Four threads: one sends, one receives, two share what a third name receives and acknowledge it out of order. Each notes in a
small file of its own, which outlives it, what it is about to do. What was acknowledged of it is stored in a map, which outlives
it too and costs little beside a send, so that most kills come in the midst of one. Every life begins with judging what the last
one left: nothing acknowledged is lost or comes again, all else comes again, in order, and nothing is invented.
PENSTOCK_KERNEL and PENSTOCK_PORTABLE are passed on. Used by test_kill.py.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Channel, LogBusy, RecordGone, channel, kernel
from penstock.storage import files
from tests.channel_crash.wreck import OVERHEAD, drain, messages, strays
from tests.lives import open_lives
from tests.stopping import Stops, add_option, add_row
from tests.support import until
from tests.torture_table import Row, add, again

SEGMENT_BYTES = 20_000
MESSAGE_BYTES = 16 << 10
INTERVAL = 16
BACKLOG = 2000
KILLS_A_ROUND = 100  # then a new channel, compressed in another way


class Broken(Exception):
    """The channel broke a promise."""


# ---- messages that can be judged ----


def message(i: int) -> bytes:
    """The i-th one: some are empty, few are long."""
    mixed = i * 2654435761 >> 7 & 0xFFFF
    if mixed % 5 == 0:
        return b""
    return b"%d." % i + bytes([i & 255]) * (mixed % 3000 if mixed % 37 == 0 else mixed % 200)


class Table:
    """The offset of every message."""

    def __init__(self) -> None:
        self._offsets = [0]
        self._lock = threading.Lock()

    def offset(self, i: int) -> int:
        with self._lock:
            while len(self._offsets) <= i:
                self._offsets.append(self._offsets[-1] + OVERHEAD + len(message(len(self._offsets) - 1)))
            return self._offsets[i]

    def index(self, offset: int) -> int:
        """Which message begins there."""
        while self._offsets[-1] < offset:
            self.offset(len(self._offsets) + 1000)
        i = bisect.bisect_left(self._offsets, offset)
        if self._offsets[i] != offset:
            raise Broken(f"no message begins at {offset}")
        return i


# ---- what was noted ----


@dataclass
class State:
    """What is acknowledged, and what may be: it was under way."""

    sent: int = 0
    sending: int = 0
    solo: int = 0
    receiving: int = 0
    team: int = 0  # all below are done ...
    beyond: set[int] = field(default_factory=set)  # ... and these
    acking: set[int] = field(default_factory=set)

    def is_done(self, i: int) -> bool:
        return i < self.team or i in self.beyond

    def done(self, some: set[int]) -> None:
        self.beyond |= some
        while self.team in self.beyond:
            self.beyond.discard(self.team)
            self.team += 1


class Ticks:
    """How many were sent and received, each stored whole as soon as the call returned."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b" if path.exists() else "w+b") as f:
            f.truncate(mmap.PAGESIZE)
            self._words = memoryview(mmap.mmap(f.fileno(), mmap.PAGESIZE)).cast("Q")

    def load(self, which: int) -> int:
        return self._words[which]

    def store(self, which: int, count: int) -> None:
        self._words[which] = count


SENT, SOLO = 0, 1


class Notes:
    """The notes of one life: a file for each thread, the state they begin with, and how far they have come."""

    THREADS = ("sender", "solo", "one", "two")

    def __init__(self, base: Path) -> None:
        self._base = base
        self._state = base / "state.json"
        self.life = 0
        self._fds: dict[str, int] = {}
        self.ticks = Ticks(base / "ticks")

    def load(self) -> State:
        """What the last life left."""
        state = State()
        if self._state.exists():
            kept = json.loads(self._state.read_text())
            self.life = kept.pop("life")
            state = State(**{**kept, "beyond": set(kept["beyond"]), "acking": set()})
        # Of lives that died before they had begun there are no notes, and the ticks may be the last one's.
        state.sent, state.sending = self._reached("sender", SENT, state.sent)
        state.solo, state.receiving = self._reached("solo", SOLO, state.solo)
        under_way: set[int] = set()
        for thread in ("one", "two"):
            for kind, numbers in self._lines(thread):
                if kind == "ack":
                    state.acking = set(numbers)
                else:
                    state.done(state.acking)
                    state.acking = set()
            under_way |= state.acking
            state.acking = set()
        state.acking = under_way
        return state

    def _reached(self, thread: str, which: int, before: int) -> tuple[int, int]:
        """How many are acknowledged, and how many more may be: those of a batch, or one of a run of single calls."""
        lines = self._lines(thread)
        if not lines:
            return before, 0
        kind, (at, count) = lines[-1]
        reached = max(at, self.ticks.load(which))
        if kind == "over" or reached >= at + count:
            return reached, 0
        return reached, 1 if kind == "run" else count

    def _lines(self, thread: str) -> list[tuple[str, list[int]]]:
        path = self._path(thread)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(kind, [int(n) for n in numbers]) for kind, *numbers in map(str.split, lines)]

    def begin(self, state: State) -> None:
        """A new life, with what was found to be so."""
        self.life += 1
        kept = {**vars(state), "beyond": sorted(state.beyond), "acking": [], "life": self.life}
        for thread in self.THREADS:
            self._path(thread).unlink(missing_ok=True)
        files.replace(self._state, json.dumps(kept).encode(), durable=False)
        self.ticks.store(SENT, state.sent)
        self.ticks.store(SOLO, state.solo)
        for thread in self.THREADS:
            self._fds[thread] = os.open(self._path(thread), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _path(self, thread: str) -> Path:
        return self._base / f"{self.life}.{thread}"

    def writer(self, thread: str) -> Callable[..., None]:
        fd = self._fds[thread]
        return lambda *words: (os.write(fd, (" ".join(map(str, words)) + "\n").encode()), None)[1]


# ---- judging ----


def judge(ch: Channel[bytes], state: State, table: Table) -> State:
    """What is left, against what was noted; the state with what was under way settled."""
    found = ch.recovery
    if found.damage or found.torn or found.cursors_set_back:
        raise Broken(f"after a kill: {found}")
    while True:  # the background removes what is not needed, so it may not be the first one any more
        first = table.index(ch.stats().first_offset)
        with contextlib.suppress(RecordGone):
            got = messages(ch)
            if table.index(ch.stats().first_offset) == first:
                break
    end = first + len(got)
    for i, m in enumerate(got, first):
        if m != message(i):
            raise Broken(f"message {i} of {end} is {m[:40]!r}, should be {message(i)[:40]!r}")
    if end not in (state.sent, state.sent + state.sending):
        raise Broken(f"{end} messages are there, {state.sent} were acknowledged and {state.sending} under way")
    with ch.rx("solo", ack=True) as rx:
        came = drain(rx)
    solo = end - len(came)
    if came != [message(i) for i in range(solo, end)]:
        raise Broken(f"solo is to receive {len(came)} messages, but not the last ones")
    if not state.solo <= solo <= state.solo + state.receiving:
        raise Broken(f"solo has received {solo}, {state.solo} were acknowledged and {state.receiving} under way")
    with ch.rx("team", ack=True) as rx:
        drained = drain(rx)
        team = [table.index(taken.offset) for taken in rx._member.unacked]
        if drained != [message(i) for i in team]:
            raise Broken("what the team is to receive is not what was sent at these offsets")
    comes = set(team)
    if team != sorted(comes):
        raise Broken("the team's messages are out of order, or come twice")
    for i in range(end):
        if i in comes and state.is_done(i):
            raise Broken(f"message {i} was acknowledged by the team and comes again")
        if i not in comes and not state.is_done(i) and i not in state.acking:
            raise Broken(f"message {i} was not acknowledged by the team and does not come again")
    state.done({i for i in state.acking if i not in comes})
    return State(end, 0, solo, 0, state.team, state.beyond)


# ---- a life ----


def options(rng: random.Random, compression: str | None) -> dict[str, Any]:
    return {"segment_bytes": SEGMENT_BYTES, "crash_consistent": rng.random() < 0.3, "compression": compression}


def small_files() -> None:
    channel.CHANNEL_MESSAGE_BYTES = MESSAGE_BYTES  # type: ignore[misc]
    channel.INDEX_INTERVAL = INTERVAL  # type: ignore[misc]


def live(path: str, seed: str, compression: str | None) -> None:
    """Judge what is there, then go on for ever."""
    small_files()
    base = Path(path)
    rng, table, notes = random.Random(seed), Table(), Notes(base)
    state = notes.load()
    with Channel(base / "channel", **options(rng, compression)) as ch:
        state = judge(ch, state, table)
        notes.begin(state)
        progress = {"sent": state.sent, "solo": state.solo, "team": state.team}
        acts: list[tuple[Callable[..., None], str]] = [
            (send, "sender"),
            (receive, "solo"),
            (share, "one"),
            (share, "two"),
        ]
        failed = threading.Event()

        def guarded(act: Callable[..., None], name: str) -> None:
            try:
                act(ch, random.Random(f"{seed} {name}"), notes.writer(name), notes.ticks.store, table, progress)
            except BaseException:
                with contextlib.suppress(FileExistsError), (base / "failure").open("x") as f:  # the first one tells
                    f.write(traceback.format_exc())
                failed.set()

        for act, name in acts:
            threading.Thread(target=guarded, args=(act, name), daemon=True).start()
        failed.wait()
    os._exit(3)


Write = Callable[..., None]
Tick = Callable[[int, int], None]
Progress = dict[str, int]


def send(ch: Channel[bytes], rng: random.Random, note: Write, tick: Tick, table: Table, progress: Progress) -> None:
    tx, n = ch.tx(), progress["sent"]
    while True:
        if n - min(progress["solo"], progress["team"]) > BACKLOG:
            time.sleep(0.0005)
            continue
        kind, count = rng.choices(
            [("run", 200), ("run", 1), ("batch", rng.randrange(2, 20)), ("batch", 300)], [4, 8, 4, 1]
        )[0]
        some = [message(n + i) for i in range(count)]
        note(kind, n, count)
        if kind == "run":
            for m in some:
                tx.send(m)
                n += 1
                tick(SENT, n)
        else:
            tx.send_many(some)
            n += count
            tick(SENT, n)
        progress["sent"] = n


def receive(ch: Channel[bytes], rng: random.Random, note: Write, tick: Tick, table: Table, progress: Progress) -> None:
    rx, n = ch.rx("solo"), progress["solo"]
    while True:
        kind, count = rng.choice([("run", 200), ("run", 1), ("batch", 30)])
        count = count if rng.random() < 0.1 else max(1, min(count, progress["sent"] - n))  # else it seldom has to wait
        expected = [message(n + i) for i in range(count)]
        note(kind, n, count)
        try:
            if kind == "run":
                for m in expected:
                    if rx.recv(0.05) != m:
                        raise Broken(f"solo: not message {n}")
                    n += 1
                    tick(SOLO, n)
            else:
                got = rx.recv_many(count, 0.05)
                n += len(got)
                tick(SOLO, n)
                if got != expected[: len(got)]:
                    raise Broken(f"solo: not the messages before {n}")
        except TimeoutError:
            pass
        note("over", n, 0)
        progress["solo"] = n


def share(ch: Channel[bytes], rng: random.Random, note: Write, tick: Tick, table: Table, progress: Progress) -> None:
    rx = ch.rx("team", ack=True, shared=True)
    while True:
        try:
            # What is beyond a gap is put in a file: to keep up, some are acknowledged by the hundred.
            behind = progress["sent"] - progress["team"] > BACKLOG // 2
            for _ in range(500 if behind else rng.choice([1, 3, 7])):
                got = rx.recv(0.05)
                i = table.index(rx._member.unacked[-1].offset)
                if got != message(i):
                    raise Broken(f"team: not message {i}")
        except TimeoutError:
            pass
        if rng.random() < 0.01:  # the other one has what this one had
            rx.close()
            rx = ch.rx("team", ack=True, shared=True)
        n = rx.unacked if behind or rng.random() < 0.5 else rng.randint(0, rx.unacked)
        if n and (behind or rng.random() < 0.8):
            mine = [table.index(taken.offset) for taken in rx._member.unacked][:n]
            note("ack", *mine)
            rx.ack(n)
            note("acked")
            progress["team"] = table.index(rx.offset)


# ---- the campaign ----


@dataclass
class Result:
    """What a campaign did."""

    kills: int = 0
    stops: int = 0  # of one that then went on
    sent: int = 0
    received: int = 0
    removed: int = 0  # messages whose segments are gone
    beyond_gaps: int = 0  # lives that ended with something acknowledged beyond a gap
    sending: int = 0  # lives that ended in the midst of a send ...
    receiving: int = 0  # ... of receiving what was there
    acking: int = 0  # ... of acknowledging
    failures: list[str] = field(default_factory=list)


def campaign(base: Path, kills: int, seed: int, compression: str | None, stops: Stops | None = None) -> Result:
    """So many lives, one after the other, over one channel."""
    base.mkdir(parents=True, exist_ok=True)
    rng, result = random.Random(seed), Result()
    stops = stops or Stops(rng)
    before = channel.CHANNEL_MESSAGE_BYTES, channel.INDEX_INTERVAL
    small_files()
    try:
        with Channel(base / "channel", segment_bytes=SEGMENT_BYTES) as ch:
            for name in ("solo", "team"):
                ch.rx(name, ack=True).close()
        with open_lives("tests.channel_crash.campaign") as lives:
            while result.kills < kills:
                began = _life(base)
                life = lives.begin(base / "failure", base, f"{seed} {result.kills}", compression)
                begun = rng.random() > 0.25
                if begun:
                    until(lambda began=began, life=life: _life(base) != began or life.ended, "it is at work")
                    time.sleep(rng.expovariate(15))
                else:  # while it is opening, or judging
                    time.sleep(rng.uniform(0, 0.02))
                if stops.due() and not (base / "failure").exists():
                    result.stops += 1
                    stops.stop(life.pid, meanwhile=lambda begun=begun: begun and _look_beside(base))
                    time.sleep(rng.expovariate(15))
                if life.kill() != -signal.SIGKILL:
                    result.failures.append(life.last_words)
                    return result
                result.kills += 1
                state = Notes(base).load()
                result.beyond_gaps += bool(state.beyond)
                result.sending += bool(state.sending)
                result.receiving += bool(state.receiving and state.solo < state.sent)
                result.acking += bool(state.acking)
        _judge_the_end(base, result)
    except Broken as broken:
        result.failures.append(str(broken))
    finally:
        channel.CHANNEL_MESSAGE_BYTES, channel.INDEX_INTERVAL = before  # type: ignore[misc]
    return result


def _life(base: Path) -> int:
    return int(json.loads((base / "state.json").read_text())["life"]) if (base / "state.json").exists() else 0


def _look_beside(base: Path) -> None:
    """The writer stands still, with whatever it has: nobody takes its place, and readers see all that it was told is sent."""
    with contextlib.suppress(LogBusy):
        Channel(base / "channel").close()
        raise Broken("a channel could be opened whose writer stands still")
    table, sent = Table(), Ticks(base / "ticks").load(SENT)
    with Channel(base / "channel", read_only=True) as ch:
        first = table.index(ch.stats().first_offset)
        got = messages(ch)
    if got != [message(i) for i in range(first, first + len(got))] or first + len(got) < sent:
        raise Broken(f"beside a writer that stands still: {len(got)} messages from {first} on, {sent} were sent")


def _judge_the_end(base: Path, result: Result) -> None:
    table = Table()
    with Channel(base / "channel", segment_bytes=SEGMENT_BYTES) as ch:
        state = judge(ch, Notes(base).load(), table)
        result.sent, result.received = state.sent, state.solo
        result.removed = table.index(ch.stats().first_offset)
    if left := strays(base / "channel"):
        raise Broken(f"files that do not belong there: {left}")
    with Channel(base / "channel", segment_bytes=SEGMENT_BYTES) as ch:
        if not ch.recovery.clean or ch.recovery.how != "clean":
            raise Broken(f"after a clean close: {ch.recovery}")
        judge(ch, state, table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.channel_crash.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, help="stop after this long, however many kills are done")
    parser.add_argument("--base", type=Path, help="where to work (a new directory under /tmp)")
    add_option(parser)
    a = parser.parse_args()
    stops = Stops(random.Random(f"{a.seed} stops"), a.stop_s)
    top = a.base or Path(tempfile.mkdtemp(prefix="campaign"))
    kind = kernel.NAME + (", portable" if files.PORTABLE else "")
    print(f"channel: seed {a.seed}, {a.kills} kills, {kind} kernel, in {top}", flush=True)
    left, number, began = a.kills, 0, time.monotonic()
    while left > 0 and (a.minutes is None or time.monotonic() - began < 60 * a.minutes):
        compression = (None, "zstd", "snappy", "gzip")[number % 4]
        result = campaign(top / str(number), min(left, KILLS_A_ROUND), a.seed + number, compression, stops)
        print(
            f"{time.monotonic() - began:7.1f} s  {a.kills - left + result.kills:6} kills, of the last {result.kills} "
            f"{result.sending} in a send, {result.receiving} in a receive, {result.acking} in an ack  "
            f"{result.sent:8} sent  {result.received:8} received",
            flush=True,
        )
        add(Row("channel", "kill", result.kills, len(result.failures), result.received))
        add_row("channel", result.stops, len(result.failures), result.received)
        if result.failures:
            print(
                "\n".join(result.failures),
                "\n" + again("tests.channel_crash.campaign", kills=a.kills, seed=a.seed, stop_s=a.stop_s),
            )
            return 1
        left -= KILLS_A_ROUND
        number += 1
    shutil.rmtree(top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
