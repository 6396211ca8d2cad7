"""Registering and retiring checkpoints, in what order, and what a batch that failed does to them."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import DiskFull, InvalidCheck, Journal, LogClosed, PenstockError, RecordsLost, SyncFailed
from tests.journal import by_hand
from tests.journal.conftest import Ran, failing, held, payloads, walked

New = Callable[..., Journal]


def states(path: Path, number: int = 0) -> list[tuple[int, ...]]:
    """The checkpoint records of a file: (checked, current)."""
    return [struct.unpack("<QQ", p.body) for p in by_hand.read(path)[number] if p.kind == 1]


def test_numbers_begin_with_1_and_go_up(new: New, path: Path) -> None:
    j = new()
    assert (j.first_unchecked, j.current) == (1, 0)
    for i in range(1, 4):
        j.append(b"%d" % i)
        number = j.checkpoint()
        assert number == i
        assert (j.first_unchecked, j.current) == (1, i)
        assert number.result() == i
        assert type(number.result()) is int
    for i in range(1, 4):
        assert j.check() == i
        assert (j.first_unchecked, j.current) == (i + 1, 3)
    j.flush()
    assert states(path) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3)]


def test_registering_without_data_writes_nothing(new: New, path: Path) -> None:
    j = new()
    assert j.checkpoint().result() == 0
    j.append(b"x")
    assert j.checkpoint().result() == 1
    before = (path / "0.journal").read_bytes()
    for _ in range(3):
        number = j.checkpoint()
        assert number.result() == 1
    j.check().result()
    after = (path / "0.journal").read_bytes()
    assert after == before + by_hand.checkpoint(1, 1)
    assert j.checkpoint().result() == 1  # nor after one was retired
    assert (path / "0.journal").read_bytes() == after
    j.append(b"")
    assert j.checkpoint().result() == 2  # an empty record is data


def test_a_number_that_is_given_again_is_done_no_earlier_than_its_record(new: New) -> None:
    j = new()
    j.append(b"x")
    with held(j):
        first, again = j.checkpoint(), j.checkpoint()
        assert first == again == 1
        assert not first.done()
        assert not again.done()
        with pytest.raises(TimeoutError):
            again.result(0.01)
    assert again.result() == 1
    assert j.checkpoint().done()


def test_nothing_left_to_retire(new: New, path: Path) -> None:
    j = new()
    with pytest.raises(InvalidCheck, match="register one first"):
        j.check()
    j.append(b"x")
    with pytest.raises(InvalidCheck):
        j.check()
    j.checkpoint()
    assert j.check().result() == 1
    with pytest.raises(InvalidCheck):
        j.check()
    assert isinstance(InvalidCheck("x"), ValueError)
    assert states(path) == [(0, 0), (0, 1), (1, 1)]


def test_a_checkpoint_is_done_when_all_before_it_is(new: New, path: Path) -> None:
    j = new()
    made = [j.append(b"%d" % i) for i in range(50)]
    assert j.checkpoint().result() == 1
    assert all(appended.done() for appended in made)
    assert len(by_hand.items(path)[0]) == 50


def test_threads_register_and_retire_at_once(new: New, path: Path) -> None:
    """Every number is given to a register of its own, and retired once."""
    j = new()

    def register() -> list[int]:
        out = []
        for i in range(100):
            j.append(b"%d" % i)
            out.append(int(j.checkpoint()))
        return out

    def retire() -> list[int]:
        out: list[int] = []
        while len(out) < 60:
            try:
                out.append(int(j.check()))
            except InvalidCheck:
                continue
        return out

    registering = [Ran(register) for _ in range(3)]
    retiring = [Ran(retire) for _ in range(2)]
    numbers = [number for thread in registering for number in thread.result()]
    retired = [number for thread in retiring for number in thread.result()]
    assert set(numbers) == set(range(1, max(numbers) + 1))
    assert sorted(retired) == list(range(1, 121))
    assert (j.first_unchecked, j.current) == (121, max(numbers))
    j.flush()
    found = states(path)
    assert found == sorted(found)
    for before, after in pairwise(found):
        assert (after[0] - before[0]) + (after[1] - before[1]) == 1  # one at a time


# ---- batches that failed ----


def test_after_a_batch_failed_registering_says_so_once(new: New, path: Path) -> None:
    j = new()
    j.append(b"before").result()
    with failing(j, "/dev/full"):
        lost = j.append(b"lost")
        with pytest.raises(DiskFull, match="free some space"):
            lost.result()
        assert isinstance(lost.exception(), DiskFull)
        assert lost.done()
        many = j.append_many([b"lost too"] * 3)
        with pytest.raises(DiskFull):
            many.result()
    with pytest.raises(RecordsLost, match="4 records"):
        j.checkpoint()
    assert j.current == 0
    j.append(b"lost, and again").result()
    assert j.checkpoint().result() == 1
    with pytest.raises(DiskFull):
        lost.result()  # for ever
    assert [item[:2] for item in by_hand.items(path)[0]] == [(b"before", 1), (b"lost, and again", 1)]
    j.close()
    assert payloads(walked(new())) == [b"before", b"lost, and again"]


def test_a_group_lost_with_its_checkpoint_is_not_said_to_be_there(new: New, path: Path) -> None:
    """Its number is the next one's, and the next register does not take it for one that is on the disk."""
    j = new()
    with failing(j, "/dev/full"):
        with held(j):  # else the record may have failed before its group is registered
            j.append(b"lost")
            number = j.checkpoint()
        assert number == 1
        with pytest.raises(DiskFull):
            number.result()
    assert j.current == 0
    with pytest.raises(RecordsLost, match=": 1 records"):  # and its checkpoint, which its promise tells
        j.checkpoint()
    j.append(b"again")
    assert j.checkpoint().result() == 1
    assert j.checkpoint().result() == 1
    assert by_hand.items(path)[1:] == (0, 1)
    assert states(path) == [(0, 0), (0, 1)]


