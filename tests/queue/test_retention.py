"""Retention: which files go, which never do, and what a reader sees of it."""

from __future__ import annotations

import contextlib
import errno
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import CorruptRecord, DiskFull, Loss, Queue, ReadOnly, RecordGone, Retention, Roll, SyncFailed
from penstock.kernel import NAME
from penstock.storage import files, reader, retention
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from tests.support import data_files, until

SLOW = NAME == "reference"


def fill(q: Queue, count: int) -> None:
    for _ in range(count):
        q.append(b"%d" % q.next_sequence)


def apply(q: Queue, policy: Retention) -> list[int]:
    """One step of the background, here and now: the first sequences of the files that went."""
    assert q._log is not None
    q._log.seal_finished()
    return [info.base for info in retention.apply(q._log, policy)]


ALL = Retention(max_bytes=1)


@pytest.fixture
def tens(path: Path) -> Queue:
    """35 records: files that begin with 0, 10, 20, and 30, which is active."""
    q = Queue(path, file_size=8192, roll=Roll.count(10), index_interval=4)
    fill(q, 35)
    return q


# ---- what goes ----


@pytest.mark.parametrize("full", ["prepare_next", "seal_finished"])
def test_the_background_makes_room_on_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """There is none for the next file, or to put the last ones in order: then it is needed most that old ones go."""

    def no_room(*_: object) -> int:
        raise DiskFull("planted", 0)

    monkeypatch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
    with Queue(path, file_size=8192, roll=Roll.count(10), retention=ALL) as q:
        fill(q, 35)
        assert q._janitor is not None
        q._open_log().seal_finished()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Log, full, no_room)
            q._janitor._again = full == "prepare_next"
            with pytest.raises(DiskFull, match="planted"):
                q._janitor._turn()
        assert q.first_sequence == 30


def test_nothing_goes_without_a_policy(tens: Queue) -> None:
    with tens as q:
        assert apply(q, Retention()) == []
        assert apply(q, Retention(max_bytes=1 << 40, max_age_s=1e9)) == []
        assert q.first_sequence == 0


def test_the_oldest_go_until_the_rest_is_small_enough(tens: Queue, path: Path) -> None:
    with tens as q:
        size = sum(info.end for info in q._log.finished().values()) + q._log.active().end  # type: ignore[union-attr]
        assert apply(q, Retention(max_bytes=size)) == []
        assert apply(q, Retention(max_bytes=size - 1)) == [0]
        assert (q.first_sequence, q.next_sequence) == (10, 35)
        assert len(data_files(path)) == 3
        assert apply(q, Retention(max_bytes=1)) == [10, 20]
        assert (q.first_sequence, q.next_sequence) == (30, 35)
        assert [m.sequence for m in q.tailer()] == list(range(30, 35))


def test_all_files_of_a_retired_segment_go(tens: Queue, path: Path) -> None:
    with tens as q:
        apply(q, ALL)
        kinds = [p.suffix for p in path.rglob("*") if p.is_file() and p.suffix in (".data", ".index", ".time")]
        assert sorted(kinds) == [".data", ".index", ".time"]


