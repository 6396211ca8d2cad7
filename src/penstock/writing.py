"""A log opened for writing, for as long as somebody puts something in order there. Where the log's disk is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.channel import Channel
from penstock.errors import InvalidOption
from penstock.inspect import Part
from penstock.queue import Queue
from penstock.storage.log import Log
from penstock.topic.topics import Topics


@contextmanager
def writing(part: Part) -> Iterator[Log]:
    """Open a log beside whoever else has it open; of a channel there is one such process at a time."""
    if part.format == "queue":
        with Queue(part.path) as queue:
            yield queue._open_log()
    elif part.format == "channel":
        with Channel[bytes](part.path) as channel:
            yield channel._open_log()
    elif part.format == "topic":
        with Topics(Path(part.path).absolute().parent) as topics:
            yield topics.topic(part.topic)._part(part.partition).log
    else:
        raise InvalidOption(f"{part.path}: a journal is changed only by the program whose state it keeps")
