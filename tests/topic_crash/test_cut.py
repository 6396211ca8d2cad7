"""A process that dies at any of its calls that change a file, over each thing that a topic does with files; by SIGKILL.

What it leaves is gone on with by a process that was there all the time, by one that comes after it, and as if the machine had gone
down with all of it on the disk. (What the native thread writes by itself: test_points.py.)
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import GroupMember, Retention, Topic, Topics
from penstock.storage import files
from penstock.storage.janitor import Janitor
from penstock.testing.state import Boot
from penstock.topic import topics
from tests.queue.crash import NATIVE, Image, Yard, payload
from tests.queue.dying import Countdown, Zygote, open_zygote
from tests.topic_crash.wreck import EVERY, INTERVAL, everything, found, lay, open_topics, page, work

BEFORE = [payload(i, n) for i, n in enumerate([40, 0, 60, 30, 0, 70, 10])]
LATER = [payload(20 + i, n) for i, n in enumerate([50, 0, 80, 100, 0, 3, 120])]
HALF = 4


# ---- what is done in a process of its own ----


def note(path: Path, *words: object) -> None:
    """Outlives whoever wrote it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    os.close(fd)


class Doing:
    """One process at a topic."""

    def __init__(self, path: Path, notes: Path) -> None:
        self.path, self.notes = path, notes
        self.logs: Topics | None = None
        self._members: list[GroupMember] = []

    @property
    def t(self) -> Topic:
        if self.logs is None:
            self.logs = open_topics(self.path)
        return self.logs.topic("t", 2)

    def publish(self, some: list[bytes]) -> None:
        for p in some:
            note(self.notes, "publish", p.hex())
            made = self.t.publish(p, partition=0)
            self.t.flush()
            assert made.done()
            note(self.notes, "published")

    def publish_list(self, some: list[bytes]) -> None:
        note(self.notes, "publish", *(p.hex() for p in some))
        made = self.t.publish_many(some, partition=0)
        self.t.flush()
        made.wait()
        note(self.notes, "published")

    def commit(self, name: str, n: int) -> None:
        with self.t.tailer(name, partitions=[0]) as tailer:
            tailer.seek(0, n)
            note(self.notes, "commit", name, n)
            tailer.commit()
            note(self.notes, "committed")

    def commit_group(self, n: int) -> None:
        member = self.t.group("group")
        self._members.append(member)
        member.poll_many(n)
        note(self.notes, "commit", "group", n)
        member.commit()
        note(self.notes, "committed")


def _make(d: Doing) -> None:
    d.t.ends()
    d.publish([b"first"])


def _open(d: Doing) -> None:
    d.t.ends()


def _publish(d: Doing) -> None:
    d.publish(LATER)


def _publish_list(d: Doing) -> None:
    d.publish_list(LATER * 2)


def _seal(d: Doing) -> None:
    d.publish(LATER)
    work(d.t)


def _retire(d: Doing) -> None:
    d.t.forget("audit")
    d.publish(LATER)
    work(d.t)
    work(d.t)


def _commit(d: Doing) -> None:
    d.commit("audit", 6)
    d.commit("new", 3)


def _commit_group(d: Doing) -> None:
    d.commit_group(5)


def _forget(d: Doing) -> None:
    d.t.forget("audit")


def _add(d: Doing) -> None:
    d.t.add_partitions(3)


def _mend_index(d: Doing) -> None:
    for at in reversed(range(len(BEFORE))):
        d.t.read(0, at, 1)


def _close(d: Doing) -> None:
    d.publish(LATER[:4])
    assert d.logs is not None
    d.logs.close()
    d.logs = None


@dataclass
class Act:
    """What is done until the end; what it begins with; how many calls that takes at least."""

    then: Callable[[Doing], None]
    state: str = "closed"
    calls: int = 4
    is_open: bool = True  # before it begins to count


