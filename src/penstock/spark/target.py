"""Where a sink writes to: a log of any format, opened for the time of one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.appending import opened_journal
from penstock.channel import Channel
from penstock.errors import InvalidOption, LogNotFound, SettingsMismatch
from penstock.formats import topic
from penstock.formats.topic import check_topic
from penstock.inspect import FormatName, Part, detect, find
from penstock.options import CHANNEL_SEGMENT_BYTES, MAX_FILE_SIZE_BYTES, MIN_FILE_SIZE_BYTES, TOPIC_SEGMENT_BYTES
from penstock.queue import Queue
from penstock.spark import staging
from penstock.spark.options import WriteOptions
from penstock.spark.pins import Pins
from penstock.storage import bulk, metadata
from penstock.storage.ledger import Ledger
from penstock.topic.topics import Topic, Topics


@dataclass(frozen=True, slots=True)
class Layout:
    """The format of what is written to, and how many partitions its topics have. Plain data: it travels to the workers."""

    format: FormatName
    partitions: int = 1  # of topics that are not there yet
    known: dict[str, int] = field(default_factory=dict)
    pins: Pins = field(default_factory=dict)

    def count(self, topic: str, query: str = "", batch: int = 0) -> int:
        """How many partitions a topic has; for a query's batch that was run before, as many as it had then."""
        pin = self.pins.get(query, {}).get(topic)
        return pin.partitions if pin is not None and pin.batch == batch else self.known.get(topic, self.partitions)


@dataclass(frozen=True, slots=True)
class Target:
    """One log, or one partition of a topic."""

    options: WriteOptions
    layout: Layout
    topic: str
    partition: int


def layout(options: WriteOptions) -> Layout:
    """What is there, or is to be made. On the driver, where the log is."""
    top = Path(options.path)
    if top.exists() and not top.is_dir():
        raise InvalidOption(f"{top}: a file; a log is a directory, so give another path")
    if options.topic is not None:
        check_topic(options.topic)
    found = detect(top) if top.is_dir() else None
    if found == "topic":
        raise InvalidOption(
            f"{top}: a topic's own directory; give the directory that it is in as path, and option topic={top.name!r}"
        )
    known = _topics(top) if found is None else {}
    format = options.format or found or ("topic" if options.topic or known else "queue")
    if found is not None and format != found:
        raise InvalidOption(f"{top}: a {found}, but option format is {format}; leave it out")
    _check_settings(options, format)
    if format != "topic":
        if options.topic or options.partitions:
            raise InvalidOption(f"{top}: options topic and partitions are for topics, and this is a {format}")
        others = [path.name for path in top.iterdir() if path.name[0] not in "._"] if top.is_dir() else []
        if found is None and others:
            raise InvalidOption(
                f"{top}: no log, but there is something in it; give a directory that is empty or not there"
            )
        return Layout(format)
    have = known.get(options.topic or "")
    if options.partitions is not None and have is not None and have < options.partitions:  # more may have been added
        raise InvalidOption(
            f"{top}: topic {options.topic} has {have} partitions, not {options.partitions}; leave the option out, or add some first"
        )
    return Layout(format, options.partitions or 1, known)


def _check_settings(options: WriteOptions, format: FormatName) -> None:
    """Refuse settings that a log of this format has not, or cannot have, before anything is done for it."""
    least = topic.SPEC.overhead if format == "topic" else 1
    known = {
        "queue": ("fileSize", MIN_FILE_SIZE_BYTES, 4096),
        "channel": ("segmentBytes", least, 1),
        "topic": ("segmentBytes", least, 1),
    }
    for name, value in options.settings.items():
        if format not in known or known[format][0] != name:
            raise InvalidOption(f"{options.path}: option {name} is not for a {format}; leave it out")
        _, least, step = known[format]
        if not least <= value <= MAX_FILE_SIZE_BYTES or value % step:
            what = f"a multiple of {step}" if step > 1 else "a whole number"
            raise InvalidOption(f"{name} must be {what} from {least} to {MAX_FILE_SIZE_BYTES}, not {value}")
    made = (metadata.load(Path(options.path)) or {}).get("file_size") if "fileSize" in options.settings else None
    if made is not None and made != options.settings["fileSize"]:
        raise InvalidOption(
            f"{options.path}: made with files of {made} bytes, which is fixed; leave option fileSize out, or write to another path"
        )


def _topics(top: Path) -> dict[str, int]:
    """The topics in a directory, and how many partitions each has."""
    try:
        parts = [part for part in find(top) if part.format == "topic"] if top.is_dir() else []
    except LogNotFound:
        return {}
    if not parts:
        return {}
    with Topics(top, read_only=True) as topics:
        return {name: topics.topic(name).partitions for name in {part.topic for part in parts}}


class OpenTarget:
    """A target while it is open."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def append(self, query: str, batch: int, parts: Sequence[bulk.Part]) -> bool:
        """Append a query's batch, unless it is there already."""
        return self._ledger.append(query, batch, parts)

    def forget(self, query: str) -> None:
        """A query that does not come again."""
        self._ledger.forget(query)


@contextmanager
def opened(target: Target) -> Iterator[OpenTarget]:
    """Open a target for one commit."""
    options, format = target.options, target.layout.format
    if format == "queue":
        with Queue(options.path, file_size=options.settings.get("fileSize")) as queue:
            yield OpenTarget(Ledger(queue._open_log()))
    elif format == "channel":
        with Channel[bytes](options.path, segment_bytes=_segment_bytes(options, CHANNEL_SEGMENT_BYTES)) as channel:
            yield OpenTarget(Ledger(channel._open_log()))
    elif format == "journal":
        with opened_journal(Path(options.path)) as journal:
            yield OpenTarget(Ledger(journal._open_log(), lambda: _all_sessions(options.path)))
    else:
        with Topics(options.path, segment_bytes=_segment_bytes(options, TOPIC_SEGMENT_BYTES)) as topics:
            topic = _topic(topics, target.topic, target.layout.count(target.topic))
            yield OpenTarget(Ledger(topic._part(target.partition).log))


def publish(target: Target, query: str, batch: int, puts: Sequence[staging.Put], *, comes_again: bool) -> None:
    """Append what was staged as one batch, unless it is there already."""
    parts = [staging.mapped(put) for put in puts]
    with opened(target) as log:
        log.append(query, batch, parts)
        if not comes_again:
            log.forget(query)


def _topic(topics: Topics, name: str, partitions: int) -> Topic:
    """The topic, made if it is not there. Others may have added partitions since its rows were shared out to so many; one that has fewer is
    not the one that they were shared out for."""
    try:
        return topics.topic(name, partitions)
    except SettingsMismatch:
        found = topics.topic(name)
        if found.partitions < partitions:
            raise
        return found


def _segment_bytes(options: WriteOptions, default: int) -> int:
    return options.settings.get("segmentBytes", default)


def _all_sessions(path: str) -> list[bulk.Span]:
    with Part(path, "journal", "").open() as view:
        return list(view.segments())
