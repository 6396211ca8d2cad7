"""What one open of a journal wrote, read back: how far it had come, and its records by checkpoint group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock import kernel
from penstock.formats import journal as fmt
from penstock.formats.journal import CHECKPOINT, MAX_FILE_BYTES, Checkpoints
from penstock.options import INDEX_INTERVAL, Roll
from penstock.storage import sessions
from penstock.storage.damage import Loss
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.reader import LogReader, OnCorrupt

CHECKPOINT_BYTES: Final = fmt.SPEC.overhead + 16
_RUN: Final = 4096  # records that a walk takes at a time


def _files(log: Log) -> list[SegmentInfo]:
    now = log.active()
    finished = sorted((s for s in log.finished().values() if s.id < now.segment), key=lambda s: s.id)
    return [*finished, SegmentInfo(now.segment, now.base, now.next - now.base, now.end, 0, 0)]


def last_checkpoints(log: Log, before: Checkpoints) -> Checkpoints:
    """How far a journal had come at the end of a session, which is a log; `before` if it does not say."""
    reader = LogReader(log, "skip")
    try:
        for info in reversed(_files(log)):
            reader.seek(info.base)
            state = None
            while info.base <= reader.position < info.next:
                kind, payloads = reader.records.read_run(min(_RUN, info.next - reader.position))
                if not payloads:
                    break
                if kind == CHECKPOINT:
                    state = fmt.read_checkpoints(payloads[-1], str(log.path), 0)
            if state is not None:
                return state
    finally:
        reader.close()
    return before


class Session:
    """What an earlier open left, to be read."""

    def __init__(self, place: Path) -> None:
        self.last_file = max(sessions.segments(place, fmt), default=-1)
        self.current = 0  # the checkpoint that was registered last in it
        self.log = Log(place, fmt, file_size=MAX_FILE_BYTES, interval=INDEX_INTERVAL, roll=Roll(), still=True)

    @property
    def next_sequence(self) -> int:
        return self.log.next_sequence

    def last_state(self, before: Checkpoints) -> Checkpoints:
        """How far the journal had come at the end of this session; `before` if it does not say."""
        state = last_checkpoints(self.log, before)
        self.current = state.current
        return state

    def walk(self, checked: int, on_corrupt: OnCorrupt, losses: list[Loss]) -> Iterator[tuple[int, list[bytes]]]:
        """The records of groups after `checked`: (group, payloads), some at a time."""
        reader = LogReader(self.log, on_corrupt)
        try:
            reader.seek(self._start(checked).base)
            group, known = 1, False  # what follows damage may be of a later group: it is given until a checkpoint tells
            while True:
                kind, payloads = reader.records.read_run(_RUN)
                for loss in reader.losses:
                    losses.append(loss._replace(reason=f"{self.log.path}: {loss.reason}"))
                    known = False
                reader.losses.clear()
                if not payloads:
                    return
                if kind == CHECKPOINT:
                    group = fmt.read_checkpoints(payloads[-1], str(self.log.path), 0).current + 1
                    known = True
                elif group > checked or not known:
                    yield max(group, checked + 1), payloads
        finally:
            reader.close()

    def _start(self, checked: int) -> SegmentInfo:
        """The first file that may have records of later groups."""
        start, *later = _files(self.log)
        for following in later:
            seg = self.log.directory.read(following.id, following.base, listed=True)
            frame = bytes(seg.data[:CHECKPOINT_BYTES])
            if len(frame) < CHECKPOINT_BYTES or fmt.read_head(frame) != (CHECKPOINT, 16):
                break
            if seg.times.sum(0) not in (0, kernel.crc64(frame)):
                break
            if fmt.read_checkpoints(frame[fmt.SPEC.overhead :], str(seg.paths.data), 0).current + 1 > checked:
                break
            start = following
        return start

    def close(self) -> None:
        self.log.close()
