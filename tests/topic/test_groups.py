"""Consumer groups: live members share the partitions, each message goes to one of them, and what a dead one left to another."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock import CorruptRecord, GroupMember, LogClosed, Loss, NotALog, Topic, TopicMessage
from penstock.storage import files
from tests.support import until
from tests.topic.conftest import AT_ONCE_S, SLOW, Other, Ran, asleep, open_topics, segment

COUNT = 40 if SLOW else 100  # messages in a partition


def publish(t: Topic, count: int = COUNT) -> set[tuple[int, int]]:
    """So many messages to each partition, more than one batch of them; (partition, offset) of all that are there."""
    for p in range(t.partitions):
        for _ in range(3):
            t.publish_many([b"%d" % p * 5] * (count // 3), partition=p)
        t.publish_many([b"last"] * (count - 3 * (count // 3)), partition=p)
    t.flush()
    return {(p, o) for p, end in t.ends().items() for o in range(end)}


def places(messages: list[TopicMessage]) -> list[tuple[int, int]]:
    return [(m.partition, m.offset) for m in messages]


def settled(*members: GroupMember) -> list[list[int]]:
    """Their partitions, once all have one owner."""
    for _ in range(2):
        for member in members:
            member._settle()
    return [member.partitions for member in members]


@contextmanager
def joined(t: Topic, name: str = "g", count: int = 2) -> Iterator[list[GroupMember]]:
    """So many members, with what they have settled."""
    members = [t.group(name) for _ in range(count)]
    try:
        settled(*members)
        yield members
    finally:
        for member in members:
            member.close()


# ---- one member ----


def test_one_member_gets_everything_in_order(path: Path) -> None:
    with open_topics(path, segment_bytes=300) as logs:
        t = logs.topic("t", partitions=3)
        everything = publish(t)
        with t.group("g") as member:
            assert repr(member) == f"GroupMember({str(t.path)!r}, name='g', partitions=[0, 1, 2])"
            got = list(member)
            assert set(places(got)) == everything
            assert len(got) == len(everything)
            for p in range(3):
                assert [m.offset for m in got if m.partition == p] == list(range(COUNT))
            assert [m.partition for m in got[:6]] == [0, 1, 2, 0, 1, 2]
            assert (member.uncommitted, member.poll()) == (len(everything), None)
            assert t.committed("g") == {0: 0, 1: 0, 2: 0}
            member.commit()
            assert member.uncommitted == 0
            assert t.committed("g") == dict.fromkeys(range(3), COUNT) == t.ends()
            t.publish(b"late", partition=1).wait()
            assert [m.payload for m in member.poll_many(10)] == [b"late"]
            assert member.poll_many(0) == []
            assert t.stats()[1].lag == {"g": 1}


def test_what_was_not_committed_comes_again(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 10)
        with t.group("g") as member:
            first = member.poll_many(6)
            member.commit()
            second = member.poll_many(5)
        with t.group("g") as member:
            again = list(member)
            assert places(again[:5]) != []
            assert set(places(second)) <= set(places(again))
            assert not set(places(first)) & set(places(again))
            assert len(again) == 14
    with open_topics(path) as logs, logs.topic("t").group("g") as member:
        assert sorted(places(list(member))) == sorted(places(again))
        member.commit()
    with open_topics(path) as logs, logs.topic("t").group("g") as member:
        assert member.poll() is None


def test_where_a_group_begins(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 10)
        with t.group("late", at="end") as late, t.group("early") as early:
            t.publish(b"new", partition=1).wait()
            assert [m.payload for m in late] == [b"new"]
            assert len(list(early)) == 21
        with t.group("late") as late:
            assert [m.payload for m in late] == [b"new"], "it is no new group any more"


def test_what_makes_no_member(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t")
        for wrong in ("", ".", "..", "../x", "a/b", ".x", "x" * 129):
            with pytest.raises(ValueError, match="cursor name"):
                t.group(wrong)
        with pytest.raises(ValueError, match='"start" or "end"'):
            t.group("g", at="middle")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='"raise" or "skip"'):
            t.group("g", on_corrupt="ignore")  # type: ignore[arg-type]
        assert not (t.path / ".groups").exists()


def test_waiting(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=3)
        with t.group("g") as member:
            assert member.poll(0) is None
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"log/t: nothing was published for 0\.05 s"):
                member.poll(0.05)
            assert time.monotonic() - began >= 0.05
            for seconds in (None, 60.0):
                waits = Ran(lambda seconds=seconds: (member.poll(seconds), time.monotonic()))  # type: ignore[misc]
                until(lambda: asleep(t, 1), "it sleeps")
                t.publish(b"x", partition=1).wait()
                published = time.monotonic()
                message, woken = waits.result()
                assert message.payload == b"x"
                assert woken - published < AT_ONCE_S


def test_a_group_beside_tailers_and_other_groups(path: Path) -> None:
    with open_topics(path, segment_bytes=200) as logs:
        t = logs.topic("t", partitions=2)
        everything = publish(t)
        with t.group("a") as a, t.group("b") as b, t.tailer("audit") as tailer:
            for reader in (a, b, tailer):
                assert set(places(list(reader))) == everything
            b.commit()
            tailer.seek(0, 5)
            tailer.commit()
            assert t.committed("a") == {0: 0, 1: 0}
            assert t.committed("b") == {0: COUNT, 1: COUNT}
            assert t.committed("audit") == {0: 5, 1: COUNT}
            assert t.stats()[0].lag == {"a": COUNT, "b": 0, "audit": COUNT - 5}


# ---- members that share ----


@pytest.mark.parametrize(("count", "partitions"), [(1, 1), (1, 5), (2, 1), (2, 5), (3, 2), (3, 5)])
def test_every_message_goes_to_exactly_one_member(path: Path, count: int, partitions: int) -> None:
    """In threads, while messages are published and members are in the middle of their work."""
    with open_topics(path, segment_bytes=400) as logs:
        t = logs.topic("t", partitions=partitions)
        everything = publish(t, COUNT // 2)
        done = threading.Event()

        def work(me: int) -> list[tuple[int, int]]:
            got = []
            with t.group("g") as member:
                while not done.is_set():
                    some = places(member.poll_many(1 + me * 3))
                    if some:
                        got += some
                        member.commit()
                    else:
                        time.sleep(0.001)
            return got

        workers = [Ran(lambda me=me: work(me)) for me in range(count)]  # type: ignore[misc]
        everything |= publish(t, COUNT // 2)
        until(lambda: sum(t.committed("g").values()) == len(everything), "all is done", 30)
        done.set()
        got = [w.result() for w in workers]
        assert sorted(place for some in got for place in some) == sorted(everything)
        assert t.committed("g") == t.ends()


@pytest.mark.parametrize("partitions", [1, 3, 5])
def test_processes_share_too(path: Path, partitions: int) -> None:
    with open_topics(path, segment_bytes=400) as logs:
        t = logs.topic("t", partitions=partitions)
        everything = publish(t)
        with Other(path) as one, Other(path) as two:
            others = [one, two]
            for other in others:
                other.ask("m = t.group('g'); got = []")
                other.tell(
                    f"while sum(t.committed('g').values()) < {len(everything)}:\n"
                    "    some = m.poll_many(7)\n"
                    "    got += [(x.partition, x.offset) for x in some]\n"
                    "    m.commit()\n"
                )
            for other in others:
                assert other.answer() == "None"
            got = [eval(other.ask("got")) for other in others]
        assert sorted(got[0] + got[1]) == sorted(everything)
        if partitions > 1:
            assert all(got), "both had a share"


def test_shares_are_even_and_change_when_members_come_and_go(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=5)
        first = t.group("g")
        assert first.partitions == [0, 1, 2, 3, 4]
        second = t.group("g")
        assert [len(p) for p in settled(first, second)] in ([2, 3], [3, 2])
        third = t.group("g")
        shares = settled(first, second, third)
        assert sorted(map(len, shares)) == [1, 2, 2]
        assert sorted(p for share in shares for p in share) == [0, 1, 2, 3, 4]
        many = [t.group("g") for _ in range(4)]
        shares = settled(first, second, third, *many)
        assert sorted(map(len, shares)) == [0, 0, 1, 1, 1, 1, 1]
        for member in (*many, second):
            member.close()
        assert sorted(map(len, settled(first, third))) == [2, 3]
        third.close()
        third.close()
        assert settled(first) == [[0, 1, 2, 3, 4]]
        for call in (third.poll, third.commit, lambda: third.poll_many(3)):
            with pytest.raises(LogClosed, match=r"this member of g was closed; join again with group\(\)"):
                call()
        first.close()
        assert [p.name for p in (t.path / ".groups" / "g").iterdir() if p.name.startswith("member")] == []


def test_partitions_that_are_added_have_an_owner(path: Path) -> None:
    """Also if some members joined before that, and in another process."""
    with open_topics(path) as here, open_topics(path) as there:
        first = here.topic("t", 2).group("g")
        there.topic("t").add_partitions(6)
        second = there.topic("t").group("g")

        def owned() -> list[int]:
            for member in (first, second):
                member.poll(0)
            return sorted([*first.partitions, *second.partitions])

        until(lambda: owned() == list(range(6)), "everything has an owner")
        assert len(first.partitions) == len(second.partitions) == 3
        here.topic("t").publish_many([b"x"] * 6).wait()
        first.close()
        second.close()


def test_partitions_are_given_up_when_what_was_taken_is_committed(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 10)
        first = t.group("g")
        mine = first.poll_many(6)
        with t.group("g") as second:
            assert settled(first, second) == [[0, 1], []], "it is still at work on both"
            assert second.poll() is None
            first.commit()
            shares = settled(first, second)
            assert sorted(map(len, shares)) == [1, 1]
            rest = [*first, *second]
            assert sorted(places(mine) + places(rest)) == sorted((p, o) for p in (0, 1) for o in range(10))
            first.commit()
            second.commit()
        assert t.committed("g") == {0: 10, 1: 10}
        first.close()


def test_closing_gives_back_what_was_not_committed(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 10)
        with joined(t) as (one, two):
            mine, theirs = one.poll_many(4), two.poll_many(3)
            assert len(mine) == 4
            two.commit()
            two.poll_many(2)
            two.close()
            settled(one)
            assert one.partitions == [0, 1]
            rest = places(list(one))
            assert sorted(places(mine) + places(theirs) + rest) == sorted((p, o) for p in (0, 1) for o in range(10))
            one.commit()
        assert t.committed("g") == {0: 10, 1: 10}


def test_a_member_that_is_forgotten_holds_nothing(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 5)
        lost = t.group("g")
        assert len(lost.poll_many(3)) == 3
        del lost
        with t.group("g") as member:
            until(lambda: member.poll() is not None and member.partitions == [0, 1], "it has them")


def test_closing_a_topic_ends_the_polls_of_other_threads(path: Path) -> None:
    for _ in range(10):
        with open_topics(path) as logs:
            t = logs.topic("t", partitions=3)
            publish(t, 30)
            members = [t.group("g") for _ in range(2)]

            def work(member: GroupMember) -> None:
                while True:
                    member.poll(60)
                    member.commit()

            workers = [Ran(lambda member=member: work(member)) for member in members]  # type: ignore[misc]
            until(lambda t=t: sum(t.committed("g").values()) > 10, "they are at work")  # type: ignore[misc]
        for worker in workers:
            with pytest.raises(LogClosed):
                worker.result(5)


def test_what_was_committed_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and its name, and once that of the directory: each is synced before the call returns."""
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 5)
        with t.group("g") as member, t.tailer("audit") as tailer:
            list(member)
            list(tailer)
            calls: list[tuple[str, Path]] = []
            real = {name: getattr(files, name) for name in ("rename", "sync_directory")}
            monkeypatch.setattr(
                files, "rename", lambda old, new: (calls.append(("rename", new)), real["rename"](old, new))
            )
            monkeypatch.setattr(
                files, "sync_directory", lambda top: (calls.append(("sync", top)), real["sync_directory"](top))
            )
            for commit, name in ((member.commit, "g"), (tailer.commit, "audit")):
                calls.clear()
                commit()
                expected = []
                for p in (0, 1):
                    cursors = t.path / f".partition_{p}" / "cursors"
                    expected += [("rename", cursors / name), ("sync", cursors)]
                    expected += [("sync", cursors.parent)] if name == "g" else []
                assert calls == expected


