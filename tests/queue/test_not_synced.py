"""An append with `Flush.each()`, or to a channel that is crash-consistent, whose sync does not come about: the error says that the record is
in the log, since whoever takes it for not appended has it there twice."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from penstock import Channel, DiskFull, Flush, NotSynced, PenstockError, Queue, SyncFailed
from penstock.storage import files, syncing
from penstock.storage.log import Log
from penstock.storage.syncing import Syncing
from penstock.testing.failing import Fault, failing
from tests.queue.crash import Disk, Yard, never_seal, open_yard, records

BIG = b"x" * 3000  # two go into a file


@pytest.fixture
def yard() -> Iterator[Yard]:
    with open_yard() as made:
        yield made


@pytest.fixture
def path(yard: Yard) -> Path:
    return yard.new()


@contextmanager
def nothing_to_open(monkeypatch: pytest.MonkeyPatch, code: int = errno.EMFILE) -> Iterator[None]:
    """A segment that was left cannot be opened to be synced."""

    def opened(path: Path, **options: bool) -> AbstractContextManager[int]:
        raise files.told(OSError(code, os.strerror(code)), path)

    with monkeypatch.context() as patch:
        patch.setattr(syncing, "files", SimpleNamespace(opened=opened, sync=files.sync))
        yield


def arrow(*payloads: bytes) -> Any:
    return pyarrow.array(payloads)


APPENDS: dict[str, tuple[Callable[[Queue], object], list[bytes]]] = {
    "append": (lambda q: q.append(BIG), [BIG]),
    "append_batch": (lambda q: q.append_batch([BIG, b"y"]), [BIG, b"y"]),
    "any sequence": (lambda q: q.append_batch({BIG: 0}.keys()), [BIG]),  # type: ignore[arg-type]
    "append_arrow": (lambda q: q.append_batch(arrow(BIG, b"y")), [BIG, b"y"]),
    "over several files": (lambda q: q.append_batch([BIG] * 5), [BIG] * 5),
    "an appender": (lambda q: q.appender().append(BIG), [BIG]),
}


@pytest.mark.parametrize("how", APPENDS)
def test_what_was_appended_and_could_not_be_synced_is_said_to_be_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    never_seal(monkeypatch)
    append, appended = APPENDS[how]
    with Queue(path, file_size=8192, flush=Flush.each()) as q:
        q.append_batch([BIG, BIG])
        with nothing_to_open(monkeypatch), pytest.raises(NotSynced, match=r"do not append it again.*\.data") as told:
            append(q)
        error = told.value
        assert error.appended == range(2, 2 + len(appended))
        assert (error.errno, q.durable_sequence) == (errno.EMFILE, 2)
        assert f"{2 if len(appended) == 1 else f'2 to {1 + len(appended)}'}) is in the log" in str(error)
        assert "(`ulimit -n`), then call sync()" in str(error)
        assert [payload for _, payload in records(q)] == [BIG, BIG, *appended]
        assert q.sync() == 2 + len(appended)
        append(q)
    with Queue(path) as q:
        assert [payload for _, payload in records(q)] == [BIG, BIG, *appended, *appended]


@pytest.mark.parametrize("many", [False, True])
def test_so_is_what_was_sent(path: Path, monkeypatch: pytest.MonkeyPatch, many: bool) -> None:
    never_seal(monkeypatch)
    sent = [b"b", b"c"] if many else [b"b"]
    with Channel(path, segment_bytes=8, crash_consistent=True) as ch:
        tx = ch.tx()
        tx.send(b"a" * 8)
        with nothing_to_open(monkeypatch), pytest.raises(NotSynced) as told:
            tx.send_many(sent) if many else tx.send(sent[0])
        assert told.value.appended == range(1, 1 + len(sent))
        now = ch.stats()
        assert now.durable_offset < now.write_offset
        ch.sync()
        assert ch.stats().durable_offset == ch.stats().write_offset == now.write_offset
        assert ch.rx().recv_many(10) == [b"a" * 8, *sent]


def test_a_channel_that_is_not_crash_consistent_is_synced_when_asked_to(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
        assert ch.stats().durable_offset == 0
        ch.sync(timeout_s=60)
        assert ch.stats().durable_offset == 9


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENFILE, errno.EACCES])
def test_whatever_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A full disk says that nothing was changed, and here something was."""
    never_seal(monkeypatch)
    with Queue(path, file_size=8192, flush=Flush.each()) as q:
        q.append_batch([BIG, BIG])
        with nothing_to_open(monkeypatch, code), pytest.raises(NotSynced) as told:
            q.append(BIG)
        assert told.value.errno == code
        assert not isinstance(told.value, DiskFull)
        assert q.next_sequence == q.sync() == 3


