"""Members of a group share things out: fairly, completely, never one to two, whoever comes, leaves, dies, stops or forks."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LogClosed
from penstock.storage import files
from penstock.storage.claims import Claims, plan
from tests.storage.claiming import Member, end, forked
from tests.support import AWhile, until

# What the children do takes no lock that a thread of ours may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

STRESS_S = 4.0
NEWS_S = 0.1  # sooner than a look without news


def yes(_: int) -> bool:
    return True


def no(_: int) -> bool:
    return False


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path / "topic" / "groups" / "billing"


@pytest.fixture
def start(tmp_path: Path, top: Path) -> Iterator[Callable[..., Member]]:
    """Starts members in processes of their own; in the end none may have found a thing that has two owners."""
    members: list[Member] = []
    proofs = tmp_path / "proofs"
    proofs.mkdir()

    def begin(count: int, **options: Any) -> Member:
        members.append(Member(top, count, proofs, **options))
        return members[-1]

    yield begin
    for member in members:
        member.clean()


@pytest.fixture
def join(top: Path) -> Iterator[Callable[[int], Claims]]:
    """Makes members in this process."""
    members: list[Claims] = []

    def made(count: int) -> Claims:
        members.append(Claims(top, count))
        return members[-1]

    yield made
    for member in members:
        member.close()


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def member_files(top: Path) -> list[str]:
    return sorted(path.name for path in top.iterdir() if path.name.startswith("member-"))


def shared_out(members: list[Any], count: int) -> bool:
    """Whether everything has one owner, and none has two more than another."""
    sizes = [len(m.mine) for m in members]
    return (
        set().union(*(m.mine for m in members)) == set(range(count))
        and sum(sizes) == count
        and max(sizes) - min(sizes) <= 1
    )


def rounds(members: list[Claims], times: int = 2) -> None:
    for _ in range(times):
        for member in members:
            member.settle(yes)


# ---- the plan ----


@given(st.integers(1, 12), st.integers(0, 40))
def test_the_shares_of_all_are_all_things(live: int, count: int) -> None:
    shares = [plan([], count, live, rank) for rank in range(live)]
    sizes = [room for _, _, room in shares]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    firsts = [thing for _, take, room in shares for thing in take[:room]]
    assert sorted(firsts) == list(range(count))  # coming at the same time, none gets in another's way
    assert all(sorted(take) == list(range(count)) and give == [] for give, take, _ in shares)


@given(st.data(), st.integers(1, 8), st.integers(0, 20))
def test_a_plan_moves_no_more_than_it_must(data: st.DataObject, live: int, count: int) -> None:
    rank = data.draw(st.integers(0, live - 1))
    mine = data.draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=count)) if count else set()
    give, take, room = plan(mine, count, live, rank)
    own = {i for i in range(count) if i % live == rank}
    assert room == len(own) - len(mine)
    assert sorted(give) == sorted(mine)
    assert sorted([*give, *take]) == list(range(count))
    assert [i in own for i in give] == sorted(i in own for i in give)  # its own are given last
    assert [i in own for i in take] == sorted((i in own for i in take), reverse=True)  # and taken first


class Model:
    """What members do, with sets for locks: each settles at any time, knowing who is there or who was there before."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.members: dict[int, set[int]] = {}
        self.moved = 0

    def settle(self, me: int, live: list[int], gives: Callable[[int], bool]) -> None:
        mine = self.members[me]
        give, take, room = plan(mine, self.count, len(live), live.index(me))
        for thing in give:
            if room < 0 and gives(thing):
                mine.discard(thing)
                room += 1
                self.moved += 1
        taken = set().union(*self.members.values())
        for thing in take:
            if room > 0 and thing not in taken:
                mine.add(thing)
                room -= 1


