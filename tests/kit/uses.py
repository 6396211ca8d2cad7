"""Every use of the engine, as the crash kit drives it: a few operations each, what they promise, and what must hold after a crash.

An operation notes what it is about to do and what is done. `now()` gives that frozen, so that a state of any moment can be judged
by what had been promised then. Judging opens what is left, compares, appends, closes and opens again.
"""

from __future__ import annotations

import itertools
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from penstock import (
    DiskFull,
    Flush,
    Journal,
    LogClosed,
    NotSynced,
    PenstockError,
    Queue,
    Recovery,
    RecoveryUnfinished,
    Retention,
    StorageFailed,
    SyncFailed,
    Topics,
    journal,
    kernel,
)
from penstock.storage import bulk
from penstock.storage.janitor import Janitor
from penstock.storage.ledger import Ledger
from penstock.storage.log import Log
from penstock.storage.manifest import Manifest
from penstock.testing.state import Boot
from penstock.topic import topics
from tests.channel_crash.story import Story
from tests.channel_crash.wreck import small_files
from tests.queue.crash import beyond, payload

# How much is done at a time decides how many states a crash may leave: so little that all of three operations can be looked at.
INTERVAL = 2
LINGER_S = 3600.0
FEWER = 3  # where there are more records, as a channel has it, too
FILE_SIZE = 8192
SEGMENT_BYTES = 160
JOURNAL_BYTES = 150
MOST_EDITS = 2  # beside one for each segment: with more a manifest is written anew
AFTER = [b"after", b"that"]


class Broken(AssertionError):
    """A promise was not kept."""


def must(kept: object, promise: str, *facts: object) -> None:
    if not kept:
        raise Broken(": ".join([promise, *map(repr, facts)]))


@contextmanager
def small() -> Iterator[None]:
    """Small files everywhere, manifests soon too long, and no background: what it would do is an operation."""
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        patch.setattr(topics, "INDEX_INTERVAL", INTERVAL)
        patch.setattr(journal, "MAX_FILE_BYTES", JOURNAL_BYTES)
        # Not yet when it was written anew: what was retired last, and one for each segment.
        patch.setattr(Manifest, "is_long", property(lambda self: self._edits > MOST_EDITS + len(self.segments)))
        patch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
        yield


