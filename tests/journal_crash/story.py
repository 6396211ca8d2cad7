"""Lives of a journal, each of which may end at any instruction, and what must be left of them.

A life is one process that has the journal open. It notes in a small file of its own, which outlives it, what it is about to do
and what was acknowledged. Every record says in which life it was appended, as the how-many-th, so a replayed copy is told from its
original. The next life begins with judging: nothing acknowledged is lost, nothing that was retired comes again, every group
is complete or said not to be, in order, and nothing is invented.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from penstock import Appended, Checkpoint, Journal, Record
from penstock.storage import files


class Broken(Exception):
    """The journal broke a promise."""


def payload(life: int, n: int, size: int) -> bytes:
    return b"%d.%d." % (life, n) + bytes([(life * 31 + n) & 255]) * size


@dataclass
class Session:
    """What one life appended: (size, group) of each, how many are acknowledged, and which groups were registered."""

    life: int
    copies: list[tuple[int, int]] = field(default_factory=list)
    acked: int = 0
    registered: int = 0  # all up to here, acknowledged
    registering: int = 0  # and up to here, perhaps


@dataclass
class State:
    """What is known from all notes: of numbers what was acknowledged, and what was under way."""

    sessions: list[Session] = field(default_factory=list)
    checked: int = 0
    checking: int = 0
    current: int = 0
    registering: int = 0
    opened_at: int = 0  # the last checkpoint registered when the last life was opened
    going: int = 0  # sessions that may be gone: their walk was about to end ...
    again: int = 0  # ... and if they are, so many of the last one's records are there

    def take(self, word: str, numbers: list[int]) -> None:
        """One note."""
        if word == "open":
            life, checked, current = numbers
            self.sessions.append(Session(life, registered=current, registering=current))
            self.checked = self.checking = checked
            self.current = self.registering = self.opened_at = current
        elif word == "append":
            self.sessions[-1].copies.append((numbers[0], numbers[1]))
        elif word == "appended":
            self.sessions[-1].acked = numbers[0]
        elif word == "register":
            self.registering = self.sessions[-1].registering = numbers[0]
        elif word == "registered":
            self.current = self.registering = self.sessions[-1].registered = self.sessions[-1].registering = numbers[0]
        elif word == "retire":
            self.checking = max(self.checking, numbers[0])
        elif word == "retired":
            self.checked = max(self.checked, numbers[0])
            self.checking = max(self.checking, numbers[0])
        elif word == "ending":
            self.going, self.again = len(self.sessions) - 1, len(self.sessions[-1].copies)
            self.checking = max(self.checking, self.opened_at)
        elif word == "ended":
            del self.sessions[: self.going]
            self.going = self.again = 0
            self.checked = max(self.checked, self.opened_at)
            self.checking = max(self.checking, self.checked)
        else:
            raise AssertionError(word)


class Notes:
    """What the lives have noted: the state that the last judgement found, and the notes since."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._fd = -1

    def load(self) -> tuple[State, int]:
        """The state, and the number of the next life."""
        state, known = State(), -1
        found = self._base / "state.json"
        if found.exists():
            kept: dict[str, Any] = json.loads(found.read_text())
            known = kept.pop("life")
            sessions = [Session(**{**s, "copies": [(a, b) for a, b in s["copies"]]}) for s in kept.pop("sessions")]
            state = State(sessions=sessions, **kept)
        lives = sorted(int(p.stem) for p in self._base.glob("*.notes"))
        for life in lives:
            for line in (self._base / f"{life}.notes").read_text().split("\n")[:-1] if life > known else ():
                word, *numbers = line.split()
                state.take(word, [int(n) for n in numbers])
        return state, max([known, *lives]) + 1

    def save(self, state: State, life: int) -> None:
        kept = {**vars(state), "sessions": [vars(s) for s in state.sessions], "life": life - 1}
        files.replace(self._base / "state.json", json.dumps(kept).encode(), durable=False)
        for path in self._base.glob("*.notes"):
            if int(path.stem) < life:
                path.unlink()

    def begin(self, life: int) -> None:
        self._fd = os.open(self._base / f"{life}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


# ---- judging ----


def judge(got: list[Record], checked: int, current: int, state: State) -> State:
    """What a walk gave, and what the journal says of its checkpoints, against what was noted; the state as it is now."""
    if not state.checked <= checked <= state.checking:
        raise Broken(f"{checked} is retired, {state.checked} was acknowledged and {state.checking} under way")
    if not state.current <= current <= state.registering:
        raise Broken(f"{current} is registered, {state.current} was acknowledged and {state.registering} under way")
    runs = [(life, list(some)) for life, some in groupby(got, key=lambda r: int(r.payload.split(b".")[0]))]
    found = dict(runs)
    if len(found) != len(runs) or list(found) != sorted(found):
        raise Broken(f"lives in this order: {[life for life, _ in runs]}")
    if unknown := found.keys() - {session.life for session in state.sessions}:
        raise Broken(f"records of {sorted(unknown)}, which have none")
    numbers = [{record.session for record in some} for some in found.values()]
    if any(len(some) != 1 for some in numbers) or sorted(map(min, numbers)) != [min(some) for some in numbers]:
        raise Broken(f"sessions have these numbers: {numbers}")
    if len({min(some) for some in numbers}) != len(numbers):
        raise Broken("two lives are one session")
    going = state.sessions[: state.going]
    gone = bool(going) and not any(session.life in found for session in going)
    now = State(checked=checked, checking=checked, current=current, registering=current)
    for i, session in enumerate(state.sessions):
        if gone and i < state.going:
            continue
        if session.registering > session.registered:  # the last one's: what was under way is known now
            session.registered = session.registering = min(session.registering, current)
        count = _judge_session(session, found.get(session.life, []), checked)
        if gone and i + 1 == len(state.sessions) and any(g > checked for _, g in session.copies[count : state.again]):
            raise Broken(
                f"the walk has ended, and of {state.again} records that were appended before {count} are there"
            )
        copies = session.copies[:count]
        if any(group > checked or group > session.registered for _, group in copies):
            now.sessions.append(Session(session.life, copies, count, session.registered, session.registering))
    return now


def _judge_session(session: Session, got: list[Record], checked: int) -> int:
    """The records of one life; how many of what it appended are there, with those that are retired."""
    # The open group comes whatever is retired: its number is that of a later life's first checkpoint, too.
    wanted = [
        (payload(session.life, n, size), n, group)
        for n, (size, group) in enumerate(session.copies)
        if group > checked or group > session.registered
    ]
    where = f"life {session.life}"
    for record, (content, n, group) in zip(got, wanted, strict=False):
        if record.payload != content:
            raise Broken(f"{where}: record {n} should be {content[:30]!r}, is {record.payload[:30]!r}")
        if record.group != group:
            raise Broken(f"{where}: record {n} is of group {group}, and said to be of {record.group}")
        complete = group <= session.registered
        if record.complete != complete and not (session.registered < group <= session.registering):
            raise Broken(f"{where}: the group {group} of record {n} is said to be complete: {record.complete}")
    must = sum(1 for _, n, _ in wanted if n < session.acked)
    if not must <= len(got) <= len(wanted):
        raise Broken(f"{where}: {len(got)} records, of {must} acknowledged and {len(wanted)} appended, after {checked}")
    if not got:
        return session.acked
    return wanted[len(got) - 1][1] + 1


# ---- a life ----


class Life:
    """One process's hold on the journal: every call notes what it does."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.notes = Notes(base)
        self.state, self.number = self.notes.load()
        self.promises: list[Appended] = []
        self.appended = 0
        self.acknowledged = 0
        self.coming: list[Record] = []
        self.j: Journal | None = None

    @property
    def journal(self) -> Journal:
        assert self.j is not None
        return self.j

    def open(self) -> None:
        """And judge what the last ones left."""
        self.j = Journal(self.base / "log")
        checked, current = self.j.first_unchecked - 1, self.j.current
        self.coming = [record for records in self.j._walk("raise", []) for record in records]
        state = judge(self.coming, checked, current, self.state)
        self.notes.save(state, self.number)
        self.notes.begin(self.number)
        self.notes.note("open", self.number, checked, current)

    def append(self, *sizes: int) -> None:
        group = self.journal.current + 1
        for size in sizes:
            self.notes.note("append", size, group)
        made = [payload(self.number, self.appended + i, size) for i, size in enumerate(sizes)]
        self.promises.append(self.journal.append(made[0]) if len(made) == 1 else self.journal.append_many(made))
        self.promises += [self.promises[-1]] * (len(made) - 1)
        self.appended += len(made)

    def acknowledge(self, *, wait: bool = False) -> None:
        """Note what is done by now; or wait until all is."""
        if wait and self.promises:
            self.promises[-1].result()
        while self.acknowledged < len(self.promises) and self.promises[self.acknowledged].done():
            self.promises[self.acknowledged].result()
            self.acknowledged += 1
        self.notes.note("appended", self.acknowledged)

    def register(self, *, wait: bool) -> None:
        self.notes.note("register", self.journal.current + 1)
        number = self.journal.checkpoint()
        if wait:
            self._done("registered", number)

    def retire(self, *, wait: bool) -> None:
        self.notes.note("retire", self.journal.first_unchecked)
        number = self.journal.check()
        if wait:
            self._done("retired", number)

    def _done(self, word: str, number: Checkpoint) -> None:
        number.result()
        self.acknowledge()
        self.notes.note(word, int(number))

    def walk(self, *, most: int = 1 << 62, again: bool = True) -> None:
        """Over what the last ones left, appending it again; to its end, unless that is further than `most`."""
        walk = iter(self.journal.recovered())
        coming = [r for r in self.coming if r.group >= self.journal.first_unchecked or not r.complete]
        for n, wanted in enumerate(coming):
            if n == most:
                return
            record = next(walk)
            if record != wanted:
                raise Broken(f"walked twice, and record {n} was {wanted}, and then {record}")
            if again:
                self.append(n % 40)
        self.notes.note("ending")
        if list(walk):
            raise Broken("a second walk gave more than the first")
        self.acknowledge()
        self.notes.note("ended")

    def close(self) -> None:
        self.journal.close()
        self.acknowledge()
        self.notes.close()
