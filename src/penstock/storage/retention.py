"""Which finished segments may go: the oldest first, and never one that a named reader has not passed."""

from __future__ import annotations

from collections.abc import Callable

from penstock.options import Retention
from penstock.storage import files
from penstock.storage.ledger import Ledger
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo

Held = Callable[[SegmentInfo], bool]


def expired(log: Log, retention: Retention, held: Held | None = None) -> list[SegmentInfo]:
    """The segments that retention would delete now. `held` says which ones a reader has not passed, where that is not told by the
    log's cursors."""
    if not retention.bounded:
        return []
    now = log.active()
    finished = sorted((s for s in log.finished().values() if s.sealed and s.id < now.segment), key=lambda s: s.id)
    total = now.end + sum(s.end for s in finished)
    out = []
    for i, info in enumerate(finished):
        too_much = retention.max_bytes is not None and total > retention.max_bytes
        too_old = retention.max_age_s is not None and _is_old(finished, i, retention.max_age_s)
        if not (too_much or too_old) or _is_held(log, retention, info, held):
            break
        out.append(info)
        total -= info.end
    return out


def _is_old(infos: list[SegmentInfo], i: int, max_age_s: float) -> bool:
    """Whether the i-th of these segments has no younger records. After a power cut the time of its last one may not be known: it is no
    later than those in the segments behind it."""
    last_us = next((infos[k].last_us for k in range(i, len(infos)) if infos[k].last_us), None)
    return last_us is not None and last_us < files.now_us() - max_age_s * 1e6


def _is_held(log: Log, retention: Retention, info: SegmentInfo, held: Held | None = None) -> bool:
    """Whether a named reader has not passed a segment."""
    if retention.ignore_cursors:
        return False
    return held(info) if held is not None else min(log.cursors.all().values(), default=info.next) < info.next


def apply(log: Log, retention: Retention, held: Held | None = None) -> list[SegmentInfo]:
    """Delete what may go; what was deleted."""
    gone = []
    for info in expired(log, retention, held):
        if not retire(log, info, lambda info: _is_held(log, retention, info, held)):
            break
        gone.append(info)
    return gone


def retire(log: Log, info: SegmentInfo, unless: Held = lambda info: False) -> bool:
    """Delete a sealed segment, unless it is needed: by a reader, or to tell whether a batch that was cut short is in the log."""
    return Ledger(log).settle() and log.retire(info, unless=unless)


def drop(log: Log, below: int) -> list[SegmentInfo]:
    """Delete the finished segments that have only records below an offset, but none that a named reader still needs; what was
    deleted."""
    log.seal_finished()
    now, gone = log.active(), list[SegmentInfo]()
    for info in sorted((s for s in log.finished().values() if s.sealed and s.id < now.segment), key=lambda s: s.id):
        if info.next > below or not retire(log, info, lambda info: _is_held(log, Retention(), info)):
            break
        gone.append(info)
    return gone


def every_s(retention: Retention) -> float | None:
    """How often there may be something to delete though nothing was appended."""
    return None if retention.max_age_s is None else min(60.0, retention.max_age_s / 2)