# ---- members that die, or stop ----


def test_what_a_dead_member_had_not_committed_comes_to_another(path: Path) -> None:
    with open_topics(path) as logs:
        everything = publish(logs.topic("t", partitions=3), 20)
    with open_topics(path) as logs, Other(path) as other:
        t = logs.topic("t")
        other.ask("m = t.group('g')")
        committed = eval(other.ask("[(x.partition, x.offset) for x in m.poll_many(25)]"))
        assert len(committed) == 25
        other.ask("m.commit()")
        taken = eval(other.ask("[(x.partition, x.offset) for x in m.poll_many(10)]"))
        with t.group("g") as member:
            assert member.poll() is None, "its owner is alive"
            with pytest.raises(TimeoutError):
                member.poll(0.5)
            other.kill()
            began = time.monotonic()
            got = [member.poll(60)]
            assert time.monotonic() - began < 2, "a death is noticed"
            got += list(member)
            assert member.partitions == [0, 1, 2]
            assert sorted(places(got) + committed) == sorted(everything), "no more and no less than was not committed"
            assert set(taken) <= set(places(got))
            member.commit()
        with t.group("g") as member:
            assert member.poll() is None


def test_what_a_dead_member_committed_never_comes_again(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 20)
    with Other(path) as other:
        other.ask("m = t.group('g')")
        other.ask("some = m.poll_many(1000)")
        assert other.ask("len(some)") == "40"
        other.ask("m.commit()")
        other.kill()
    with open_topics(path) as logs, logs.topic("t").group("g") as member:
        assert member.partitions == [0, 1]
        assert member.poll() is None