ACTS = {
    "making a topic": Act(_make, "nothing", 20, is_open=False),
    "making a partition": Act(_make, "no partition", 10, is_open=False),
    "opening one that was closed": Act(_open, "closed", is_open=False),
    "opening one that died": Act(_open, "died", 10, is_open=False),
    "opening one after a power cut": Act(_open, "went down", 10, is_open=False),
    "opening a foreign one": Act(_open, "foreign", 20, is_open=False),
    "rolling": Act(_publish, "closed", 20),
    "rolling over several segments": Act(_publish_list, "closed", 20),
    "sealing": Act(_seal, "closed", 20),
    "removing": Act(_retire, "closed", 30),
    "committing": Act(_commit),
    "committing as a group": Act(_commit_group),
    "forgetting": Act(_forget, calls=1),
    "adding partitions": Act(_add),
    "making an index anew": Act(_mend_index, "no index"),
    "closing": Act(_close, "closed", 20),
}


def run(path: str, name: str, after: int, notes: str) -> None:
    """In a child: do it, and die at the n-th call."""
    Janitor.serve = lambda self, log: setattr(self, "_log", log)  # type: ignore[method-assign]
    topics.INDEX_INTERVAL = INTERVAL  # type: ignore[misc]
    act = ACTS[name]
    doing = Doing(Path(path), Path(notes))
    if name == "removing":
        doing.logs = open_topics(doing.path, retention=Retention(max_bytes=1))
    if act.is_open:
        doing.t.ends()

    countdown = Countdown(after)
    countdown.lay()
    countdown.begin()
    act.then(doing)
    note(doing.notes, "calls", countdown.calls)
    os._exit(7)  # without closing anything


# ---- what it begins with ----


def _fill(path: Path) -> Image:
    """As a kill leaves it: a topic with segments that are finished, of which the first is sealed, and a named tailer."""
    with open_topics(path) as logs:
        t = logs.topic("t", 2)
        t.ends()
        for i, p in enumerate(BEFORE):
            t.publish(p, partition=0)
            t.flush()
            if i == HALF:
                work(t)
        with t.tailer("audit", partitions=[0]) as tailer:
            tailer.seek(0, HALF)
            tailer.commit()
        return everything(path)


def begins(yard: Yard, state: str) -> Path:
    path = yard.keep()
    if state == "nothing":
        return path
    if state == "no partition":
        with open_topics(path) as logs:
            logs.topic("t", 2)
        return path
    if state == "foreign":
        whole = _fill(path)
        data = {n: d for n, d in whole.items() if n.endswith(".log") and "partition_0" in n}
        return Image(data).lay(yard.keep(), "same")
    image = _fill(path)
    if state == "died":
        return lay(image, yard.keep(), "same")
    if state == "went down":
        return lay(image.changed(page(), bytes(4096)), yard.keep(), "new")
    if state == "no index":
        for index in path.glob("t/partition_0_segment_*.index"):
            index.unlink()
    return path


# ---- judging ----


@dataclass
class Told:
    """What its notes say."""

    published: list[bytes]
    publishing: list[bytes]
    committed: dict[str, int]
    committing: dict[str, int]
    calls: int | None = None

    @classmethod
    def load(cls, notes: Path) -> Told:
        told = cls([], [], {}, {})
        for line in notes.read_text().splitlines() if notes.exists() else []:
            kind, *words = line.split(" ")
            if kind == "publish":
                told.publishing = [bytes.fromhex(w) for w in words]
            elif kind == "published":
                told.published += told.publishing
                told.publishing = []
            elif kind == "commit":
                told.committing = {words[0]: int(words[1])}
            elif kind == "committed":
                told.committed |= told.committing
                told.committing = {}
            elif kind == "calls":
                told.calls = int(words[0])
        return told


def strays(top: Path) -> list[str]:
    """Files that no topic that was closed clean has."""
    known = re.compile(
        r"metadata\.json(\.\d+-\d+\.tmp)*|partition_\d+_segment_\d+\.log(\.time|\.index|\.torn)?"
        r"|\.partition_\d+/(\.lock|\.append|manifest|cursors/[a-z]+)|\.groups/[a-z]+/(claim-\d+|turn)"
    )
    return [name for name in files.walk(top / "t") if not known.fullmatch(name)]


