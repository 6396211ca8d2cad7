"""What a user may say in `.option(…)`: checked once, on the driver, before anything is read.

Names and meanings are those of Spark's Kafka connector where it has the same thing. Spark hands options over as strings, under
names in lower case.
"""

from __future__ import annotations

import difflib
import glob
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast

from penstock.errors import InvalidOption, LogNotFound
from penstock.inspect import FORMATS, FormatName, Part, find
from penstock.options import MAX_PARTITIONS
from penstock.spark import listing, remote
from penstock.storage.cursor import check_name

LATEST: Final = -1  # as in the Kafka connector's JSON
EARLIEST: Final = -2
TIMES: Final = "us"  # among the partitions in a stream's offsets
OnCorrupt = Literal["fail", "skip", "permissive"]
Offsets = dict[str, dict[int, int]]  # of each log, by partition

_READ: Final = (
    "path",
    "paths",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "onCorrupt",
    "checksum",
    "format",
    "durableOnly",
    "includeMetadata",
    "cursor",
    "archive",
)
_WRITE: Final = (
    "path",
    "format",
    "topic",
    "partitions",
    "staging",
    "segmentBytes",
    "fileSize",
    "txnAppId",
    "txnVersion",
)
_FROM_SPARK: Final = {"checkpointlocation", "queryname", "outputmode"}  # put among them by Spark itself
_MAX_VERSION: Final = (1 << 63) - 1
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a trigger takes."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 15 * 60
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a source. Plain data: it travels to the workers."""

    parts: tuple[Part, ...]
    paths: tuple[str, ...]
    format: FormatName | None
    starting: Literal["earliest", "latest"] | Offsets | None
    ending: Literal["latest"] | Offsets
    starting_us: int | None
    ending_us: int | None
    limits: Limits
    min_partitions: int | None
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt
    checksum: bool
    durable_only: bool
    include_metadata: bool
    cursor: str | None
    archive: str | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a sink. Plain data: it travels to the workers."""

    path: str
    format: FormatName | None
    topic: str | None
    partitions: int | None
    staging: str | None
    settings: dict[str, int] = field(default_factory=dict)
    run: Run | None = None


class Run(NamedTuple):
    """What tells a write that is run again: whose it is, and which of theirs, by a number that grows."""

    app: str
    version: int


class _Options:
    """Options by their names, whatever the case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name not in names and name not in _FROM_SPARK:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(known)}"
                raise InvalidOption(f"penstock has no option {name!r}; {hint}")

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidOption(f"{name} must be true or false, not {value!r}")
        return value.lower() == "true"

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            raise InvalidOption(f"{name} must be a whole number from 1 on, not {value!r}")
        return number

    def one_of(self, name: str, values: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value.lower() not in values:
            raise InvalidOption(f"{name} must be one of {', '.join(values)}, not {value!r}")
        return value.lower() if value is not None else None

    def time_us(self, name: str) -> int | None:
        """Milliseconds since 1970, as in the Kafka connector, or a time as ISO 8601 writes it (UTC unless it says else)."""
        value = self.text(name)
        if value is None:
            return None
        try:
            if value.removeprefix("-").isdecimal():
                return int(value) * 1000
            when = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidOption(f"{name} must be milliseconds since 1970 or an ISO 8601 time, not {value!r}") from None
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return round(when.timestamp() * 1e6)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        number = value.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = value[len(number) :].strip() or "ms"
        try:
            return float(number) * _UNITS_S[unit]
        except (ValueError, KeyError):
            raise InvalidOption(f"{name} must be a time such as 500ms, 30s or 15m, not {value!r}") from None

    def archive(self, name: str) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        place = local(value)
        if not listing.is_archive(Path(place)):
            what = "no archive" if Path(place).is_dir() else "no directory"
            raise InvalidOption(f"{name}: {place} is {what}; give one that `penstock spark archive` wrote")
        return place

    def paths(self) -> list[str]:
        listed = self.text("paths")
        one = self.text("path")
        return (_paths(listed) if listed else []) or ([one] if one else [])


def _paths(value: str) -> list[str]:
    """What Spark makes of `load([…])`: JSON."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise InvalidOption(f'paths must be JSON as ["/data/orders", "/data/trades"], not {value!r}')
    return found


