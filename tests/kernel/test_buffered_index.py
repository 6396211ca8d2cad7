"""Appending through memory: the index that the thread keeps, the durable mark, and what is synced beside the records."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidPayload
from penstock.kernel import layout
from penstock.kernel.spec import BLOCK_BYTES, FrameSpec
from tests.support import until

from .buffering import INTERVAL, NewRig, Rig, arrow, put
from .conftest import CHANNEL, JOURNAL, QUEUE, TOPIC, need_native

STATED = FrameSpec(shift=8, state_bytes=16)
each_spec = pytest.mark.parametrize(
    "spec", [CHANNEL, JOURNAL, QUEUE, STATED, TOPIC], ids=["channel", "journal", "queue", "stated", "topic"]
)


def null(rig: Rig) -> int:
    """Takes every write, and no sync."""
    rig.fds.append(os.open("/dev/null", os.O_RDWR))
    return rig.fds[-1]


def child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, which ends with 0 if it does; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


# ---- the index ----


@each_spec
@pytest.mark.parametrize("interval", [1, 2, 3, 7, 64, 2**63, 2**64 - 1])
def test_after_many_batches(new_rig: NewRig, spec: FrameSpec, interval: int) -> None:
    rig, chance = new_rig(), random.Random(interval)
    buffered = rig.buffered(spec, attach=False, sync=False)
    rig.attach(buffered, interval=interval)
    for _ in range(60):
        buffered.append_many([bytes(chance.randrange(1, 50)) for _ in range(chance.randrange(1, 9))])
        put(buffered)
    rig.check_index(spec, interval=interval)
    assert rig.index()[0] == INTERVAL  # it is whoever made the file who says that


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("count", [511, 512, 513, 1024, 5000])
def test_a_batch_of_many(new_rig: NewRig, count: int, interval: int) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, sync=False)
    rig.attach(buffered, interval=interval)
    buffered.append(b"the first")
    put(buffered)
    buffered.append_many([b"%d" % i for i in range(count)])
    put(buffered)
    buffered.append(b"the last")
    put(buffered)
    rig.check_index(interval=interval)


def test_kinds_and_lengths(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(STATED)
    for i in range(20):
        buffered.append(b"s" * 16, 1)
        buffered.append(b"s" * (i + 1), 1)
        buffered.append(b"")
        buffered.append(b"", 2)
        buffered.append_arrow(*arrow([b"", b"x" * i]))
        if i % 3 == 0:
            put(buffered)
    put(buffered)
    rig.check_index(STATED)
    assert len(rig.index()[1]) == 30


def test_a_batch_between_two_entries_writes_none(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"noted")
    put(buffered)
    (rig.path / "data.index").write_bytes(b"")
    for payloads in ([b"1"], [b"2", b"3"]):
        buffered.append_many(payloads)
        put(buffered)
        assert (rig.path / "data.index").read_bytes() == b""
    buffered.append(b"noted")
    put(buffered)
    content = (rig.path / "data.index").read_bytes()
    assert (struct.unpack_from("<QQ", content), len(content)) == ((0, 2), 256 + 32)
    assert struct.unpack_from("<QQ", content, 256 + 16) == (104, 16 + 9 + 5 + 5 + 5)


def test_without_an_index(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False)
    before = (rig.path / "data.index").read_bytes()
    for interval in (0, 1):
        rig.attach(buffered, index_fd=-1, interval=interval)
        buffered.append_many([b"x"] * 10)
        put(buffered)
    assert (rig.path / "data.index").read_bytes() == before
    assert len(rig.payloads()) == 20
    with pytest.raises(ValueError, match="no such segment"):
        rig.attach(buffered, interval=0)


def test_an_index_that_cannot_be_written(new_rig: NewRig) -> None:
    """It is a cache: no record fails because of it."""
    rig = new_rig()
    buffered = rig.buffered()
    before = (rig.path / "data.index").read_bytes()
    closed = os.open("/dev/null", os.O_RDWR)
    rig.fds += [os.open("/dev/full", os.O_RDWR), os.open(rig.path / "data.index", os.O_RDONLY)]
    for wrong in (rig.fds[-2], rig.fds[-1], closed):
        rig.attach(buffered, index_fd=wrong)
        if wrong == closed:
            os.close(closed)
        buffered.append_many([b"x"] * INTERVAL)
        put(buffered)
    assert (rig.path / "data.index").read_bytes() == before
    assert (rig.errors, buffered.lost, len(rig.payloads())) == ([], 0, 3 * INTERVAL)
    rig.attach(buffered)
    buffered.append(b"x")
    put(buffered)
    _, entries = rig.index()
    assert entries == [(0, 0)] * 3 + [(112, 16 + 12 * 5)]  # a reader sees that the others are not its records


def test_entries_that_are_not_there_are_not_counted(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, sync=False)
    rig.attach(buffered, interval=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (264, before[1]))  # half an entry, and all of the other files
    try:
        buffered.append_many([b"a", b"b"])
        put(buffered)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (rig.path / "data.index").stat().st_size == 264
    assert rig.index()[1] == []
    assert rig.payloads() == [b"a", b"b"]


@pytest.mark.parametrize("wrong", ["data_fd", "times_fd"])
def test_what_fails_is_not_in_the_index(new_rig: NewRig, wrong: str) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    rig.fds.append(os.open("/dev/full", os.O_RDWR))
    rig.attach(buffered, **{wrong: rig.fds[-1]})
    buffered.append_many([b"x"] * 10)
    with pytest.raises(OSError, match="could not be put on the disk"):
        put(buffered)
    assert (rig.path / "data.index").stat().st_size == 256
    rig.check_index()


def test_what_is_published_is_in_the_index(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(attach=False, linger_s=0, sync=False)
    rig.attach(buffered, interval=1)
    fd, batches = rig.open("data.index"), 1500

    def look() -> None:
        next_ = 0
        while next_ < 100 + batches:
            next_ = rig.word("next")
            assert int.from_bytes(os.pread(fd, 8, 8), "little") >= next_ - 100

    pid = child(look)  # another process: a thread would not get to look between two steps of this one
    for _ in range(batches):
        batch, _ = buffered.append(b"x")
        assert buffered.wait(batch, 60)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    rig.check_index(interval=1)


def test_processes_share_it(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.share()
    buffered = rig.buffered()
    buffered.append(b"the first")
    put(buffered)

    def work(me: int) -> None:
        chance = random.Random(me)
        mine = [rig.buffered(page=rig.map_page(), linger_s=0, sync=False) for _ in range(2)]
        for i in range(150):
            one = mine[i % 2]
            batch, _ = one.append_many([b"%d" % me * chance.randrange(1, 30)] * chance.randrange(1, 7))
            if chance.random() < 0.5:
                one.wait(batch, 60)
        for one in mine:
            one.close()

    children = [child(partial(work, me)) for me in range(3)]
    work(3)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    buffered.append(b"the last")
    put(buffered)
    assert rig.word("next") == 100 + len(rig.payloads()) > 1500
    rig.check_index()


# ---- what is synced beside the records ----


@pytest.mark.parametrize(
    "append",
    [
        lambda buffered: buffered.append(b""),
        lambda buffered: (buffered.append(b"x"), buffered.append(b"")),
        lambda buffered: (buffered.append(b""), buffered.append(b"x")),
        lambda buffered: buffered.append(bytearray()),
        lambda buffered: buffered.append_many([b"x", b"", b"y"]),
        lambda buffered: buffered.append_many([bytes(2 << 20), b""]),
        lambda buffered: buffered.append_arrow(*arrow([b"x", b"", b"y"])),
        lambda buffered: buffered.append(bytes(2 * BLOCK_BYTES)),
        lambda buffered: buffered.append_many([b"x", b"x" + bytes(2 * BLOCK_BYTES) + b"y", b"y"]),
    ],
    ids=["one", "after", "before", "view", "many", "large", "arrow", "block at the end", "block within"],
)
@pytest.mark.parametrize("spec", [JOURNAL, TOPIC], ids=["journal", "topic"])
def test_what_may_look_like_zeros_never_written_syncs_the_companion(
    new_rig: NewRig, spec: FrameSpec, append: Callable[[Any], object]
) -> None:
    rig = new_rig()
    buffered = rig.buffered(spec)
    for _ in range(3):
        append(buffered)
        put(buffered)
    ends, data, mark = rig.ends(), rig.data(), rig.mark()
    rig.attach(buffered, times_fd=null(rig))
    append(buffered)
    with pytest.raises(OSError, match="could not be put on the disk") as caught:
        put(buffered)
    assert caught.value.errno == errno.EINVAL
    assert rig.errors == [errno.EINVAL]
    assert rig.page.load(layout.POISON) == errno.EINVAL
    assert (rig.ends(), rig.data(), rig.mark()) == (ends, data, mark)


@pytest.mark.parametrize(
    ("spec", "kind", "payload"),
    [
        (JOURNAL, 0, b"x"),
        (JOURNAL, 2, b""),
        (JOURNAL, 0, bytes(9)),
        (TOPIC, 0, b"\0"),
        (TOPIC, 0, (bytes(BLOCK_BYTES // 2) + b"x") * 9),
        (CHANNEL, 0, b""),
        (CHANNEL, 0, bytes(4 * BLOCK_BYTES)),
    ],
    ids=["payload", "kind", "zeros", "zero", "half a block", "checksum", "block with a checksum"],
)
def test_others_do_not(new_rig: NewRig, spec: FrameSpec, kind: int, payload: bytes) -> None:
    rig = new_rig()
    buffered = rig.buffered(spec)
    buffered.append(b"first")
    put(buffered)
    rig.attach(buffered, times_fd=null(rig))
    buffered.append(payload, kind)
    buffered.append_many([payload, payload], kind)
    assert put(buffered) == 101


@pytest.mark.parametrize("spec", [JOURNAL, CHANNEL], ids=["journal", "checksum"])
def test_who_syncs_beside_one_who_does_not_syncs_the_companion(new_rig: NewRig, spec: FrameSpec) -> None:
    """What that one appended may look like zeros never written, and nobody remembers. A checksum proves it."""
    rig = new_rig()
    safe, fast = rig.buffered(spec), rig.buffered(spec, sync=False)
    safe.append(b"x")
    put(safe)
    fast.append(b"")
    put(fast)
    rig.attach(safe, times_fd=null(rig))
    safe.append(b"y")
    if spec is CHANNEL:
        assert put(safe) == 102
        return
    with pytest.raises(OSError, match="could not be put on the disk") as caught:
        put(safe)
    assert caught.value.errno == errno.EINVAL


def test_without_sync_neither_is(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(sync=False)
    rig.attach(buffered, data_fd=null(rig), times_fd=null(rig))
    buffered.append(b"")
    assert put(buffered) == 100


def test_an_empty_record_is_forgotten_with_its_batch(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    for i in range(6):  # memory is used again
        buffered.append_many([b"", b"x"])
        assert put(buffered) == 100 + 3 * i
        rig.attach(buffered, times_fd=null(rig))
        buffered.append(b"x")
        put(buffered)
        rig.attach(buffered)


def test_a_block_is_the_files_not_the_batchs(new_rig: NewRig) -> None:
    """A block of zeros is looked for where the file has its blocks: a run that is just as long may lie in two."""
    rig = new_rig()
    buffered = rig.buffered(TOPIC)
    end = rig.ends()[0]
    for shift in range(0, BLOCK_BYTES, 73):
        buffered.append(
            b"x" * (BLOCK_BYTES - 8 + shift - end % BLOCK_BYTES)
        )  # the next payload begins `shift` behind a block
        put(buffered)
        end = rig.ends()[0]
        assert (end + 4) % BLOCK_BYTES == shift
        needed = BLOCK_BYTES - shift + BLOCK_BYTES if shift else BLOCK_BYTES  # up to the end of the first whole block
        buffered.append(bytes(needed - 1) + b"x")
        rig.attach(buffered, times_fd=null(rig))
        put(buffered)  # not one block is blank
        rig.attach(buffered)
        end = rig.ends()[0]


def test_the_companion_comes_first(new_rig: NewRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut between the two an entry without a record does no harm; a record without an entry is lost."""
    rig = new_rig()
    if rig.kernel is need_native():
        pytest.skip("the native kernel's sync cannot be watched")
    synced: list[str] = []

    def watch(fd: int) -> None:
        assert rig.word("next") == 100  # nothing is published before
        assert rig.index()[1] == []
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fdatasync", watch)
    buffered = rig.buffered()
    buffered.append_many([b"x", b""])
    put(buffered)
    assert synced == ["data.time", "data"]


