"""Named readers' places, changed from outside: of tailers, groups and receivers. They should not be reading meanwhile, as what they
commit next is what counts; a channel's cannot, since one process at a time has it open for writing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from penstock.channel import Channel
from penstock.errors import InvalidOption, RecordGone
from penstock.inspect import Part, find
from penstock.inspect.rows import Bound
from penstock.storage.log import Log
from penstock.storage.places import Places
from penstock.storage.reader import LogReader
from penstock.writing import writing

Place = Bound | Literal["start", "end"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moved:
    """A reader's place in one log, before and after; None where it has none."""

    log: str
    partition: int
    name: str
    before: int | None
    after: int | None


def move(path: str | Path, name: str, place: Place, partition: int | None = None) -> list[Moved]:
    """Have a named reader go on from a record, a time, or an end of the log; of a topic in all partitions, or in one. It is made if
    there is none of that name."""
    return [_move(part, name, place) for part in _parts(path, partition)]


def forget(path: str | Path, name: str) -> list[Moved]:
    """Remove a named reader: it holds nothing back any more."""
    parts = _parts(path, None)
    done = [moved for part in parts if (moved := _forget(part, name)).before is not None]
    if not done:
        raise InvalidOption(f"{path}: no reader named {name!r}; `penstock cursors {path}` lists them")
    return done


def _parts(path: str | Path, partition: int | None) -> list[Part]:
    parts = find(path)
    if len({part.path for part in parts}) > 1:
        raise InvalidOption(f"{path}: several logs; name one of them")
    if parts[0].format == "journal":
        raise InvalidOption(f"{path}: a journal has no named readers")
    chosen = [part for part in parts if partition is None or part.partition == partition]
    if not chosen:
        raise InvalidOption(f"{path}: no partition {partition}; there are 0 to {len(parts) - 1}")
    return chosen


def _move(part: Part, name: str, place: Place) -> Moved:
    if part.format == "channel":
        with Channel[bytes](part.path) as channel:
            log = channel._open_log()
            before = _known(log, name)
            sequence = _sequence(log, place)
            with channel.rx(name) as receiver:
                before = before if before is None else Places(log).sequence(receiver.offset)
                receiver.seek(_offset(log, sequence))
        return Moved(part.topic, part.partition, name, before, sequence)
    with writing(part) as log:
        before = _known(log, name)
        sequence = _sequence(log, place)
        with log.locked():  # retention looks under the lock, too
            log.cursors.store(name, sequence)
    return Moved(part.topic, part.partition, name, before, sequence)


def _forget(part: Part, name: str) -> Moved:
    if part.format == "channel":
        with Channel[bytes](part.path) as channel:
            before = _known(channel._open_log(), name)
            channel.forget(name)
    else:
        with writing(part) as log:
            before = _known(log, name)
            log.cursors.forget(name)
    return Moved(part.topic, part.partition, name, before, None)


def _known(log: Log, name: str) -> int | None:
    try:
        return log.cursors.load(name)
    except ValueError as error:
        raise InvalidOption(str(error)) from error


def _sequence(log: Log, place: Place) -> int:
    """The record that a place is before."""
    if place == "start" or place == "end":
        return log.first_sequence if place == "start" else log.next_sequence
    reader = LogReader(log)
    try:
        if isinstance(place, datetime):
            reader.seek_time(round((place - _EPOCH).total_seconds() * 1e6))
        else:
            reader.seek(place)
        return reader.position
    except RecordGone as error:
        raise InvalidOption(str(error)) from error
    finally:
        reader.close()


def _offset(log: Log, sequence: int) -> int:
    """Where a record begins, in bytes of the whole channel."""
    reader = LogReader(log)
    try:
        reader.seek(sequence)
        return Places(log).shift(reader.records.segment) + reader.records.position
    finally:
        reader.close()
