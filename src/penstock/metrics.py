"""Counters and gauges of every log that this process has open: as plain facts, or through OpenTelemetry.

`snapshot()` gives them at any time; `install()` registers them with OpenTelemetry, which then asks for them whenever it
exports (extra `metrics`). Nothing is counted for an append: what was appended the log itself tells, and syncs and rolls are
slow enough to be counted.

>>> import tempfile
>>> from penstock import Queue
>>> with tempfile.TemporaryDirectory() as top, Queue(f"{top}/orders") as q:
...     tailer = q.tailer("billing")
...     _ = q.append_batch([b"one", b"two", b"three"])
...     tailer.commit()
...     q.sync()
...     (now,) = snapshot()
3
>>> now.appends, now.undurable, now.lag, now.syncs > 0
(3, 0, {'billing': 3}, True)
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock import extras
from penstock.errors import PenstockError
from penstock.inspect import FormatName, Part
from penstock.inspect.facts import readers_of, reserved_bytes
from penstock.storage.buffered import Buffered
from penstock.storage.log import Log, open_logs

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """One log, or one partition of a topic. What was appended and who reads it is the log's, whichever process it was; syncs, rolls,
    corruptions and recoveries are this process's, since it opened the log."""

    path: str
    format: FormatName
    partition: int
    appends: int  # records, since the log was made
    bytes: int  # of frames that came since this process first looked; of files that came and went between two looks, nothing
    undurable: int  # records that a power cut would take
    syncs: int
    sync_s: float
    rolls: int
    roll_s: float
    corruptions: int  # bad records that a reader met
    recoveries: int  # times that opening it found something to mend
    disk_bytes: int  # of its data files
    reserved_bytes: int  # of these, blocks that have no records yet
    lag: Mapping[str, int]  # by reader, in records


class _Seen:
    """How far the bytes of a log were counted."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ends: dict[int, int] | None = None

    def look(self, ends: dict[int, int], header: int) -> int:
        """The ends of the segments that there are now; all bytes so far."""
        if self._ends is not None:
            self.bytes += sum(max(0, end - self._ends.get(number, header)) for number, end in ends.items())
        self._ends = ends
        return self.bytes


_seen: dict[tuple[str, int], _Seen] = {}
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """A thread that held it is not there any more."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def snapshot() -> list[LogMetrics]:
    """What can be told of every open log now. One that is closed meanwhile is left out."""
    found = sorted(((_part(log), log) for log in open_logs() if log.control is not None), key=lambda one: one[0])
    out = []
    with _lock:
        for part, some in itertools.groupby(found, key=lambda one: one[0]):
            logs = [log for _, log in some]
            try:
                out.append(_metrics(part, logs))
            except (PenstockError, OSError):
                if not any(log.closed for log in logs):
                    raise
    return out


def _part(log: Log) -> Part:
    return Part(str(log.path), cast(FormatName, log.fmt.NAME), log.path.name, getattr(log.fmt, "partition", 0))


def _metrics(part: Part, logs: list[Log]) -> LogMetrics:
    log = logs[0]
    now, meters = log.active(), [one.directory.meters for one in logs]
    written = [path.appends.synced for one in logs if isinstance(path := one.writing, Buffered)]
    ends = {s.id: s.end for s in log.finished().values() if s.id < now.segment} | {now.segment: now.end}
    seen = _seen.setdefault((part.path, part.partition), _Seen())
    return LogMetrics(
        path=part.path,
        format=part.format,
        partition=part.partition,
        appends=now.next,
        bytes=seen.look(ends, log.fmt.HEADER_BYTES),
        undurable=max(0, now.next - log.durable_sequence),
        syncs=sum(m.syncs for m in meters) + sum(count for count, _ in written),
        sync_s=(sum(m.sync_ns for m in meters) + sum(ns for _, ns in written)) / _NS,
        rolls=sum(m.rolls for m in meters),
        roll_s=sum(m.roll_ns for m in meters) / _NS,
        corruptions=sum(m.corruptions for m in meters),
        recoveries=sum(not one.recovery.clean for one in logs),
        disk_bytes=log.directory.used_bytes(),
        reserved_bytes=reserved_bytes(log.directory.paths(now.segment).data, now.end),
        lag={reader.name: reader.lag for reader in readers_of(part, log)},
    )


# ---- OpenTelemetry ----

_COUNTERS: Final[dict[str, tuple[str, str, Callable[[LogMetrics], float]]]] = {
    "penstock.appends": ("{record}", "Records appended, since the log was made", lambda m: m.appends),
    "penstock.bytes": ("By", "Bytes appended, since they were first looked at", lambda m: m.bytes),
    "penstock.syncs": ("{sync}", "Syncs by this process", lambda m: m.syncs),
    "penstock.sync.time": ("s", "Time that they took", lambda m: m.sync_s),
    "penstock.rolls": ("{file}", "New files begun by this process", lambda m: m.rolls),
    "penstock.roll.time": ("s", "Time that took", lambda m: m.roll_s),
    "penstock.corruptions": ("{record}", "Bad records that readers of this process met", lambda m: m.corruptions),
    "penstock.recoveries": ("{recovery}", "Opens that found something to mend", lambda m: m.recoveries),
}
_GAUGES: Final[dict[str, tuple[str, str, Callable[[LogMetrics], float]]]] = {
    "penstock.undurable": ("{record}", "Records that a power cut would take", lambda m: m.undurable),
    "penstock.disk": ("By", "Disk space of the data files", lambda m: m.disk_bytes),
    "penstock.disk.reserved": ("By", "Part of it that has no records yet", lambda m: m.reserved_bytes),
}


def install(provider: MeterProvider | None = None) -> None:
    """Register with OpenTelemetry: with this provider, or the one that is set for the process. Once for each provider."""
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"metrics go through OpenTelemetry, which is not installed: {extras.install('metrics')}", name=error.name
        ) from None
    meter = metrics.get_meter("penstock", meter_provider=provider)
    for make, instruments in (
        (meter.create_observable_counter, _COUNTERS),
        (meter.create_observable_gauge, _GAUGES),
    ):
        for name, (unit, description, value) in instruments.items():
            make(name, [_asked(value, metrics.Observation)], unit, description)
    lag = "Records that a named reader has not done"
    meter.create_observable_gauge("penstock.lag", [_asked_lag(metrics.Observation)], "{record}", lag)


def _asked(
    value: Callable[[LogMetrics], float], observation: type[Observation]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for one in snapshot():
            yield observation(value(one), _labels(one))

    return observe


def _asked_lag(observation: type[Observation]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for one in snapshot():
            for reader, lag in one.lag.items():
                yield observation(lag, {**_labels(one), "reader": reader})

    return observe


def _labels(one: LogMetrics) -> dict[str, Any]:
    return {"path": one.path, "format": one.format, "partition": one.partition}
