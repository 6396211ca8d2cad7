"""What a user may choose: frozen, validated, every default in one place.

>>> Roll.any(Roll.size(1 << 20), Roll.every(3600))
Roll(size_bytes=1048576, interval_s=3600.0, records=None)
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

FILE_SIZE_BYTES: Final = 1 << 30
MIN_FILE_SIZE_BYTES: Final = 8192
MAX_FILE_SIZE_BYTES: Final = 1 << 40
MAX_INDEX_INTERVAL: Final = 1 << 30
MAX_PARTITIONS: Final = 4096
MAX_SEQUENCE: Final = 1 << 62  # no log gets there: a file that says more is not believed
MAX_TIME_US: Final = 1 << 62  # nor is it ever so late
MAX_NUMBER: Final = (1 << 63) - 1  # of bytes or records that may be asked for: the kernels count in 64 bits
INDEX_INTERVAL: Final = 1024
CHANNEL_SEGMENT_BYTES: Final = 512 << 20
CHANNEL_MESSAGE_BYTES: Final = 64 << 20  # a file's room beyond segment_bytes: such a message always fits
JOURNAL_BUFFER_BYTES: Final = 64 << 20  # what may be appended and not yet on the disk
TOPIC_SEGMENT_BYTES: Final = 1 << 20
TOPIC_BATCH: Final = 500
TOPIC_LINGER_S: Final = 0.1
TOPIC_BUFFER_MESSAGES: Final = 100_000
TOPIC_BUFFER_BYTES: Final = 64 << 20


def whole_number(name: str, value: object) -> int:
    """What a user gives as a number of records or bytes, of whatever type that counts."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive number, not {value!r}")


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Roll:
    """When to go on to a new file. A file is never rolled while it has no records.

    The limits are looked at before each append; a batch is kept in one file where it fits one, so a file may hold more
    records than `Roll.count` says, by the rest of one batch.
    """

    size_bytes: int | None = None
    interval_s: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        if self.size_bytes is not None:
            _whole("Roll.size", self.size_bytes)
        if self.interval_s is not None:
            _positive("Roll.every", self.interval_s)
        if self.records is not None:
            _whole("Roll.count", self.records)

    @staticmethod
    def size(size_bytes: int) -> Roll:
        """Roll before a file would grow past this many bytes (and never past `file_size`)."""
        return Roll(size_bytes=size_bytes)

    @staticmethod
    def every(interval: float | timedelta) -> Roll:
        """Roll when a file is this old, in seconds."""
        return Roll(interval_s=interval.total_seconds() if isinstance(interval, timedelta) else float(interval))

    @staticmethod
    def count(records: int) -> Roll:
        """Roll when a file has this many records."""
        return Roll(records=records)

    @staticmethod
    def any(*rolls: Roll) -> Roll:
        """Roll as soon as one of these says so."""

        def least(name: str) -> Any:
            return min((v for r in rolls if (v := getattr(r, name)) is not None), default=None)

        for roll in rolls:
            if not isinstance(roll, Roll):
                raise TypeError(f"Roll.any takes Roll.size, Roll.every and Roll.count, not {roll!r}")
        if not rolls:
            raise ValueError("Roll.any needs at least one of Roll.size, Roll.every, Roll.count")
        return Roll(least("size_bytes"), least("interval_s"), least("records"))


@dataclass(frozen=True, slots=True)
class Flush:
    """When appended records are forced to the disk. Whatever is chosen, `sync()` can be called at any time."""

    kind: Literal["none", "each", "batch"] = "none"
    size_bytes: int | None = None
    interval_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("none", "each", "batch"):
            raise ValueError(f"unknown flush {self.kind!r}; use Flush.none(), Flush.each() or Flush.batch(...)")
        if self.size_bytes is not None:
            _whole("Flush.batch bytes", self.size_bytes)
        if self.interval_s is not None:
            _positive("Flush.batch interval_s", self.interval_s)

    @staticmethod
    def none() -> Flush:
        """The operating system decides; survives the death of every process, not a power cut."""
        return Flush()

    @staticmethod
    def each() -> Flush:
        """Durable before `append` returns; concurrent callers share one sync."""
        return Flush("each")

    @staticmethod
    def batch(*, bytes: int = 1 << 20, interval_s: float = 0.1) -> Flush:
        """Synced in the background after this many bytes or seconds, whichever comes first."""
        return Flush("batch", bytes, interval_s)


@dataclass(frozen=True, slots=True)
class Retention:
    """Which sealed files may be deleted. The file being written never is.

    What a named tailer has not passed is kept, unless `ignore_cursors` is set.
    """

    max_bytes: int | None = None
    max_age_s: float | None = None
    ignore_cursors: bool = False

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            _whole("Retention max_bytes", self.max_bytes)
        if self.max_age_s is not None:
            _positive("Retention max_age_s", self.max_age_s)

    @property
    def bounded(self) -> bool:
        """Whether it ever lets a file go."""
        return self.max_bytes is not None or self.max_age_s is not None
