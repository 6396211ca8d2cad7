"""What the kit leaves out of looking at states is nothing: shown on workloads that are small enough to look at all of them."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.storage import files
from penstock.testing.crashes import power_cuts
from penstock.testing.disk import Disk
from penstock.testing.moment import Change, Moment
from penstock.testing.recording import recorded
from penstock.testing.standing_in import CHANGING
from penstock.testing.state import PAGE, State, temporaries
from penstock.testing.versions import SECTOR, Versions, picking
from tests.kit.driver import record
from tests.kit.uses import USES
from tests.queue.crash import Yard

FEW = 3000
# What a function asks the system for that changes a file or a name; a rename is `Path.replace`, which strings have, too.
ASKED = {
    *("O_CREAT", "O_TMPFILE", "mkstemp", "mkdir", "link", "renameat2", "unlink", "rmtree", "pwrite", "ftruncate"),
    *("posix_fallocate", "fallocate", "fsync", "fdatasync"),
}


def key(state: State) -> object:
    """Equal for states that a power cut makes equal: what a control page holds for its own boot is not told apart, nor what a file
    that was being made does."""
    unread = temporaries(state)

    def what(name: str, data: bytes) -> object:
        if name.endswith(PAGE):
            return bool(data[:SECTOR].strip(b"\0")), data[SECTOR:]
        return None if name in unread else data

    return frozenset((name, what(name, data)) for name, data in state.items()), state.directories


def states(*moments: Moment) -> set[object]:
    return {key(state) for moment in moments for state in moment.all()}


def test_more_ways_to_keep_and_lose_names_than_can_be_tried_are_not_tried() -> None:
    """Though they come to few states: each of ten directories has a name that came and went ten times."""
    changes = [Change({top: {"name": 99 if i % 2 else None}}) for top in range(10) for i in range(20)]
    synced = {0: {f"d{top}": top for top in range(1, 10)}}
    moment = Moment(0, "", None, 0, {99: Versions.whole(b"")}, synced, tuple(changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moment, "_trees", lambda self: pytest.fail("they are tried"))
        assert moment.count(50) > 50
    few = replace(moment, changes=tuple(changes[:40]))
    assert few.count(50) == len(list(few.all())) == 4


@pytest.mark.parametrize("use", ["journal", "topic", "cursors", "sink"])
def test_between_two_syncs_the_last_moment_has_all_states(yard: Yard, use: str) -> None:
    """So the others need not be looked at. A sync ends that: what was lost before cannot be lost any more."""
    moments = [m.told_apart() for m in record(USES[use], USES[use].ops[:2], yard.keep(), done=1) if m.count(FEW) <= FEW]
    some = none = 0
    for one, then in itertools.pairwise(moments):
        has_all = states(one) <= states(then)
        if then.includes(one):
            assert has_all, (one.call, then.call)
            some += 1
        none += not has_all
    assert some > 5
    assert none


@pytest.mark.parametrize("use", ["journal", "topic", "cursors", "sink"])
def test_no_state_is_left_out(yard: Yard, use: str) -> None:
    moments = record(USES[use], USES[use].ops[:1], yard.keep(), done=0)
    found = power_cuts(moments, random.Random(1), FEW)
    assert found.complete
    got = {key(crash.state) for crash in found.all}
    assert got >= states(*(moment.told_apart() for moment in moments))


def test_those_near_to_all_lost_and_all_kept_are_all_in_the_end(yard: Yard) -> None:
    """With as many differences as there are places it is every state; with fewer, fewer."""
    moments = record(USES["queue"], ["append"], yard.keep(), done=0)
    moment = max((m for m in moments if m.count(FEW) <= FEW), key=lambda m: m.count(FEW))
    every, places = states(moment), len(moment.files) + len(moment._ordered())
    near = [set(map(key, moment.near(k))) for k in range(places + 1)]
    assert near[places] == every
    assert near[0] < near[1] < near[2] < every
    assert [moment.count_near(k) for k in (0, 1, 2)] == [len(list(moment.near(k))) for k in (0, 1, 2)]


@pytest.mark.parametrize("use", USES)
def test_what_was_synced_and_what_is_are_among_the_contents_of_a_file(yard: Yard, use: str) -> None:
    """Also where a sector is again as it was before."""
    changed = 0
    for moment in record(USES[use], USES[use].ops[:3], yard.keep()):
        for versions in (*moment.files.values(), *moment.told_apart().files.values()):
            contents = versions.contents()
            assert len(contents) == len(set(contents)) == versions.count
            assert {versions.synced, versions.now} <= set(contents)
            changed += len(contents) > 1
        assert [key(state) for state in moment.near(0)] == [key(moment.least()), key(moment.now())]
    assert changed > 20


@pytest.mark.parametrize("use", USES)
def test_so_they_are_over_a_long_workload(yard: Yard, use: str) -> None:
    """Where files are overwritten after they have grown, cut and written on, there may be too many contents to have them all."""
    looked_at = {}
    for moment in record(USES[use], USES[use].long, yard.keep()):
        for versions in (*moment.files.values(), *moment.told_apart().files.values()):
            if looked_at.setdefault(id(versions), versions) is versions:
                assert may_be(versions, versions.synced), moment.call
                assert may_be(versions, versions.now), moment.call
    assert len(looked_at) > 200


def may_be(versions: Versions, content: bytes) -> bool:
    """Whether it is among the contents."""
    for size, within in versions._lengthwise():
        parts = {i: content[i * SECTOR : (i + 1) * SECTOR] for i in within}
        chosen = {i: next((v for v in some if v.startswith(parts[i])), b"") for i, some in within.items()}
        if size == len(content) and versions._put(size, chosen) == content:
            return True
    return False


A, B, C = (letter * SECTOR for letter in (b"A", b"B", b"C"))


@pytest.mark.parametrize(
    ("was", "contents"),
    [
        ([b"", b"A" * 9, b"B" * 9], {b"", b"A" * 9, b"B" * 9}),
        ([A, A + b"B", A + b"C", A + b"B"], {A, A + b"B", A + b"C"}),
        ([b"A" * 9, b"AAA", b"AAAB"], {b"A" * 9, b"AAA" + bytes(6), b"AAAB" + bytes(5), b"AAA", b"AAAB"}),
        ([A + B, A, A + C], {A + B, A + bytes(SECTOR), A, A + C}),
    ],
)
def test_of_what_a_file_grew_by_a_later_version_may_be_on_the_disk_and_none_that_is_older(
    was: list[bytes], contents: set[bytes]
) -> None:
    """With an older length, an older one may."""
    versions = Versions.whole(was[0])
    for content in was[1:]:
        versions = versions.then(content)
    assert set(versions.contents()) == contents


@pytest.mark.parametrize(
    ("before", "length", "sizes"),
    [
        (0, 1500, [0, 512, 1024, 1500]),
        (600, 2048, [600, 1024, 1536, 2048]),
        (100, 500, [100, 500]),
        (512, 600, [512, 600]),
    ],
)
def test_a_write_that_makes_a_file_longer_may_be_torn_where_sectors_meet(
    before: int, length: int, sizes: list[int]
) -> None:
    """Of pages only where they do. What it did not write yet was not there before, so there is no other tail."""
    content = b"x" * length
    versions = Versions.whole(content[:before]).then(content)
    assert versions.contents() == [content[:size] for size in sizes]
    assert versions.includes(Versions.whole(content[:before]))
    some = {versions.some(picking(random.Random(i)), 4096) for i in range(40)}
    assert some == {content[:before], content}


def test_one_that_is_long_may_be_torn_at_some_places() -> None:
    """Spread over all of it: of each state there is a copy, and a file that a user writes may be large."""
    sizes = [length.size for length in Versions.whole(b"").then(b"x" * 1_000_000).lengths]
    assert 50 < len(sizes) < 100
    assert not any(size % SECTOR for size in sizes[:-1])
    assert max(after - size for size, after in itertools.pairwise(sizes)) < 20_000


def test_a_file_that_is_only_made_longer_is_not_torn() -> None:
    versions = Versions.whole(b"x").then(b"x" + bytes(4999))
    assert list(map(len, versions.contents())) == [1, 5000]


@contextmanager
def two_directories(yard: Yard) -> Iterator[tuple[Path, Disk]]:
    """a and b, on the disk and watched."""
    top = yard.keep()
    for name in ("a", "b"):
        (top / name).mkdir(parents=True)
    with closing(Disk(top)) as disk:
        yield top, disk


def test_a_rename_between_directories_ties_their_changes(yard: Yard) -> None:
    """Before it each may be lost without the other; so the moment after it does not have every state of the one before."""
    with two_directories(yard) as (top, disk):
        seen = []
        for name in ("a/1", "b/2"):
            (top / name).write_bytes(b"x")
            disk.look()
            seen.append(disk.moment(len(seen), name, None))
        (top / "a/1").rename(top / "b/1")
        disk.look()
        tied = disk.moment(2, "rename", None)
    assert seen[1].includes(seen[0])
    assert not tied.includes(seen[1])
    assert states(seen[1]) - states(tied)


def test_a_rename_that_is_on_the_disk_is_the_end_of_what_the_name_was_before(yard: Yard) -> None:
    """Also where the directory that it was in was not synced: another name there may still be lost."""
    with two_directories(yard) as (top, disk):
        for name in ("a/1", "a/2"):
            (top / name).touch()
            disk.look()
        (top / "a/1").rename(top / "b/1")
        disk.look()
        disk.syncing((top / "b").stat().st_ino)()
        moment = disk.moment(0, "sync", None)
    assert moment.least().keys() == {"b/1"}
    assert moment.now().keys() == {"b/1", "a/2"}


def test_a_sync_is_of_what_was_there_when_it_began(yard: Yard) -> None:
    """Other threads go on meanwhile: what they write, and the files they make, may still be lost."""
    top = yard.keep()
    top.mkdir()
    (top / "a").write_bytes(b"before")
    disk = Disk(top)
    try:
        (top / "a").write_bytes(b"at the beginning")
        (top / "b").touch()
        disk.look()
        done = [disk.syncing(path.stat().st_ino) for path in (top / "a", top)]
        assert disk.moment(0, "begun", None).least() == {"a": b"before"}
        (top / "a").write_bytes(b"meanwhile")
        (top / "c").touch()
        disk.look()
        for one in done:
            one()
        moment = disk.moment(1, "done", None)
    finally:
        disk.close()
    assert moment.least() == {"a": b"at the beginning", "b": b""}
    assert moment.now() == {"a": b"meanwhile", "b": b"", "c": b""}


@pytest.mark.parametrize("use", ["journal", "topic", "cursors", "sink"])
def test_what_a_kill_left_may_be_lost_as_before(yard: Yard, use: str) -> None:
    """Written down elsewhere it has other numbers, and what has lost its name has none; the states are the same."""
    moments = [m for m in record(USES[use], USES[use].ops[:2], yard.keep(), done=0) if m.count(FEW) <= FEW]
    for moment in moments[:: max(1, len(moments) // 12)]:
        top = moment.now().lay(yard.new(), "same")
        disk = Disk(top, left_by=moment)
        try:
            assert states(disk.moment(0, "begin", None)) == states(moment), moment.call
        finally:
            disk.close()
    assert any(m.least() != m.now() for m in moments)


def test_all_that_changes_anything_is_watched() -> None:
    functions = [node for node in ast.parse(inspect.getsource(files)).body if isinstance(node, ast.FunctionDef)]
    asks = {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in ASKED
    }
    assert asks | {"rename"} == set(CHANGING)


def test_a_crash_may_come_between_any_two_changes_of_names(yard: Yard) -> None:
    """Also where one call makes several directories, or removes a tree."""
    top = yard.keep()
    with recorded(top) as recording:
        files.make_directories(top / "a" / "b", top)
        for name in ("1", "2"):
            files.close(files.create(top / "a" / "b" / name))
        files.link(top / "a" / "b" / "2", top / "3")
        files.remove_tree(top / "a")
    seen = [sorted({*moment.now(), *moment.now().directories}) for moment in recording.moments]
    made = [[], ["a"], ["a", "a/b"], ["a", "a/b", "a/b/1"], ["a", "a/b", "a/b/1", "a/b/2"]]
    changes = [names for names, _ in itertools.groupby(seen)]
    assert changes[:6] == [*made, ["3", *made[-1]]]
    assert list(map(len, changes[5:])) == [5, 4, 3, 2, 1], "each name that goes is a moment"


def test_what_anybody_asks_the_system_for_is_seen_when_it_is_done(yard: Yard) -> None:
    """A user's own writes and names, too, with no call of a log between them. What goes through a file object comes with the next."""
    top = yard.keep()
    with recorded(top) as recording:
        fd = os.open(top / "a", os.O_CREAT | os.O_RDWR)
        os.write(fd, b"12")
        os.write(fd, b"34")
        os.pwrite(fd, b"x", 0)
        os.ftruncate(fd, 3)
        os.close(fd)
        os.truncate(top / "a", 1)
        (top / "a").rename(top / "b")
        (top / "b").replace(top / "c")
        (top / "d").mkdir()
        os.link(top / "c", top / "d" / "e")
        os.remove(top / "c")  # noqa: PTH107
        (top / "f").write_bytes(b"1")
        (top / "f").write_bytes(b"2")
    seen = [({**moment.now()}, *moment.now().directories) for moment in recording.moments]
    assert [state for state, _ in itertools.groupby(seen)] == [
        ({},),
        *(({"a": content},) for content in (b"", b"12", b"1234", b"x234", b"x23", b"x")),
        ({"b": b"x"},),
        ({"c": b"x"},),
        ({"c": b"x"}, "d"),
        ({"c": b"x", "d/e": b"x"}, "d"),
        ({"d/e": b"x"}, "d"),
        ({"d/e": b"x", "f": b"2"}, "d"),
    ]


def test_links_and_what_is_no_file_are_left_out(yard: Yard) -> None:
    """A link may lead nowhere, or round in a circle; opening a pipe would wait for somebody to write to it."""
    top = yard.keep()
    with recorded(top) as recording:
        (top / "nowhere").symlink_to("there is none")
        (top / "round").symlink_to(top)
        os.mkfifo(top / "pipe")
        (top / "file").write_bytes(b"x")
    assert recording.moments[-1].now() == {"file": b"x"}
    assert not recording.moments[-1].now().directories


def test_temporary_files_are_those_of_logs() -> None:
    """What else is recorded may be a user's own, who may read it."""
    log = ["log/.lock", "log/manifest.12-34.tmp", "log/2026/09/21/20260921-0002.data.next", "log/manifest"]
    own = ["state.12-34.tmp", "state.next", "logs/x.next", "log/cursors/x.next", "log/mine.tmp"]
    assert temporaries([*log, *own]) == set(log[1:3])
    assert temporaries([".lock", "segment.1.next"]) == {"segment.1.next"}
    assert temporaries(own) == set()