class Use(ABC):
    """One use, open."""

    name: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]
    appends: ClassVar[tuple[str, ...]] = ()  # operations that add records
    long: ClassVar[
        tuple[str, ...]
    ]  # a workload that does everything there is: tests/kit/test_states.py says what that is
    at_end: ClassVar[tuple[str, ...]] = ()  # operations that come last in a short workload, or among many
    rarely: ClassVar[
        tuple[str, ...]
    ] = ()  # operations of which a random workload has fewer than of others, or it would come to little
    durable: ClassVar[tuple[str, ...]] = ()  # operations that say that something is on the disk
    background: ClassVar[tuple[str, ...]] = ("work",)  # operations of a thread that tells nobody what has failed
    goes_on: ClassVar[bool] = False  # after an operation that failed others may follow, even if it is not tried again

    def __init__(self, path: Path) -> None:
        self.path = path

    def do(self, op: str) -> None:
        getattr(self, op)()

    def reopen(self) -> None:
        self.close()
        self.open()

    @abstractmethod
    def now(self) -> Any:
        """What is promised just now, and what is under way."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def read(self) -> None:  # noqa: B027
        """Readers go on, whatever has failed; where there is none that could, judging reads everything."""

    @classmethod
    def recover(cls, path: Path) -> None:
        """What the next process does first."""
        made = cls(path)
        made.open()
        try:
            made.go_on()
        finally:
            made.close()

    def go_on(self) -> None:  # noqa: B027
        """What it does right after opening that adds nothing: whatever of two things it has found, the promise is the same."""

    @classmethod
    def going_on(cls, told: Any, boot: Boot) -> Any:
        """What is promised while it does that."""
        return told

    @classmethod
    def settled(cls, told: Any) -> Any:
        """What is promised when that process has closed it."""
        return told

    @classmethod
    @abstractmethod
    def judge(cls, path: Path, told: Any, boot: Boot) -> int:
        """Raises Broken; how many records were checked."""

    @classmethod
    def promised(cls, told: Any) -> object:
        """What was, with a `repr` that is the same for what is the same."""
        return told


# ---- logs of records, with a named reader ----


@dataclass(frozen=True)
class Told:
    """What was promised."""

    sent: tuple[bytes, ...] = ()
    doing: tuple[bytes, ...] = ()  # under way: whole or absent
    failed: tuple[tuple[bytes, ...], ...] = ()  # since the last that did not: a power cut may bring one back
    durable: int = 0  # so many survive a power cut
    ends: frozenset[int] = frozenset({0})
    place: int | None = None  # of the reader, when last committed
    places: frozenset[int | None] = frozenset({None})  # where a power cut may leave it
    committing: int | None = None
    passed: int = 0  # what lies before may be retired


def _hollow(sequence: int, size: int) -> bytes:
    """Mostly zeros: a sector of nothing else is the same before and after, so a record of many has fewer states."""
    return payload(sequence, min(size, 40)).ljust(size, b"\0")


@dataclass
class Found:
    first: int
    payloads: list[bytes]
    place: int | None
    recovery: Recovery


class Records(Use):
    """What the queue and the topic have in common."""

    durable_commits: ClassVar[bool]  # a place survives a power cut when `commit` returned
    waits: ClassVar[bool]  # nothing is done before it is durable
    parts: ClassVar[bool] = False  # a batch that was not acknowledged may be there in part

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.told = Told()

    def now(self) -> Told:
        return self.told

    def _say(self, **changes: Any) -> None:
        self.told = replace(self.told, **changes)

    def _appending(
        self, sizes: list[int], act: Callable[[list[bytes]], None], made: Callable[[int, int], bytes] = payload
    ) -> None:
        new = [made(len(self.told.sent) + i, size) for i, size in enumerate(sizes)]
        failed = (*self.told.failed, self.told.doing) if self.told.doing else self.told.failed
        self._say(doing=tuple(new), failed=failed)
        act(new)
        sent = (*self.told.sent, *new)
        durable = len(sent) if self.waits else self.told.durable
        self._say(sent=sent, doing=(), failed=(), ends=self.told.ends | {len(sent)}, durable=durable)

    def _retiring(self, act: Callable[[], None]) -> None:
        """Without a reader nothing holds anything back."""
        if self.told.place is None:
            self._say(passed=len(self.told.sent))
        act()

    def _committing(self, place: int, act: Callable[[], None]) -> None:
        self._say(committing=place, passed=max(self.told.passed, place), places=self.told.places | {place})
        act()
        places = frozenset({place}) if self.durable_commits else self.told.places
        self._say(place=place, committing=None, places=places)

    @classmethod
    def going_on(cls, told: Told, boot: Boot) -> Told:
        """Without a reader, or when a power cut has taken it, its background holds nothing back."""
        some = len(told.sent) + max(map(len, (told.doing, *told.failed)))
        return replace(told, passed=some) if None in (told.places if boot == "new" else (told.place,)) else told

    @classmethod
    def settled(cls, told: Told) -> Told:
        return replace(told, durable=len(told.sent))

    @classmethod
    @abstractmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        """Open and read everything, then append some."""

    @classmethod
    def judge(cls, path: Path, told: Told, boot: Boot) -> int:
        found = cls.look(path, AFTER)
        ways = [[*told.sent, *doing] for doing in (told.doing, *(told.failed if boot == "new" else ()))]
        end = found.first + len(found.payloads)
        must(not found.recovery.damage, "nothing is taken for damage", found.recovery.damage)
        must(found.first <= told.passed, "nothing that the reader has not passed is gone", found.first, told)
        same = [every for every in ways if found.payloads == every[found.first : end]]
        must(same, "an exact prefix", found.payloads, *ways)
        must(end in told.ends or end in map(len, same) or cls.parts, "batches are whole or absent", end, told.ends)
        must(end >= (told.durable if boot == "new" else len(told.sent)), "nothing promised is lost", end, told)
        place = found.place
        if boot == "new":
            may = {min(p, end) if p is not None else None for p in told.places}
            # One whose last commits are undone, and who has committed since where he stood: at the first that is left.
            may |= {found.first} if any(p is not None and p < found.first for p in may) else set()
        else:
            may = {told.place} | ({told.committing} if told.committing is not None else set())
        must(place in may, "the reader stands where it was committed", place, may)
        again = cls.look(path, [])
        must(again.recovery.clean, "what was mended stays so", again.recovery)
        must(again.payloads == [*found.payloads, *AFTER][again.first - found.first :], "and goes on", again.payloads)
        must(again.place == place, "and so does the reader", again.place, place)
        return len(found.payloads)


class QueueUse(Records):
    name = "queue"
    ops = ("append", "batch", "span", "sync", "work", "commit", "reopen")
    appends = ("append", "batch", "span")
    long = (
        *("append", "batch", "sync", "commit", "span", "work", "append", "sync", "commit", "work"),
        *("batch", "reopen", "batch", "span", "work", "commit", "work"),
    )
    durable_commits = False
    waits = False
    durable = ("sync",)
    goes_on = True
    flush: ClassVar[Flush] = Flush.none()

    def now(self) -> Told:
        """What it says that is durable is so, at any moment."""
        durable = self.told.durable
        if hasattr(self, "q"):
            with suppress(LogClosed):
                durable = max(durable, self.q.durable_sequence)
        return replace(self.told, durable=durable)

    def read(self) -> None:
        with self.q.tailer() as tailer:
            first, got = tailer.position, [m.payload for m in tailer]
        every = [*self.told.sent, *self.told.doing]
        must(got == every[first : first + len(got)], "readers see an exact prefix", got, every)
        must(first + len(got) >= len(self.told.sent), "readers see all that was appended", got)

    @classmethod
    def _open(cls, path: Path) -> Queue:
        return Queue(path, file_size=FILE_SIZE, index_interval=FEWER, flush=cls.flush, retention=Retention(max_bytes=1))

    def open(self) -> None:
        self.q = self._open(self.path)

    def close(self) -> None:
        self.q.close()
        self._say(durable=len(self.told.sent))

    def append(self) -> None:
        self._appending([50], lambda new: self.q.append(new[0]))  # type: ignore[arg-type, return-value]

    def batch(self) -> None:
        self._appending([20, 250], self._batch)

    def span(self) -> None:
        """More than a file holds."""
        self._appending([3000, 30, 1200], self._batch, _hollow)

    def _batch(self, new: list[bytes]) -> None:
        self.q.append_batch(new)

    def sync(self) -> None:
        self.q.sync()
        self._say(durable=len(self.told.sent))

    def work(self) -> None:
        assert self.q._janitor is not None
        self.q._janitor.look_again()
        self._retiring(self.q._janitor._turn)

    def commit(self) -> None:
        place = max(self.told.place or 0, len(self.told.sent) - 1)
        if self.told.place is None:  # made by the tailer, at the oldest record
            self._committing(self.q.first_sequence, lambda: self.q.tailer("reader").close())
        with self.q.tailer("reader") as tailer:
            tailer.seek(place)
            self._committing(place, tailer.commit)

    def go_on(self) -> None:
        """A reader commits where it stands."""
        for name in self.q.cursors():
            with self.q.tailer(name) as tailer:
                tailer.commit()
        self.work()

    @classmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        with cls._open(path) as q, q.tailer() as tailer:
            must(not any(beyond(q)), "nothing is left beyond the end that could come back to life")
            found = Found(tailer.position, [m.payload for m in tailer], q.cursors().get("reader"), q.recovery)
            for i, p in enumerate(after):
                sequence = q.append(p)
                must(sequence == found.first + len(found.payloads) + i, "it goes on at its end", sequence)
        return found


class QueueEachUse(QueueUse):
    """Each append that returned is durable. One whose sync failed, or could not be tried, says that it is there all the same."""

    name = "queue-each"
    ops = ("append", "work", "reopen")
    at_end = ("batch", "commit")
    long = (
        "append",
        "batch",
        "commit",
        "span",
        "append",
        "work",
        "commit",
        "work",
        "batch",
        "reopen",
        "span",
        "append",
    )
    waits = True
    durable = ("append", "batch", "span")
    flush = Flush.each()

    def _appending(
        self, sizes: list[int], act: Callable[[list[bytes]], None], made: Callable[[int, int], bytes] = payload
    ) -> None:
        try:
            super()._appending(sizes, act, made)
        except PenstockError as error:
            said = error.appended if isinstance(error, NotSynced | SyncFailed) else range(0)
            now = range(len(self.told.sent), self.q.next_sequence)
            must(said == now, "what fails says whether it was appended", said, now, error)
            if said:
                sent = (*self.told.sent, *self.told.doing)
                self._say(sent=sent, doing=(), ends=self.told.ends | {len(sent)})
            raise


class QueueBatchUse(QueueUse):
    """The background syncs, and what is durable is told by `durable_sequence` alone."""

    name = "queue-batch"
    ops = ("append", "work", "reopen")
    at_end = ("batch", "commit")
    long = ("append", "batch", "work", "span", "work", "append", "commit", "work", "batch", "reopen", "append", "work")
    durable = ()
    flush = Flush.batch(bytes=1)

    def work(self) -> None:
        super().work()
        must(self.q.durable_sequence == self.q.next_sequence, "the background has synced all", self.q.durable_sequence)


class TopicUse(Records):
    name = "topic"
    ops = ("publish", "empty", "many", "commit", "work", "reopen")
    appends = ("publish", "empty", "many")
    long = (  # a commit comes again at once: after one that failed nothing else has synced what it made
        *("publish", "many", "commit", "commit", "empty", "work", "many", "publish", "commit", "work", "many"),
        *("reopen", "publish"),
    )
    durable_commits = True
    waits = True
    parts = True
    durable = ("publish", "empty", "many")
    goes_on = True

    def read(self) -> None:
        with self.t.tailer(partitions=[0]) as tailer:
            first, got = tailer.positions[0], [m.payload for m in tailer]
        must(got == list(self.told.sent[first:]), "readers see all that was acknowledged, and no more", got, self.told)

    @staticmethod
    def _open(path: Path) -> Topics:
        return Topics(path, linger_s=0, segment_bytes=SEGMENT_BYTES, retention=Retention(max_bytes=1))

    def open(self) -> None:
        self.logs = self._open(self.path)
        try:
            self.t = self.logs.topic("t")
            self.t.ends()
        except BaseException:
            self.logs.close()
            raise

    def close(self) -> None:
        self.logs.close()

    def publish(self) -> None:
        self._appending([40], self._publish)

    def empty(self) -> None:
        self._appending([0], self._publish)

    def many(self) -> None:
        self._appending([30, 0, 60], self._publish)

    def larger(self) -> None:
        """More than a sector; for segments that have room for it."""
        self._appending([900], self._publish)

    def _publish(self, new: list[bytes]) -> None:
        self.t.publish_many(new, partition=0).wait()

    def commit(self) -> None:
        place = max(self.told.place or 0, len(self.told.sent) - 1)
        if self.told.place is None:
            self._committing(self.logs.topic("t").tailer(at="start").positions[0], self._hold)
        with self.t.tailer("reader", partitions=[0]) as tailer:
            tailer.seek(0, place)
            self._committing(place, tailer.commit)

    def _hold(self) -> None:
        with self.t.tailer("reader", partitions=[0]) as tailer:
            tailer.commit()

    def work(self) -> None:
        janitor = self.t._here(0)._janitor
        janitor.look_again()
        janitor._together = 1
        self._retiring(janitor._turn)

    def go_on(self) -> None:
        """A reader commits where it stands."""
        if self.t.committed("reader"):
            self._hold()
        self.work()

    @classmethod
    def look(cls, path: Path, after: list[bytes]) -> Found:
        with cls._open(path) as logs:
            t = logs.topic("t")
            with t.tailer(partitions=[0]) as tailer:
                first = tailer.positions[0]
                payloads = [m.payload for m in tailer]
            found = Found(first, payloads, t.committed("reader").get(0), t.recovery(0))
            if after:
                made = t.publish_many(list(after), partition=0)
                must(made.wait()[0].start == first + len(payloads), "it goes on at its end")
        return found


# ---- the channel: as its random stories tell and judge it ----


class ChannelUse(Use):
    name = "channel"
    ops = ("send", "send_many", "receive", "acknowledge", "work", "reopen")
    appends = ("send", "send_many")
    at_end = ("anew",)
    long = (  # two segments are compressed, and all readers pass the first one only after that
        *(
            "send",
            "send",
            "send_many",
            "work",
            "receive",
            "acknowledge",
            "send",
            "send",
            "work",
            "receive",
            "acknowledge",
        ),
        *(
            "receive",
            "acknowledge",
            "receive",
            "acknowledge",
            "work",
            "send",
            "anew",
            "reopen",
            "work",
            "receive",
            "send",
        ),
    )
    rarely = ("send_many", "anew", "reopen")
    durable = ("send", "send_many")
    _options: ClassVar[dict[str, Any]] = {"crash_consistent": True, "compression": "zstd"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.story = Story(path, 0, **self._options)

    def now(self) -> Story:
        return self.story.told()

    def open(self) -> None:
        self.story._ch = None
        try:
            self.story.open()
            for name, ack in (("ada", False), ("bob", True)):
                if name not in self.story.readers:
                    self.story.new_reader(name, ack=ack)
        except BaseException:
            if self.story._ch is not None:
                with suppress(PenstockError):
                    self.story.close()
            raise

    def close(self) -> None:
        self.story.close()

    def read(self) -> None:
        try:
            self.story.look()
        except (DiskFull, StorageFailed) as error:  # what is compressed is inflated into a file
            must(any(self.path.glob("*.z")), "readers go on", error)

    def send(self) -> None:
        self.story.send(160)  # the third goes to a new file

    def send_many(self) -> None:
        self.story.send_many([0, 100])

    def receive(self) -> None:
        self.story.receive("ada", 3)
        self.story.receive("bob", of=0)
        self.story.receive("bob", of=1)

    def acknowledge(self) -> None:
        """First those beyond a gap."""
        self.story.acknowledge("bob", 3, of=1)
        self.story.acknowledge("bob", 1, of=0)

    def work(self) -> None:
        self.story._work()

    def anew(self) -> None:
        """A reader goes, and one of its name comes, who has its slot and yet begins with the earliest message."""
        if "ada" in self.story.readers:  # else it was forgotten, and then something failed
            self.story.forget("ada")
        self.story.new_reader("ada", ack=False)

    @classmethod
    def recover(cls, path: Path) -> None:
        story = Story(path, 0, **cls._options)
        story.open()
        try:
            story._work()
        finally:
            story.close()

    @classmethod
    def judge(cls, path: Path, told: Story, boot: Boot) -> int:
        try:
            told.judge(path, strict=True)
        except AssertionError as error:
            raise Broken(str(error) or traceback.extract_tb(error.__traceback__)[-1].line) from error
        return len(told.sent)

    @classmethod
    def promised(cls, told: Story) -> object:
        readers = [
            (name, r.ack, sorted(r.done), sorted(r.doing), r.making, r.forgetting) for name, r in told.readers.items()
        ]
        return told.sent, told.sending, sorted(told.ends), readers, told.retired, told.gaps


# ---- the journal ----


class Line(NamedTuple):
    """A record of a journal."""

    payload: bytes
    group: int
    left_open: bool = False  # its session ended before the group was complete: only a walk's end retires it


Given = tuple[Line, ...]


def pairs(lines: Iterable[Line]) -> list[tuple[bytes, int]]:
    """As a walk gives them."""
    return [line[:2] for line in lines]


@dataclass(frozen=True)
class Lines:
    """What a walk may give. That is one thing, but while an operation is under way, and after one that has failed: then it may be as
    before, or as after it. Of a batch that was not acknowledged there may be a part, where frames have no checksum that could tell."""

    ways: tuple[Given, ...] = ((),)

    def may_be(self, found: list[tuple[bytes, int]]) -> bool:
        return found in map(pairs, self.ways)

    def each(self, *become: Callable[[Given], Iterable[Given]]) -> Lines:
        """What may be there when each of these may have come of it."""
        return Lines(tuple(dict.fromkeys(way for was in self.ways for makes in become for way in makes(was))))


def _left_open(lines: Given) -> Given:
    return tuple(line for line in lines if line.left_open)


class JournalUse(Use):
    name = "journal"
    ops = ("append", "many", "checkpoint", "check", "walk", "again", "reopen", "work")
    appends = ("append", "many")
    long = (
        *("append", "many", "checkpoint", "append", "checkpoint", "check", "work", "many", "reopen", "append"),
        *("checkpoint", "walk", "append", "checkpoint", "check", "many", "work"),
    )
    durable = ("append", "many", "checkpoint")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines = Lines()
        self._made = 0

    def now(self) -> Lines:
        return self._lines

    def _doing(
        self,
        after: Callable[[Given], Given],
        act: Callable[[], object],
        between: Callable[[Given], Iterable[Given]] = lambda was: (),
    ) -> None:
        """What was there becomes what it is `after` that; when it is half done, it may be something in between."""
        done = self._lines.each(lambda was: [after(was)])
        self._lines = self._lines.each(lambda was: [was, after(was), *between(was)])
        act()
        self._lines = done

    def open(self) -> None:
        self.j = Journal(self.path)
        self._mark_left_open()

    def close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryUnfinished)
            self.j.close()

    def _append(self, sizes: list[int]) -> None:
        new = [payload(self._made + i, size) for i, size in enumerate(sizes)]
        self._made += len(new)
        group = self.j.current + 1
        lines = tuple(Line(p, group) for p in new)
        self._doing(
            lambda was: (*was, *lines),
            lambda: self.j.append_many(new).result(),
            lambda was: ((*was, *lines[:n]) for n in range(1, len(lines))),
        )

    def append(self) -> None:
        self._append([40])

    def many(self) -> None:
        self._append([30, 0, 20])

    def larger(self) -> None:
        """More than a sector; for files that have room for it."""
        self._append([900])

    def checkpoint(self) -> None:
        self.j.checkpoint().result()

    def check(self) -> None:
        if self.j.first_unchecked <= self.j.current:
            number = self.j.first_unchecked
            self._doing(
                lambda was: tuple(line for line in was if line.group > number or line.left_open),
                lambda: self.j.check().result(),
            )

    def reopen(self) -> None:
        self._in_new_session(linger_s=0.0)

    def _in_new_session(self, linger_s: float) -> None:
        self.close()
        self.j = Journal(self.path, linger_s=linger_s)
        self._mark_left_open()

    def _mark_left_open(self) -> None:
        """In a new session: the groups that nobody has completed."""
        now = self.j.current
        self._lines = self._lines.each(
            lambda was: [tuple(line._replace(left_open=line.left_open or line.group > now) for line in was)]
        )

    def _there(self) -> Given:
        """In a new session: which of the ways it is."""
        found = [(r.payload, r.group) for some in self.j._walk("raise", []) for r in some]
        must(self._lines.may_be(found), "what was acknowledged, and no more", found, self._lines)
        self._lines = Lines(tuple(way for way in self._lines.ways if pairs(way) == found))
        return self._lines.ways[0]

    def walk(self) -> None:
        """In a new session: all that was there is read and goes."""
        self._in_new_session(linger_s=0.0)
        had = pairs(self._there())
        walk = iter(self.j.recovered())
        got = [(r.payload, r.group) for r in (next(walk) for _ in had)]
        must(got == had, "a walk gives what is there", got, had)
        self._doing(lambda was: (), lambda: list(walk), lambda was: [_left_open(was)])  # complete groups go first

    def again(self) -> None:
        """The same, and each is appended again and not waited for: the walk's end does that, before what it went over goes."""
        if not any(self._lines.ways):
            self.walk()
            return
        self._in_new_session(linger_s=LINGER_S)  # so that nothing is written before the walk's end
        new = tuple(Line(line.payload, self.j.current + 1) for line in self._there())
        self._doing(
            lambda had: new,
            self._walk_and_append,
            lambda had: ((*_left_open(had), *new), *((*had, *new[:n]) for n in range(1, len(new) + 1))),
        )

    def _walk_and_append(self) -> None:
        for record in self.j.recovered():
            self.j.append(record.payload)

    def work(self) -> None:
        self.j._janitor.look_again()
        self.j._janitor._turn()

    def go_on(self) -> None:
        self.work()

    @classmethod
    def judge(cls, path: Path, told: Lines, boot: Boot) -> int:
        j = Journal(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryUnfinished)
            try:
                found = [(r.payload, r.group) for some in j._walk("raise", []) for r in some]
                must(told.may_be(found), "what was acknowledged, and no more", found, told)
                j.append_many(AFTER).result()
            finally:
                j.close()
            j = Journal(path)
            try:
                again = [r.payload for some in j._walk("raise", []) for r in some]
                must(again == [*(p for p, _ in found), *AFTER], "what was mended stays so, and goes on", again)
            finally:
                j.close()
        return len(found)


