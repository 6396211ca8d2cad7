"""The recovery walk: what comes, in what order, what may happen meanwhile, and what its end does."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import (
    CorruptRecord,
    DiskFull,
    InvalidCheck,
    Journal,
    LogClosed,
    PenstockError,
    Record,
    RecordGone,
    RecordsLost,
    RecoveryUnfinished,
)
from penstock.storage import files, sessions
from penstock.verify import verify
from tests.journal import by_hand
from tests.journal.conftest import Ran, failing, held, log_of, payloads, small_files, tree, walked
from tests.support import until

New = Callable[..., Journal]


def leave(j: Journal) -> None:
    """Close it with the walk not finished."""
    with pytest.warns(RecoveryUnfinished, match="come again at the next open"):
        j.close()


def kept(path: Path) -> dict[str, bytes]:
    """What lies in the directory of earlier sessions."""
    return tree(path / "recovery")


def fill(j: Journal, *groups: list[bytes], registered: bool = True) -> None:
    for group in groups:
        for payload in group:
            j.append(payload)
        if registered:
            j.checkpoint()
    j.flush()


# ---- what comes ----


def test_every_record_of_every_group_that_is_not_retired_comes_in_order(new: New) -> None:
    with new() as j:
        assert walked(j) == []
        fill(j, [b"a", b"b"], [b"c"], [b"", b"d"])
        j.check()
        fill(j, [b"open", b"also"], registered=False)
    j = new()
    assert (j.first_unchecked, j.current) == (2, 3)
    assert walked(j) == [
        Record(b"c", 2, True, 0),
        Record(b"", 3, True, 0),
        Record(b"d", 3, True, 0),
        Record(b"open", 4, False, 0),
        Record(b"also", 4, False, 0),
    ]
    assert (j.first_unchecked, j.current) == (4, 3)  # all of them count as retired
    assert walked(j) == []


def test_an_open_group_is_not_retired_with_a_later_sessions_checkpoint_of_its_number(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        fill(j, [b"a" * 30])
        fill(j, [b"b" * 30, b"c" * 30], registered=False)
    j = new()
    fill(j, [b"d"])
    assert (j.check(), j.check().result()) == (1, 2)
    fill(j, [b"e"], registered=False)
    leave(j)
    for _ in range(2):
        j = new()
        assert [(r.payload[:1], r.group, r.complete, r.session) for r in itertools.islice(j.recovered(), 3)] == [
            (b"b", 2, False, 0),
            (b"c", 2, False, 0),
            (b"e", 3, False, 1),
        ]
        leave(j)
    j = new()
    assert len(walked(j)) == 3
    assert not kept(path)
    j.close()
    assert walked(new()) == []


def test_a_journal_that_lingers_opens_ends_a_walk_and_closes_at_once(new: New) -> None:
    """Nobody who appends gains by waiting there."""
    with new(linger_s=3600.0) as j:
        fill(j, [b"a"])
        j.check()
    j = new(linger_s=3600.0)  # nothing is left to walk over, which is put down
    j.append(b"b")
    j.close()
    j = new(linger_s=3600.0)
    assert payloads(walked(j)) == [b"b"]
    assert not kept(j.path)
    j.close()


def test_a_walk_over_many_files_and_long_runs(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 10_000)
    sent: list[tuple[bytes, int]] = []
    with new() as j:
        for i in range(10_000):
            sent.append((b"%d" % i, j._current + 1))
            j.append(sent[-1][0])
            if i % 997 == 996:
                j.checkpoint()
        for _ in range(3):
            j.check()
    j = new()
    assert len(by_hand.numbers(path / "recovery" / "0")) > 5
    assert [(r.payload, r.group) for r in walked(j)] == [s for s in sent if s[1] > 3]


def test_numbers_of_checkpoints_go_on(new: New) -> None:
    with new() as j:
        fill(j, [b"1"], [b"2"])
    with new() as j:
        assert j.current == 2
        assert len(walked(j)) == 2
        assert j.checkpoint() == 2
        fill(j, [b"3"])
        assert j.current == 3
        assert j.check() == 3
        with pytest.raises(InvalidCheck, match="when the walk ended"):
            j.check()
    with new() as j:
        assert (j.first_unchecked, j.current) == (4, 3)


def test_retired_groups_do_not_come_again(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        fill(j, *([b"%d" % i] for i in range(20)))
        for _ in range(20):
            j.check()
    with new() as j:
        assert walked(j) == []
        assert not (path / "recovery").exists()


# ---- sessions ----


def test_old_files_are_set_aside_when_it_is_opened(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        fill(j, [b"a" * 30, b"b" * 30])
        before = {n: (path / f"{n}.journal").read_bytes() for n in by_hand.numbers(path)}
    assert len(before) > 1
    j = new()
    there = path / "recovery" / "0"
    assert {n: (there / f"{n}.journal").read_bytes() for n in by_hand.numbers(there)} == before
    assert by_hand.numbers(path) == [max(before) + 1]
    j.append(b"at once").result()
    assert by_hand.items(path)[0][-1].payload == b"at once"
    assert payloads(walked(j)) == [b"a" * 30, b"b" * 30]
    assert not (path / "recovery").exists()
    until(lambda: not (path / "recovery.done").exists(), "what was walked over is deleted")


def test_a_walk_beside_which_another_one_ends_is_told_so(new: New) -> None:
    with new() as j:
        fill(j, [b"%d" % i for i in range(10_000)])
    j = new()
    one, other = iter(j.recovered()), iter(j.recovered())
    next(other)
    assert len(list(one)) == 10_000
    with pytest.raises(RecordGone, match="another walk has come to its end"):
        list(other)
    assert walked(j) == []
    j.append(b"it goes on").result()


def test_a_walk_whose_next_file_goes_with_the_end_of_another_is_told_so(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        fill(j, [b"a" * 30, b"b" * 30, b"c" * 30])
    j = new()
    other = iter(j.recovered())
    next(other)
    sessions.forget(j.path)  # as another thread does at the end of its walk
    sessions.sweep(j.path)
    with j._forgetting:
        j._walked = True
    with pytest.raises(RecordGone):
        list(other)


def test_a_walk_goes_on_while_records_are_appended_again(new: New) -> None:
    with new() as j:
        fill(j, [b"%d" % i for i in range(5000)])
    with new() as j:
        for record in j.recovered():
            j.append(b"again " + record.payload)
        j.checkpoint()
    j = new()
    again = walked(j)
    assert payloads(again) == [b"again %d" % i for i in range(5000)]
    assert {(r.group, r.complete, r.session) for r in again} == {(2, True, 0)}


def test_a_walk_that_is_not_finished_changes_nothing_and_comes_again(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a", b"b"], [b"c"])
        fill(j, [b"open"], registered=False)
    originals = [
        Record(b"a", 1, True, 0),
        Record(b"b", 1, True, 0),
        Record(b"c", 2, True, 0),
        Record(b"open", 3, False, 0),
    ]
    j = new()
    before = kept(path)
    assert list(itertools.islice(j.recovered(), 2)) == originals[:2]
    for payload in (b"a", b"b"):
        j.append(payload)
    j.checkpoint()
    leave(j)
    assert kept(path) == before
    j = new()
    second = [Record(b"a", 3, True, 1), Record(b"b", 3, True, 1)]
    assert list(itertools.islice(j.recovered(), 6)) == originals + second
    assert kept(path).items() > before.items()
    j.append(b"third")
    leave(j)
    j = new()
    assert (j.first_unchecked, j.current) == (1, 3)
    assert walked(j) == [*originals, *second, Record(b"third", 4, False, 2)]
    assert (j.first_unchecked, j.current) == (4, 3)
    j.close()
    assert walked(new()) == []


def test_a_walk_may_begin_again(new: New) -> None:
    with new() as j:
        fill(j, [b"a", b"b"])
    j = new()
    recovered = j.recovered()
    for _ in range(3):
        assert next(iter(recovered)).payload == b"a"
    one, two = iter(recovered), iter(j.recovered())  # also two at a time
    assert [next(one).payload, next(two).payload, next(one).payload] == [b"a", b"a", b"b"]
    assert payloads(list(recovered)) == [b"a", b"b"]
    assert list(recovered) == []


def test_groups_of_earlier_sessions_that_are_retired_before_the_walk_do_not_come(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a"], [b"b"], [b"c"])
    j = new()
    assert j.check().result() == 1
    assert payloads(list(itertools.islice(j.recovered(), 1))) == [b"b"]
    assert j.check().result() == 2
    leave(j)
    j = new()
    assert j.first_unchecked == 3
    assert payloads(list(itertools.islice(j.recovered(), 1))) == [b"c"]
    with held(j):
        j.check()
        assert payloads(list(itertools.islice(j.recovered(), 1))) == [b"c"]  # that is not on the disk yet
    j.flush()
    j.close()  # nothing is left to walk
    assert not (path / "recovery").exists()


def test_closing_says_nothing_when_there_is_nothing_left_to_walk(new: New, path: Path) -> None:
    for _ in range(3):
        new().close()
    with new() as j:
        fill(j, [b"a"])
        j.check()
    with new() as j:  # it need not be walked: that is seen when it is opened
        assert not (path / "recovery").exists()
        j.append(b"x")
        j.checkpoint()
        j.check()
    assert len(by_hand.numbers(path)) == 1


# ---- its end ----


def test_the_old_files_go_when_all_that_was_appended_is_on_the_disk(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a"])
    j = new()
    walk = iter(j.recovered())
    with held(j):
        again = [j.append(next(walk).payload)]
        again += [j.append(b"%d" % i) for i in range(1000)]
        finishing = Ran(lambda: list(walk))
        with pytest.raises(AssertionError):
            finishing.result(0.1)
        assert not again[0].done()
        assert by_hand.numbers(path / "recovery" / "0") == [0]
    assert finishing.result() == []
    assert all(appended.done() for appended in again)
    assert not (path / "recovery").exists()


def test_it_is_on_the_disk_that_they_are_retired_before_the_old_files_go(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new() as j:
        fill(j, [b"a"], [b"b"])
    j = new()
    seen: list[tuple[object, ...]] = []
    real = sessions.forget

    def look(top: Path) -> None:
        control = log_of(j).control
        assert control is not None
        size = (path / "1.journal").stat().st_size
        assert control.durable == (1, size, log_of(j).next_sequence)
        seen.append(struct.unpack("<QQ", (path / "1.journal").read_bytes()[-16:]))
        real(top)

    monkeypatch.setattr(sessions, "forget", look)
    assert len(walked(j)) == 2
    assert seen == [(2, 2)]


def test_a_death_when_they_are_retired_and_still_there(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retired groups do not come again then. The open one, which has no checkpoint to retire, does, and so does what was
    appended again."""
    with new() as j:
        fill(j, [b"a"], [b"b"])
        fill(j, [b"open"], registered=False)
    j = new()
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "forget", lambda top: None)
        for record in j.recovered():
            j.append(b"again " + record.payload)
    assert (path / "recovery").exists()
    j.close()
    j = new()
    assert [(r.payload, r.session) for r in walked(j)] == [
        (b"open", 0),
        *((b"again " + p, 1) for p in (b"a", b"b", b"open")),
    ]


