"""Syncs: what is durable when, who shares them, and what happens when the disk refuses one, or is full."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import DiskFull, Flush, LogBusy, NotALog, Queue, Roll, StorageDenied, SyncFailed
from penstock.storage import files, notes
from penstock.storage.control import Mark
from penstock.storage.directory import Directory
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.storage.syncing import unless_gone
from tests.queue.crash import Child, Disk, Image, Yard, fill_disk, never_seal, numbered, open_yard, payload, records
from tests.support import until


@pytest.fixture
def path() -> Iterator[Path]:
    """In memory where that can be: the syncs of these tests are replaced anyway."""
    with open_yard() as yard:
        yield yard.new()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, path: Path) -> Disk:
    return Disk(monkeypatch, path)


# ---- what is durable when ----


def test_the_durable_mark_moves_only_when_a_sync_has_returned(path: Path, disk: Disk) -> None:
    with Queue(path, file_size=8192) as q:
        for i in range(3):
            q.append(b"%d" % i)
        assert (q.durable_sequence, q.next_sequence) == (0, 3)
        during: list[int] = []
        disk.watch = lambda name: during.append(q.durable_sequence) if name.endswith((".data", "/")) else None
        assert q.sync() == 3
        assert q.durable_sequence == 3
        assert during
        assert set(during) == {0}
        q.append(b"3")
        assert q.durable_sequence == 3


def test_a_sync_puts_the_data_and_its_name_on_the_disk(path: Path, disk: Disk) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(b"x")
        disk.synced.clear()
        q.sync()
        data = Image.take(path).data
        assert data in disk.synced
        assert data.rsplit("/", 1)[0] + "/" in disk.synced
        year, month, day, _ = data.split("/")  # whoever made these may have died before he synced their names
        assert {f"{year}/", f"{year}/{month}/", f"{year}/{month}/{day}/"} <= set(disk.synced)


def test_a_sync_covers_every_segment_since_the_last_one(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_seal(monkeypatch)
    with Queue(path, file_size=8192, roll=Roll.count(1)) as q:
        for i in range(4):
            q.append(b"%d" % i)
        disk.synced.clear()
        q.sync()
        assert set(Image.take(path).names(".data")) <= set(disk.synced)
        assert len(Image.take(path).names(".data")) == 4


def test_nothing_new_needs_no_sync(path: Path, disk: Disk) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(b"x")
        q.sync()
        before = len(disk.begun)
        assert q.sync() == 1
        assert len(disk.begun) == before


def test_flush_each_returns_after_a_sync_that_began_when_the_record_was_in(path: Path, disk: Disk) -> None:
    with Queue(path, file_size=8192, flush=Flush.each()) as q:
        ends: list[int] = []
        disk.watch = lambda name: ends.append(q.next_sequence) if name.endswith(".data") else None
        for i in range(5):
            ends.clear()
            assert q.append(b"%d" % i) == i
            assert max(ends) > i
            assert q.durable_sequence == i + 1
        ends.clear()
        assert q.append_batch([b"a", b"b"]) == range(5, 7)
        assert max(ends) == 7
        assert q.durable_sequence == 7


def test_threads_that_wait_for_a_sync_share_the_next_one(path: Path, disk: Disk) -> None:
    with Queue(path, file_size=8192, flush=Flush.each()) as q:
        q.append(b"warm")
        before = disk.data_syncs()
        disk.go.clear()
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(q.append, b"%d" % i) for i in range(8)]
            until(lambda: q.next_sequence == 9, "all threads have appended")
            assert not any(job.done() for job in jobs)
            disk.go.set()
            assert sorted(job.result(60) for job in jobs) == list(range(1, 9))
        assert q.durable_sequence == 9
        assert disk.data_syncs() - before <= 2


def test_flush_batch_syncs_when_there_are_enough_bytes(path: Path) -> None:
    with Queue(path, file_size=1 << 16, flush=Flush.batch(bytes=2000, interval_s=3600)) as q:
        for i in range(20):
            q.append(payload(i, 200))
        until(lambda: q.next_sequence * 212 - q.durable_sequence * 212 < 2000, "what is enough is synced")
        assert q.durable_sequence > 0


def test_flush_batch_does_not_sync_before_there_are_enough_bytes(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count_turns(monkeypatch)
    with Queue(path, file_size=1 << 16, flush=Flush.batch(bytes=5000, interval_s=3600)) as q:
        before = disk.data_syncs()
        q.append(payload(0, 200))
        until(lambda: turns[0] >= 1, "the background looks")
        q.append(payload(1, 200))
        assert q.durable_sequence == 0
        assert disk.data_syncs() == before


def test_flush_batch_is_on_time_when_nobody_appends_any_more(path: Path) -> None:
    with Queue(path, file_size=8192, flush=Flush.batch(bytes=1 << 30, interval_s=0.2)) as q:
        for round_ in range(2):
            began = time.monotonic()
            q.append(b"alone")
            until(lambda wanted=round_ + 1: q.durable_sequence == wanted, "it is synced")  # type: ignore[misc]
            assert 0.15 < time.monotonic() - began < 20


def count_turns(patch: pytest.MonkeyPatch) -> list[int]:
    turns = [0]
    real = Janitor._turn

    def turn(self: Janitor) -> None:
        real(self)
        turns[0] += 1

    patch.setattr(Janitor, "_turn", turn)
    return turns


# ---- a sync that fails ----


def poison(q: Queue, disk: Disk, which: Callable[[str], bool] = lambda name: name.endswith(".data")) -> None:
    """Let one sync fail, once."""
    failed: list[str] = []

    def fail(name: str) -> bool:
        if not failed and which(name):
            failed.append(name)
            return True
        return False

    disk.fail = fail
    with pytest.raises(SyncFailed) as info:
        q.sync()
    assert info.value.errno == errno.EIO
    assert failed


def test_after_a_failed_sync_nothing_is_reported_durable_and_readers_go_on(path: Path, disk: Disk) -> None:
    q = Queue(path, file_size=8192)
    q.append(b"0")
    q.sync()
    q.append(b"1")
    tailer = q.tailer()
    poison(q, disk)
    for attempt in (
        lambda: q.append(b"2"),
        lambda: q.append_batch([b"2", b"3"]),
        lambda: q.append_batch([payload(i, 3000) for i in range(5)]),
        q.sync,
    ):
        with pytest.raises(SyncFailed):
            attempt()
        assert (q.durable_sequence, q.next_sequence) == (1, 2)
    assert [m.payload for m in tailer] == [b"0", b"1"]
    assert records(q) == numbered([b"0", b"1"])
    tailer.close()
    q.close()


@pytest.mark.parametrize("what", [".data", "/"])
def test_reopening_after_a_failed_sync_writes_what_was_not_durable_anew(path: Path, disk: Disk, what: str) -> None:
    q = Queue(path, file_size=8192)
    payloads = [payload(i, 50) for i in range(7)]
    if what == ".data":
        q.append(payloads[0])
        q.sync()
    else:
        q.append(payloads[0])  # the name of the file is synced with the first sync only
    for p in payloads[1:4]:
        q.append(p)
    q.append_batch(payloads[4:])
    durable = q.durable_sequence
    poison(q, disk, lambda name: name.endswith(what))
    before = Image.take(path)
    q.close()
    disk.synced.clear()
    with Queue(path) as q:
        assert q.recovery.moved_bytes == 62 * (7 - durable)
        assert records(q) == numbered(payloads)
        assert q.durable_sequence == 7
        new = set(Image.take(path).names(".data")) - set(before.names(".data"))
        assert new & set(disk.synced)
        assert q.append(b"next") == 7
        after = Image.take(path)
        q.sync()
    assert len(new) == 2  # the copy, and the one that is appended to
    copy = min(new)
    assert payloads[6] in after[copy]
    # After a power cut the old file may hold anything beyond the durable mark: it is not looked at.
    end = 4096 + 62 * durable
    wiped = after.put(before.data, end, bytes(8192 - end))
    with open_yard() as yard, Queue(wiped.lay(yard.new(), "new")) as q:
        assert records(q)[:7] == numbered(payloads)
        assert not q.recovery.damage


def test_a_failed_sync_over_several_segments_moves_them_all(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_seal(monkeypatch)
    payloads = [payload(i, 50) for i in range(11)]
    q = Queue(path, file_size=8192, roll=Roll.count(3))
    for p in payloads[:4]:
        q.append(p)
    q.sync()
    for p in payloads[4:]:
        q.append(p)
    poison(q, disk)
    q.close()
    with Queue(path, roll=Roll.count(3)) as q:
        assert q.recovery.moved_bytes == 7 * 62
        assert records(q) == numbered(payloads)
        assert q.durable_sequence == 11
        assert [q.append(b"next") for _ in range(4)] == [11, 12, 13, 14]
        for to in range(11):
            with q.tailer(at=to) as t:
                message = t.read()
                assert message is not None
                assert message.payload == payloads[to]
                assert message.timestamp_us is not None
    with Queue(path) as q:
        assert q.recovery.clean
        assert records(q)[:11] == numbered(payloads)


@pytest.mark.parametrize("durable", [0, 1, 4, 7])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_sync_that_fails_while_a_log_is_opened_is_not_followed_by_a_success(
    monkeypatch: pytest.MonkeyPatch, boot: str, durable: int
) -> None:
    """That of what was not durable: the next one succeeds without having written any of it."""
    never_seal(monkeypatch)
    payloads = [payload(i, 50) for i in range(7)]
    with open_yard() as yard:
        with Queue(yard.new(), file_size=8192, roll=Roll.count(3)) as q:
            for i, p in enumerate(payloads):
                if i == durable:
                    q.sync()
                q.append(p)
            if durable == 7:
                q.sync()
            crashed = Image.take(q.path)
        path = crashed.lay(yard.new(), boot)
        disk = Disk(monkeypatch, path)
        failed = 0
        for attempt in range(3):
            disk.fail = lambda name, attempt=attempt: attempt < 2 and name.endswith(".data")  # type: ignore[misc]
            try:
                q = Queue(path)
            except SyncFailed:
                failed += 1
        with q:
            assert failed == 2
            assert records(q) == numbered(payloads)
            assert q.recovery.moved_bytes == 62 * (7 - durable)
            assert q.durable_sequence == 7


def test_a_failed_sync_stops_every_process_until_all_have_closed(path: Path, disk: Disk) -> None:
    q = Queue(path, file_size=8192)
    q.append(b"0")
    with Child(path) as child:
        assert child.ask("q.append(b'1')") == "1"
        poison(q, disk)
        for attempt in ("q.append(b'2')", "q.append_batch([b'2', b'3'])", "q.sync()"):
            assert child.ask(attempt) == "SyncFailed"
        assert child.ask("(q.durable_sequence, q.next_sequence, len(list(q.tailer())))") == "(0, 2, 2)"
        q.close()
        with pytest.raises(LogBusy, match="close it in all of them"):
            Queue(path)
        assert child.ask("q.close()") == "None"
    with Queue(path) as q:
        assert q.recovery.moved_bytes > 0
        assert records(q) == numbered([b"0", b"1"])
        assert q.append(b"2") == 2


def test_a_death_over_moving_records_when_the_last_file_was_empty(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty one is listed nowhere, and is older than the copies: it is not what goes on."""
    q = Queue(path, file_size=8192)
    q.append(b"0")
    q.sync()
    for i in range(1, 6):
        q.append(b"%d" % i)
    q._open_log().roll_now()
    poison(q, disk)
    q.close()
    disk.fail = lambda name: False

    def die(self: Directory, segment_id: int) -> None:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(Directory, "delete", die)
        with pytest.raises(SystemExit):
            Queue(path)
    for _ in range(2):
        with Queue(path) as q:
            assert records(q) == numbered([b"%d" % i for i in range(6)])
            assert q.first_sequence == 0