# ---- the durable mark ----


def test_the_mark_follows_the_log(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.slot(segment=2**64 - 2)
    buffered = rig.buffered()
    assert rig.mark() is None
    for i in range(1, 5):
        buffered.append_many([b"12345678", b"x"])
        put(buffered)
        assert rig.mark() == (2**64 - 2, 16 + 17 * i, 100 + 2 * i)
        assert rig.page.load(layout.DURABLE + 16) == rig.word("next")
    rig.begin(4, 108, "new")
    rig.slot(segment=8)
    rig.on_slow = lambda *_: rig.attach(buffered, "new")
    buffered.append(b"fresh")
    put(buffered)
    assert rig.mark() == (8, 25, 109)


def test_without_sync_there_is_no_mark(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(sync=False)
    buffered.append(b"x")
    put(buffered)
    assert rig.mark() is None
    assert rig.page.load(layout.DURABLE + 16) == 0


@pytest.mark.parametrize("wrong", ["/dev/null", "/dev/full"])
def test_what_fails_does_not_move_the_mark(new_rig: NewRig, wrong: str) -> None:
    rig = new_rig()
    buffered = rig.buffered()
    buffered.append(b"x")
    put(buffered)
    before = rig.mark()
    rig.fds.append(os.open(wrong, os.O_RDWR))
    rig.attach(buffered, data_fd=rig.fds[-1])
    buffered.append(b"y")
    with pytest.raises(OSError, match="could not be put on the disk"):
        put(buffered)
    assert rig.mark() == before == (0, 21, 101)
    assert len(rig.entries()) == 1  # nor does an entry stay that would speak against another record
    assert rig.ends() == (21, 101, 21, 101)


def test_the_mark_is_never_ahead(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(linger_s=0)
    ahead, batches = [], 300

    def look() -> None:
        durable = 0
        while durable < 100 + batches:
            durable = rig.page.load(layout.DURABLE + 16)
            if durable > rig.word("next"):
                ahead.append(durable)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(batches):
        batch, _ = buffered.append(b"x")
        assert buffered.wait(batch, 60)
        assert rig.page.load(layout.DURABLE + 16) == rig.word("next")  # who was told finds the mark
    thread.join()
    assert ahead == []


# ---- putting the page on the disk ----


SOON_S = 15.0  # the system itself takes longer to put a page on the disk


def dirty(rig: Rig) -> bool:
    """Whether the page has been changed since it was last put on the disk."""
    found, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            mine = line.endswith(str(rig.path / "page"))
        elif mine and line.split()[0] in ("Shared_Dirty:", "Private_Dirty:"):
            found += int(line.split()[1])
    return found > 0


def flushed(rig: Rig) -> None:
    """The page is on the disk; skip where that cannot be seen."""
    rig.rooms[0][4000] = 1
    if not Path("/proc/self/smaps").exists() or not dirty(rig):
        pytest.skip("pages cannot be looked at here")
    rig.rooms[0].flush()
    if dirty(rig):
        pytest.skip("this file system's pages never get clean")


def test_the_page_is_put_on_the_disk_once_a_second(new_rig: NewRig) -> None:
    rig = new_rig()
    flushed(rig)
    buffered = rig.buffered()
    last = time.monotonic()
    for _ in range(2):
        buffered.append(b"x")
        put(buffered)
        is_dirty, now = dirty(rig), time.monotonic()
        assert is_dirty or now - last >= 1
        until(lambda: not dirty(rig), "it is put on the disk when nothing else happens", SOON_S)
        assert time.monotonic() - last > 0.7  # less than a second, as it was seen late the last time
        last = time.monotonic()


def test_a_batch_that_waits_does_not_hinder_it(new_rig: NewRig) -> None:
    rig = new_rig()
    flushed(rig)
    buffered = rig.buffered()
    buffered.append(b"x")
    put(buffered)
    batch, _ = buffered.append(b"for ever")
    until(lambda: not dirty(rig), "it is put on the disk", SOON_S)
    assert not batch.done
    put(buffered)
    assert rig.payloads() == [b"x", b"for ever"]


def test_it_is_put_on_the_disk_between_batches(new_rig: NewRig) -> None:
    rig = new_rig()
    flushed(rig)
    buffered, until_s, clean = rig.buffered(linger_s=0), time.monotonic() + SOON_S, False
    while not clean:
        batch, _ = buffered.append(b"x")
        assert buffered.wait(batch, 60)
        clean = not all(dirty(rig) for _ in range(10))
        assert time.monotonic() < until_s
    buffered.close()
    assert len(rig.payloads()) == rig.word("next") - 100


def test_nobody_waits_for_it_at_the_end(new_rig: NewRig) -> None:
    """The log itself syncs the page when it is closed; without a mark there is nothing to put there."""
    rig = new_rig()
    flushed(rig)
    unsynced = rig.buffered(sync=False)
    buffered = rig.buffered()
    started = time.monotonic()
    unsynced.append(b"x")
    put(unsynced)
    buffered.append(b"x")
    put(buffered)
    buffered.close()
    if time.monotonic() - started > 0.9:
        pytest.skip("the machine is too busy to tell")
    assert dirty(rig)
    until(lambda: time.monotonic() > started + 1.3, "a second passes")
    assert dirty(rig)
    unsynced.append(b"x")
    put(unsynced)
    assert dirty(rig)


def test_a_page_that_is_no_file(new_rig: NewRig) -> None:
    rig = new_rig()
    room = bytearray(layout.PAGE_BYTES)
    page = rig.kernel.ControlPage(room, rig.file_lock)
    page.init_lock()
    for offset in range(layout.TURN, layout.DURABLE, 8):
        page.store(offset, rig.page.load(offset))
    buffered = rig.buffered(page=page, linger_s=0)
    started, i = time.monotonic(), 0
    while time.monotonic() < started + 1.2:
        batch, _ = buffered.append(b"x")
        assert buffered.wait(batch, 60)
        i += 1
    buffered.close()
    assert struct.unpack_from("<QQQ", room, layout.DURABLE) == (0, 16 + 5 * i, 100 + i)
    assert rig.errors == []


# ---- a state of no bytes ----


def test_an_empty_state_is_refused_where_it_would_be_read_as_another(new_rig: NewRig) -> None:
    rig = new_rig()
    buffered = rig.buffered(STATED)
    for call in (
        lambda: buffered.append(b"", 1),
        lambda: buffered.append(bytearray(), kind=1),
        lambda: buffered.append_many([b"x", b""], 1),
    ):
        with pytest.raises(InvalidPayload, match="an empty payload of kind 1 cannot be stored"):
            call()
    assert buffered.flush() is None
    buffered.append(b"x", 1)
    buffered.append(b"", 2)
    put(buffered)
    assert rig.data().hex() == "01010000" + "78" + "02000000"
