"""The ledger: which batches of which writers are in a log, for those who may come again with a batch they wrote before.

`ledger`, one small file that is replaced atomically: the highest batch of each writer, and the intent of the one at work: which
batch, where in the log it is to lie, and the time its records will have. An intent is written under the log's lock, before the first
byte of the batch; so after a crash the log itself says whether the batch is there. The lock is a flock on `ledger.lock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import CorruptRecord, CorruptSegment, LogBusy, NotALog, UnknownVersion
from penstock.storage import bulk, checked, files
from penstock.storage.log import Log


@dataclass(slots=True)
class _State:
    done: dict[str, int] = field(default_factory=dict)  # the highest batch of each writer
    intent: dict[str, Any] | None = None


class Ledger:
    """The ledger of an open log. `segments` gives all that may hold a batch, if that is not the open log's alone."""

    def __init__(self, log: Log, segments: Callable[[], Iterable[bulk.Span]] | None = None) -> None:
        self._log = log
        self._segments = segments or (lambda: bulk.spans(log))
        self._path = log.directory.own / "ledger"

    def append(self, writer: str, number: int, parts: Sequence[bulk.Part]) -> bool:
        """Append a writer's batch of whole frames, and make it durable; False when it is there already.

        Batches of a writer come in the order of their numbers. One that is cut short by a crash is there or not; whoever comes
        next finds out which.
        """
        with self._locked():
            state = self._settled()
            if state.done.get(writer, -1) >= number:
                return False
            if any(memoryview(part.frames).nbytes for part in parts):

                def intend(batch: bulk.Batch) -> None:
                    state.intent = {"writer": writer, "number": number, **asdict(batch)}
                    self._store(state)

                bulk.append(self._log, parts, intend)
                self._log.sync()
            state.done[writer], state.intent = number, None
            self._store(state)
            return True

    def highest(self, writer: str) -> int | None:
        """The highest batch of a writer that is in the log."""
        with self._locked():
            return self._settled().done.get(writer)

    def forget(self, writer: str) -> None:
        """A writer that will not come again."""
        with self._locked():
            state = self._settled()
            if state.done.pop(writer, None) is not None:
                self._store(state)

    def settle(self) -> bool:
        """Resolve an intent that was left, before records are removed that tell whether its batch is there. False when the ledger, or what
        it speaks of, cannot be read; raises LogBusy while somebody is at work here."""
        if not files.exists(self._path):
            return True
        unread = NotALog, UnknownVersion, CorruptRecord, CorruptSegment
        with suppress(*unread), self._locked(wait=False) as alone:
            if not alone:
                raise LogBusy(f"{self._path}: a batch is just committed to this log; try again")
            self._settled()
            return True
        return False

    def _settled(self) -> _State:
        """What holds, with an intent that was left resolved: its batch is in the log, or never will be."""
        state = self._load()
        if state.intent is not None:
            intent = state.intent
            with self._log.locked():  # what a dead process had half done is finished, or wiped
                pass
            placed = {name: intent[name] for name in ("first", "count", "us", "head", "tail")}
            if bulk.holds(self._segments(), bulk.Batch(**placed)):
                self._log.sync()
                state.done[intent["writer"]] = intent["number"]
            state.intent = None
            self._store(state)
        return state

    # ---- the file ----

    @contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[bool]:
        with files.opened_to_lock(self._path.with_name("ledger.lock"), make=True) as fd:
            yield files.lock(fd, shared=False, wait=wait)

    def _load(self) -> _State:
        step = "restore it from a copy, or remove it if no writer comes again"
        return checked.load(self._path, step, _shape) or _State()

    def _store(self, state: _State) -> None:
        checked.store(self._path, asdict(state))


def _shape(found: Any) -> _State:
    number, text = checked.number, checked.text
    intent = found["intent"]
    if intent is not None:
        names = {
            "writer": text,
            "number": number,
            "first": number,
            "count": number,
            "us": number,
            "head": text,
            "tail": text,
        }
        intent = {name: check(intent[name]) for name, check in names.items()}
    return _State({text(writer): number(batch) for writer, batch in found["done"].items()}, intent)


def check(path: Path) -> None:
    """Raise NotALog if there is a ledger that cannot be read."""
    checked.load(path, "", _shape)