@settings(max_examples=300)
@given(st.data(), st.integers(1, 16))
def test_whatever_went_before_everything_gets_an_owner(data: st.DataObject, count: int) -> None:
    model, views = Model(count), list[list[int]]()
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["join", "leave", "settle", "settle", "settle"]))
        live = sorted(model.members)
        if what == "join":
            model.members[data.draw(st.integers(0, 99).filter(lambda i: i not in model.members))] = set()
        elif live and what == "leave":
            del model.members[data.draw(st.sampled_from(live))]
        elif live:
            me = data.draw(st.sampled_from(live))
            seen = [view for view in views if me in view]  # it may have looked some time ago
            model.settle(me, data.draw(st.sampled_from([live, *seen])), lambda _: data.draw(st.booleans()))
        views.append(sorted(model.members))
        owned = [thing for mine in model.members.values() for thing in mine]
        assert len(owned) == len(set(owned))
    if live := sorted(model.members):
        excess = sum(max(0, -plan(model.members[m], count, len(live), live.index(m))[2]) for m in live)
        model.moved = 0
        for _ in range(2):
            for me in data.draw(st.permutations(live)):
                model.settle(me, live, yes)
        sizes = [len(mine) for mine in model.members.values()]
        assert sum(sizes) == count
        assert max(sizes) - min(sizes) <= 1
        assert model.moved == excess


# ---- sharing out ----


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("many", range(1, 6))
def test_members_share_out_fairly_and_completely(start: Callable[..., Member], many: int, count: int) -> None:
    members = [start(count) for _ in range(many)]
    until(lambda: shared_out(members, count), "all things are shared out")


def test_one_after_the_other(start: Callable[..., Member]) -> None:
    members: list[Member] = []
    for _ in range(5):
        members.append(start(7))
        until(lambda: shared_out(members, 7), f"7 things are shared out among {len(members)}")
    while members:
        member = members.pop(0)
        member.stop()
        assert member.gone() == 0
        if members:
            until(lambda: shared_out(members, 7), f"7 things are shared out among {len(members)}")


def test_what_is_told(join: Callable[[int], Claims]) -> None:
    a = join(5)
    assert a.mine == set()
    assert a.settle(yes) == ({0, 1, 2, 3, 4}, set())
    assert a.settle(yes) == (set(), set())
    b = join(5)
    assert b.settle(yes) == (set(), set())
    new, lost = a.settle(yes)
    assert new == set()
    assert len(lost) in (2, 3)
    assert a.mine == {0, 1, 2, 3, 4} - lost
    assert b.settle(yes) == (lost, set())
    assert b.mine == lost
    a.close()
    assert a.mine == set()
    assert b.settle(yes) == ({0, 1, 2, 3, 4} - lost, set())


def test_what_is_mine_is_a_copy(join: Callable[[int], Claims]) -> None:
    a = join(2)
    a.settle(yes)
    a.mine.clear()
    assert a.mine == {0, 1}


def test_nothing_to_share(join: Callable[[int], Claims]) -> None:
    a, b = join(0), join(0)
    assert a.settle(yes) == b.settle(yes) == (set(), set())


def test_no_thing_moves_while_nobody_comes_or_leaves(join: Callable[[int], Claims]) -> None:
    members = [join(7) for _ in range(3)]
    rounds(members)
    assert shared_out(members, 7)
    had = [m.mine for m in members]
    for m in members * 3:
        assert m.settle(lambda thing: pytest.fail(f"asked for {thing}")) == (set(), set())
    assert [m.mine for m in members] == had


def test_groups_do_not_know_each_other(tmp_path: Path) -> None:
    a, b = Claims(tmp_path / "a", 3), Claims(tmp_path / "b", 3)
    assert a.settle(yes) == b.settle(yes) == ({0, 1, 2}, set())
    a.close()
    b.close()


# ---- giving back ----


