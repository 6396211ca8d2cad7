"""The files: how long they are, how each begins, which ones count, and when they go."""

from __future__ import annotations

import gc
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import DiskFull, FilesMissing, Journal, LogBusy, LogClosed, NotALog, Queue, RecoveryUnfinished
from penstock import journal as journal_module
from penstock.storage.janitor import Janitor
from tests.journal import by_hand
from tests.journal.conftest import held, log_of, payloads, small_files, tree, walked
from tests.support import until

New = Callable[..., Journal]


# ---- how they are made ----


def test_files_of_4_mib_at_most_and_no_record_in_two(new: New, path: Path) -> None:
    rng = random.Random(1)
    j, sent = new(), []
    for _ in range(40):
        size = rng.choice([0, 10, 5000, 400_000, (1 << 20) - 4])
        sent.append(rng.randbytes(size))
        j.append(sent[-1])
        if rng.random() < 0.3:
            j.checkpoint().result()
    j.flush()
    found, _, current = by_hand.items(path)
    assert [item.payload for item in found] == sent
    assert current == j.current
    assert by_hand.numbers(path) == list(range(log_of(j).active().segment + 1))
    sizes = [(path / f"{n}.journal").stat().st_size for n in by_hand.numbers(path)]
    assert len(sizes) >= 4
    assert max(sizes) <= 4 << 20
    assert all(one + two > 4 << 20 for one, two in pairwise(sizes))  # a file is left when the next batch does not fit


def test_a_file_is_full_to_the_last_byte(new: New, path: Path) -> None:
    """Three of the longest, and what is left but for the first record; one byte more goes to the next file."""
    j = new()
    for _ in range(3):
        j.append(bytes((1 << 20) - 4)).result()
    j.append(bytes((1 << 20) - 4 - 20)).result()
    assert (path / "0.journal").stat().st_size == 4 << 20
    j.append(b"").result()
    assert by_hand.numbers(path) == [0, 1]


def test_each_file_says_how_far_the_journal_had_come_before_it(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 100)
    j = new()
    for i in range(40):
        j.append(b"%02d" % i * 10).result()
        if i % 3 == 2:
            j.checkpoint().result()
        if i % 5 == 4:
            j.check().result()
    until(lambda: by_hand.numbers(path)[0] > 0, "files are deleted")
    until(lambda: tidied(path, j.first_unchecked - 1), "all that can go are")
    read = by_hand.read(path)  # which checks it
    assert len(read) >= 5
    firsts = {struct.unpack("<QQ", pieces[0].body) for pieces in read.values()}
    assert len(firsts) > 3