# ---- named readers ----


@dataclass(frozen=True)
class Places:
    """Where two readers stand, None for one that there is not."""

    now: tuple[int | None, int | None] = (None, None)
    doing: tuple[int, int | None] | None = None  # which one is going where
    may: tuple[frozenset[int | None], frozenset[int | None]] = (
        frozenset({None}),
    ) * 2  # where a power cut may leave them


class CursorsUse(Use):
    """Of a queue, whose commits wait for no disk: so none of the operations is `durable`."""

    name = "cursors"
    ops = ("ahead", "back", "forget", "other", "reopen")
    long = ("ahead", "other", "ahead", "forget", "back", "other", "reopen", "ahead", "forget", "ahead")
    _names: ClassVar = ("ada", "bob")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._told = Places()

    def now(self) -> Places:
        return self._told

    def open(self) -> None:
        self.q = Queue(self.path, file_size=FILE_SIZE, index_interval=INTERVAL)
        try:
            if not self.q.next_sequence:
                self.q.append_batch([payload(i, 20) for i in range(4)])
                self.q.sync()
        except BaseException:
            with suppress(PenstockError):
                self.q.close()
            raise

    def close(self) -> None:
        self.q.close()

    def read(self) -> None:
        self._look_at_failed()
        with self.q.tailer() as tailer:
            must(len(list(tailer)) == self.q.next_sequence, "readers see all that was appended")

    def _look_at_failed(self) -> None:
        """A reader is where it was, or where it was to go."""
        if self._told.doing:
            who, to = self._told.doing
            place = self.q.cursors().get(self._names[who])
            must(place in (self._told.now[who], to), "a reader stands where it was committed", place, self._told)
            self._told = self._stands(who, place)

    def _stands(self, who: int, place: int | None) -> Places:
        now = tuple(place if i == who else p for i, p in enumerate(self._told.now))
        return Places(now, None, self._told.may)  # type: ignore[arg-type]

    def _going(self, who: int, to: int | None, act: Callable[[], None]) -> None:
        may = tuple(m | {to} if i == who else m for i, m in enumerate(self._told.may))
        self._told = replace(self._told, doing=(who, to), may=may)
        act()
        self._told = self._stands(who, to)

    def _commit(self, who: int, by: int) -> None:
        self._look_at_failed()
        if self._told.now[who] is None:  # made by the tailer, at the oldest record
            self._going(who, 0, lambda: self.q.tailer(self._names[who]).close())
        with self.q.tailer(self._names[who]) as tailer:
            place = min(max(0, tailer.position + by), self.q.next_sequence)
            tailer.seek(place)
            self._going(who, place, tailer.commit)

    def ahead(self) -> None:
        self._commit(0, 3)

    def back(self) -> None:
        self._commit(0, -1)

    def other(self) -> None:
        self._commit(1, 1)

    def forget(self) -> None:
        self._look_at_failed()
        if self._told.now[0] is not None:
            self._going(0, None, lambda: self.q.forget(self._names[0]))

    def go_on(self) -> None:
        """Each commits where it stands."""
        for name in self.q.cursors():
            with self.q.tailer(name) as tailer:
                tailer.commit()

    @classmethod
    def judge(cls, path: Path, told: Places, boot: Boot) -> int:
        with Queue(path, file_size=FILE_SIZE, index_interval=INTERVAL) as q:
            end, places = q.next_sequence, q.cursors()
            for who, name in enumerate(cls._names):
                may = set(told.may[who]) if boot == "new" else {told.now[who]}
                if told.doing and told.doing[0] == who:
                    may.add(told.doing[1])
                place = places.get(name)
                must(place in may, "a reader stands where it was committed", name, place, may)
                with q.tailer(name) as tailer:
                    must(len(list(tailer)) == end - (place or 0), "and reads on from there", name, place)
                    tailer.commit()
        with Queue(path, file_size=FILE_SIZE, index_interval=INTERVAL) as q:
            must(q.cursors() == dict.fromkeys(cls._names, end), "and goes on", q.cursors())
        return end