def test_a_stopped_member_keeps_its_partitions(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 10)
        with Other(path) as other:
            other.ask("m = t.group('g')")
            other.ask("some = m.poll_many(6)")
            other.signal(signal.SIGSTOP)
            with t.group("g") as member, pytest.raises(TimeoutError):
                member.poll(1.2)
            assert t.committed("g") == {0: 0, 1: 0}
            with t.group("g") as member:
                assert member.poll() is None
                assert member.partitions == []
                other.signal(signal.SIGCONT)
                other.ask("m.commit()")
                other.ask("more = m.poll()")
                got = [member.poll(60)]
                assert sorted(map(len, (member.partitions, eval(other.ask("m.partitions"))))) == [1, 1]
                got += list(member)
                theirs = eval(other.ask("[(x.partition, x.offset) for x in (*some, more, *m)]"))
                assert sorted(places(got) + theirs) == sorted((p, o) for p in (0, 1) for o in range(10))


def test_a_member_beside_a_publisher_that_dies(path: Path) -> None:
    with open_topics(path) as logs, Other(path) as other:
        t = logs.topic("t")
        with t.group("g") as member:
            waits = Ran(lambda: member.poll(60))
            other.ask("t.publish(b'x').wait()")
            assert waits.result().payload == b"x"
            other.kill()
            waits = Ran(lambda: member.poll(60))
            t.publish(b"y").wait()
            assert waits.result().payload == b"y"


