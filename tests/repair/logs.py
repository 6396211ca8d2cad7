"""Small logs of every format, of several segments each, as bytes; and what can be read of what is left of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import Channel, Journal, Loss, Queue, Roll, Topics, channel, journal
from penstock.formats import journal as journal_format
from penstock.inspect import Segment, find
from penstock.kernel import encode
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.testing.state import Boot
from penstock.topic import topics
from tests.queue.crash import Image, open_yard
from tests.topic_crash import wreck

COUNT = 120
READER = 30  # how far the named reader of each has come
INTERVAL = 4
SENT = [b"%04d" % i + bytes([33 + i % 90]) * (20 + i * 7 % 50) for i in range(COUNT)]
KINDS = ["queue", "channel", "snappy", "gzip", "zstd", "journal", "topic"]


class Read(NamedTuple):
    """Payloads by sequence, and what was stepped over."""

    records: dict[int, bytes]
    losses: list[Loss]

    @property
    def lost(self) -> set[int]:
        return {i for loss in self.losses for i in range(loss.first, loss.last + 1)}


def _queue(path: Path) -> None:
    with Queue(path, file_size=8192, index_interval=INTERVAL, roll=Roll.count(32)) as q:
        for payload in SENT:
            q.append(payload)
        tailer = q.tailer("reader")
        tailer.seek(READER)
        tailer.commit()


def _channel(path: Path, compression: str | None = None) -> None:
    with Channel[bytes](path, segment_bytes=1800, compression=compression) as c:  # type: ignore[arg-type]
        c.rx("holds")
        reader = c.rx("reader")
        for payload in SENT:
            c.tx().send(payload)
        assert reader.recv_many(READER) == SENT[:READER]
        assert c._janitor is not None
        c._janitor._turn()


def _journal(path: Path) -> None:
    with Journal(path) as j:
        for i, payload in enumerate(SENT):
            j.append(payload).result()
            if i % 10 == 9:
                j.checkpoint().result()


def _topic(path: Path) -> None:
    with Topics(path, segment_bytes=1800, linger_s=0) as logs:
        t = logs.topic("t", 2)
        for payload in SENT:
            t.publish(payload, partition=1).wait()
        with t.tailer("reader", partitions=[1]) as tailer:
            tailer.seek(1, READER)
            tailer.commit()


_WRITE: dict[str, Callable[[Path], None]] = {"queue": _queue, "journal": _journal, "topic": _topic}


def small(patch: pytest.MonkeyPatch) -> None:
    """Files that roll soon, and no thread that works in the background."""
    patch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
    patch.setattr(journal, "MAX_FILE_BYTES", 1800)
    patch.setattr(topics, "INDEX_INTERVAL", INTERVAL)
    patch.setattr(channel, "INDEX_INTERVAL", INTERVAL)


@cache
def closed(kind: str) -> Image:
    """The files of a log that was closed."""
    with open_yard() as yard, pytest.MonkeyPatch.context() as patch:
        small(patch)
        path = yard.new()
        _WRITE.get(kind, lambda at: _channel(at, None if kind == "channel" else kind))(path)
        return wreck.everything(path)


def lay(kind: str, path: Path, boot: Boot = "same") -> Path:
    """Such a log, where it is to be."""
    return wreck.lay(closed(kind), path, boot)


@cache
def unclosed(kind: str) -> Image:
    """The files of a log that its writer has open, with everything on the disk."""
    images: list[Image] = []
    close = Log.close

    def look_first(log: Log) -> None:
        if not log.read_only and not images:
            log.sync()
            images.append(wreck.everything(path))
        close(log)

    with open_yard() as yard, pytest.MonkeyPatch.context() as patch:
        small(patch)
        path = yard.new()
        patch.setattr(Log, "close", look_first)
        _WRITE.get(kind, lambda at: _channel(at, None if kind == "channel" else kind))(path)
        return images[0]


def lay_open(kind: str, path: Path) -> Path:
    """Such a log, as a copy that was made while it was written: its control page is exact of the original alone."""
    return wreck.lay(unclosed(kind), path, "new")


def payloads(kind: str) -> dict[int, bytes]:
    """What there is to read, by sequence. A journal's checkpoints are records too, but are never given."""
    if kind != "journal":
        return dict(enumerate(SENT))
    return {i: body for i, (what, body) in enumerate(_bodies()) if what == journal_format.DATA}


@cache
def _bodies() -> tuple[tuple[int, bytes], ...]:
    image, out = closed("journal"), []
    for name in sorted((n for n in image if n.endswith(".journal")), key=lambda n: int(n.split(".")[0])):
        data, at = image[name], 0
        while at < len(data):
            head = journal_format.read_head(data, at)
            out.append((head.kind, data[at + 4 : at + 4 + head.size]))
            at += 4 + head.size
    return tuple(out)


def frame_sizes(kind: str) -> list[int]:
    """How long each record's frame is."""
    assert kind == "journal"
    return [len(encode(journal_format.SPEC, body, what)) for what, body in _bodies()]


def segments(path: Path) -> list[Segment]:
    out: list[Segment] = []
    for part in find(path):
        with part.open() as view:
            out += view.segments()
    return out


def read(kind: str, path: Path) -> Read:
    """What a reader is given that raises at damage which is not listed."""
    if kind == "queue":
        with Queue(path, read_only=True) as q:
            tailer = q.tailer()
            return Read({m.sequence: m.payload for m in tailer}, tailer.losses)
    if kind == "topic":
        with Topics(path, read_only=True) as logs, logs.topic("t").tailer(partitions=[1]) as tailer:
            return Read({m.offset: m.payload for m in tailer}, tailer.losses.get(1, []))
    if kind == "journal":
        return _read_journal(path)
    with Channel[bytes](path, read_only=True) as c:
        rx = c.rx()
        got: list[bytes] = []
        while (message := rx.try_recv()) is not None:
            got.append(message)
        losses = rx._group.reader.losses
    numbers = {payload: i for i, payload in enumerate(SENT)}
    return Read({numbers[payload]: payload for payload in got}, losses)


def _read_journal(path: Path) -> Read:
    """By an open that leaves all as it is: its walk is not finished."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_finish_walk", lambda self: None)
        with pytest.warns(match="were not walked to their end"), Journal(path) as j:
            got, losses = [r.payload for r in j.recovered()], j.losses
    numbers = {payload: i for i, payload in payloads("journal").items()}
    return Read({numbers[payload]: payload for payload in got}, losses)
