"""A journal against a list of sessions: whatever is done in whatever order, both say the same.

The model is, for each session that was not walked to its end, what was appended in it and under which number; and the last
checkpoints that were registered and retired. A crash is a copy of the files of a quiet journal, opened as that of this boot or
of an earlier one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock import InvalidCheck, Journal, RecoveryUnfinished, journal
from tests.journal import by_hand
from tests.journal.conftest import SLOW
from tests.journal_crash.wreck import copy

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
sizes = st.integers(0, 40) | st.integers(0, 120)

Told = tuple[bytes, int, bool, int]


class Session:
    """What was appended in one open, and the checkpoint registered last in it."""

    def __init__(self, current: int) -> None:
        self.records: list[tuple[bytes, int]] = []
        self.current = current


class JournalMachine(RuleBasedStateMachine):
    """Its rules are what a user may do."""

    def __init__(self) -> None:
        super().__init__()
        ram = Path("/dev/shm")  # nothing here needs a disk
        self.top = Path(tempfile.mkdtemp(prefix="penstock-", dir=ram if os.access(ram, os.W_OK) else None))
        self.copies = 0
        self.path = self.top / "0"
        self.j: Journal | None = None
        self.sessions: list[Session] = []  # earlier ones, not walked to their end
        self.now = Session(0)
        self.checked = 0
        self.grown = False
        self.appended = 0
        self.real = journal.MAX_FILE_BYTES

    @property
    def journal(self) -> Journal:
        assert self.j is not None
        return self.j

    @initialize(size=st.sampled_from([150, 300, 2000, 4 << 20]))
    def start(self, size: int) -> None:
        journal.MAX_FILE_BYTES = size  # type: ignore[misc]
        self.open()

    def open(self) -> None:
        self.j = Journal(self.path)
        self.now = Session(self.journal.current)
        self.grown = False
        if not self.coming():
            self.sessions = []  # what nothing is needed of goes when it is opened

    def coming(self) -> list[Told]:
        """What the walk gives."""
        return [
            (payload, group, group <= session.current, number)
            for number, session in enumerate(self.sessions)
            for payload, group in session.records
            if group > self.checked or group > session.current  # nothing but a walk's end retires an open group
        ]

    # ---- what a user does ----

    def payload(self, size: int) -> bytes:
        self.appended += 1
        return (b"%d." % self.appended * (size // 2 + 1))[:size]

    @rule(size=sizes)
    def append(self, size: int) -> None:
        payload = self.payload(size)
        self.journal.append(payload)
        self.now.records.append((payload, self.now.current + 1))
        self.grown = True

    @rule(parts=st.lists(st.integers(0, 20), min_size=1, max_size=5))
    def append_many(self, parts: list[int]) -> None:
        payloads = [self.payload(size) for size in parts]
        self.journal.append_many(payloads)
        self.now.records += [(payload, self.now.current + 1) for payload in payloads]
        self.grown = True

    @rule(wait=st.booleans())
    def checkpoint(self, wait: bool) -> None:
        number = self.journal.checkpoint()
        self.now.current += self.grown
        self.grown = False
        assert number == self.now.current
        if wait:
            assert number.result(60) == number

    @rule(wait=st.booleans())
    def check(self, wait: bool) -> None:
        if self.checked == self.now.current:
            with pytest.raises(InvalidCheck):
                self.journal.check()
            return
        number = self.journal.check()
        self.checked += 1
        assert number == self.checked
        if wait:
            number.result(60)

    @rule()
    def flush(self) -> None:
        self.journal.flush()

    # ---- the walk ----

    @precondition(lambda self: bool(self.sessions))
    @rule(share=st.floats(0, 1))
    def walk_partially(self, share: float) -> None:
        self.journal.flush()  # what was retired is on the disk
        wanted = self.coming()
        n = int(share * len(wanted))
        walk = iter(self.journal.recovered())
        assert [tuple(next(walk)) for _ in range(n)] == wanted[:n]
        if n:
            self.append(len(wanted[0][0]))

    @rule(again=st.booleans())
    def walk_fully(self, again: bool) -> None:
        self.journal.flush()
        wanted, got = self.coming(), []
        for record in self.journal.recovered():
            got.append(tuple(record))
            if again:
                self.append(len(record.payload))
        assert got == wanted
        if self.sessions:
            self.checked = max(self.checked, *(s.current for s in self.sessions))
            self.sessions = []
        assert list(self.journal.recovered()) == []
        assert not (self.path / "recovery").exists()

    # ---- opening again ----

    def closed(self) -> None:
        self.journal.flush()
        told = bool(self.coming())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.journal.close()
        assert [w.category for w in caught] == [RecoveryUnfinished] * told
        if not told:
            if self.sessions:
                self.checked = max(self.checked, *(s.current for s in self.sessions))
            self.sessions = []
        self.sessions.append(self.now)

    @rule()
    def reopen(self) -> None:
        self.closed()
        self.open()

    @rule(boot=st.sampled_from(["same", "new"]))
    def crash(self, boot: str) -> None:
        self.journal.flush()
        self.copies += 1
        there = copy(self.path, self.top / str(self.copies), boot)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.journal.close()
        shutil.rmtree(self.path)
        self.path = there
        self.sessions.append(self.now)
        self.open()

    # ---- always ----

    @invariant()
    def everything_agrees(self) -> None:
        if self.j is None:
            return
        assert (self.journal.first_unchecked, self.journal.current) == (self.checked + 1, self.now.current)
        assert (self.path / "recovery").exists() == bool(self.sessions)

    @invariant()
    def everything_needed_is_in_the_files(self) -> None:
        if self.j is None or self.appended % 4:
            return
        self.journal.flush()
        try:
            found = by_hand.items(self.path)[0]
        except (FileNotFoundError, AssertionError):
            return  # one is just being deleted
        needed = [record for record in self.now.records if record[1] > self.checked]
        assert [(item.payload, item.group) for item in found][len(found) - len(needed) :] == needed

    def teardown(self) -> None:
        try:
            if self.j is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.j.close()
        finally:
            journal.MAX_FILE_BYTES = self.real  # type: ignore[misc]
            shutil.rmtree(self.top)


def test_a_journal_behaves_like_a_list_of_sessions() -> None:
    run_state_machine_as_test(
        JournalMachine,
        settings=settings(
            max_examples=EXAMPLES or (10 if SLOW else 40),
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=not EXAMPLES,
            suppress_health_check=list(HealthCheck),
        ),
    )