def test_old_files_go_and_young_ones_stay(tens: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with tens as q:
        last = q.tailer(at=19).read()
        assert last is not None
        assert last.timestamp_us is not None
        seen = last.timestamp_us
        monkeypatch.setattr(files, "now_us", lambda: seen + 60_000_000)
        assert apply(q, Retention(max_age_s=61)) == []
        assert apply(q, Retention(max_age_s=60)) == [0]  # 10 to 19 are exactly a minute old
        monkeypatch.setattr(files, "now_us", lambda: seen + 3600_000_000)
        assert apply(q, Retention(max_age_s=1)) == [10, 20]
        assert q.first_sequence == 30  # never the file being written, however old


def test_what_has_no_times_after_a_power_cut_is_no_older_than_what_follows(
    tens: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The companion is synced when a file is left: after a power cut the last records may have no time. They are not old for that."""
    with tens as q:
        assert q._log is not None
        q._log.seal_finished()
        listed = q._log.finished
        times = {base: info.last_us for base, info in ((info.base, info) for info in listed().values())}

        def unknown() -> dict[int, SegmentInfo]:
            return {k: replace(info, last_us=0) if info.base in lost else info for k, info in listed().items()}

        monkeypatch.setattr(q._log, "finished", unknown)
        lost = {0, 10, 20}
        monkeypatch.setattr(files, "now_us", lambda: times[20] + 3600_000_000)
        assert apply(q, Retention(max_age_s=60)) == []  # nothing says that they are old
        assert q.tailer(at=datetime.fromtimestamp(0, UTC)).position == 0  # some of them may be known
        lost = {0, 10}
        assert apply(q, Retention(max_age_s=3601)) == []
        assert apply(q, Retention(max_age_s=60)) == [0, 10, 20]  # those before the last are no younger than it


def test_bytes_are_kept_in_check_in_the_background(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(10), retention=Retention(max_bytes=30_000)) as q:
        fill(q, 200)
        until(lambda: len(data_files(path)) <= 7, "the oldest files go")
        assert q.first_sequence >= 130
        assert q.next_sequence == 200
        messages = list(q.tailer(on_corrupt="skip"))
        assert [m.payload for m in messages] == [b"%d" % m.sequence for m in messages]
        assert messages[-1].sequence == 199


def test_age_is_kept_in_check_in_the_background(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(10), retention=Retention(max_age_s=0.05)) as q:
        fill(q, 25)
        until(lambda: q.first_sequence == 20, "what is too old goes")
        assert [m.sequence for m in q.tailer()] == list(range(20, 25))


def test_a_policy_is_applied_when_a_queue_is_opened(tens: Queue, path: Path) -> None:
    tens.close()
    with Queue(path, retention=ALL) as q:
        until(lambda: q.first_sequence == 30, "all but the active file go")


# ---- what is held back ----


def test_a_named_tailer_holds_back_what_it_has_not_passed(tens: Queue) -> None:
    with tens as q:
        t = q.tailer("slow")
        assert apply(q, ALL) == []
        for position, goes in ((9, []), (10, [0]), (15, []), (29, [10]), (35, [20])):
            t.seek(position)
            t.commit()
            assert apply(q, ALL) == goes
            assert q.first_sequence <= position


def test_the_slowest_name_counts(tens: Queue) -> None:
    with tens as q:
        q.tailer("fast", at="end")
        q.tailer("slow", at=12)
        assert apply(q, ALL) == [0]
        q.forget("slow")
        assert apply(q, ALL) == [10, 20]


def test_a_tailer_without_a_name_holds_nothing_back(tens: Queue) -> None:
    with tens as q:
        t = q.tailer(at=5)
        assert apply(q, ALL) == [0, 10, 20]
        assert t.position == 5


def test_cursors_can_be_ignored(tens: Queue) -> None:
    with tens as q:
        q.tailer("slow")
        assert apply(q, Retention(max_bytes=1, ignore_cursors=True)) == [0, 10, 20]
        t = q.tailer("slow")
        assert t.position == 30  # what it missed is gone
        assert q.cursors() == {"slow": 0}


def test_forgetting_a_name_lets_its_files_go(path: Path) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(10), retention=ALL) as q:
        q.tailer("slow")
        fill(q, 35)
        until(lambda: all(s.sealed for s in q._log.finished().values()), "all are sealed")  # type: ignore[union-attr]
        assert q.first_sequence == 0
        q.forget("slow")
        until(lambda: q.first_sequence == 30, "all but the active file go")


def test_a_damaged_cursor_holds_everything_back(tens: Queue, path: Path) -> None:
    with tens as q:
        q.tailer("slow", at=25)
        (path / "cursors" / "slow").write_bytes(b"garbage")
        assert apply(q, ALL) == []
        q.forget("slow")
        assert apply(q, ALL) == [0, 10, 20]


def test_what_is_not_sealed_stays(tens: Queue) -> None:
    with tens as q:
        log = q._log
        assert log is not None
        expired = retention.expired(log, ALL)  # first: what is sealed then is so afterwards
        assert {info.base for info in expired} <= {s.base for s in log.finished().values() if s.sealed}


# ---- what readers see ----


def test_a_retired_sequence_is_gone(tens: Queue) -> None:
    with tens as q:
        apply(q, Retention(max_bytes=10_000))
        first = q.first_sequence
        assert first == 20
        t, back = q.tailer(at=25), q.tailer(direction="backward")
        for sequence in (0, 19):
            with pytest.raises(RecordGone, match="the first one is 20"):
                t.seek(sequence)
            with pytest.raises(RecordGone):
                q.tailer(at=sequence)
        assert t.position == 25
        with pytest.raises(RecordGone):
            back.seek(10)
        assert [m.sequence for m in back] == list(range(34, 19, -1))
        t.to_start()
        assert t.position == 20


def test_a_tailer_in_a_retired_file_finishes_it_and_is_told(tens: Queue) -> None:
    with tens as q:
        t = q.tailer()
        assert t.read() is not None
        apply(q, ALL)
        got = []
        with pytest.raises(RecordGone, match=r"10 to 29 .* seek\(30\)"):
            for m in t:
                got.append(m.sequence)
        assert got == list(range(1, 10))
        assert t.position == 10
        with pytest.raises(RecordGone):
            t.read()
        t.seek(30)
        assert [m.sequence for m in t] == list(range(30, 35))
        assert t.losses == []


@pytest.mark.parametrize("way", ["iterate", "arrow", "batch", "wait"])
def test_a_skipping_tailer_in_a_retired_file_goes_on_with_the_loss_listed(tens: Queue, way: str) -> None:
    with tens as q:
        t = q.tailer(on_corrupt="skip")
        assert t.read() is not None
        apply(q, ALL)
        if way == "iterate":
            got = [m.sequence for m in t]
        elif way == "arrow":
            got = t.read_arrow(100).column("sequence").to_pylist()
        elif way == "batch":
            got = [m.sequence for m in t.read_batch(100)]
        else:
            got = [m.sequence for m in (t.read(timeout_s=5) for _ in range(14)) if m]
        assert got == [*range(1, 10), *range(30, 35)]
        assert t.losses == [Loss(10, 29, "no longer in the log")]


def test_files_go_while_readers_stand_in_them_and_in_later_ones(tens: Queue, path: Path) -> None:
    with tens as q:
        here, later = q.tailer(at=3), q.tailer(at=25)
        view = here.read_view()
        assert later.read() is not None
        apply(q, Retention(max_bytes=10_000))
        assert len(data_files(path)) == 2
        assert [m.sequence for m in later] == list(range(26, 35))
        assert len(here.read_batch(6)) == 6
        with pytest.raises(RecordGone):
            here.read()
        assert view == b"3"
        here.to_start()
        del view
        gc.collect()
        held = []
        for fd in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").is_dir() else ():
            try:
                held.append(str(fd.readlink()))
            except FileNotFoundError:
                continue
        assert [h for h in held if h.startswith(f"{path}/") and "(deleted)" in h] == []  # the disk has its blocks back


def test_a_read_only_reader_is_told_as_well(tens: Queue, path: Path) -> None:
    with tens as q, Queue(path, read_only=True) as reader:
        t = reader.tailer()
        t.read()
        apply(q, ALL)
        assert reader.first_sequence == 30
        with pytest.raises(RecordGone):
            list(t)
        with pytest.raises(ReadOnly):
            reader.forget("slow")


# ---- afterwards ----


@pytest.mark.parametrize("boot", ["same boot", "new boot", "no manifest"])
def test_the_first_sequence_survives_a_reopen(
    tens: Queue, path: Path, boot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tens as q:
        apply(q, Retention(max_bytes=10_000))
    if boot == "new boot":
        monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    if boot == "no manifest":
        (path / "manifest").unlink()
    for read_only in (True, False):
        with Queue(path, read_only=read_only) as q:
            assert (q.first_sequence, q.next_sequence) == (20, 35)
            assert [m.sequence for m in q.tailer()] == list(range(20, 35))
            assert q.recovery.damage == []


@pytest.mark.parametrize("boot", ["same boot", "new boot"])
@pytest.mark.parametrize("empty", [False, True])
def test_the_first_sequence_survives_when_all_sealed_files_are_gone(
    tens: Queue, path: Path, boot: str, empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tens as q:
        assert q._log is not None
        if empty:
            q._log.roll_now()
        apply(q, ALL)
        wanted = (35 if empty else 30, 35)
        assert (q.first_sequence, q.next_sequence) == wanted
        assert len(data_files(path)) == 1
    if boot == "new boot":
        monkeypatch.setattr(files, "boot_id", lambda: b"another boot....")
    with Queue(path) as q:
        assert (q.first_sequence, q.next_sequence) == wanted
        assert q.append(b"next") == 35
        assert [m.sequence for m in q.tailer()] == list(range(wanted[0], 36))


def test_a_file_left_over_by_a_crash_does_not_come_back(
    tens: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    remove, here = files.remove, threading.current_thread()

    def crash(file: Path) -> None:
        if threading.current_thread() is here:
            raise Crash
        remove(file)

    with tens as q:
        q._log.seal_finished()  # type: ignore[union-attr]
        monkeypatch.setattr(files, "remove", crash)
        with pytest.raises(Crash):
            apply(q, Retention(max_bytes=10_000))
        monkeypatch.undo()
    assert len(data_files(path)) == 4
    for boot in (b"another boot....", b"a third boot...."):
        monkeypatch.setattr(files, "boot_id", lambda boot=boot: boot)
        with Queue(path) as q:
            assert (q.first_sequence, q.next_sequence) == (10, 35)
            assert [m.sequence for m in q.tailer()] == list(range(10, 35))
            assert q.recovery.damage == []
            with pytest.raises(RecordGone):
                q.tailer(at=9)


# ---- all at once ----


def test_readers_meet_retention_at_any_moment(path: Path) -> None:
    seconds = 1.0
    with Queue(path, file_size=8192, roll=Roll.count(3), retention=Retention(max_bytes=20_000)) as q:
        fill(q, 10)
        stop = threading.Event()

        def read(skip: bool, backward: bool) -> int:
            seen = 0
            while not stop.is_set():
                t = q.tailer(on_corrupt="skip" if skip else "raise", direction="backward" if backward else "forward")
                t.to_end() if backward else t.to_start()
                try:
                    last = None
                    for m in t:
                        assert m.payload == b"%d" % m.sequence
                        assert last is None or (m.sequence < last) == backward
                        last = m.sequence
                        seen += 1
                except RecordGone:
                    assert not skip
            return seen

        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(read, skip, backward) for skip in (False, True) for backward in (False, True)]
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not any(job.done() for job in jobs):
                fill(q, 5)
            stop.set()
            assert all(job.result(60) > 0 for job in jobs)


def test_two_objects_apply_retention_side_by_side(path: Path) -> None:
    policy = Retention(max_bytes=20_000)
    with (
        Queue(path, file_size=8192, roll=Roll.count(3), retention=policy) as a,
        Queue(path, roll=Roll.count(3), retention=policy) as b,
    ):
        for i in range(100 if SLOW else 300):
            (a, b)[i % 2].append(b"%d" % i)
        until(lambda: len(data_files(path)) <= 5, "the oldest files go")
        until(lambda: a.first_sequence == b.first_sequence, "both have the same start")
        assert all(m.payload == b"%d" % m.sequence for m in a.tailer(on_corrupt="skip"))
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.damage == []


def test_a_new_named_tailer_keeps_what_retention_was_about_to_delete(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has chosen its files; the tailer comes before they go."""
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        for i in range(5):
            q.append(b"%d" % i)
        log = q._log
        assert log is not None
        log.seal_finished()
        real, made = log.retire, []

        def retire(*arguments: Any, **options: Any) -> bool:
            if not made:
                made.append(q.tailer("late"))
            return real(*arguments, **options)

        monkeypatch.setattr(log, "retire", retire)
        assert retention.apply(log, Retention(max_bytes=1)) == []
        assert [m.payload for m in made[0]] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def five(path: Path) -> Iterator[Queue]:
    """Five finished files of one record each, and the one being written."""
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        for i in range(6):
            q.append(b"%d" % i)
        assert q._log is not None
        q._log.seal_finished()
        yield q


def retire_before_opening(q: Queue, monkeypatch: pytest.MonkeyPatch, sequences: int) -> None:
    """The first `sequences` records' files go when the next one is about to be opened: chosen, and then not there."""
    real, gone = reader.ReadSegment, []

    def opened(*arguments: Any, **options: Any) -> reader.ReadSegment:
        assert q._log is not None
        if not gone:
            gone.append(True)
            for info in sorted(q._log.finished().values(), key=lambda s: s.id)[:sequences]:
                q._log.retire(info)
        return real(*arguments, **options)

    monkeypatch.setattr(reader, "ReadSegment", opened)


def test_a_file_that_goes_while_it_is_sought_is_told(five: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    retire_before_opening(five, monkeypatch, 2)
    with pytest.raises(RecordGone, match="sequence 1 is no longer there; the first one is 2"):
        five.tailer(at=1)


def test_a_start_that_goes_while_it_is_sought_is_the_next_one(five: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    retire_before_opening(five, monkeypatch, 2)
    assert five.tailer().position == 2


def test_a_time_whose_file_goes_while_it_is_sought_is_the_next_one(
    five: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire_before_opening(five, monkeypatch, 2)
    assert five.tailer(at=datetime(2020, 1, 1, tzinfo=UTC)).position == 2


@pytest.mark.parametrize("skip", [False, True])
def test_a_file_that_goes_while_reading_comes_to_it_is_told(
    five: Queue, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    t = five.tailer(on_corrupt="skip" if skip else "raise")
    assert t.read() == next(iter(five.tailer()))
    retire_before_opening(five, monkeypatch, 3)
    if skip:
        assert [m.sequence for m in t] == [3, 4, 5]
        assert t.losses == [Loss(1, 2, "no longer in the log")]
    else:
        with pytest.raises(RecordGone, match="sequences 1 to 2 are no longer there"):
            t.read()


def test_a_file_that_goes_while_it_is_read_backward_is_its_end(five: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    t = five.tailer(at=2, direction="backward")
    retire_before_opening(five, monkeypatch, 3)
    assert t.read() is None


def test_a_listed_file_that_is_missing_is_damage(five: Queue, path: Path) -> None:
    data_files(path)[1].unlink()
    t = five.tailer(at=1)
    with pytest.raises(CorruptRecord, match="cut short"):
        t.read()
    t = five.tailer(at=1, on_corrupt="skip")
    assert [m.sequence for m in t] == [2, 3, 4, 5]


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_removed_while_a_log_is_verified_is_no_damage(path: Path, read_only: bool) -> None:
    with Queue(path, file_size=65536, roll=Roll.count(10)) as owner:
        for i in range(55):
            owner.append(b"%d" % i)
        gone: list[Any] = []

        def progress(done: int, total: int) -> None:
            if not gone:
                gone.extend(retention.drop(owner._open_log(), 30))

        with Queue(path, verify_on_startup=progress, read_only=read_only) as other:
            assert len(gone) == 3
            assert other.recovery.damage == []


def test_records_of_unknown_time_that_are_moved_after_a_failed_sync_are_not_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of an earlier file says how old they may be, not how young."""
    with Queue(path, file_size=8192, roll=Roll.count(10)) as q:
        for i in range(10):
            q.append(b"old %d" % i)
        q.sync()
        for i in range(3):
            q.append(b"young %d" % i)
        times = q._open_log().directory.paths(q._open_log().active().segment).times
        with monkeypatch.context() as failing, pytest.raises(SyncFailed):
            failing.setattr(files, "sync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "planted")))
            q.sync()
        with contextlib.suppress(SyncFailed):
            q.close()
    known = times.read_bytes()
    times.write_bytes(known[:64] + bytes(len(known) - 64))
    now_us = files.now_us()
    monkeypatch.setattr(files, "now_us", lambda: now_us + 3_600_000_000)
    with Queue(path, retention=Retention(max_bytes=1 << 40)) as q:
        assert q.recovery.moved_bytes
        assert apply(q, Retention(max_age_s=60)) == [0]
        assert q.first_sequence == 10
