"""Appending payloads to a log of any format, which is made if it is not there. A list at a time, acknowledged when `append` returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from penstock.channel import Channel
from penstock.errors import InvalidOption, RecoveryUnfinished
from penstock.inspect import FormatName, detect
from penstock.journal import Journal
from penstock.options import MAX_PARTITIONS, Flush
from penstock.queue import Queue
from penstock.topic.topics import Topic, Topics


class Append(Protocol):
    """Appends records in their order. On return they survive the death of every process."""

    def __call__(self, payloads: list[bytes], /) -> None: ...


@contextmanager
def appending(
    path: Path,
    format: FormatName | None = None,
    *,
    durable: bool = False,
    partitions: int | None = None,
    partition: int | None = None,
    key: bytes | None = None,
) -> Iterator[Append]:
    """Open the log at `path`, or make one of that format; a topic's path is its own directory, `topics/orders`.

    With `durable` a list is on the disk when `append` returns; of journals and topics it always is, of the others at the end of this.
    What is appended to a journal is one group: a checkpoint is registered at the end. Records for a topic with neither a `partition`
    nor a `key` go to each partition in turn.
    """
    kind = format_at(path, format)
    if kind != "topic" and (partitions, partition, key) != (None, None, None):
        raise InvalidOption(f"{path}: partitions and keys are for topics, and this is a {kind}")
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidOption(f"{path}: a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
    if partition is not None and key is not None:
        raise InvalidOption(f"{path}: a key and a partition; give one of them, as the key says which partition it is")
    with ExitStack() as stack:
        if kind == "queue":
            queue = stack.enter_context(Queue(path, flush=Flush.each() if durable else None))
            yield lambda payloads: _done(queue.append_batch(payloads))
        elif kind == "channel":
            yield stack.enter_context(Channel[bytes](path, crash_consistent=durable)).tx().send_many
        elif kind == "journal":
            journal = stack.enter_context(opened_journal(path))
            yield lambda payloads: journal.append_many(payloads).result()
            journal.checkpoint().result()
        else:
            topics = stack.enter_context(Topics(path.absolute().parent, linger_s=0))
            topic = topics.topic(path.absolute().name, partitions)
            if partition is not None and not 0 <= partition < topic.partitions:
                raise InvalidOption(f"{path}: no partition {partition}; there are 0 to {topic.partitions - 1}")
            yield _publishing(topic, partition, key)


def _done(result: object) -> None:
    """Nobody asks where the records are."""


def format_at(path: Path, wanted: FormatName | None) -> FormatName:
    """The format of the log that is there, or is to be made."""
    found = detect(path) if path.is_dir() else None
    if found is None:
        if wanted is None:
            raise InvalidOption(f"{path}: no log is there; say with --format which kind to make")
        if path.is_dir() and any(path.iterdir()):
            raise InvalidOption(f"{path}: there is something else already; give a directory that is empty or not there")
        return wanted
    if wanted not in (None, found):
        raise InvalidOption(f"{path}: a {found}, not a {wanted}; leave the format out")
    return found


@contextmanager
def opened_journal(path: Path) -> Iterator[Journal]:
    """A journal, for one who does not walk over its earlier sessions: every open is a session of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecoveryUnfinished)
        with Journal(path) as journal:
            yield journal


def _publishing(topic: Topic, partition: int | None, key: bytes | None) -> Append:
    turn = 0

    def publish(payloads: list[bytes]) -> None:
        nonlocal turn
        if partition is not None or key is not None:
            topic.publish_many(payloads, key=key, partition=partition).wait()
            return
        n = topic.partitions
        made = [topic.publish_many(some, partition=(turn + i) % n) for i in range(n) if (some := payloads[i::n])]
        turn += len(payloads)
        for publication in made:
            publication.wait()

    return publish