def _offsets(name: str, value: str) -> Offsets:
    """`{"orders": {"0": 23, "1": -2}}`, as in the Kafka connector: -2 is the earliest, -1 the latest. They may be taken from a query's
    progress, where there are times among them."""
    shape = f'{name} must be "earliest", "latest" or JSON as {{"log": {{"0": 23, "1": -2}}}}'
    try:
        found = json.loads(value)
        logs = {str(log): {p: offset for p, offset in by.items() if p != TIMES} for log, by in found.items()}
        out = {log: {int(p): _whole(offset) for p, offset in by.items()} for log, by in logs.items()}
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise InvalidOption(f"{shape}, not {value!r} ({error})") from None
    for log, by in out.items():
        for partition, offset in by.items():
            if offset < EARLIEST:
                raise InvalidOption(f"{shape}: offset {offset} of partition {partition} of {log} cannot be")
    return out


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{json.dumps(value)} is no offset")
    return value


def local(path: str) -> str:
    """A path without the scheme that Spark's own are written with."""
    return path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")


def _matching(path: str) -> list[str]:
    """The directories that a glob stands for; itself, if it is none. As in a shell, a name that begins with a dot is meant only by
    a pattern that does: what a sink or an overwrite puts beside logs is none."""
    first = next((i for i, part in enumerate(Path(path).parts) if glob.has_magic(part)), None)
    if first is None or Path(path).exists():
        return [path]
    parts = Path(path).parts
    found = [place for place in Path(*parts[:first]).glob("/".join(parts[first:])) if place.is_dir()]
    pairs = ((place, zip(place.parts[first:], parts[first:], strict=False)) for place in found)
    return sorted(str(place) for place, names in pairs if all(n[:1] != "." or p[:1] == "." for n, p in names))


def all_names(paths: Sequence[str], format: FormatName | None, *, may_be_away: bool = False) -> dict[Part, Part]:
    """The logs that are at these paths now, under every name that leads to them, and the one name that each is read under: else its rows
    came once for each. That is the one given first; of those that one path stands for, one that is no link. A path without a log is an
    error, unless they may be away."""
    if not paths:
        raise InvalidOption('penstock needs a path: load("/data/orders"), or option("path", …)')
    found: dict[Part, None] = {}
    for path in paths:
        matching = [path] if remote.is_remote(path) else _matching(local(path))
        if not matching and not may_be_away:
            raise InvalidOption(f"{path}: nothing matches")
        some: list[Part] = []
        for one in matching:
            with suppress(LogNotFound) if may_be_away else nullcontext():
                some += remote.find(one, format) if remote.is_remote(one) else find(one, format)
        found.update(dict.fromkeys(sorted(some, key=lambda part: Path(part.path).is_symlink())))
    first: dict[tuple[str, int], Part] = {}
    return {part: first.setdefault((_real(part.path), part.partition), part) for part in found}


def _real(path: str) -> str:
    return path if remote.is_remote(path) else str(Path(path).resolve())