def test_a_sync_that_failed_says_so_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, path)
    q = Queue(path, file_size=8192, flush=Flush.each())
    q.append(b"0")
    disk.fail = lambda name: name.endswith(".data")
    with pytest.raises(SyncFailed, match=r"sequences 1 to 2\) is in the log, do not append it again") as told:
        q.append_batch([b"1", b"2"])
    assert told.value.appended == range(1, 3)
    with pytest.raises(SyncFailed) as again:
        q.append(b"3")
    assert (again.value.appended, "again" in str(again.value).replace("open it again", "")) == (range(0), False)
    q.close()
    disk.fail = lambda name: False
    with Queue(path) as q:
        assert [payload for _, payload in records(q)] == [b"0", b"1", b"2"]


def test_so_does_one_of_the_offsets_of_a_channel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, path)
    ch = Channel(path, crash_consistent=True)
    disk.fail = lambda name: name.endswith("offset")
    with pytest.raises(SyncFailed) as told:
        ch.tx().send(b"a")
    assert told.value.appended == range(1)
    with pytest.raises(SyncFailed):
        ch.sync()
    ch.close()


@pytest.mark.parametrize("error", [NotSynced("/some/file", errno.EIO, range(3, 5)), SyncFailed("/a", 5, range(7, 8))])
def test_another_process_is_told_the_same(error: NotSynced | SyncFailed) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), there.appended) == (type(error), str(error), error.appended)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_on_the_disk_when_another_thread_has_closed_the_queue_was_appended(
    path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """And if the sync of that close failed, that one tells of it, as the append's own would."""
    disk, q, real = Disk(monkeypatch, path), Queue(path, flush=Flush.each()), Syncing.sync

    def closed_first(self: Syncing, log: Log, timeout_s: float | None) -> None:
        monkeypatch.setattr(Syncing, "sync", real)
        disk.fail = lambda name: fails and name.endswith(".data")
        with pytest.raises(SyncFailed) if fails else nullcontext():
            q.close()
        disk.fail = lambda name: False
        real(self, log, timeout_s)

    monkeypatch.setattr(Syncing, "sync", closed_first)
    if fails:
        with pytest.raises(SyncFailed) as told:
            q.append(b"a")
        assert told.value.appended == range(1)
    else:
        assert q.append(b"a") == 0
    assert q.closed
    with Queue(path) as q:
        assert [payload for _, payload in records(q)] == [b"a"]


def test_with_too_many_open_files_at_any_call_a_retry_puts_nothing_there_twice(yard: Yard) -> None:
    """What was not told as appended is tried again, and what was is not."""
    told = 0
    for nth in range(1, 10_000):
        path, wanted = yard.new() / "log", [b"%d" % i * 900 for i in range(30)]
        with failing(Fault("EMFILE", nth)) as failed:
            try:
                q = Queue(path, file_size=8192, flush=Flush.each())
            except PenstockError:
                continue
            for payload in wanted:
                try:
                    q.append(payload)
                except NotSynced as error:
                    told += 1
                    assert error.appended == range(q.next_sequence - 1, q.next_sequence)
                except PenstockError:
                    q.append(payload)
            with suppress(PenstockError):
                q.close()
        with Queue(path) as q:
            assert [payload for _, payload in records(q)] == wanted, nth
        if not failed.failed:
            break
    assert told >= 3  # once for each file that is left