def test_flush_each_raises_when_its_sync_fails_though_the_record_can_be_read(path: Path, disk: Disk) -> None:
    q = Queue(path, file_size=8192, flush=Flush.each())
    q.append(b"0")
    disk.fail = lambda name: name.endswith(".data")
    with pytest.raises(SyncFailed):
        q.append(b"1")
    assert q.durable_sequence == 1
    assert [p for _, p in records(q)] == [b"0", b"1"]
    q.close()


def test_a_failed_background_sync_is_met_by_the_next_append_and_not_tried_for_ever(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    real = Janitor._turn

    def turn(self: Janitor) -> None:
        tries.append(1)
        real(self)

    monkeypatch.setattr(Janitor, "_turn", turn)
    q = Queue(path, file_size=8192, flush=Flush.batch(bytes=1 << 20, interval_s=0.01))
    disk.fail = lambda name: name.endswith(".data")
    q.append(b"0")
    assert q._log is not None
    control = q._log.control
    assert control is not None
    until(lambda: control.poison, "the background has met the failure")
    with pytest.raises(SyncFailed):
        q.append(b"1")
    before = len(tries)
    assert not threading.Event().wait(0.3)  # a while in which it could spin
    assert len(tries) - before < 5
    assert q.durable_sequence == 0
    q.close()


@pytest.mark.parametrize("what", [".time", ".index", ".data", "/", ".lock"])
def test_a_sync_that_fails_while_closing_is_raised_and_nothing_is_lost(path: Path, disk: Disk, what: str) -> None:
    q = Queue(path, file_size=8192)
    q.append(b"0")
    q.sync()
    q.append(b"1")
    q.sync()
    disk.fail = lambda name: name.endswith(what)
    with pytest.raises(SyncFailed):
        q.close()
    assert q.closed
    disk.fail = lambda name: False
    with Queue(path) as q:
        assert records(q) == numbered([b"0", b"1"])
        assert q.append(b"2") == 2
    with Queue(path) as q:
        assert q.recovery.how == "clean"


@pytest.mark.parametrize("what", [".time", "manifest"])
def test_a_sync_that_fails_while_sealing_poisons_the_log(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    q = Queue(path, file_size=8192, roll=Roll.count(2))
    disk.fail = lambda name: name.endswith(what)
    with pytest.raises(SyncFailed):
        for i in range(10_000):  # the background comes round to it soon
            q.append(b"%d" % i)
            if i > 4:
                q._log.seal_finished()  # type: ignore[union-attr]
    got = records(q)
    q.close()
    disk.fail = lambda name: False
    with Queue(path) as q:
        assert records(q) == got
        assert q.append(b"next") == len(got)


def test_a_poisoned_log_that_had_nothing_to_lose_moves_nothing(path: Path, disk: Disk) -> None:
    q = Queue(path, file_size=8192)
    q.append(b"0")
    q.sync()
    q._log.control.set_poison(errno.EIO)  # type: ignore[union-attr]
    with pytest.raises(SyncFailed):
        q.append(b"1")
    q.close()
    with Queue(path) as q:
        assert q.recovery.moved_bytes == 0
        assert q.append(b"1") == 1


# ---- a full disk, and no more files ----


def test_a_full_disk_at_a_roll_is_disk_full_and_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never_seal(monkeypatch)  # nor prepare a file while there is room
    with Queue(path, file_size=8192) as q:
        q.append(payload(0, 1000))

        real = files.allocate
        fill_disk(monkeypatch)
        count = 1
        with pytest.raises(DiskFull):
            for count in range(1, 10):
                q.append(payload(count, 1000))
        assert q.next_sequence == count == 4
        for attempt in (
            lambda: q.append(payload(9, 1000)),
            lambda: q.append_batch([payload(9, 2000)] * 2),
            lambda: q.append_batch([payload(9, 3000)] * 3),
        ):
            with pytest.raises(DiskFull) as info:
                attempt()
            assert info.value.errno == errno.ENOSPC
            assert q.next_sequence == 4
        assert len(Image.take(path).names(".data")) == 1
        assert not [name for name in files.walk(path) if name.endswith(".tmp")]
        assert records(q) == numbered([payload(i, 1000) for i in range(4)])
        q.sync()
        monkeypatch.setattr(files, "allocate", real)
        assert q.append(payload(4, 1000)) == 4
        assert q.append_batch([payload(9, 3000)] * 3) == range(5, 8)
        assert len(records(q)) == 8


def test_a_full_disk_within_a_file_is_disk_full_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, file_size=8 << 20) as q:
        q.append(b"first")

        with monkeypatch.context() as patch:
            fill_disk(patch)
            for attempt in (
                lambda: q.append(bytes([7]) * (4 << 20)),
                lambda: q.append_batch([bytes([7]) * (2 << 20)] * 2),
            ):
                with pytest.raises(DiskFull):
                    attempt()
                assert q.next_sequence == 1
            assert q.append(b"small") == 1  # there is room for that
        assert q.append(bytes([7]) * (4 << 20)) == 2
        assert [len(p) for _, p in records(q)] == [5, 5, 4 << 20]


def test_a_manifest_that_cannot_grow_is_disk_full_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(path, file_size=8192, roll=Roll.count(2)) as q:
        q.append(b"0")
        q.append(b"1")
        real = files.write

        def write(fd: int, data: bytes, offset: int) -> None:
            if Disk.name(disk, fd) == "manifest":
                raise DiskFull("planted", 0)
            real(fd, data, offset)

        with monkeypatch.context() as patch:
            disk = Disk(patch, path)
            patch.setattr(files, "write", write)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    q.append(b"2")
            assert records(q) == numbered([b"0", b"1"])
        assert q.append(b"2") == 2
        assert records(q) == numbered([b"0", b"1", b"2"])
    with Queue(path) as q:
        assert records(q) == numbered([b"0", b"1", b"2"])


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("call", ["create", "open_write", "open_read", "rename"])
def test_a_new_segment_that_cannot_be_opened_costs_nothing_and_can_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    never_seal(monkeypatch)
    with Queue(path, file_size=8192) as q:
        payloads = [payload(i, 1000) for i in range(8)]
        real = getattr(files, call)

        def fail(*args: object, **options: object) -> object:
            if any("-000" in str(a) for a in args):
                raise OSError(code, "not now")
            return real(*args, **options)

        q.append(payloads[0])
        with monkeypatch.context() as patch:
            patch.setattr(files, call, fail)
            with pytest.raises(OSError) as info:
                for p in payloads[1:]:
                    q.append(p)
            assert info.value.errno == code
            assert q.next_sequence == 4
        assert records(q) == numbered(payloads[:4])
        for p in payloads[4:]:
            q.append(p)
        assert records(q) == numbered(payloads)
    with Queue(path) as q:
        assert records(q) == numbered(payloads)


def test_a_yard_is_empty_again(path: Path) -> None:
    """These tests must not fill the memory they run in."""
    with open_yard() as yard:
        assert isinstance(yard, Yard)
        where = yard.new()
        Queue(where, file_size=8192).close()
        yard.new()
        assert not where.exists()
    assert not where.parent.exists()


def test_a_file_that_was_sealed_meanwhile_and_is_gone_is_no_failed_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever compresses a sealed segment removes its file, perhaps while another process is about to sync it."""
    monkeypatch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
    with Queue(path, file_size=8192) as q:
        while not (finished := q._open_log().finished()):
            q.append(b"x" * 1000)
        log, (segment,) = q._open_log(), finished
        control = log.writable()
        with pytest.raises(FileNotFoundError), unless_gone(log, control, segment):
            raise FileNotFoundError
        log.seal_finished()
        with unless_gone(log, control, segment):
            raise FileNotFoundError
        with pytest.raises(FileNotFoundError), unless_gone(log, control, control.active().segment):
            raise FileNotFoundError


@pytest.mark.parametrize("error", [DiskFull("planted", 0), StorageDenied("planted", errno.EACCES)])
def test_a_file_that_cannot_be_sealed_now_is_no_failed_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Some file systems need room even for what replaces bytes that are there; and somebody may have changed the permissions of a file."""
    monkeypatch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))

    def refuse(*_: object) -> None:
        raise error

    with Queue(path, file_size=8192) as q:
        log = q._open_log()
        while not log.finished():
            q.append(b"x" * 1000)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(notes, "forget_all", refuse)
            with pytest.raises(type(error), match="planted"):
                log.seal_finished()
        before = q.append(b"y")
        assert q.sync() == before + 1
        assert log.seal_finished() == 1


