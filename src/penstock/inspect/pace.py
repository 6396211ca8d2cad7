"""How fast logs go: what changed from one look to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.inspect.facts import LogFacts, ReaderFacts


@dataclass(frozen=True, slots=True)
class ReaderPace:
    """A named reader, and how many records it goes forward a second; less than 0 when it was set back."""

    reader: ReaderFacts
    records_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """A log, and how many records and bytes are appended a second. Bytes are by the mean record of the file being written."""

    facts: LogFacts
    records_s: float
    bytes_s: float
    readers: tuple[ReaderPace, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.facts.to_dict(),
            "append_records_s": self.records_s,
            "append_bytes_s": self.bytes_s,
            "readers": [{**asdict(one.reader), "read_records_s": one.records_s} for one in self.readers],
        }


def paces(before: Sequence[LogFacts], now: Sequence[LogFacts], seconds: float) -> list[Pace]:
    """The pace of each log that there is now. One that was not there before is taken to have been as it is."""
    old = {(facts.path, facts.partition): facts for facts in before}
    return [_pace(old.get((facts.path, facts.partition), facts), facts, seconds) for facts in now]


def _pace(before: LogFacts, now: LogFacts, seconds: float) -> Pace:
    records_s = max(0, now.next - before.next) / seconds
    filled = [segment for segment in now.segments if segment.next > segment.base and not segment.compressed]
    mean = filled[-1].data_bytes / (filled[-1].next - filled[-1].base) if filled else 0.0
    was = {reader.name: reader.position for reader in before.readers}
    readers = (
        ReaderPace(reader, (reader.position - was.get(reader.name, reader.position)) / seconds)
        for reader in now.readers
    )
    return Pace(now, records_s, records_s * mean, tuple(readers))
