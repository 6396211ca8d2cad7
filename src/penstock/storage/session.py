"""What one open of a journal wrote, read back: how far it had come, and its records by checkpoint group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def _start(log: Log, checked: int) -> SegmentInfo:
    """The first file that may have records of later groups."""
    start, *later = _files(log)
    for following in later:
        seg = log.directory.read(following.id, following.base, listed=True)
        frame = bytes(seg.data[:CHECKPOINT_BYTES])
        if len(frame) < CHECKPOINT_BYTES or fmt.read_head(frame) != (CHECKPOINT, 16):
            break
        if seg.times.sum(0) not in (0, kernel.crc64(frame)):
            break
        if fmt.read_checkpoints(frame[fmt.SPEC.overhead :], str(seg.paths.data), 0).current + 1 > checked:
            break
        start = following
    return start


class Session:
    """What an earlier open left, to be read. Its files are open only meanwhile: there may be any number of sessions."""

    def __init__(self, place: Path, before: Checkpoints) -> None:
        """`before` is how far the journal had come when it began."""
        self._place = place
        self._open: list[Log] = []
        self.last_file = max(sessions.segments(place, fmt), default=-1)
        with self.reading() as log:
            self.next_sequence = log.next_sequence
            self.state = last_checkpoints(log, before)  # how far it had come at the end

    @contextmanager
    def reading(self) -> Iterator[Log]:
        """Have it open."""
        log = Log(self._place, fmt, file_size=MAX_FILE_BYTES, interval=INDEX_INTERVAL, roll=Roll(), still=True)
        self._open.append(log)
        try:
            yield log
        finally:
            log.close()
            with suppress(ValueError):  # the session was closed meanwhile
                self._open.remove(log)

    def walk(self, checked: int, on_corrupt: OnCorrupt, losses: list[Loss]) -> Iterator[tuple[int, list[bytes]]]:
        """The records of groups after `checked`, and of the open one: (group, payloads), some at a time."""
        with self.reading() as log:
            yield from self._walk(log, checked, on_corrupt, losses)

    def _walk(
        self, log: Log, checked: int, on_corrupt: OnCorrupt, losses: list[Loss]
    ) -> Iterator[tuple[int, list[bytes]]]:
        reader = LogReader(log, on_corrupt)
        try:
            # Its last group is open, whose number a later session's first checkpoint has, too: retiring that retires nothing of this.
            reader.seek(_start(log, min(checked, self.state.current)).base)
            group, known = 1, False  # what follows damage may be of a later group: it is given until a checkpoint tells
            while True:
                kind, payloads = reader.records.read_run(_RUN)
                for loss in reader.losses:
                    losses.append(loss._replace(reason=f"{log.path}: {loss.reason}"))
                    known = False
                reader.losses.clear()
                if not payloads:
                    return
                if kind == CHECKPOINT:
                    group = fmt.read_checkpoints(payloads[-1], str(log.path), 0).current + 1
                    known = True
                elif group > checked or group > self.state.current or not known:
                    yield group if known else max(group, checked + 1), payloads
        finally:
            reader.close()

    def close(self) -> None:
        """Whoever is in the midst of a walk cannot go on with it."""
        while self._open:
            with suppress(IndexError):  # whoever read it was faster
                self._open.pop().close()
