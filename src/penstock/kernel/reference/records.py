"""What readers give: a record of a log, and one of an earlier session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, final

from penstock.times import utc

if TYPE_CHECKING:
    from collections.abc import Iterator


@final
@dataclass(frozen=True, slots=True)
class Message:
    """One record: `sequence`, `timestamp` (UTC, or None when unknown), `payload`."""

    sequence: int
    timestamp_us: int | None  # Unix microseconds
    payload: bytes

    def __post_init__(self) -> None:
        if self.timestamp_us == 0:  # how a file says that the time is not known
            object.__setattr__(self, "timestamp_us", None)

    @property
    def timestamp(self) -> datetime | None:
        """When the record was appended, in UTC, or None when that is not known."""
        return utc(self.timestamp_us)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A record of an earlier session: `payload`, and of what it is a part: `group`, `complete`, `session`. Like a tuple of these
    it can be unpacked and compared."""

    payload: bytes
    group: int
    complete: bool
    session: int

    def __iter__(self) -> Iterator[bytes | int]:
        return iter((self.payload, self.group, self.complete, self.session))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Record | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def records(payloads: list[bytes], group: int, complete: bool, session: int) -> list[Record]:
    """The same group's records, of these payloads."""
    return [Record(payload, group, complete, session) for payload in payloads]