# ---- what cannot be had ----


def harmed(path: Path) -> Path:
    """Two partitions of ten messages; the fifth of the first one has a wrong byte."""
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        for p in (0, 1):
            t.publish_many([b"%06d" % i for i in range(10)], partition=p).wait()
    data = segment(path / "t", 0, 0)
    content = bytearray(data.read_bytes())
    content[10 * 5 + 6] ^= 1
    data.write_bytes(content)
    return data


@pytest.mark.parametrize("many", [False, True])
def test_damage_in_one_partition_keeps_nobody_from_the_others(path: Path, many: bool) -> None:
    data = harmed(path)
    with open_topics(path) as logs:
        t = logs.topic("t")
        with t.group("g") as member:
            got, told = [], 0
            for _ in range(100):
                try:
                    got += member.poll_many(4) if many else [m for m in [member.poll()] if m]
                except CorruptRecord as error:
                    told += 1
                    assert (error.path, error.sequence) == (str(data), 5)
            assert sorted(places(got)) == [(0, i) for i in range(5)] + [(1, i) for i in range(10)]
            assert told > 5
            assert member.uncommitted == 15, "no message was taken that nobody saw"
            member.commit()
        assert t.committed("g") == {0: 5, 1: 10}
        with t.tailer("g", on_corrupt="skip") as tailer:
            assert [m.offset for m in tailer] == [6, 7, 8, 9]
            tailer.commit()
        with t.group("g") as member:
            assert member.poll() is None


