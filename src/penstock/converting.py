"""Convert: logs written anew in another format, in their order, by one process. The source stays as it is.

What is made has another name until it is whole: a conversion that is cut short leaves no log, and can be run again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock import kernel
from penstock.appending import opened_journal
from penstock.channel import Channel
from penstock.errors import InvalidOption, InvalidPayload, LogBusy
from penstock.formats import journal
from penstock.inspect import FormatName, Part, find
from penstock.inspect.rows import Row, Rows
from penstock.queue import Queue
from penstock.storage import bulk, files
from penstock.storage.log import Log
from penstock.topic.topics import Topics

_BATCH_BYTES: Final = 1 << 20  # appended, and in journals and topics synced, together
_BATCH_ROWS: Final = 16_384

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Converted:
    """One log, or one partition."""

    source: str
    target: str
    topic: str
    partition: int
    records: int


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was converted."""

    source: str
    target: str
    format: str
    logs: tuple[Converted, ...]

    @property
    def records(self) -> int:
        return sum(log.records for log in self.logs)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def convert(
    source: str | Path, target: str | Path, to: FormatName, advance: Advance = lambda records: None
) -> ConvertReport:
    """Write the logs at `source` to `target`, which is not there yet, up to where they end now.

    A topic keeps its name and partitions, and any other log becomes a topic with one; `target` is the directory of topics. Another
    format's log is `target` itself if there is one log with one partition; else there is one for each, `target/orders-0` and so on.
    Records keep their times. Offsets count from 0. A journal's groups become one.
    """
    parts, place = find(source), Path(target).absolute()
    check_apart(parts, place)
    if files.exists(place) and not (place.is_dir() and not any(place.iterdir())):
        raise InvalidOption(f"{target}: there is something already; give a directory that is not there yet")
    check_apart(parts, _temporary(place))  # it is emptied first
    with _made_whole(place) as temporary:
        counts = {p.topic: 1 + max(q.partition for q in parts if q.topic == p.topic) for p in parts}
        made = []
        for part in parts:
            there = place_of(temporary, part, alone=len(parts) == 1, to=to)
            with _opened(there, part, to, counts[part.topic]) as log, Rows([part]) as rows:
                records = _copy(log, rows.now(), advance)
            final = place_of(Path(target), part, alone=len(parts) == 1, to=to)
            made.append(Converted(part.path, str(final), part.topic, part.partition, records))
    return ConvertReport(str(source), str(target), to, tuple(made))


def place_of(target: Path, part: Part, *, alone: bool, to: FormatName) -> Path:
    """Where a log goes."""
    return target if alone or to == "topic" else target / f"{part.topic}-{part.partition}"


def check_apart(parts: Iterable[Part], target: Path) -> None:
    """Refuse a target within a log, which would then have another one among its files, or the other way round. A directory of logs may
    have it, and a log may lie elsewhere than the directory in which a link leads to it."""
    there = real_path(target)
    for path in dict.fromkeys(part.path for part in parts):
        here = real_path(Path(path))
        for inner, outer in ((there, here), (here, there)):
            if inner.is_relative_to(outer):
                raise InvalidOption(f"{inner}: the same as {outer}, or within it; give a directory that is beside it")


def real_path(path: Path) -> Path:
    """Where links lead; of one that leads to itself, what it is called. (`Path.resolve` raises a RuntimeError of that.)"""
    return Path(os.path.realpath(path))


def _temporary(place: Path) -> Path:
    return place.with_name(f".{place.name}.converting")


@contextmanager
def _made_whole(place: Path) -> Iterator[Path]:
    """A directory that gets its name when all in it is done; what an earlier attempt left goes first."""
    temporary = _temporary(place)
    files.make_directories(temporary, Path(place.anchor))
    with files.opened_to_lock(temporary) as fd:
        if not files.lock(fd, shared=False, wait=False) or not files.has_name(fd):
            raise LogBusy(f"{place}: another process is converting to this; wait for it, or give another directory")
        for left in list(temporary.iterdir()):
            files.remove_tree(left)
            if files.exists(left):
                files.remove(left)
        try:
            yield temporary
            files.sync_directory(temporary)
            files.rename(temporary, place)
            files.sync_directory(place.parent)
        except BaseException:
            files.remove_tree(temporary)
            raise


@contextmanager
def _opened(place: Path, part: Part, to: FormatName, partitions: int) -> Iterator[Log]:
    """The log to write one log, or one partition, to."""
    if to == "queue":
        with Queue(place) as queue:
            yield queue._open_log()
    elif to == "channel":
        with Channel[bytes](place) as channel:
            yield channel._open_log()
    elif to == "journal":
        with opened_journal(place) as made:
            yield made._open_log()
            made._note_appended()
            made.checkpoint().result()
    else:
        with Topics(place) as topics:
            yield topics.topic(part.topic, partitions)._part(part.partition).log


def _copy(log: Log, rows: Iterator[Row], advance: Advance) -> int:
    """Append rows with their times; how many."""
    done = 0
    for batch in _batches(log, rows):
        frames = kernel.encode_many(log.fmt.SPEC, [row.payload for row in batch])
        times = array("q", (row.timestamp_us or 0 for row in batch))
        bulk.append(log, [bulk.Part(frames, times)], lambda place: None, history=True)
        done += len(batch)
        advance(len(batch))
    return done


def _batches(log: Log, rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows that are appended together: in a topic or journal they lie in one file."""
    begins = len(log.directory.begin_with())
    room = log.directory.capacity - begins
    most = min(room, journal.MAX_RECORD_BYTES) if log.fmt.NAME == journal.NAME else room
    batch: list[Row] = []
    size = 0
    for row in rows:
        need = len(row.payload) + log.fmt.SPEC.overhead
        if need > most or (log.fmt.SPEC.zero_ends and not row.payload):
            raise InvalidPayload(
                f"{row.part.path}: offset {row.offset}: {len(row.payload)} bytes; a {log.fmt.NAME} holds records of "
                f"{int(log.fmt.SPEC.zero_ends)} to {most - log.fmt.SPEC.overhead} bytes; convert to another format"
            )
        if batch and (size + need > min(room, _BATCH_BYTES) or len(batch) == _BATCH_ROWS):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += need
    if batch:
        yield batch