def no_descriptor() -> OSError:
    return OSError(errno.EMFILE, "too many open files")


def test_a_flush_that_could_not_be_tried_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing more is appended."""
    real, tries = Log.sync, list[int]()

    def sync(self: Log, timeout_s: float | None = None) -> int:
        tries.append(len(tries))
        if len(tries) <= 2:
            raise no_descriptor()
        return real(self, timeout_s)

    monkeypatch.setattr(Log, "sync", sync)
    with Queue(path, file_size=8192, flush=Flush.batch(interval_s=0.001)) as q:
        q.append(b"0")
        until(lambda: q.durable_sequence == 1, "it is synced")


def test_the_background_goes_on_after_an_error_of_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is none of the system's: the flush policy is still kept."""
    met = threading.Event()

    def prepare_next(self: Log) -> None:
        met.set()
        raise NotALog("planted")

    monkeypatch.setattr(Log, "prepare_next", prepare_next)
    with Queue(path, file_size=8192, flush=Flush.batch(interval_s=0.001)) as q:
        q.append(b"0")
        assert met.wait(60)
        q.append(b"1")
        until(lambda: q.durable_sequence == 2, "it is synced")


def test_what_is_appended_while_the_background_fails_is_flushed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has looked what there is to flush, and before it has said from which byte on it wants to be told."""
    late: list[int] = []
    with Queue(path, file_size=8192, flush=Flush.batch(interval_s=0.001)) as q:

        def prepare_next(self: Log) -> None:
            if q.durable_sequence == 1 and not late:
                late.append(q.append(b"1"))
                raise no_descriptor()

        monkeypatch.setattr(Log, "prepare_next", prepare_next)
        q.append(b"0")
        until(lambda: late == [1], "it was appended")
        until(lambda: q.durable_sequence == 2, "it is synced")


# ---- what nobody was told of ----


def failing_flush(path: Path, disk: Disk) -> Queue:
    """A queue of which the background could not put the second record on the disk."""
    q = Queue(path, file_size=8192, flush=Flush.batch(interval_s=0.001))
    q.append(b"0")
    until(lambda: q.durable_sequence == 1, "the first is synced")
    disk.fail = lambda name: True
    q.append(b"1")
    until(lambda: q._open_log().writable().poison, "the sync failed")
    disk.fail = lambda name: False
    return q


def test_close_tells_of_a_sync_that_failed_in_the_background(path: Path, disk: Disk) -> None:
    q = failing_flush(path, disk)
    with pytest.raises(SyncFailed):
        q.close()
    assert q.closed
    q.close()
    with Queue(path) as q:
        assert records(q) == numbered([b"0", b"1"])


@pytest.mark.parametrize("tell", [lambda q: q.append(b"2"), lambda q: q.sync()], ids=["append", "sync"])
def test_close_is_silent_when_it_was_told(path: Path, disk: Disk, tell: Callable[[Queue], object]) -> None:
    """Closing it is what whoever was told is to do."""
    q = failing_flush(path, disk)
    with pytest.raises(SyncFailed):
        tell(q)
    q.close()


def test_and_when_the_background_was_at_work_meanwhile(path: Path, disk: Disk) -> None:
    """It tells nobody of what it meets, which takes nothing away from what others were told."""
    q = failing_flush(path, disk)
    begun, told = threading.Event(), threading.Event()

    def turn() -> None:
        with q._open_log().syncing.untold(), pytest.raises(SyncFailed):
            begun.set()
            assert told.wait(60)
            q.sync()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(turn)
        assert begun.wait(60)
        with pytest.raises(SyncFailed):
            q.sync()
        told.set()
        done.result()
    q.close()


def test_close_is_silent_when_all_was_durable_before(path: Path, disk: Disk) -> None:
    q = failing_flush(path, disk)
    q._open_log().writable().mark_durable(Mark(q._open_log().active().segment, q._open_log().active().end, 2))
    q.close()


def test_close_tells_of_a_sync_that_failed_elsewhere(path: Path, disk: Disk) -> None:
    """What was appended here is not on the disk either."""
    with Queue(path, file_size=8192) as other:
        q = Queue(path, file_size=8192)
        q.append(b"0")
        disk.fail = lambda name: True
        with pytest.raises(SyncFailed):
            other.sync()
        disk.fail = lambda name: False
        with pytest.raises(SyncFailed):
            q.close()


@pytest.mark.parametrize("many", [1, 100])
def test_what_is_appended_while_the_disk_is_at_work_is_not_durable_by_it(
    path: Path, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes on to other files: the next sync is for that."""
    with Queue(path, file_size=8192) as q:
        q.append(b"before")
        real = files.sync

        def at_work(fd: int) -> None:
            real(fd)
            monkeypatch.setattr(files, "sync", real)
            for _ in range(many):
                q.append(bytes(200))

        monkeypatch.setattr(files, "sync", at_work)
        assert q.sync() == 1
        assert q.durable_sequence == 1
        assert q.sync() == 1 + many