def each_once(names: Mapping[Part, Part]) -> tuple[Part, ...]:
    """The logs that these names are of, in order."""
    return tuple(sorted(set(names.values()), key=lambda part: (part.path, part.partition)))


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Understand the options of a source."""
    options = _Options(given, _READ)
    format = cast(FormatName | None, options.one_of("format", FORMATS))
    starting = options.text("startingOffsets")
    start: Literal["earliest", "latest"] | Offsets | None = None
    if starting is not None:
        known = starting.lower()
        start = (
            cast(Literal["earliest", "latest"], known)
            if known in ("earliest", "latest")
            else _offsets("startingOffsets", starting)
        )
    for name in ("starting", "ending"):
        if options.text(f"{name}Offsets") is not None and options.text(f"{name}Timestamp") is not None:
            raise InvalidOption(f"{name}Offsets and {name}Timestamp; give one of them")
    paths = options.paths()
    limits = Limits(
        options.number("maxOffsetsPerTrigger"),
        options.number("minOffsetsPerTrigger"),
        options.seconds("maxTriggerDelay", 15 * 60),
        options.number("maxBytesPerTrigger"),
    )
    if not 0 <= limits.max_delay_s < math.inf:
        raise InvalidOption(f"maxTriggerDelay must be 0 or more, such as 15m, not {options.text('maxTriggerDelay')!r}")
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise InvalidOption(
            f"minOffsetsPerTrigger={limits.min_offsets} is more than maxOffsetsPerTrigger={limits.max_offsets}"
        )
    return ReadOptions(
        parts=each_once(all_names(paths, format)),
        paths=tuple(paths),
        format=format,
        starting=start,
        ending=_ending(options.text("endingOffsets")),
        starting_us=options.time_us("startingTimestamp"),
        ending_us=options.time_us("endingTimestamp"),
        limits=limits,
        min_partitions=options.number("minPartitions"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        on_corrupt=cast(OnCorrupt, options.one_of("onCorrupt", ("fail", "skip", "permissive")) or "fail"),
        checksum=options.flag("checksum", True),
        durable_only=options.flag("durableOnly", True),
        include_metadata=options.flag("includeMetadata", False),
        cursor=_cursor(options.text("cursor")),
        archive=options.archive("archive"),
    )


def _ending(value: str | None) -> Literal["latest"] | Offsets:
    if value is None or value.lower() == "latest":
        return "latest"
    found = _offsets("endingOffsets", value) if value.lower() != "earliest" else {}
    if value.lower() == "earliest" or any(EARLIEST in by.values() for by in found.values()):
        raise InvalidOption('endingOffsets must be "latest" or JSON without -2: nothing lies before the earliest')
    return found


def _cursor(name: str | None) -> str | None:
    if name is not None:
        try:
            check_name(name)
        except ValueError as error:
            raise InvalidOption(f"cursor: {error}") from None
    return name


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Understand the options of a sink."""
    options = _Options(given, _WRITE)
    path = options.text("path")
    if not path:
        raise InvalidOption('penstock needs a path: save("/data/orders"), or option("path", …)')
    if remote.is_remote(path):
        raise InvalidOption(f"{path}: logs are written on a local file system; write it there, and copy its directory")
    aside = options.text("staging")
    if aside is not None and (not aside or remote.is_remote(aside)):
        raise InvalidOption(
            f"staging: {aside!r} is no directory; give one, not a URL, that driver and workers all reach"
        )
    partitions = options.number("partitions")
    if partitions is not None and partitions > MAX_PARTITIONS:
        raise InvalidOption(f"partitions must be 1 to {MAX_PARTITIONS}, not {partitions}")
    settings = {name: value for name in ("segmentBytes", "fileSize") if (value := options.number(name)) is not None}
    return WriteOptions(
        path=local(path),
        format=cast(FormatName | None, options.one_of("format", FORMATS)),
        topic=options.text("topic"),
        partitions=partitions,
        staging=local(aside) if aside is not None else None,
        settings=settings,
        run=_run(options),
    )


def _run(options: _Options) -> Run | None:
    app, version = options.text("txnAppId"), options.text("txnVersion")
    if app is None and version is None:
        return None
    if not app or version is None:
        raise InvalidOption(
            "txnAppId and txnVersion belong together: a name, and a number that grows; give both or neither"
        )
    if not version.isdecimal() or int(version) > _MAX_VERSION:
        raise InvalidOption(f"txnVersion must be a whole number from 0 on, such as a batch id, not {version!r}")
    return Run(app, int(version))
