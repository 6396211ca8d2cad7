"""SIGKILL at each step of a hand-over between two members of a group: of the one that gives, and of the one that takes. And each of them
standing still there (SIGSTOP), until it goes on.

The other one lives. Of what the dead one had committed nothing comes to it, and all the rest does; before that, nothing of what the
other one was given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock import GroupMember, Topic
from penstock.storage import claims
from penstock.storage.janitor import Janitor
from penstock.testing.standing_in import CHANGING
from tests.channel.conftest import Ran
from tests.queue.crash import NATIVE, Image, Yard
from tests.queue.dying import Countdown, Zygote, die, open_zygote, stand
from tests.stopping import some_calls
from tests.topic_crash.test_cut import note
from tests.topic_crash.wreck import EVERY, everything, lay, open_topics

GROUP = "group"
PARTITIONS, EACH = 3, 7
WAIT_S = 0.02  # to see whether something is done at once
CALLS = (*CHANGING, "close", "lock", "unlock", "has_name", "map_write")
Place = tuple[int, int]  # partition, offset


# ---- the one that dies, in a process of its own ----


class Dying:
    """A member that notes what it is given and what it commits."""

    def __init__(self, t: Topic, notes: Path) -> None:
        self.t, self.notes = t, notes
        self.member: GroupMember | None = None

    @property
    def m(self) -> GroupMember:
        assert self.member is not None
        return self.member

    def join(self) -> None:
        self.member = self.t.group(GROUP)

    def take(self, n: int) -> None:
        got = [(m.partition, m.offset) for m in self.m.poll_many(n)]
        note(self.notes, "got", json.dumps(got))

    def commit(self) -> None:
        note(self.notes, "committing")
        self.m.commit()
        note(self.notes, "committed")

    def close(self) -> None:
        self.m.close()
        note(self.notes, "left")


def _has_all(d: Dying) -> None:
    d.join()
    d.take(8)
    d.commit()
    d.take(3)


def _keeps(d: Dying) -> None:
    """There is another one now, but it has not committed what it took."""
    d.take(1)


def _gives(d: Dying) -> None:
    d.commit()
    d.take(2)


def _leaves(d: Dying) -> None:
    d.commit()
    d.take(2)
    d.close()


def _comes(d: Dying) -> None:
    d.join()
    d.take(2)


def _takes(d: Dying) -> None:
    d.take(4)
    d.commit()
    d.take(2)


Step = Callable[[Dying], None]
ROLES: dict[str, tuple[Step, list[Step]]] = {
    # what it does before, and the steps that it dies over; the other one takes what there is between them
    "the one that gives": (_has_all, [_keeps, _gives, _leaves]),
    "the one that takes": (lambda d: None, [_comes, _takes, _leaves]),
}


def live(path: str, role: str, at: int, notes: str, stands: bool = False) -> None:
    """Do one step after the other, each when it is told to, and die at the n-th call, or stand still there."""
    Janitor.serve = lambda self, log: setattr(self, "_log", log)  # type: ignore[method-assign]
    claims._LOOK_S = 0.0  # type: ignore[misc]
    before, steps = ROLES[role]
    countdown = Countdown(at, there=stand if stands else die)
    countdown.lay(CALLS)
    logs = open_topics(Path(path))
    dying = Dying(logs.topic("t"), Path(notes))
    dying.t.ends()
    before(dying)
    print("ready", flush=True)
    countdown.begin()
    for step in steps:
        sys.stdin.readline()
        step(dying)
        print("done", flush=True)
    sys.stdin.readline()
    os._exit(7)


# ---- what it noted ----


@dataclass
class Told:
    got: set[Place] = field(default_factory=set)
    committing: set[Place] = field(default_factory=set)
    committed: set[Place] = field(default_factory=set)
    left: bool = False

    @property
    def its_own(self) -> set[Place]:
        """What may come to nobody else."""
        return self.committed if self.left else self.got

    @classmethod
    def load(cls, notes: Path) -> Told:
        told = cls()
        for line in notes.read_text().splitlines() if notes.exists() else []:
            word, _, rest = line.partition(" ")
            if word == "got":
                told.got |= {(p, o) for p, o in json.loads(rest)}
            elif word == "committing":
                told.committing = told.got - told.committed
            elif word == "committed":
                told.committed |= told.committing
                told.committing = set()
            else:
                told.left = True
        return told


# ---- the tests ----


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(live) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def image(yard: Yard) -> Image:
    with open_topics(path := yard.keep()) as logs:
        t = logs.topic("t", PARTITIONS)
        for p in range(PARTITIONS):
            t.publish_many([b"%d" % i for i in range(EACH)], partition=p)
        t.flush()
    return everything(path)


class Beside:
    """The one that lives."""

    def __init__(self, t: Topic) -> None:
        self.t = t
        self.member = t.group(GROUP)
        self.got: list[Place] = []

    def take(self, n: int = 1 << 30) -> None:
        self.got += [(m.partition, m.offset) for m in self.member.poll_many(n)]


@pytest.mark.parametrize("role", ROLES)
def test_a_death_at_each_step_of_a_hand_over(
    yard: Yard, child: Zygote, image: Image, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_LOOK_S", 0.0)  # a death is noticed at once
    at, ended, handed_over = 1, 0, False
    while ended != 7:
        path, notes = lay(image, yard.new(), "same"), yard.keep()
        with open_topics(path) as logs:
            ended, took = _hand_over(logs.topic("t"), child, path, role, at, notes)
            handed_over |= took
        at += 1 if NATIVE or EVERY else 4
    assert at > 30, "there was hardly anything to die over"
    assert handed_over


@pytest.mark.parametrize("role", ROLES)
def test_one_that_stands_still_at_a_step_of_a_hand_over_has_what_it_was_given(
    yard: Yard, child: Zygote, image: Image, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one asks for more meanwhile: it gets what is its own, or waits, and goes on when the first one does."""
    monkeypatch.setattr(claims, "_LOOK_S", 0.0)
    handed_over, stood = False, 0
    for at in some_calls(9):
        path, notes = lay(image, yard.new(), "same"), yard.keep()
        with open_topics(path) as logs:
            t = logs.topic("t")
            child.tell(str(path), role, at, str(notes), True)
            beside = _met(t, child, role)
            stands, took = False, False
            child.tell("go on")
            while (said := child.answer()).partition(" ")[0] in ("done", "standing"):
                with child.standing(said) as here:
                    if here:
                        taking = Ran(lambda beside=beside: beside.take(1))
                        taking.join(WAIT_S)
                        stands = True
                if here:
                    taking.result()
                else:
                    took |= _goes_on(beside, notes)
                    child.tell("go on")
            assert said == "7"
            _judge(t, beside, notes)
            handed_over |= took
        if not stands:
            break
        stood += 1
    assert stood >= 4
    assert handed_over