def judge(logs: Topics, told: Told, before: list[bytes], name: str) -> None:
    """Whatever was acknowledged is there, nothing else but what was under way, and it goes on."""
    t = logs.topic("t")
    report = t.recovery(0)
    assert report.damage == []
    wanted = [*before, *told.published]
    got, losses = found(t)
    assert losses == []
    first, end = t.stats()[0].first_offset, t.ends()[0]
    assert list(got) == list(range(first, end))
    assert list(got.values()) == [*wanted, *told.publishing][first:end]
    assert first == 0 or name == "removing"
    assert end >= len(wanted)
    kept = t.committed("audit").get(0)
    if name not in ("forgetting", "removing") and before:
        assert kept in {told.committed.get("audit", HALF), told.committing.get("audit")}
    for reader, n in told.committed.items():
        assert t.committed(reader)[0] == n
    assert t.partitions in ((2, 3) if name == "adding partitions" else (1, 2))
    with t.group("group") as member:
        assert member.partitions == list(range(t.partitions)), "the dead one has none"
        again = [m.offset for m in member if m.partition == 0]
        places = {told.committed.get("group", 0), *told.committing.values()}
        assert again in [list(range(max(first, p), end)) for p in places] or name == "removing"
    made = t.publish_many([b"after", b"", b"that"], partition=0)
    t.flush()
    assert made.wait() == [range(end, end + 3)]
    assert [m.payload for m in t.read(0, end, 9)] == [b"after", b"", b"that"]


def step(calls: int) -> int:
    """Every call is died at, or a sample of them where there are many."""
    return 1 if EVERY else (1 if calls < 10 else 5) if NATIVE else (3 if calls < 10 else 13)


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(run) as zygote:
        yield zygote


@pytest.mark.parametrize("name", ACTS)
def test_a_death_at_any_call_loses_nothing_and_leaves_nothing_behind(yard: Yard, child: Zygote, name: str) -> None:
    act, after = ACTS[name], 1
    image = everything(begins(yard, act.state)) if act.state != "nothing" else Image()
    before = BEFORE if act.state not in ("nothing", "no partition") else []
    boot: Boot = "new" if act.state == "went down" else "same"
    while True:
        path, notes = lay(image, yard.new(), boot), yard.keep()
        ended = child(path, name, after, str(notes))
        told = Told.load(notes)
        if ended != -signal.SIGKILL:
            assert ended == 7
            break
        left = everything(path) if path.exists() else Image()
        with open_topics(path) as logs:
            logs.topic("t", None if act.then is _add or act.state == "foreign" else 2)
            judge(logs, told, before, name)
        assert strays(path) == []
        with open_topics(path) as logs:
            assert logs.topic("t").recovery(0).clean
        with open_topics(lay(left, yard.new(), "new")) as logs:  # all of it was on the disk
            logs.topic("t", None if act.then is _add or act.state == "foreign" else 2)
            judge(logs, told, before, name)
        after += step(act.calls)
    assert told.calls is not None
    assert told.calls >= act.calls, "there was hardly anything to die over"
    assert after > min(act.calls, told.calls)


BESIDE = ["rolling", "rolling over several segments", "sealing", "removing", "committing", "closing"]


@pytest.mark.parametrize("name", BESIDE)
def test_those_beside_go_on_at_once(yard: Yard, child: Zygote, name: str) -> None:
    """One has the topic open all the time, publishes and reads: nothing it had is lost, and it notices nothing."""
    image, after = everything(begins(yard, "closed")), 1
    while True:
        path, notes = lay(image, yard.new(), "same"), yard.keep()
        with open_topics(path) as logs:
            t = logs.topic("t")
            reader = t.tailer(partitions=[0])
            assert [m.payload for m in reader] == BEFORE
            ended = child(path, name, after, str(notes))
            told = Told.load(notes)
            judge(logs, told, BEFORE, name)
            if name != "removing":
                assert [m.payload for m in reader][-3:] == [b"after", b"", b"that"]
            work(t)
            first = t.stats()[0].first_offset
            assert list(found(t)[0]) == list(range(first, t.ends()[0]))
        with open_topics(path) as logs:
            assert logs.topic("t").recovery(0).clean
        if ended != -signal.SIGKILL:
            break
        after += 1 + step(20)
    assert after > 5