def test_what_may_not_be_given_is_kept(start: Callable[..., Member], join: Callable[[int], Claims]) -> None:
    first = start(4, gives=False)
    until(lambda: first.mine == {0, 1, 2, 3}, "the first has all")
    second = join(4)
    until(lambda: first.asked, "the first is asked")
    for _ in range(100):
        assert second.settle(yes) == (set(), set())
    assert first.mine == {0, 1, 2, 3}
    first.let_give()  # it is asked again without any news

    def two() -> bool:
        second.settle(yes)
        return len(second.mine) == 2

    until(two, "the second has its share")
    assert first.mine == {0, 1, 2, 3} - second.mine


def test_only_what_is_beyond_the_share_is_asked_for(join: Callable[[int], Claims]) -> None:
    a = join(6)
    a.settle(yes)
    others = [join(6) for _ in range(2)]
    asked: list[int] = []

    def some(thing: int) -> bool:
        asked.append(thing)
        return thing in (1, 5)

    _, lost = a.settle(some)
    assert lost <= {1, 5}
    assert lost == {thing for thing in asked if thing in (1, 5)}
    assert len(asked) == len(set(asked))
    for _ in range(3):
        a.settle(some)
    assert a.mine == {0, 2, 3, 4}
    asked.clear()
    a.settle(lambda thing: asked.append(thing) or True)  # type: ignore[func-returns-value]
    assert len(asked) == 2
    rounds(others)
    assert shared_out([a, *others], 6)


def test_news_are_seen_at_once(join: Callable[[int], Claims]) -> None:
    """Well before the next look without news."""
    a = join(3)
    a.settle(yes)
    quiet = time.monotonic() + NEWS_S
    if a.changed():  # the machine is busy, or there is something wrong: look again
        a.settle(yes)
        assert not a.changed() or time.monotonic() > quiet
    for event in ("join", "give", "leave"):
        if event == "join":
            b = join(3)
            seen = a.changed()
        elif event == "give":
            b.settle(yes)
            b.settle(yes)
            a.settle(yes)
            seen = b.changed()
        else:
            rounds([a, b], 3)
            b.close()
            seen = a.changed()
        assert seen, event