def test_a_roll_between_what_is_appended_and_its_checkpoint(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record of a file says what holds as of the record before, not what is asked for by then."""
    small_files(monkeypatch, 100)
    monkeypatch.setattr(Janitor, "serve", lambda self, log: None)  # no file goes
    j = new()
    with held(j):
        j.append(b"1" * 60)
        j.checkpoint()
        last = j.append(b"2" * 60)
        j.checkpoint()
        j.check()
    last.result()
    j.flush()
    assert by_hand.items(path)[1:] == (1, 2)
    firsts = [struct.unpack("<QQ", pieces[0].body) for pieces in by_hand.read(path).values()]
    assert firsts[0] == (0, 0)
    assert all(first <= (0, 1) for first in firsts[:2])


# ---- when they go ----


def needed(path: Path, checked: int) -> bool:
    """Whether the oldest file is one that is needed: it has data of a group not retired, or it is the last."""
    found, first = by_hand.items(path)[0], by_hand.numbers(path)[0]
    return first == by_hand.numbers(path)[-1] or any(i.group > checked for i in found if i.file == first)


def tidied(path: Path, checked: int) -> bool:
    try:
        return needed(path, checked)
    except (FileNotFoundError, AssertionError):
        return False  # just now one is being deleted, or made


@pytest.mark.parametrize("seed", range(4))
def test_files_go_as_soon_as_they_have_nothing_that_is_needed_and_not_before(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small_files(monkeypatch, 150)
    rng = random.Random(seed)
    j = new()
    groups: dict[int, list[bytes]] = {}
    opened: list[bytes] = []
    for i in range(150):
        act = rng.random()
        if act < 0.6:
            opened.append(b"%d." % i * rng.randrange(1, 12))
            j.append(opened[-1]).result()
        elif act < 0.8:
            number = j.checkpoint().result()
            if opened:
                groups[number], opened = opened, []
        elif groups:
            number = j.check().result()
            assert number == min(groups)
            del groups[number]
            until(lambda number=number: tidied(path, number), f"what is not needed after {number} goes")  # type: ignore[misc]
        kept = [p for number in sorted(groups) for p in groups[number]] + opened
        j.flush()
        found: list[by_hand.Item] = []
        until(lambda found=found: _read(path, found), "nothing is being deleted")  # type: ignore[misc]
        assert [item.payload for item in found if item.group >= j.first_unchecked] == kept
    assert by_hand.numbers(path)[0] > 3


def _read(path: Path, found: list[by_hand.Item]) -> bool:
    """All that is in the files, unless one is deleted just now."""
    try:
        found[:] = by_hand.items(path)[0]
    except (FileNotFoundError, AssertionError):
        return False
    return True


def test_a_file_that_ends_with_a_retired_checkpoint_after_data_of_the_open_group_stays(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next file then begins with the very record this one ends with, which is no sign that its group is complete."""
    small_files(monkeypatch, 130)
    j = new()
    j.append(b"1" * 10).result()
    j.checkpoint().result()
    j.append(b"2" * 10).result()
    j.checkpoint().result()
    j.append(b"3" * 10).result()  # of the open group
    j.check().result()
    j.append(b"4" * 60).result()  # rolls
    assert by_hand.numbers(path) == [0, 1]
    assert j.check().result() == 2
    log_of(j).seal_finished()
    j._tidy(log_of(j))
    assert by_hand.numbers(path) == [0, 1]
    assert j.checkpoint().result() == 3
    assert j.check().result() == 3
    until(lambda: by_hand.numbers(path) == [2], "now they go")


def test_a_file_whose_last_records_are_checkpoints_goes_with_its_last_data(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 150)
    j = new()
    for i in range(3):
        j.append(b"%d" % i).result()
        j.checkpoint().result()
    j.check().result()
    j.check().result()
    assert by_hand.numbers(path) == [0]
    j.append(b"more" * 20).result()
    assert by_hand.numbers(path) == [0, 1]
    assert j.check().result() == 3
    until(lambda: by_hand.numbers(path) == [1], "all of its groups are retired")


def test_data_that_looks_like_a_checkpoint_record_holds_its_file(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 150)
    j = new()
    j.append(b"1").result()
    j.checkpoint().result()
    j.append(b"2" * 10 + by_hand.checkpoint(0, 1)).result()  # of the open group: its last bytes are no record
    j.append(b"more" * 20).result()
    assert by_hand.numbers(path) == [0, 1]
    assert j.check().result() == 1
    log_of(j).seal_finished()
    j._tidy(log_of(j))
    assert by_hand.numbers(path) == [0, 1]


def test_a_journal_that_was_never_walked_because_it_was_new_is_tidied_too(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 100)
    j = new()
    for i in range(50):
        j.append(b"%d" % i * 10)
        j.checkpoint()
        j.check().result()
    until(lambda: len(by_hand.numbers(path)) <= 2, "files go")


def test_retiring_that_is_not_on_the_disk_lets_no_file_go(
    new: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 100)
    monkeypatch.setattr(journal_module, "_TIDY_S", 0.01)
    monkeypatch.setattr(Janitor, "serve", lambda self, log: None)
    j = new()
    for i in range(5):
        j.append(b"%d" % i * 50).result()
        j.checkpoint().result()
    log = log_of(j)
    log.seal_finished()
    with monkeypatch.context() as patch:
        gone: list[int] = []
        patch.setattr(type(log), "retire", lambda self, info, unless: gone.append(info.id))
        with held(j):
            checks = [j.check() for _ in range(3)]
            j._tidy(log)
            assert not checks[0].done()
            assert gone == []
        checks[-1].result()
        j._tidy(log)
        assert gone


def test_time_that_a_check_waits_for_is_not_that_of_deleting(new: New, path: Path) -> None:
    """Deleting is the background's; and it need not look as long as no file can go."""
    j = new()
    looks: list[int] = []
    j._janitor.look_again = lambda: looks.append(1)  # type: ignore[method-assign]
    for i in range(10):
        j.append(b"%d" % i)
        j.checkpoint()
    j.flush()
    j._wanted = 8
    for _ in range(7):
        j.check()
    assert looks == []
    j.check()
    assert looks == [1]


# ---- which count ----


def test_only_regular_files_of_the_right_name_count(new: New, path: Path, tmp_path: Path) -> None:
    j = new()
    j.append(b"ours")
    j.close()
    others = ["00.journal", "-1.journal", "1.journal.bak", "x.journal", "18446744073709551616.journal", "1.JOURNAL"]
    for name in others:
        (path / name).write_bytes(b"none of ours")
    (tmp_path / "target").write_bytes(by_hand.checkpoint(0, 0) + by_hand.data(b"a link's"))
    (path / "5.journal").symlink_to(tmp_path / "target")
    (path / "6.journal").mkdir()
    os.mkfifo(path / "7.journal")
    (path / "8.journal").symlink_to(tmp_path / "nowhere")
    for i in range(1, 4):
        with new() as j:
            assert payloads(walked(j)) == [b"ours"]
            j.append(b"ours")
        assert (path / f"{i}.journal").exists()
    for name in others:
        assert (path / name).read_bytes() == b"none of ours"
    assert (path / "6.journal").is_dir()
    assert (path / "7.journal").is_fifo()
    assert not (tmp_path / "nowhere").exists()


def test_something_else_with_the_next_files_name_when_it_is_opened(new: New, path: Path, tmp_path: Path) -> None:
    new().close()
    (path / "1.journal").symlink_to(tmp_path / "target")
    with pytest.raises(NotALog, match="move it away"):
        new()
    assert not (tmp_path / "target").exists()
    (path / "1.journal").unlink()
    new().append(b"x").result()


def test_something_else_with_the_next_files_name_is_not_written_to(
    new: New, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch, 100)
    j = new()
    j.append(b"0" * 60).result()
    for make in (
        lambda p: p.symlink_to(tmp_path / "target"),
        lambda p: p.mkdir(),
        os.mkfifo,
    ):
        make(path / "1.journal")
        with pytest.raises(NotALog, match=r"1\.journal: .* move it away"):
            j.append(b"1" * 60).result()
        assert not (tmp_path / "target").exists()
        if (path / "1.journal").is_dir():
            (path / "1.journal").rmdir()
        else:
            (path / "1.journal").unlink()
    j.append(b"1" * 60).result()
    assert [item.payload for item in by_hand.items(path)[0]] == [b"0" * 60, b"1" * 60]


def test_another_logs_directory_is_refused(new: New, path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(b"x")
    before = tree(path)
    with pytest.raises(NotALog):
        new()
    assert tree(path) == before


def test_a_file_in_the_way(new: New, path: Path) -> None:
    path.write_bytes(b"file")
    with pytest.raises(NotALog):
        new()
    assert path.read_bytes() == b"file"


# ---- numbers ----


def _several(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four files or more."""
    small_files(monkeypatch, 100)
    with Journal(path) as j:
        for i in range(6):
            j.append(b"%d" % i * 50).result()
    assert by_hand.numbers(path) == [0, 1, 2, 3, 4, 5]


OWN = (".writer", "metadata.json")


def test_a_gap_is_refused_and_nothing_is_changed(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _several(path, monkeypatch)
    kept = (path / "2.journal").rename(path.parent / "kept")
    (path / "4.journal").unlink()
    before = tree(path, *OWN)
    with pytest.raises(FilesMissing, match="the files 2, 4 are missing between 0 and 5"):
        new()
    assert tree(path, *OWN) == before
    kept.rename(path / "2.journal")
    with pytest.raises(FilesMissing, match="the files 4 are missing"):
        new()


def test_a_file_that_is_there_twice(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _several(path, monkeypatch)
    j = new()
    next(iter(j.recovered()))
    with pytest.warns(RecoveryUnfinished):
        j.close()
    shutil.copy(path / "recovery" / "0" / "3.journal", path / "3.journal")
    before = tree(path, *OWN)
    with pytest.raises(FilesMissing, match="the files 3 are there twice"):
        new()
    assert tree(path, *OWN) == before
    (path / "3.journal").unlink()
    assert len(walked(new())) == 6


def test_gaps_are_looked_for_over_all_sessions(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _several(path, monkeypatch)
    j = new()
    j.append(b"second" * 10).result()
    j.append(b"second" * 11).result()
    with pytest.warns(RecoveryUnfinished):
        j.close()
    assert by_hand.numbers(path) == [6, 7]
    (path / "6.journal").rename(path.parent / "kept")
    before = tree(path, *OWN)
    with pytest.raises(FilesMissing, match="the files 6 are missing between 0 and 7"):
        new()
    assert tree(path, *OWN) == before
    (path.parent / "kept").rename(path / "8.journal")
    with pytest.raises(FilesMissing, match="the files 6 are missing between 0 and 8"):
        new()
    (path / "8.journal").rename(path / "6.journal")
    (path / "recovery" / "0" / "5.journal").rename(path / "8.journal")
    with pytest.raises(FilesMissing, match="the files 5 are missing"):
        new()


def test_sessions_out_of_order(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _several(path, monkeypatch)
    for _ in range(2):
        j = new()
        j.append(b"next").result()
        with pytest.warns(RecoveryUnfinished):
            j.close()
    (path / "recovery" / "1").rename(path / "recovery" / "swap")
    (path / "recovery" / "0").rename(path / "recovery" / "1")
    (path / "recovery" / "swap").rename(path / "recovery" / "0")
    before = tree(path, *OWN)
    with pytest.raises(FilesMissing, match="higher numbers"):
        new()
    assert tree(path, *OWN) == before


def test_a_place_for_earlier_files_to_which_none_came(new: New, path: Path) -> None:
    """A power cut took their names, and left that of the directory which they were moved to."""
    (path / "recovery" / "0").mkdir(parents=True)
    with new() as j:
        j.append(b"first")
    with new() as j:
        assert payloads(walked(j)) == [b"first"]


def test_numbers_of_files_never_restart(new: New, path: Path) -> None:
    for i in range(4):
        with new() as j:
            assert payloads(walked(j)) == ([b"%d" % (i - 1)] if i else [])
            assert by_hand.numbers(path) == [i]
            j.append(b"%d" % i)


# ---- who has it open ----


def test_a_second_opener_is_refused_and_told_who_has_it(new: New, path: Path) -> None:
    j = new()
    with pytest.raises(LogBusy, match="this process has this journal open"):
        new()
    code = "import sys; from penstock import *\ntry: Journal(sys.argv[1])\nexcept LogBusy as error: print(error)"
    command = [sys.executable, "-W", "error", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"process {os.getpid()} has this journal open" in done.stdout, done.stderr
    assert "read_only" not in done.stdout  # there is no such thing
    j.append(b"goes on").result()
    j.close()
    assert payloads(walked(new())) == [b"goes on"]


def test_a_refused_opener_changes_nothing(new: New, path: Path) -> None:
    j = new()
    j.append(b"x").result()
    before = tree(path)
    with pytest.raises(LogBusy):
        new()
    assert tree(path) == before


def test_an_opening_that_fails_lets_go_of_everything(new: New, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _several(path, monkeypatch)
    j = new()
    j.append(b"second")
    with pytest.warns(RecoveryUnfinished):
        j.close()

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def full(*_: object, **__: object) -> None:
        raise DiskFull("planted", 0)

    walked_to = [r.payload for r in _peek(new)]
    gc.collect()
    before = count()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.storage.growing.make", full)
        for _ in range(3):
            with pytest.raises(DiskFull):
                new()
    gc.collect()
    assert count() == before
    j = new()
    assert payloads(walked(j)) == walked_to


def _peek(new: New) -> list[journal_module.Record]:
    """What a walk would give, which is not finished."""
    j = new()
    found = [record for records in j._walk("raise", []) for record in records]
    with pytest.warns(RecoveryUnfinished):
        j.close()
    return found


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_any_number_of_sessions_needs_no_more_open_files_than_one(new: New) -> None:
    """A service may be restarted many times before it has walked."""
    with new() as j:
        j.append(b"x").result()
    open_with: list[int] = []
    for _ in range(6):
        j = new()
        open_with.append(_descriptors())
        walk = iter(j.recovered())
        assert next(walk).payload == b"x"
        del walk
        assert _descriptors() == open_with[-1], "a walk that is left keeps none"
        with pytest.warns(RecoveryUnfinished):
            j.close()
    assert len(set(open_with)) == 1
    assert payloads(walked(new())) == [b"x"]


def test_a_journal_that_is_closed_in_the_midst_of_a_walk_keeps_no_session_open(new: New, path: Path) -> None:
    with new() as j:
        j.append_many([b"x"] * 10_000).result()
    j = new()
    walk = iter(j.recovered())
    next(walk)
    with pytest.warns(RecoveryUnfinished):
        j.close()
    held_open = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    assert path / "recovery" / "0" / ".lock" not in held_open
    with pytest.raises(LogClosed):
        list(walk)


def test_options_that_cannot_be_leave_no_session_behind(new: New, path: Path) -> None:
    with new() as j:
        j.append(b"x").result()
    before = tree(path)
    with pytest.raises(ValueError, match="buffer_bytes must be 1 to"):
        new(buffer_bytes=1 << 64)
    assert tree(path) == before