# ---- the commit of a sink, which comes again until it was told that it is done ----


@dataclass(frozen=True)
class Batches:
    done: int = 0  # batches 0 to done - 1 were acknowledged
    doing: bool = False


class SinkUse(Use):
    """To a queue."""

    name = "sink"
    ops = ("batch", "again", "other", "reopen")
    appends = ("batch", "other")
    long = ("batch", "again", "batch", "other", "batch", "reopen", "again", "batch", "other", "batch")
    durable = ("batch",)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._told = Batches()

    def now(self) -> Batches:
        return self._told

    @classmethod
    def _opened(cls, path: Path) -> Any:
        """Something to close, and the log in it."""
        return Queue(path, file_size=FILE_SIZE, index_interval=INTERVAL)

    @staticmethod
    def _log(q: Any) -> Log:
        log: Log = q._open_log()
        return log

    def open(self) -> None:
        self.q = self._opened(self.path)

    @classmethod
    def recover(cls, path: Path) -> None:
        """It asks which batches are there, as a query does that goes on after a crash."""
        with closing(cls._opened(path)) as q:
            Ledger(cls._log(q)).highest("query")

    def close(self) -> None:
        self.q.close()

    @classmethod
    def _parts(cls, number: int) -> list[list[bytes]]:
        """What each task of a batch has: of the third batch more than there is still room for, and of the fourth more than a file holds. (With
        all of that in short workloads their states could not be counted.)"""
        sizes = [[[60]], [[700, 40], [900]], [[2400], [20]], [[4000], [100]]][number % 4]
        made = _hollow if number % 4 > 1 else payload  # mostly zeros: fewer states
        numbers = itertools.count(100 * number)
        return [[made(next(numbers), size) for size in some] for some in sizes]

    @classmethod
    def _commit(cls, q: Any, number: int) -> bool:
        log = cls._log(q)
        parts = [bulk.Part(kernel.encode_many(log.fmt.SPEC, payloads), None) for payloads in cls._parts(number)]
        return Ledger(log).append("query", number, parts)

    def read(self) -> None:
        there = self._there(self.q)
        ways = [self._payloads(range(self._told.done + more)) for more in range(self._told.doing + 1)]
        must(there in ways, "readers see batches whole, and all that were acknowledged", there, *ways)

    def batch(self) -> None:
        failed = self._told.doing  # so it may be there
        self._told = replace(self._told, doing=True)
        must(self._commit(self.q, self._told.done) or failed, "a new batch is appended")
        self._told = Batches(self._told.done + 1)

    def again(self) -> None:
        """The last one comes again, as after a crash of whoever waits for it."""
        if self._told.done:
            must(not self._commit(self.q, self._told.done - 1), "a batch that is there is left out")

    def other(self) -> None:
        """Somebody else appends beside it."""
        self.q.append(b"other")

    @classmethod
    def judge(cls, path: Path, told: Batches, boot: Boot) -> int:
        with closing(cls._opened(path)) as q:
            must(not cls._log(q).recovery.damage, "nothing is taken for damage", cls._log(q).recovery.damage)
            before = cls._there(q)
            wanted = cls._payloads(range(told.done))
            both = cls._payloads(range(told.done + told.doing))
            must(before in (wanted, both), "batches are there whole, and all that were acknowledged", before, wanted)
            for number in (max(0, told.done - 1), told.done):
                cls._commit(q, number)
            after = cls._there(q)
            wanted = cls._payloads(range(told.done + 1))
            must(after == wanted, "each batch is there once", after, wanted)
        with closing(cls._opened(path)) as q:
            must(cls._log(q).recovery.clean, "what was mended stays so", cls._log(q).recovery)
            must(cls._there(q) == after, "and so do the batches", cls._there(q), after)
            must(not cls._commit(q, told.done), "and that they are there is known", told)
        return len(before)

    @classmethod
    def _payloads(cls, numbers: range) -> list[bytes]:
        return [p for number in numbers for part in cls._parts(number) for p in part]

    @staticmethod
    def _there(q: Any) -> list[bytes]:
        with q.tailer() as tailer:
            return [m.payload for m in tailer if m.payload != b"other"]


