"""Where a sink writes to: a log of any format, opened for the time of one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.channel import Channel
from penstock.errors import InvalidOption, LogNotFound
from penstock.inspect import FormatName, detect, find
from penstock.kernel import Buffer
from penstock.options import CHANNEL_SEGMENT_BYTES, TOPIC_SEGMENT_BYTES
from penstock.queue import Queue
from penstock.spark.options import WriteOptions
from penstock.storage.ledger import Ledger
from penstock.topic.topics import Topics


@dataclass(frozen=True, slots=True)
class Target:
    """One log, or one partition of a topic."""

    options: WriteOptions
    format: FormatName
    partitions: int
    topic: str
    partition: int


def settle(options: WriteOptions) -> tuple[FormatName, int]:
    """The format of what is written to, and how many partitions a topic has. On the driver, where the log is."""
    top = Path(options.path)
    found = detect(top) if top.is_dir() else None
    if found == "topic":
        raise InvalidOption(
            f"{top}: a topic's own directory; give the directory that it is in as path, and option topic={top.name!r}"
        )
    inside = found is None and _has_topics(top)
    format = options.format or found or ("topic" if options.topic or inside else "queue")
    if found is not None and format != found:
        raise InvalidOption(f"{top}: a {found}, but option format is {format}; leave it out")
    if format == "journal":
        raise InvalidOption(f"{top}: a journal is written by the program whose state it keeps; write to another format")
    if format != "topic":
        if options.topic or options.partitions:
            raise InvalidOption(f"{top}: options topic and partitions are for topics, and this is a {format}")
        return format, 1
    with Topics(top) as topics:
        if options.topic is None:
            return format, options.partitions or 1
        return format, topics.topic(options.topic, options.partitions).partitions


def _has_topics(top: Path) -> bool:
    try:
        return top.is_dir() and any(part.format == "topic" for part in find(top))
    except LogNotFound:
        return False


class OpenTarget:
    """A target while it is open."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def append(self, query: str, batch: int, frames: Sequence[Buffer]) -> bool:
        """Append a query's batch, unless it is there already."""
        return self._ledger.append(query, batch, frames)


@contextmanager
def opened(target: Target) -> Iterator[OpenTarget]:
    """Open a target for one commit."""
    options = target.options
    if target.format == "queue":
        with Queue(options.path, file_size=options.settings.get("fileSize")) as queue:
            yield OpenTarget(Ledger(queue._open_log()))
    elif target.format == "channel":
        with Channel[bytes](options.path, segment_bytes=_segment_bytes(options, CHANNEL_SEGMENT_BYTES)) as channel:
            yield OpenTarget(Ledger(channel._open_log()))
    else:
        with Topics(options.path, segment_bytes=_segment_bytes(options, TOPIC_SEGMENT_BYTES)) as topics:
            yield OpenTarget(Ledger(topics.topic(target.topic)._part(target.partition).log))


def _segment_bytes(options: WriteOptions, default: int) -> int:
    return options.settings.get("segmentBytes", default)
