"""Retention, once: the oldest finished files of logs go, as far as no named reader needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import InvalidOption, PenstockError
from penstock.inspect import Part, find
from penstock.inspect.facts import ReaderFacts, readers_of
from penstock.options import Retention
from penstock.storage import retention as retire
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.offsets import Offsets
from penstock.storage.places import Places
from penstock.writing import writing


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A named reader that has not passed files which would have gone."""

    name: str
    position: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What became of one log, or one partition."""

    path: str
    topic: str
    partition: int
    files: int  # that were removed
    records: int
    bytes: int
    first: int  # the oldest record now
    held_back: tuple[HeldBack, ...]


@dataclass(frozen=True, slots=True)
class RetainReport:
    """What became of all that is at a path."""

    path: str
    logs: tuple[Retained, ...]
    failed: tuple[str, ...]  # logs of which nothing, or not all, could be removed, and why

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def retain(path: str | Path, retention: Retention) -> RetainReport:
    """Remove what is too much or too old at `path`, and say who holds back what. A channel must not be open elsewhere. A log that
    cannot be opened does not stop the others."""
    if not retention.bounded:
        raise InvalidOption("nothing says how much to keep; give a size, an age, or both")
    parts = find(path)
    for part in parts:
        if part.format == "journal":  # before anything is removed
            raise InvalidOption(f"{part.path}: a journal removes by itself what its checkpoints have retired")
    done, failed = list[Retained](), list[str]()
    for part in parts:
        try:
            done.append(_retain(part, retention))
        except (PenstockError, OSError) as error:
            failed.append(str(error))
    return RetainReport(str(path), tuple(done), tuple(failed))


def _retain(part: Part, retention: Retention) -> Retained:
    with writing(part) as log:
        log.seal_finished()
        gone = retire.apply(log, retention, _held_by_receivers(log) if part.format == "channel" else None)
        left = retire.expired(log, replace(retention, ignore_cursors=True))
        held = tuple(_held_back(reader, left) for reader in readers_of(part, log) if _needs(reader, left))
        first = log.first_sequence
    return Retained(
        path=part.path,
        topic=part.topic,
        partition=part.partition,
        files=len(gone),
        records=sum(info.count for info in gone),
        bytes=sum(info.end for info in gone),
        first=first,
        held_back=held,
    )


def _held_by_receivers(log: Log) -> Callable[[SegmentInfo], bool]:
    """A channel's receivers have byte offsets, in a file of their own."""

    def held(info: SegmentInfo) -> bool:
        slots = log.cursors.all().values()
        offsets = Offsets(log.path / "offset", read_only=True)
        try:
            return min((offsets.load(slot) if slot else 0 for slot in slots), default=1 << 62) < Places(log).end_of(
                info
            )
        finally:
            offsets.close()

    return held


def _needs(reader: ReaderFacts, infos: list[SegmentInfo]) -> bool:
    return any(reader.position < info.next for info in infos)


def _held_back(reader: ReaderFacts, infos: list[SegmentInfo]) -> HeldBack:
    needed = [info for info in infos if reader.position < info.next]
    return HeldBack(reader.name, reader.position, len(needed), sum(info.end for info in needed))