def test_what_is_left_of_a_removal_that_was_cut_short_is_removed(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a"])
    j = new()
    leave(j)
    shutil.copytree(path / "recovery", path / "recovery.done")
    (path / "recovery.done" / "0" / "0.journal").unlink()
    j = new()
    assert not (path / "recovery.done").exists()
    assert payloads(walked(j)) == [b"a"]


def test_a_walk_whose_replays_failed_is_not_finished(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a", b"b"])
    j = new()
    walk = iter(j.recovered())
    with failing(j, "/dev/full"):
        again = [j.append(next(walk).payload) for _ in range(2)]
        with pytest.raises(DiskFull):
            again[-1].result()
    with pytest.raises(RecordsLost):
        next(walk)
    assert (path / "recovery" / "0" / "0.journal").exists()
    for record in j.recovered():  # once more
        j.append(record.payload)
    assert not (path / "recovery").exists()
    j.close()
    assert payloads(walked(new())) == [b"a", b"b"]


def test_a_walk_whose_end_finds_the_disk_full_can_be_ended_later(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a"])
    j = new()
    walk = iter(j.recovered())
    next(walk)
    with failing(j, "/dev/full"), pytest.raises(DiskFull):
        next(walk)
    assert j.first_unchecked == 1
    assert (path / "recovery").exists()
    assert payloads(walked(j)) == [b"a"]
    assert not (path / "recovery").exists()
    assert j.first_unchecked == 2


# ---- closing and the walk ----


def test_a_walk_after_closing(new: New) -> None:
    with new() as j:
        fill(j, [b"a"] * 10)
    j = new()
    walk = iter(j.recovered())
    recovered = j.recovered()
    next(walk)
    leave(j)
    with pytest.raises(LogClosed):
        list(recovered)
    with pytest.raises(LogClosed):
        j.recovered()


def test_what_to_do_about_damage_must_be_known(new: New) -> None:
    j = new()
    with pytest.raises(ValueError, match="on_corrupt"):
        j.recovered(on_corrupt="ignore")  # type: ignore[arg-type]


# ---- damage ----


@pytest.fixture
def damaged(new: New, path: Path) -> Iterator[Callable[[int], Journal]]:
    """A journal of three groups, and one opened of which a byte was changed."""
    with new() as j:
        fill(j, [b"a" * 10, b"b" * 10], [b"c" * 10], [b"d" * 10])
        fill(j, [b"e" * 10], registered=False)

    def damage(at: int) -> Journal:
        there = path / "0.journal"
        with (there if there.exists() else path / "recovery" / "0" / "0.journal").open("r+b") as f:
            f.seek(at)
            (old,) = f.read(1)
            f.seek(at)
            f.write(bytes([old ^ 0x40]))
        return new()

    yield damage


# What lies where: 0 the first record, 20 a, 34 b, 48 its checkpoint, 68 c, 82 its, 102 d, 116 its, 136 e


def test_damage_is_named(damaged: Callable[[int], Journal], path: Path) -> None:
    j = damaged(34 + 7)
    walk = iter(j.recovered())
    assert next(walk).payload == b"a" * 10
    with pytest.raises(CorruptRecord, match="checksum") as caught:
        next(walk)
    assert caught.value.path == str(path / "recovery" / "0" / "0.journal")
    assert (caught.value.position, caught.value.sequence) == (34, 2)
    before = kept(path)
    leave(j)
    assert kept(path) == before


def test_damage_can_be_stepped_over_and_is_listed(damaged: Callable[[int], Journal], path: Path) -> None:
    j = damaged(34 + 7)
    found = walked(j, on_corrupt="skip")
    assert [(r.payload[:1], r.group) for r in found] == [(b"a", 1), (b"c", 2), (b"d", 3), (b"e", 4)]
    (loss,) = j.losses
    assert (loss.first, loss.last) == (2, 2)
    assert "recovery/0" in loss.reason
    assert not (path / "recovery").exists()
    j.close()
    assert len(j.losses) == 1


def test_a_broken_length_costs_that_record(damaged: Callable[[int], Journal]) -> None:
    j = damaged(68 + 1)
    assert [(r.payload[:1], r.group) for r in walked(j, on_corrupt="skip")] == [
        (b"a", 1),
        (b"b", 1),
        (b"d", 3),
        (b"e", 4),
    ]
    assert [(loss.first, loss.last) for loss in j.losses] == [(4, 4)]


def test_what_follows_a_lost_checkpoint_record_comes_though_its_group_is_not_known(
    new: New, damaged: Callable[[int], Journal]
) -> None:
    """Else it would be taken for the group before it, which may be retired."""
    j = new()
    j.check().result()
    leave(j)
    j = damaged(48 + 12)  # that of a and b
    with pytest.raises(CorruptRecord):
        walked(j)
    assert [(r.payload[:1], r.group) for r in walked(j, on_corrupt="skip")] == [(b"c", 2), (b"d", 3), (b"e", 4)]
    assert [(loss.first, loss.last) for loss in j.losses] == [(3, 3)]


def test_a_journal_with_nothing_but_damage_is_not_thrown_away(new: New, path: Path) -> None:
    with new() as j:
        j.append(b"only").result()
    content = bytearray((path / "0.journal").read_bytes())
    content[-1] ^= 1
    (path / "0.journal").write_bytes(content)
    j = new()
    before = kept(path)
    leave(j)
    assert kept(path) == before
    j = new()
    with pytest.raises(CorruptRecord):
        walked(j)
    leave(j)
    j = new()
    assert walked(j, on_corrupt="skip") == []
    assert len(j.losses) == 1


def test_a_first_record_that_lies_is_not_believed(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files before one that says that all before it is retired are not read. So that is believed only with its checksum."""
    small_files(monkeypatch, 200)
    with new() as j:
        for i in range(9):
            fill(j, [b"%d" % i * 20])
        j.check()
        j.check()
        j.check()
    last = by_hand.numbers(path)[-1]
    assert last >= 2
    name = f"{by_hand.numbers(path)[0] + 1}.journal"
    content = bytearray((path / name).read_bytes())
    assert content[12] > 3
    content[12] = 1  # its `current`
    content[4] = 1
    (path / name).write_bytes(content)
    j = new()
    with pytest.raises(CorruptRecord):
        walked(j)
    found = walked(j, on_corrupt="skip")
    assert [r.payload for r in found] == [b"%d" % i * 20 for i in range(3, 9)]


def test_the_last_file_missing(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        fill(j, [b"a" * 30, b"b" * 30, b"c" * 30])
    last = by_hand.numbers(path)[-1]
    (path / f"{last}.journal").unlink()
    for _ in range(2):
        with pytest.raises(PenstockError, match=f"{last}.journal: the last file of the log is missing"):
            new()


def test_the_first_file_missing(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(monkeypatch, 60)
    with new() as j:
        for p in (b"a" * 30, b"b" * 30, b"c" * 30):
            j.append(p).result()
    (path / "0.journal").unlink()
    j = new()
    with pytest.raises(CorruptRecord, match="cut short"):
        walked(j)
    assert payloads(walked(j, on_corrupt="skip")) == [b"b" * 30, b"c" * 30]
    assert [(loss.first, loss.last) for loss in j.losses] == [(0, 1)]


def test_what_lies_beside_stays(new: New, path: Path) -> None:
    with new() as j:
        fill(j, [b"a"])
    (path / "notes.txt").write_bytes(b"mine")
    (path / "recovery").mkdir()
    (path / "recovery" / "mine").write_bytes(b"mine")
    j = new()
    assert payloads(list(itertools.islice(j.recovered(), 1))) == [b"a"]
    assert (path / "recovery" / "mine").read_bytes() == b"mine"
    assert (path / "notes.txt").read_bytes() == b"mine"
    leave(j)


def test_nothing_of_a_file_that_goes_is_left_behind(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not if its process died when half of it was deleted."""
    small_files(monkeypatch, 60)
    with new() as j:
        for i in range(10):
            fill(j, [b"%d" % i * 20])
            j.check().result()
        until(lambda: len(by_hand.numbers(path)) <= 2, "files go")
    (path / "0.journal.time").write_bytes(b"left")
    (path / "99.journal.time").write_bytes(b"left, too")
    with new() as j:
        walked(j)
    names = set(files.walk(path))
    (number,) = by_hand.numbers(path)
    ours = {f"{number}.journal", f"{number}.journal.time"}
    assert names - {".append"} == {".lock", ".writer", "manifest", "metadata.json", *ours}


def test_closing_lets_go_though_what_is_left_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files: whether a walk is unfinished cannot be told, so it comes again; the journal is closed all the same."""
    with Journal(path) as j:
        j.append(b"x").result()
    j = Journal(path)
    with monkeypatch.context() as patch:

        def none_left(path: Path) -> int:
            raise OSError(errno.EMFILE, "too many open files", str(path))

        patch.setattr(files, "open_read", none_left)
        with pytest.warns(RecoveryUnfinished), contextlib.suppress(OSError):
            j.close()
    assert j.closed
    with Journal(path) as j:
        assert payloads(walked(j)) == [b"x"]


def test_a_companion_that_was_moved_before_its_file_is_not_missing(new: New, path: Path) -> None:
    """As a kill between the two leaves it; in a move that is done it would be."""
    with new() as j:
        fill(j, [b"a", b"b"])
    there = path / "recovery" / "0"
    there.mkdir(parents=True)
    (path / "0.journal.time").rename(there / "0.journal.time")
    assert verify(path, deep=True).findings == ()
    with new() as j:
        assert payloads(walked(j)) == [b"a", b"b"]
    assert verify(path, deep=True).findings == ()
    there.mkdir(parents=True)
    (path / ".lock").rename(there / ".lock")
    next(path.glob("*.journal.time")).unlink()
    assert verify(path).findings