def test_a_checkpoint_that_failed_though_its_group_is_there(new: New, path: Path) -> None:
    j = new()
    j.append(b"data").result()
    with failing(j, "/dev/full"), pytest.raises(DiskFull):
        j.checkpoint().result()
    assert j.current == 0
    assert j.checkpoint().result() == 1  # without more data: it is not complete yet, and nothing of it is lost
    assert [item[:2] for item in by_hand.items(path)[0]] == [(b"data", 1)]
    assert by_hand.items(path)[1:] == (0, 1)


def test_records_lost_at_the_very_moment_their_group_is_registered(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is not complete: that it was said to be is taken back."""
    j = new()
    j.append(b"there").result()
    with failing(j, "/dev/full"), pytest.raises(DiskFull):
        j.append(b"lost").result()
    late(j, monkeypatch)
    with pytest.raises(RecordsLost):
        j.checkpoint()
    assert j.current == 0
    j.flush()
    assert states(path) == [(0, 0), (0, 1), (0, 0)]
    j.close()
    j = new()
    assert [(r.payload, r.group, r.complete) for r in walked(j)] == [(b"there", 1, False)]
    j.append(b"again")
    assert j.checkpoint().result() == 1


def late(j: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is noticed only when it is looked at for the second time."""
    real, calls = j._tell_of_lost, iter(range(10))
    monkeypatch.setattr(j, "_tell_of_lost", lambda: real() if next(calls) else None)


def test_replays_lost_at_the_very_moment_the_walk_ends(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new() as j:
        j.append(b"a")
        j.checkpoint()
    j = new()
    walk = iter(j.recovered())
    with failing(j, "/dev/full"), pytest.raises(DiskFull):
        j.append(next(walk).payload).result()
    with monkeypatch.context() as patch:
        late(j, patch)
        with pytest.raises(RecordsLost):
            next(walk)
    assert j.first_unchecked == 1
    assert payloads(walked(j)) == [b"a"]
    assert not (path / "recovery").exists()


def test_retiring_that_failed_can_be_done_again(new: New, path: Path) -> None:
    """With the same number: else the next group would be retired, which nobody asked for."""
    j = new()
    for i in range(3):
        j.append(b"%d" % i)
        j.checkpoint()
    assert j.check().result() == 1
    with failing(j, "/dev/full"):
        failed = j.check()
        assert failed == 2
        with pytest.raises(DiskFull):
            failed.result()
    assert j.first_unchecked == 2
    assert j.check().result() == 2
    assert by_hand.items(path)[1:] == (2, 3)
    j.close()
    assert payloads(walked(new())) == [b"2"]


def test_many_changes_that_failed_are_all_taken_back(new: New, path: Path) -> None:
    j = new()
    j.append(b"1")
    j.checkpoint().result()
    with failing(j, "/dev/full"):
        with held(j):
            j.append(b"2")
            last = [j.checkpoint(), j.check(), j.check()]
            assert (j.first_unchecked, j.current) == (3, 2)
        for change in last:
            with pytest.raises(DiskFull):
                change.result()
    assert (j.first_unchecked, j.current) == (1, 1)
    with pytest.raises(RecordsLost):
        j.checkpoint()
    assert j.check().result() == 1
    j.append(b"2 again")
    assert j.checkpoint().result() == 2
    assert by_hand.items(path)[1:] == (1, 2)


def test_a_number_whose_record_failed_while_the_next_was_made_is_left_out(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the group that comes under the next number is retired with the one that is not there."""
    j = new()
    j.append(b"1")
    j.checkpoint().result()
    with failing(j, "/dev/full"):
        j.append(b"lost")
        with pytest.raises(DiskFull):
            j.checkpoint().result()
    with monkeypatch.context() as patch:  # as if that failed right after it was looked at
        patch.setattr(j, "_settle", lambda: None)
        patch.setattr(j, "_tell_of_lost", lambda: None)
        j.append(b"3")
        with held(j):
            number = j.checkpoint()
    assert number == 3
    assert j.current == 3
    assert j.check() == 1
    assert j.check() == 3
    with pytest.raises(InvalidCheck):
        j.check()
    j.flush()
    assert by_hand.items(path)[1:] == (3, 3)


def test_retiring_takes_as_long_with_many_as_with_few(new: New) -> None:
    """However many wait to be written: no list of them is gone through."""
    j = new()
    for i in range(3000):
        j.append(b"%d" % i)
        j.checkpoint()
    j.flush()
    steps = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal steps
        steps += 1

    with held(j):
        costs = []
        for _ in range(3000):
            steps = 0
            sys.setprofile(count)
            j.check()
            sys.setprofile(None)
            costs.append(steps)
    assert max(costs[2000:]) <= 2 * max(costs[1:1000])
    assert len(j._marks) <= 3000


def test_after_a_failed_sync_everything_says_so_until_it_is_opened_again(new: New, path: Path) -> None:
    j = new()
    j.append(b"one").result()
    j.checkpoint().result()
    j.append(b"two").result()
    with failing(j, "/dev/null"):
        failed = j.append(b"lost")
        with pytest.raises(SyncFailed):
            failed.result()
    assert isinstance(failed.exception(), SyncFailed)
    for _ in range(2):
        for call in (
            lambda: j.append(b"x"),
            lambda: j.append_nowait(b"x"),
            lambda: j.append_many([b"x"]),
            j.checkpoint,
            j.check,
            j.flush,
        ):
            with pytest.raises(SyncFailed):
                call()  # type: ignore[no-untyped-call]
    j.close()
    assert j.closed
    with pytest.raises(LogClosed):
        j.append(b"x")
    j = new()
    records = walked(j)
    assert [(r.payload, r.group, r.complete) for r in records] == [(b"one", 1, True), (b"two", 2, False)]
    j.append(b"three").result()
    assert j.checkpoint().result() == 2


def test_a_failed_sync_with_nothing_new_to_register(new: New) -> None:
    j = new()
    j.append(b"one")
    j.checkpoint().result()
    with failing(j, "/dev/null"), pytest.raises(SyncFailed):
        j.check().result()
    for _ in range(2):
        with pytest.raises(SyncFailed):
            j.checkpoint()
    j.close()
    again = new()
    assert payloads(walked(again)) == [b"one"]


def test_errors_are_of_this_package(new: New) -> None:
    j = new()
    with failing(j, "/dev/full"):
        error = j.append(b"x")
        with pytest.raises(PenstockError) as caught:
            error.result()
    assert isinstance(caught.value, OSError)
    assert str(j.path) in str(caught.value)