def test_news_that_come_while_we_look_are_seen_the_next_time(
    join: Callable[[int], Claims], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = join(3)
    look, later = a._live, list[Claims]()

    def look_and_miss() -> list[str]:
        found = look()
        later.append(join(3))
        return found

    monkeypatch.setattr(a, "_live", look_and_miss)
    monkeypatch.setattr("penstock.storage.claims._LOOK_S", 1000.0)
    a.settle(yes)
    monkeypatch.undo()
    assert a.changed()


def test_a_death_that_one_noticed_is_news_for_the_others(
    join: Callable[[int], Claims], start: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.claims._LOOK_S", 1000.0)
    a, b, other = join(6), join(6), start(6)

    def shared() -> bool:
        rounds([a, b], 1)
        return shared_out([a, b, other], 6) and not a.changed()

    until(shared, "all things are shared out")
    other.kill()
    other.gone()
    assert not a.changed()
    b.settle(yes)
    assert a.changed()


def test_without_news_there_is_a_look_now_and_then(join: Callable[[int], Claims]) -> None:
    a = join(3)
    a.settle(yes)
    began = time.monotonic()
    looks = 0
    while time.monotonic() < began + 1.0:
        if a.changed():
            a.settle(yes)
            looks += 1
    assert 2 <= looks <= 6


def test_looking_whether_something_changed_makes_no_system_call(
    join: Callable[[int], Claims], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = join(3)
    a.settle(yes)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("files were looked at")

    for name in ("read", "lock", "unlock", "size", "opened", "create", "has_name"):
        monkeypatch.setattr(files, name, refuse)
    for _ in range(100):
        a.changed()
    monkeypatch.undo()


# ---- leaving and dying ----


def test_closing_gives_at_once(join: Callable[[int], Claims], top: Path) -> None:
    a, b = join(4), join(4)
    rounds([a, b])
    assert (len(a.mine), len(b.mine)) == (2, 2)
    a.close()
    a.close()
    assert member_files(top) == [b._name]
    assert b.changed()
    assert len(b.settle(yes)[0]) == 2
    with pytest.raises(LogClosed, match="this member was closed"):
        a.settle(yes)
    assert a.mine == set()
    assert a.changed()  # whoever goes on is told


def test_an_object_that_was_dropped_holds_nothing(top: Path) -> None:
    a, b = Claims(top, 4), Claims(top, 4)
    rounds([a, b])
    del a
    assert len(b.settle(yes)[0]) == 2
    assert member_files(top) == [b._name]
    b.close()


@pytest.mark.parametrize("many", [2, 3, 4])
def test_what_a_killed_member_had_is_taken_over(start: Callable[..., Member], top: Path, many: int) -> None:
    members = [start(7) for _ in range(many)]
    until(lambda: shared_out(members, 7), "all things are shared out")
    while len(members) > 1:
        victim = members.pop(len(members) // 2)
        victim.kill()
        assert victim.gone() == -signal.SIGKILL
        killed = time.monotonic()
        until(lambda: shared_out(members, 7), "the others have them")
        assert time.monotonic() - killed < 10
    assert len(member_files(top)) == 1


def test_an_orphan_is_taken_in_one_settle(start: Callable[..., Member], join: Callable[[int], Claims]) -> None:
    other = start(4)
    until(lambda: other.mine == {0, 1, 2, 3}, "the other has all")
    me = join(4)
    me.settle(yes)
    other.kill()
    other.gone()
    me.settle(yes)
    assert me.mine == {0, 1, 2, 3}


def test_a_stopped_member_keeps_what_it_has(start: Callable[..., Member], join: Callable[[int], Claims]) -> None:
    other = start(4)
    until(lambda: other.mine == {0, 1, 2, 3}, "the other has all")
    other.kill(signal.SIGSTOP)
    pid, status = os.waitpid(other.pid, os.WUNTRACED)
    assert (pid, os.WIFSTOPPED(status)) == (other.pid, True)
    me = join(4)
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        assert me.settle(yes) == (set(), set())
    other.kill(signal.SIGCONT)

    def two() -> bool:
        me.settle(yes)
        return len(me.mine) == 2

    until(two, "it gives back, going on")


def test_a_member_in_the_same_process_is_another_one(join: Callable[[int], Claims]) -> None:
    members = [join(9) for _ in range(4)]
    rounds(members, 3)
    assert shared_out(members, 9)


def dying(top: Path, work: Callable[[], object], at: int) -> bool:
    """Do it in a process that is killed at its at-th call to the system, before or after it; False when it made fewer."""
    pid = os.fork()
    if pid == 0:
        calls = 0

        def cut() -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def deadly(name: str) -> None:
            real = getattr(files, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                cut()
                out = real(*args, **kwargs)
                cut()
                return out

            setattr(files, name, call)

        try:
            for name in (
                "create",
                "close",
                "lock",
                "unlock",
                "remove",
                "has_name",
                "truncate",
                "allocate",
                "map_write",
            ):
                deadly(name)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_a_death_at_any_call_leaves_nothing_to_mend(top: Path) -> None:
    """Of one that joins, takes, gives back and leaves; each time another one finds everything free."""

    def life() -> None:
        a = Claims(top, 3)
        a.settle(yes)
        b = Claims(top, 3)
        a.settle(yes)
        b.settle(yes)
        a.close()

    at = 1
    while dying(top, life, at):
        left = Claims(top, 3)
        assert left.settle(yes) == ({0, 1, 2}, set())
        assert member_files(top) == [left._name]
        left.close()
        assert (top / "turn").stat().st_size == 8
        for path in top.iterdir():
            if at % 2:  # and so that every file is made anew
                path.unlink()
        at += 1
    assert at > 60


# ---- who is alive ----


def test_a_file_of_a_dead_member_is_swept(join: Callable[[int], Claims], top: Path) -> None:
    a = join(2)
    (top / "member-1-dead").touch()
    (top / "other").touch()
    assert a.settle(yes) == ({0, 1}, set())
    assert member_files(top) == [a._name]
    assert (top / "other").exists()


def test_many_may_look_at_a_dead_one_at_the_same_time(join: Callable[[int], Claims], top: Path) -> None:
    a = join(2)
    path = top / "member-1-dead"
    path.touch()
    with files.opened(path) as fd:
        assert files.lock(fd, shared=True, wait=False)  # as another one that looks
        assert a.settle(yes) == ({0, 1}, set())


@pytest.mark.parametrize("how", ["swept", "being looked at", "swept, and looked at for long"])
def test_one_that_is_taken_for_dead_while_it_joins_comes_again(
    join: Callable[[int], Claims], top: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    a, create, left, probes = join(2), files.create, 2, list[int]()
    a.settle(yes)

    def interfere(path: Path, *, exclusive: bool = True) -> int:
        nonlocal left
        fd = create(path, exclusive=exclusive)
        if path.name.startswith("member-") and left:
            left -= 1
            if how != "swept":
                probes.append(files.open_read(path))
                assert files.lock(probes[-1], shared=True, wait=False)
            if "swept" in how:
                a.settle(no)
        return fd

    monkeypatch.setattr(files, "create", interfere)
    b = join(2)
    assert left == 0
    assert member_files(top) == sorted([a._name, b._name])
    for fd in probes:
        os.close(fd)
    rounds([a, b])
    assert shared_out([a, b], 2)
    assert member_files(top) == sorted([a._name, b._name])


def test_a_file_is_removed_only_with_its_lock(
    join: Callable[[int], Claims], top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that is just joining could get the lock in between, and live on unseen."""
    a, remove, removed = join(2), files.remove, list[Path]()

    def look(path: Path) -> None:
        assert not is_free(path)
        remove(path)
        removed.append(path)

    (top / "member-1-dead").touch()
    monkeypatch.setattr(files, "remove", look)
    a.settle(yes)
    monkeypatch.undo()
    assert removed == [top / "member-1-dead"]


def test_looking_disturbs_nobody(start: Callable[..., Member], top: Path) -> None:
    """Several look at each other all the time, and none is ever taken for dead."""
    stop, names, gone = threading.Event(), list[str](), list[str]()

    def settle_all_the_time() -> None:
        member = Claims(top, 4)
        names.append(member._name)
        while not stop.is_set():
            member.settle(yes)
            if member._name not in member_files(top):
                gone.append(member._name)
        member.close()

    threads = [threading.Thread(target=settle_all_the_time) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(names) == 3, "they are in")
        other = start(4)
        until(lambda: len(other.mine) == 1, "the other has its share")
        began = time.monotonic()
        while time.monotonic() < began + 1.5:
            assert set(names) <= set(member_files(top))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert gone == []


# ---- a fork ----


def test_a_forked_child_does_not_keep_the_locks_of_a_parent_that_is_killed(top: Path) -> None:
    ready, say = os.pipe()
    kept: list[Claims] = []

    def parent() -> None:
        kept.append(Claims(top, 3))
        assert kept[0].settle(yes) == ({0, 1, 2}, set())
        if os.fork() == 0:
            os.write(say, b"%d\n" % os.getpid())
            signal.pause()
            os._exit(0)

    pid = forked(parent)
    grandchild = int(os.read(ready, 100))
    try:
        assert not is_free(top / "claim-0")
        assert end(pid) == -signal.SIGKILL
        os.kill(grandchild, 0)  # it lives
        me = Claims(top, 3)
        assert me.settle(yes) == ({0, 1, 2}, set())
        me.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(ready)
        os.close(say)


def test_a_forked_child_does_not_keep_the_locks_of_a_parent_that_closes(join: Callable[[int], Claims]) -> None:
    a, b = join(4), join(4)
    rounds([a, b])
    child = forked(lambda: None)
    try:
        a.close()
        assert len(b.settle(yes)[0]) == 2
    finally:
        end(child)


def test_what_is_given_is_free_though_a_child_has_its_file_open_yet(join: Callable[[int], Claims]) -> None:
    """As one that was forked just now, by a thread of ours, and has not come to close it."""
    a = join(4)
    a.settle(yes)
    copies = [os.dup(fd) for fd in a._fds.values()]
    b = join(4)
    _, lost = a.settle(yes)
    assert len(lost) == 2
    assert b.settle(yes) == (lost, set())
    a.close()
    assert b.settle(yes) == ({0, 1, 2, 3} - lost, set())
    for fd in copies:
        os.close(fd)


def test_the_member_is_the_parents(join: Callable[[int], Claims], top: Path) -> None:
    a, kept = join(3), list[Claims]()
    a.settle(yes)

    def child() -> None:
        assert a.mine == set()
        assert a.changed()
        with pytest.raises(LogClosed, match="joined before a fork; join again in the child"):
            a.settle(yes)
        a.close()
        assert not [fd for fd in Path("/proc/self/fd").iterdir() if str(top) in str(fd.resolve())]
        kept.append(Claims(top, 3))
        assert kept[0].settle(yes) == (set(), set())

    pid = forked(child)
    try:
        assert a.mine == {0, 1, 2}
        assert not is_free(top / "claim-0")
        a.settle(no)
        assert a.mine == {0, 1, 2}
        assert len(member_files(top)) == 2
        _, lost = a.settle(yes)
        assert len(lost) in (1, 2)
    finally:
        end(pid)
    a.settle(yes)
    assert a.mine == {0, 1, 2}


def test_no_fork_between_opening_a_file_and_the_note_of_it(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a child would hold a lock that it does not know of, and the parent takes only afterwards."""
    create, children = files.create, list[threading.Thread]()
    found: list[str] = []

    def fork_now(path: Path, *, exclusive: bool = True) -> int:
        fd = create(path, exclusive=exclusive)
        if path.name != "turn":
            children.append(threading.Thread(target=fork))
            children[-1].start()
            children[-1].join(0.05)  # it is done, unless it must wait for us
        return fd

    def fork() -> None:
        ready, say = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                held = {str(fd.resolve()) for fd in Path("/proc/self/fd").iterdir()}
                os.write(
                    say, "\n".join(name for name in held if "claim-" in name or "member-" in name).encode() or b"-"
                )
            finally:
                os._exit(0)
        os.close(say)
        found.append(os.read(ready, 4096).decode())
        os.close(ready)
        os.waitpid(pid, 0)

    monkeypatch.setattr(files, "create", fork_now)
    a = Claims(top, 2)
    a.settle(yes)
    monkeypatch.undo()
    for child in children:
        child.join()
    assert found == ["-"] * 3
    a.close()


# ---- interrupts ----


class Interrupted(BaseException):
    """What the signal's handler raises."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it comes in finalizers too
def test_an_interrupt_at_any_moment(top: Path, join: Callable[[int], Claims]) -> None:
    """What it says it has it holds, what it does not it lets go, and of everything that changed the caller is told."""
    a = join(5)
    known: set[int] = set()
    armed = False

    def raise_it(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    def settle() -> None:
        nonlocal known, armed
        news = None
        try:
            armed = True
            news = a.settle(yes)
            armed = False
        finally:
            armed = False
            if news is not None:
                new, lost = news
                assert lost <= known
                known = known - lost
                assert not new & known
                known |= new

    before = signal.signal(signal.SIGALRM, raise_it)
    times, dice, b = 0, random.Random(3), None
    try:
        a_while = AWhile(3.0)
        while a_while.goes_on(enough=times > 100):
            if dice.random() < 0.5:
                if b is None:
                    b = Claims(top, 5)
                else:
                    b.close()
                    b = None
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(5e-6, 300e-6))
            try:
                settle()
            except Interrupted:
                times += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if dice.random() < 0.3:
                if b is not None:
                    b.settle(no)
                settle()
                if a.mine != known:
                    known = a.mine  # the interrupt came with the answer on its way
                free = {i for i in range(5) if (top / f"claim-{i}").exists() and is_free(top / f"claim-{i}")}
                theirs = b.mine if b is not None else set()
                assert free | a.mine | theirs == set(range(5))
                assert not free & a.mine
                assert not a.mine & theirs
                assert {f"claim-{i}" for i in a.mine} | {a._name} == set(a._fds)
    finally:
        signal.signal(signal.SIGALRM, before)
        if b is not None:
            b.close()
    assert times > 100


def test_what_the_caller_was_never_told_of_is_given_unasked(
    join: Callable[[int], Claims], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, lock, locked = join(4), files.lock, 0

    def interrupt(fd: int, *, shared: bool, wait: bool = True) -> bool:
        nonlocal locked
        locked += 1
        if locked == 4:
            raise Interrupted
        return lock(fd, shared=shared, wait=wait)

    monkeypatch.setattr(files, "lock", interrupt)
    with pytest.raises(Interrupted):
        a.settle(yes)
    monkeypatch.undo()
    assert len(a.mine) == 3
    assert len(a._fds) == 5  # one of them neither locked nor closed
    b = join(4)
    assert a.settle(lambda thing: pytest.fail(f"asked for {thing}")) == (a.mine, set())
    assert len(a._fds) == 3
    b.settle(yes)
    assert shared_out([a, b], 4)


def test_what_was_given_back_and_taken_again_is_told(join: Callable[[int], Claims]) -> None:
    """Another one may have had it in between."""
    a = join(4)
    a.settle(yes)
    b = join(4)
    asked: list[int] = []

    def one(thing: int) -> bool:
        if asked:
            raise Interrupted
        asked.append(thing)
        return True

    with pytest.raises(Interrupted):
        a.settle(one)
    assert a.mine == {0, 1, 2, 3} - set(asked)
    assert b.changed()
    assert b.settle(yes)[0] == set(asked)
    b.close()
    assert a.settle(yes) == (set(asked), set(asked))
    assert a.settle(yes) == (set(), set())


# ---- everything at once ----


@pytest.mark.parametrize("seed", [1, 2])
def test_members_come_leave_die_and_stop_at_random(start: Callable[..., Member], top: Path, seed: int) -> None:
    dice, count = random.Random(seed), 7
    members = [start(count)]
    stopped: list[Member] = []
    deadline, deaths = time.monotonic() + STRESS_S, 0
    while time.monotonic() < deadline:
        what = dice.random()
        if what < 0.4 and len(members) < 6:
            members.append(start(count))
        elif members and what < 0.65:
            victim = members.pop(dice.randrange(len(members)))
            if victim in stopped:
                stopped.remove(victim)
            victim.kill()
            assert victim.gone() == -signal.SIGKILL
            deaths += 1
        elif members and what < 0.75:
            if (leaver := dice.choice(members)) not in stopped:
                members.remove(leaver)
                leaver.stop()
                assert leaver.gone() == 0
        elif members and what < 0.85:
            stopped.append(dice.choice(members))
            stopped[-1].kill(signal.SIGSTOP)
        else:
            for member in stopped:
                member.kill(signal.SIGCONT)
            stopped.clear()
        pause = time.monotonic() + dice.choice([0.0, 0.002, 0.02, 0.3])
        until(lambda: time.monotonic() >= pause, "a while")  # noqa: B023
    for member in stopped:
        member.kill(signal.SIGCONT)
    if not members:
        members.append(start(count))
    until(lambda: shared_out(members, count), "all things are shared out among those who are left")
    assert len(member_files(top)) == len(members)
    assert deaths > 5
