"""One partition of a topic, open: its log, and what hangs on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.formats.topic import Partition
from penstock.options import Flush, Retention, Roll
from penstock.storage import files
from penstock.storage import retention as retire
from penstock.storage.buffered import Buffering
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.storage.promise import Bell
from penstock.storage.reader import LogReader
from penstock.topic.message import TopicMessage, delivered

_SEALED_TOGETHER: Final = 8  # after a power cut so many are looked through, which takes milliseconds


class Opened(Protocol):
    """What all partitions are opened with."""

    segment_bytes: int
    buffering: Buffering
    retention: Retention
    read_only: bool


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """What one partition holds and does."""

    segment: int  # the active one
    first_offset: int
    end_offset: int  # which the next message will have
    durable_offset: int  # every message below it survives a power cut
    buffered_messages: int  # published by this process, and not written yet
    buffered_bytes: int
    segments: int
    disk_bytes: int
    lag: dict[str, int]  # of each named reader or group: messages that it has not committed


class OpenPartition:
    """One open partition."""

    def __init__(self, topics: Opened, top: Path, number: int, interval: int) -> None:
        self.number = number
        own = top / f".partition_{number}"
        if not topics.read_only:
            files.refuse_links(own, top)
            files.make_directories(own, top)
        kept = topics.retention
        self._janitor = Janitor(
            Flush.none(),
            (lambda log: retire.apply(log, kept)) if kept.bounded else None,
            retire.every_s(kept),
            together=_SEALED_TOGETHER,
        )
        self.log = Log(
            top,
            Partition(number),
            file_size=topics.segment_bytes,
            interval=interval,
            roll=Roll(),
            read_only=topics.read_only,
            on_work=self._janitor.wake,
            may_be_empty=True,
            own=own,
            buffering=topics.buffering,
        )
        self._idle: list[LogReader] = []  # left by `read`, at places where the next one may go on
        if not topics.read_only:
            self.path = self.log.buffered
            self.bell = Bell(self.path)
            self.append = self.path.appends.append
            self._janitor.serve(self.log)

    def read(self, offset: int, most: int) -> list[TopicMessage]:
        """See `Topic.read`."""
        self.log.check_open()
        reader = next((r for r in self._idle if r.position == offset), None)
        try:
            if reader is not None:
                self._idle.remove(reader)
        except ValueError:
            reader = None  # another thread was faster
        if reader is None:
            reader = LogReader(self.log)
            reader.seek(offset)
        out = delivered(self.number, reader.read_batch(most))
        self._idle.append(reader)
        while len(self._idle) > 4:
            self._idle.pop(0).close()
        return out

    def stats(self) -> PartitionStats:
        log = self.log
        now, finished = log.active(), log.finished()
        messages, size = (0, 0) if log.read_only else self.path.appends.waiting
        return PartitionStats(
            segment=now.segment,
            first_offset=log.first_sequence,
            end_offset=now.next,
            durable_offset=log.durable_sequence,
            buffered_messages=messages,
            buffered_bytes=size,
            segments=len(finished) + 1,
            disk_bytes=log.directory.used_bytes(),
            lag={name: max(0, now.next - place) for name, place in log.cursors.all().items()},
        )

    def close(self) -> None:
        if not self.log.read_only and not self.log.inherited:
            self._janitor.stop()
        self.log.close()
