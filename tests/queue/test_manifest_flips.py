"""A flipped bit in each edit of the manifest, of logs of all uses from which segments were removed: what is gone is not missed, what is
there is found, verify tells, and opening mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import Journal, LogBusy, Queue, Retention, Roll, journal
from penstock.storage.janitor import Janitor
from penstock.testing.state import Boot
from penstock.verify import verify
from tests.channel_crash.wreck import messages, open_channel, small_files
from tests.queue.crash import NATIVE, Image, Yard, open_yard, payload, records
from tests.topic_crash.wreck import by_hand, found, open_topics

SENT = [payload(i, 40) for i in range(22)]
MORE = b"more"
EDIT = 64
Images = Iterator[Image]  # of a log that is open, and of one that was opened again since


def work(janitor: Janitor | None) -> None:
    """What the background would do: seal, remove."""
    assert janitor is not None
    janitor.look_again()
    janitor._turn()


def filled(path: Path) -> Queue:
    """Open; some of it is removed already."""
    q = Queue(path, file_size=8192, roll=Roll.count(4), retention=Retention(max_bytes=4 * 4400))
    for i, p in enumerate(SENT):
        q.append(p)
        if i % 4 == 1:
            work(q._janitor)
    return q


def fill_queue(path: Path) -> Images:
    with filled(path):
        yield Image.take(path)
    with Queue(path):
        yield Image.take(path)


def go_on_queue(path: Path) -> list[object]:
    with Queue(path) as q:
        assert not q.recovery.damage
        assert not q.recovery.torn
        before = records(q)
        q.append(MORE)
        return [*before, *records(q)]


def fill_channel(path: Path) -> Images:
    with open_channel(path, segment_bytes=200) as ch:
        ch.rx("reader").close()
        for i, p in enumerate(SENT):
            ch.tx().send(p)
            if i % 4 == 1:
                with ch.rx("reader") as rx:
                    rx.recv_many(4 if i > 8 else 0)
                work(ch._janitor)
        yield Image.take(path)
    with open_channel(path, segment_bytes=200):
        yield Image.take(path)


def go_on_channel(path: Path) -> list[object]:
    with open_channel(path, segment_bytes=200) as ch:
        assert not ch.recovery.damage
        assert not ch.recovery.torn
        before, end = messages(ch), ch.stats().write_offset
        ch.tx().send(MORE)
        return [*before, end, *messages(ch), ch.stats().write_offset]


def fill_topic(path: Path) -> Images:
    with open_topics(path, segment_bytes=170, retention=Retention(max_bytes=600)) as logs:
        t = logs.topic("t", partitions=1)
        for i, p in enumerate(SENT):
            t.publish(p, partition=0)
            t.flush()
            if i % 4 == 1:
                work(t._here(0)._janitor)
        yield Image.take(path)
    with open_topics(path, segment_bytes=170) as logs:
        logs.topic("t").ends()
        yield Image.take(path)


def go_on_topic(path: Path) -> list[object]:
    with open_topics(path, segment_bytes=170) as logs:
        t = logs.topic("t")
        before = found(t)
        assert not t.recovery(0).damage
        assert not t.recovery(0).torn
        t.publish(MORE, partition=0)
        t.flush()
        return [before, found(t)]


def fill_journal(path: Path) -> Images:
    with Journal(path) as j:
        for i, p in enumerate(SENT):
            j.append(p).result()
            if i % 3 == 2:
                j.checkpoint().result()
                if i > 8:
                    j.check().result()
            if i % 4 == 1:
                work(j._janitor)
        yield Image.take(path)
    yield Image.take(path)  # opened again it is another log


def go_on_journal(path: Path) -> list[object]:
    with Journal(path) as j:
        got: list[object] = [(r.payload, r.group, r.complete) for r in j.recovered()]
        j.append(MORE).result()
        return [*got, j.current]


class Use(NamedTuple):
    fill: Callable[[Path], Images]
    go_on: Callable[[Path], list[object]]  # all that there is, before something was appended and after
    manifest: str = "manifest"


USES = {
    "queue": Use(fill_queue, go_on_queue),
    "channel": Use(fill_channel, go_on_channel),
    "topic": Use(fill_topic, go_on_topic, "t/.partition_0/manifest"),
    "journal": Use(fill_journal, go_on_journal),
}


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_yard() as yard:
        yield yard


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch)
    by_hand(monkeypatch)
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", 210)


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("use", USES)
def test_a_flip_in_the_manifest_neither_misses_what_is_gone_nor_loses_what_is_there(
    yard: Yard, use: str, boot: Boot
) -> None:
    fill, go_on, name = USES[use]
    for image in fill(yard.keep()):
        edits = len(image[name]) // EDIT
        assert (3).to_bytes(4, "little") in {image[name][n * EDIT + 4 :][:4] for n in range(1, edits)}, "none is gone"
        wanted = go_on(image.lay(yard.new(), boot))
        for n in range(0, edits, 1 if NATIVE else 3):
            path = image.flipped(name, 8 * EDIT * n + (83 * n + 5) % (8 * EDIT)).lay(yard.new(), boot)
            told = [(f.kind, f.position) for f in verify(path).findings]
            assert told == [("manifest", n * EDIT)], n
            assert go_on(path) == wanted, n
            assert not verify(path).findings, n


def test_one_who_joins_others_takes_what_leads_to_where_they_are_and_refuses_what_does_not(path: Path) -> None:
    with filled(path) as q:
        everything, whole = records(q), (path / "manifest").read_bytes()
        opened = refused = 0
        for n in range(len(whole) // EDIT):
            at = n * EDIT + 20
            (path / "manifest").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with Queue(path, read_only=True) as other:
                assert records(other) == everything, n
            try:
                with Queue(path) as other:
                    assert records(other) == everything, n
                opened += 1
            except LogBusy as error:
                assert "manifest: damaged" in str(error)
                refused += 1
        (path / "manifest").write_bytes(whole)
        assert opened > refused
