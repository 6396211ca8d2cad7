"""Every state that a crash may leave, of each use. The long version is `python -m tests.kit.campaign`, which `make torture` runs."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

from penstock.storage.log import Log
from penstock.testing.crashes import Crash, kills
from penstock.testing.state import State, temporaries
from penstock.testing.versions import SECTOR
from tests.kit import campaign
from tests.kit.driver import Tried, cut_recovery, judge, record, try_workload, workloads
from tests.kit.uses import USES
from tests.queue.crash import Yard

SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))

# What long workloads come to, by what is seen of it.
ROLLS = "goes on to another file"
SPANS = "writes more than one file at once"
SEALS = "seals"
COMPRESSES = "compresses"
RETIRES = "retires"
COMMITS = "commits"
COMES_TO = {
    "queue": {ROLLS, SPANS, SEALS, RETIRES, COMMITS},
    "queue-each": {ROLLS, SPANS, SEALS, RETIRES, COMMITS},
    "queue-batch": {ROLLS, SPANS, SEALS, RETIRES, COMMITS},
    "channel": {ROLLS, SEALS, COMPRESSES, RETIRES, COMMITS},
    "journal": {ROLLS, SEALS, RETIRES},
    "topic": {ROLLS, SEALS, RETIRES, COMMITS},
    "cursors": {COMMITS},
    "sink": {ROLLS, SPANS, SEALS},
    "topic-sink": {ROLLS, SEALS},
}
SEGMENT = re.compile(
    r"log/((?:[^/]*/)*(?:[\d-]+\.data|segment\.\d+|\d+\.journal|partition_0_segment_\d+\.log))(?:\.z)?"
)


def _again(request: pytest.FixtureRequest) -> str:
    """The command for a failure that the campaign would not come to: its files have other sizes, and its lengths come in order."""
    return f"PENSTOCK_SEED={SEED} pytest '{request.node.nodeid}'"


def came_to(top: Path, use: str, ops: Sequence[str]) -> set[str]:
    """What operations on a log come to."""
    made, seen = USES[use](top / "log"), set[str]()
    sealed: list[int] = []
    real = Log.seal_finished

    def seal_finished(self: Log, least: int = 1) -> int:
        sealed.append(real(self, least))
        return sealed[-1]

    with mock.patch.object(Log, "seal_finished", seal_finished):
        made.open()
        for op in (*ops, "close"):
            before = _files(top)
            made.do(op)
            after = _files(top)
            if op not in ("reopen", "walk", "again"):  # a new session has a file of its own
                were, are = ({m[1] for name in files if (m := SEGMENT.fullmatch(name))} for files in (before, after))
                seen |= {what for what, least in ((ROLLS, 1), (SPANS, 2)) if len(are - were) >= least}
                seen |= {RETIRES} if were - are else set()
            seen |= {COMPRESSES} if any(name.endswith(".z") for name in after) else set()
            committed = [{n: c for n, c in files.items() if _is_place(n)} for files in (before, after)]
            seen |= {COMMITS} if committed[0] != committed[1] else set()
    return seen | ({SEALS} if any(sealed) else set())


def _files(top: Path) -> dict[str, bytes]:
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def _is_place(name: str) -> bool:
    """Where a reader stands."""
    return "/cursors/" in name or name == "log/offset"


@pytest.mark.parametrize("use", USES)
def test_a_long_workload_does_everything(yard: Yard, use: str) -> None:
    """Else states and faults of it would tell nothing of what it does not do."""
    assert came_to(yard.new(), use, USES[use].long) == COMES_TO[use]
    assert "reopen" in USES[use].long


def test_long_workloads_of_a_channel_by_chance_do_often(yard: Yard) -> None:
    rng = random.Random(1)
    seen = Counter(
        what for _ in range(30) for what in came_to(yard.new(), "channel", campaign.by_chance("channel", rng))
    )
    assert seen[ROLLS] > 25
    assert seen[COMPRESSES] > 20
    assert seen[RETIRES] > 5


def _appends(ops: Sequence[str], use: str) -> bool:
    """Cursors move over what was appended when the log was made; an operation of another use that adds nothing has nothing to lose."""
    return use == "cursors" or any(op in USES[use].appends for op in ops)


@pytest.mark.parametrize("use", USES)
def test_some_states_of_short_workloads(yard: Yard, use: str) -> None:
    """A workload of three operations, and of it some of the states, by chance."""
    ops = random.Random(f"{SEED} {use}").choice([ops for ops in workloads(use, 3) if _appends(ops, use)])
    tried = try_workload(yard, use, ops, SEED, 40)
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 40


@pytest.mark.parametrize("use", [use for use in USES if use != "channel"])
def test_all_states_of_a_short_workload(yard: Yard, use: str) -> None:
    """The first operation alone: nothing is left out. (A channel's has too many for here.)"""
    tried = try_workload(yard, use, USES[use].ops[:1], SEED, 1 << 20, done=0)
    assert tried.whole == 1
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 30


@pytest.mark.parametrize("use", USES)
def test_some_states_of_a_long_workload(yard: Yard, use: str) -> None:
    """One that does everything; of one crash the recovery is cut, too."""
    tried = try_workload(yard, use, USES[use].long, SEED, 10, most_kills=15, during_recovery=1, most_cuts=60)
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 65


@pytest.mark.parametrize(("use", "where"), [("queue", "writer.py"), ("channel", "writer.py"), ("sink", "page.py")])
def test_there_are_moments_between_stores_into_maps(yard: Yard, use: str, where: str) -> None:
    """The head that commits an append is one store, and its publication another."""
    moments = record(USES[use], USES[use].ops[:1], yard.keep())
    seen = {moment.call.split(",")[0] for moment in moments if "before line" in moment.call}
    assert {where, "control.py"} <= seen, seen


@pytest.mark.parametrize("use", ["queue", "channel", "topic"])
def test_what_a_page_holds_for_its_own_boot_is_no_matter_after_it(
    yard: Yard, use: str, request: pytest.FixtureRequest
) -> None:
    """So one version of its first sector stands for all. Those of the second, which are the marks, are told apart."""
    kind, tried = USES[use], 0
    for moment in record(kind, kind.ops[:2], yard.keep(), done=0)[::7]:
        page, versions = next((name, v) for name, v in moment.contents() if name.endswith("/.lock"))
        came_to = {}
        for content in versions.contents():
            crash = Crash(moment, State({**moment.now(), page: content}), "new")
            judged = judge(yard, kind, crash, moment.note, _again(request))
            assert not judged.failures, judged.failures[0]
            assert judged.records == came_to.setdefault(content[SECTOR:], judged.records)
            tried += 1
    assert tried > 15


@pytest.mark.parametrize("use", USES)
def test_what_a_temporary_file_holds_is_no_matter(yard: Yard, use: str, request: pytest.FixtureRequest) -> None:
    """So one version of it stands for all: nobody believes even one that was never written. Each name is tried at a few moments."""
    kind, rng = USES[use], random.Random(SEED)
    tried: Counter[str] = Counter()
    for moment in record(kind, kind.long[:10], yard.keep()):
        names = [name for name in sorted(temporaries(moment.now())) if tried[name] < 3]
        if names:
            tried.update(names)
            wrong = {name: rng.randbytes(8192) for name in names}
            crash = Crash(moment, State({**moment.now(), **wrong}), "new")
            judged = judge(yard, kind, crash, moment.note, _again(request))
            assert not judged.failures, judged.failures[0]
    assert tried


@pytest.mark.parametrize("use", ["queue", "channel"])
def test_a_second_kill_while_an_append_is_taken_back(yard: Yard, use: str, request: pytest.FixtureRequest) -> None:
    """At each store of the first operation, and at some of what is done about it."""
    kind, rng = USES[use], random.Random(SEED)
    moments = record(kind, kind.ops[:1], yard.keep())
    first = [crash for crash in kills(moments).all if "writer.py, before line" in crash.moment.call]
    tried = Tried()
    for crash in first:
        tried.add(cut_recovery(yard, kind, crash, rng, _again(request), 25))
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 100


def test_the_power_fails_while_files_are_moved_whose_names_a_killed_process_did_not_sync(
    yard: Yard, request: pytest.FixtureRequest
) -> None:
    """A journal's next open moves what it finds: the directory for that may be on the disk, and the files that were to go there not."""
    kind, tried = USES["journal"], Tried()
    made = [
        crash for crash in kills(record(kind, ["reopen"], yard.keep(), done=0)).all if crash.moment.call == "create"
    ]
    for crash in made[-2:]:
        tried.add(cut_recovery(yard, kind, crash, random.Random(SEED), _again(request)))
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 100


@pytest.mark.parametrize("use", ["queue", "sink"])
def test_a_length_before_its_data_is_no_matter(yard: Yard, use: str, request: pytest.FixtureRequest) -> None:
    ops, again = USES[use].ops[:2], _again(request)
    tried = try_workload(yard, use, ops, SEED, 40, lengths_in_order=False, done=0, again=again)
    assert not tried.failures, tried.failures[0]


@pytest.mark.parametrize("use", ["topic", "journal"])
def test_nor_where_frames_do_not_prove_themselves(
    yard: Yard, use: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A record that nobody was promised, with zeros in it, is not given: a block of nothing but zeros was never written."""
    monkeypatch.setattr("tests.kit.uses.scale.SEGMENT_BYTES", 2500)
    monkeypatch.setattr("penstock.journal.MAX_FILE_BYTES", 2500)
    ops, again = ["larger", "larger"], _again(request)
    tried = try_workload(yard, use, ops, SEED, 300, lengths_in_order=False, done=0, again=again)
    assert not tried.failures, tried.failures[0]
    assert tried.cases > 60


@pytest.mark.parametrize(("use", "cases"), [("topic", 120), ("journal", 70)])
def test_a_write_that_is_torn_is_cut(yard: Yard, use: str, cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state: of a record of more than a sector its first sectors may be there, and the file be no longer."""
    monkeypatch.setattr("tests.kit.uses.scale.SEGMENT_BYTES", 2500)
    monkeypatch.setattr("penstock.journal.MAX_FILE_BYTES", 2500)
    tried = try_workload(yard, use, ["larger", "larger"], SEED, 1 << 20, done=1)
    assert not tried.failures, tried.failures[0]
    assert tried.whole
    assert tried.cases > cases


def test_a_batch_of_a_sink_to_files_that_grow_is_whole_or_absent(yard: Yard) -> None:
    """Every state: it comes again, so a part of it that stayed would be there twice."""
    tried = try_workload(yard, "topic-sink", ["batch", "batch"], SEED, 1 << 20, done=1)
    assert not tried.failures, tried.failures[0]
    assert tried.whole
    assert tried.cases > 50