def _hand_over(t: Topic, child: Zygote, path: Path, role: str, at: int, notes: Path) -> tuple[int, bool]:
    """One death; how it ended, and whether something had changed hands while both lived."""
    child.tell(str(path), role, at, str(notes))
    other = _met(t, child, role)
    child.tell("go on")
    took = False
    while (said := child.answer()) == "done":
        took |= _goes_on(other, notes)
        child.tell("go on")
    assert int(said) in (7, -signal.SIGKILL)
    _judge(t, other, notes)
    return int(said), took


def _met(t: Topic, child: Zygote, role: str) -> Beside:
    """The other one, when the first one is there."""
    if role == "the one that gives":
        assert child.answer() == "ready"
        other = Beside(t)
        assert other.member.partitions == []
    else:
        other = Beside(t)
        other.take(8)
        other.member.commit()
        other.take(3)
        assert child.answer() == "ready"
    return other


def _goes_on(other: Beside, notes: Path) -> bool:
    """Between two steps of the first one; whether something has changed hands."""
    other.member.commit()
    before = len(other.got)
    other.take(2)
    assert not set(other.got) & Told.load(notes).its_own, "it has what the other one was given"
    return len(other.got) > before and len(other.member.partitions) < PARTITIONS


def _judge(t: Topic, other: Beside, notes: Path) -> None:
    """When the first one is gone."""
    told = Told.load(notes)
    other.take()
    assert other.member.partitions == list(range(PARTITIONS))
    assert len(other.got) == len(set(other.got)), "something came twice"
    assert not set(other.got) & told.committed, "what was committed comes again"
    for p in range(PARTITIONS):
        came, committed, committing = (
            [o for partition, o in some if partition == p] for some in (other.got, told.committed, told.committing)
        )
        assert came == sorted(came)
        missing = set(range(EACH)) - {*came, *committed}
        assert missing in (set(), set(committing)), "what was not committed does not come"
    other.member.commit()
    assert t.committed(GROUP) == dict.fromkeys(range(PARTITIONS), EACH)