class TopicSinkUse(SinkUse):
    """To a topic, whose files grow: of a batch that came in part nothing may stay, or it would be there twice."""

    name = "topic-sink"
    long = ("batch", "again", "batch", "other", "batch", "reopen", "again", "batch")

    @classmethod
    def _opened(cls, path: Path) -> Any:
        return Topics(path, linger_s=0, segment_bytes=SEGMENT_BYTES)

    @staticmethod
    def _log(q: Any) -> Log:
        log: Log = q.topic("t")._part(0).log
        return log

    def open(self) -> None:
        super().open()
        try:
            self._log(self.q)  # opened when it is first asked for: readers need it, too
        except BaseException:
            self.q.close()
            raise

    def other(self) -> None:
        self.q.topic("t").publish(b"other", partition=0).wait()

    @classmethod
    def _parts(cls, number: int) -> list[list[bytes]]:
        """Of two tasks; with an empty record, and one of nothing but zeros: a file that is longer than what was written looks so."""
        first = payload(100 * number, 20)
        return [[first, b""], [bytes(700), payload(100 * number + 3, 30)]] if number % 2 else [[first]]

    @staticmethod
    def _there(q: Any) -> list[bytes]:
        with q.topic("t").tailer() as tailer:
            return [m.payload for m in tailer if m.payload != b"other"]


USES: dict[str, type[Use]] = {
    use.name: use
    for use in (
        QueueUse,
        QueueEachUse,
        QueueBatchUse,
        ChannelUse,
        JournalUse,
        TopicUse,
        CursorsUse,
        SinkUse,
        TopicSinkUse,
    )
}