def test_damage_can_be_stepped_over(path: Path) -> None:
    harmed(path)
    with open_topics(path) as logs:
        t = logs.topic("t")
        with t.group("g", on_corrupt="skip") as member:
            assert len(list(member)) == 19
            assert member.losses == {0: [Loss(5, 5, "its checksum does not match")]}
            member.commit()
            assert t.committed("g") == {0: 10, 1: 10}, "what is lost is done"
            assert t._here(0).log.cursors.ranges("g") == []
            with t.group("g") as other:
                settled(member, other)
                assert member.losses == {0: [Loss(5, 5, "its checksum does not match")]}


def test_a_place_that_cannot_be_read_is_told_and_tried_again(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 5)
        with t.group("g") as member:
            list(member)
            member.commit()
        t.publish(b"new", partition=0).wait()
        cursor = t.path / ".partition_1" / "cursors" / "g"
        kept = cursor.read_bytes()
        cursor.write_bytes(b"x" + kept[1:])
        with pytest.raises(NotALog, match=r"cursors/g: the cursor fails its checksum; forget it"):
            t.group("g")
        cursor.write_bytes(kept)
        member = t.group("g")
        with t.group("g") as other:
            settled(member, other)
            assert sorted(map(len, settled(member, other))) == [1, 1]
            cursor.write_bytes(b"x" + kept[1:])
            gone, stays = (member, other) if member.partitions == [1] else (other, member)
            gone.close()
            until(stays._claims.changed, "it is time to look")
            for _ in range(3):
                with pytest.raises(NotALog, match="cursors/g"):
                    stays.poll()
            cursor.write_bytes(kept)
            assert stays.poll() is not None
            assert stays.partitions == [0, 1]
        member.close()


def test_forgetting_a_group(path: Path) -> None:
    with open_topics(path) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 5)
        with t.group("g") as member:
            list(member)
            member.commit()
        t.forget("g")
        assert t.committed("g") == {}
        with t.group("g") as member:
            assert len(list(member)) == 10


# ---- signals ----


class Interrupted(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("many", [1, 3])
def test_a_call_that_a_signal_interrupts_has_taken_nothing(path: Path, many: int) -> None:
    """Ctrl-C may come before any line: what the caller did not see is not committed with the rest, and comes again."""
    with open_topics(path, segment_bytes=100) as logs:
        t = logs.topic("t", partitions=2)
        publish(t, 30)
        with t.group("g") as member:
            seen: list[tuple[int, int]] = []
            at = 0
            while True:
                at += 1
                lines = 0

                def interrupt(frame: FrameType, event: str, _: object) -> Any:
                    nonlocal lines
                    if not frame.f_code.co_filename.endswith(("topic/group.py", "storage/group.py")):
                        return None
                    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                    if event != "line" or line.startswith("with "):  # at whose end no signal comes before it lets go
                        return interrupt
                    lines += 1
                    if lines == at:  # noqa: B023
                        lines += 1
                        raise Interrupted
                    return interrupt

                before = sys.gettrace()
                sys.settrace(interrupt)
                try:
                    got = places(member.poll_many(many)) if many > 1 else places([m for m in [member.poll()] if m])
                    ended = True
                except Interrupted:
                    got, ended = [], False
                finally:
                    sys.settrace(before)
                seen += got
                assert member.uncommitted == len(seen), f"interrupted before line {at}"
                if ended:
                    break
            assert at > 20
            seen += places(list(member))
            assert sorted(seen) == sorted((p, o) for p in (0, 1) for o in range(30))
            for p in (0, 1):
                assert [o for q, o in seen if q == p] == list(range(30)), "in order, all the same"
            member.commit()
            assert t.committed("g") == {0: 30, 1: 30}
