"""A disk that is full, and one that refuses to sync.

A full disk fails its batch and those behind it, so that there is never a hole; what is there can be read, and it goes on when there
is room. Needs root, for a small file system of its own. After a failed sync nothing is written until the topic is opened anew. What
makes the syncs of the native thread fail is a library that is loaded before the system's own, built here.

The work is done in processes of their own: a full disk could kill one, and the library is loaded at the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import DiskFull, LogBusy, PenstockError, Publication, SyncFailed, Topic, Topics
from penstock.topic import partition
from tests.queue.test_disk_full import fill_to_the_brim
from tests.support import ROOT, until
from tests.topic.conftest import Other, held_up, messages, on_disk, open_topics, payload

SEGMENT = 1 << 16
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* What the flag file says is how the names of those files end that cannot be synced. */
static int refused(int fd) {
    char said[64], link[64], name[4096];
    const char *flag = getenv("FAIL_SYNCS_WHILE");
    int file = flag ? open(flag, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t end = read(file, said, sizeof said);
    close(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name);
    return end >= 0 && size >= end && memcmp(name + size - end, said, end) == 0;
}
int fdatasync(int fd) {
    static int (*real)(int);
    if (refused(fd)) { errno = EIO; return -1; }
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}
"""


# ---- a full disk ----


def message(i: int, size: int = 500) -> bytes:
    return b"%08d" % i + bytes([33 + i % 90]) * (size - 8)


def fill(t: Topic, there: list[bytes], size: int = 500) -> list[Publication]:
    """Publish until a batch fails; those that failed. What was written is added to `there`."""
    while True:
        with held_up(t):  # so that all are there when one of them fails
            made = [t.publish(message(len(there) + i, size)) for i in range(40)]
        with contextlib.suppress(DiskFull):
            t.flush()
        until(lambda made=made: all(p.done() for p in made), "all are told")  # type: ignore[misc]
        count = [*(p.exception() is None for p in made), False].index(False)
        assert all(isinstance(p.exception(), DiskFull) for p in made[count:]), (
            "those behind it fail too: there is no hole"
        )
        assert [p.offset for p in made[:count]] == list(range(len(there), len(there) + count))
        there += [message(len(there) + i, size) for i in range(count)]
        if count < len(made):
            return made[count:]


def check(t: Topic, there: list[bytes]) -> None:
    assert messages(t) == there
    assert on_disk(t.path) == there, "and nothing is left behind the end"


def told(disk: Path) -> None:
    there: list[bytes] = []
    with open_topics(disk / "log", segment_bytes=SEGMENT) as logs:
        t = logs.topic("t")
        t.ends()
        fill_to_the_brim(disk)
        behind = fill(t, there)
        assert behind
        check(t, there)
        with pytest.raises(DiskFull) as info:
            behind[0].wait()
        assert info.value.errno == errno.ENOSPC
        assert str(disk / "log") in str(info.value)
        assert "free some space" in str(info.value)
        with t.tailer() as tailer, Topics(disk / "log", read_only=True) as others:
            assert [m.payload for m in tailer] == there
            check(others.topic("t"), there)
        (disk / "filler").unlink()
        for i in range(300):
            t.publish(message(len(there) + i))
        t.flush()
        there += [message(len(there) + i) for i in range(300)]
        check(t, there)
    with open_topics(disk / "log") as logs:
        assert logs.topic("t").recovery(0).clean
        check(logs.topic("t"), there)


def again(disk: Path) -> None:
    """Full, some room, and full again: at every place of a segment, and in the middle of rolls."""
    there: list[bytes] = []
    room = disk / "room"
    with open_topics(disk / "log", segment_bytes=5000) as logs:
        t = logs.topic("t")
        t.publish(b"first").wait()
        there.append(b"first")
        for size in (4096, 20_000, 9000, 40_000, 4096, 4096, 100_000):
            room.write_bytes(bytes(size))
            fill_to_the_brim(disk)
            room.unlink()
            fill(t, there, 200)
            check(t, there)
            (disk / "filler").unlink()
        assert len(there) > 100
        t.publish(b"last").wait()
        check(t, [*there, b"last"])
    with open_topics(disk / "log") as logs:
        assert logs.topic("t").recovery(0).damage == []
        check(logs.topic("t"), [*there, b"last"])


def lists(disk: Path) -> None:
    """Of a list, all that fits one segment is there or not."""
    there: list[bytes] = []
    with open_topics(disk / "log", segment_bytes=20_000) as logs:
        t = logs.topic("t")
        t.ends()
        fill_to_the_brim(disk)
        while True:
            some = [message(len(there) + i, 1000) for i in range(15)]
            made = t.publish_many(some)
            try:
                made.wait()
            except DiskFull:
                break
            there += some
        check(t, there)
        (disk / "filler").unlink()
        t.publish_many(some).wait()
        check(t, there + some)


def opening(disk: Path) -> None:
    """With not a byte left it is opened and closed, or says that the disk is full; nothing is lost."""
    there: list[bytes] = []
    with open_topics(disk / "log", segment_bytes=SEGMENT) as logs:
        logs.topic("t").ends()
        fill_to_the_brim(disk)
        fill(logs.topic("t"), there)
    fill_to_the_brim(disk)
    with open_topics(disk / "log", segment_bytes=SEGMENT) as logs:
        with contextlib.suppress(DiskFull):
            check(logs.topic("t"), there)
        with pytest.raises(DiskFull):
            logs.topic("u", partitions=2).publish(b"x" * 5000).wait()
    with Topics(disk / "log", read_only=True) as logs:
        check(logs.topic("t"), there)
    (disk / "filler").unlink()
    with open_topics(disk / "log") as logs:
        check(logs.topic("t"), there)
        assert logs.topic("u").publish(b"x").wait() == 0


def groups(disk: Path) -> None:
    """Commits work or say what is wrong, and then what they were for comes again."""
    with open_topics(disk / "log", segment_bytes=SEGMENT) as logs:
        t = logs.topic("t", partitions=2)
        for p in (0, 1):
            t.publish_many([message(i) for i in range(50)], partition=p).wait()
        with t.group("g") as member:
            fill_to_the_brim(disk)
            assert len(member.poll_many(20)) == 20
            try:
                member.commit()
            except DiskFull:
                assert member.uncommitted > 0
            (disk / "filler").unlink()
            member.commit()
            assert sum(t.committed("g").values()) == 20
            assert len(list(member)) == 80


def others(disk: Path) -> None:
    """What fails one process's batch costs another's nothing: it goes on when there is room."""
    there: list[bytes] = []
    with (
        open_topics(disk / "log", segment_bytes=SEGMENT) as logs,
        open_topics(disk / "log", segment_bytes=SEGMENT) as more,
    ):
        t, u = logs.topic("t"), more.topic("t")
        u.ends()
        fill_to_the_brim(disk)
        fill(t, there)
        waiting = u.publish(b"x" * 10_000)
        with pytest.raises(DiskFull):
            waiting.wait()
        (disk / "filler").unlink()
        assert u.publish(message(len(there))).wait() == len(there)
        there.append(message(len(there)))
        check(t, there)


WORKS: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (told, again, lists, opening, groups, others)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def in_process(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.root
@pytest.mark.parametrize("work", WORKS)
def test_a_full_disk_fails_a_batch_and_those_behind_it_and_nothing_else(disk: Path, work: str) -> None:
    in_process(
        f"from pathlib import Path; from tests.topic_crash import test_disk as t; t.WORKS[{work!r}](Path({str(disk)!r}))"
    )


# ---- syncs that fail ----


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes them fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("what makes a sync fail needs a C compiler, and Linux")
    top = tmp_path_factory.mktemp("shim")
    (top / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(top / "shim.so"), str(top / "shim.c"), "-ldl"], check=True)
    return top / "shim.so"


@contextlib.contextmanager
def refused(flag: Path, names: str = "") -> Iterator[None]:
    """While this lasts no sync works, of files whose names end so."""
    flag.with_suffix(".new").write_text(names)
    flag.with_suffix(".new").rename(flag)
    try:
        yield
    finally:
        flag.unlink()


def sync_fails(path: Path, flag: Path, names: str = "") -> None:
    """Whoever waits is told, so is everybody after that, in any process, until all have closed it."""
    partition._SEALED_TOGETHER = 1  # type: ignore[misc]
    first = [payload(i) for i in range(20)]
    logs = open_topics(path, segment_bytes=200)
    t = logs.topic("t")
    t.publish_many(first).wait()
    until(lambda: all(s.sealed for s in t._here(0).log.finished().values()), "the background is done")
    with Other(path, segment_bytes=200) as other:
        other.ask("t.ends()")
        with refused(flag, names):
            made = [t.publish_many([b"never %d" % i for i in range(5)])]
            for p in made:
                with pytest.raises(SyncFailed) as info:
                    p.wait()
                assert info.value.errno == errno.EIO
                assert str(path / "t") in str(info.value)
                assert "open it again" in str(info.value)
        for call in (lambda: t.publish(b"x").wait(), lambda: t.publish_many([b"x"]).wait(), t.flush, logs.flush):
            with pytest.raises(SyncFailed):
                call()
        assert other.ask("t.publish(b'x').wait()") == "SyncFailed"
        assert messages(t) == first, "what is there can be read"
        assert other.ask("len(t.read(0, 0, 100))") == "20"
        with open_topics(path) as late, pytest.raises(LogBusy, match=r"a sync failed here.*close it in all of them"):
            late.topic("t").ends()
        with contextlib.suppress(PenstockError):
            logs.close()
        other.ask("logs.close()")
    with open_topics(path, segment_bytes=200) as logs:
        t = logs.topic("t")
        assert messages(t) == first, "nothing of what failed"
        t.publish_many([b"on", b"", b"it goes"]).wait()
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == [*first, b"on", b"", b"it goes"]
        assert on_disk(path / "t") == [*first, b"on", b"", b"it goes"]


def sync_of_the_data_alone_fails(path: Path, flag: Path) -> None:
    sync_fails(path, flag, ".log")


def sync_of_the_companion_alone_fails(path: Path, flag: Path) -> None:
    """Which is synced with a batch that has an empty message."""
    logs = open_topics(path)
    t = logs.topic("t")
    t.publish(b"first").wait()
    with refused(flag, ".time"):
        assert t.publish(b"without").wait() == 1
        with pytest.raises(SyncFailed):
            t.publish(b"").wait()
    with pytest.raises(SyncFailed):
        t.publish(b"x").wait()
    with contextlib.suppress(PenstockError):
        logs.close()
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == [b"first", b"without"]
        assert logs.topic("t").publish(b"").wait() == 2


def sync_of_an_empty_topic_fails(path: Path, flag: Path) -> None:
    logs = open_topics(path)
    t = logs.topic("t")
    t.ends()
    with refused(flag), pytest.raises(SyncFailed):
        t.publish(b"never").wait()
    with contextlib.suppress(PenstockError):
        logs.close()
    with open_topics(path) as logs:
        assert messages(logs.topic("t")) == []
        assert logs.topic("t").publish(b"x").wait() == 0


def what_was_not_synced_is_written_anew(path: Path, flag: Path) -> None:
    """With flush="none" messages are there before a sync; after one that failed they are copied to files that can be."""
    first = [payload(i) for i in range(30)]
    for synced in (0, 10):
        top = path / str(synced)
        logs = open_topics(top, segment_bytes=200, flush="none")
        t = logs.topic("t")
        t.ends()
        if synced:
            t.publish_many(first[:synced]).wait()
            t.flush()
        t.publish_many(first[synced:]).wait()
        with refused(flag), pytest.raises(SyncFailed):
            t.flush()
        with pytest.raises(SyncFailed):
            t.publish(b"x").wait()
        with contextlib.suppress(PenstockError):
            logs.close()
        with open_topics(top, segment_bytes=200) as logs:
            t = logs.topic("t")
            assert messages(t) == first
            assert t.recovery(0).moved_bytes > 0
            assert t.stats()[0].durable_offset == 30
            assert t.publish(b"more").wait() == 30
        with open_topics(top) as logs:
            assert messages(logs.topic("t")) == [*first, b"more"]
            assert logs.topic("t").recovery(0).clean


def sealing_fails(path: Path, flag: Path) -> None:
    """What the background syncs: a finished segment's companion, the manifest."""
    partition._SEALED_TOGETHER = 1  # type: ignore[misc]
    logs = open_topics(path, segment_bytes=200, flush="none")
    t = logs.topic("t")
    t.ends()
    with refused(flag):
        for i in range(30):
            with contextlib.suppress(PenstockError):
                t.publish(payload(i)).wait()
        control = t._here(0).log.control
        assert control is not None
        until(lambda: control.poison, "the background has told")
        with pytest.raises(SyncFailed):
            t.publish(b"x").wait()
        there = messages(t)
    with contextlib.suppress(PenstockError):
        logs.close()
    with open_topics(path, segment_bytes=200) as logs:
        assert messages(logs.topic("t")) == there
        logs.topic("t").publish(b"x").wait()


FAILS: dict[str, Callable[[Path, Path], None]] = {
    f.__name__: f
    for f in (
        sync_fails,
        sync_of_the_data_alone_fails,
        sync_of_the_companion_alone_fails,
        sync_of_an_empty_topic_fails,
        what_was_not_synced_is_written_anew,
        sealing_fails,
    )
}


@pytest.mark.parametrize("work", FAILS)
def test_after_a_failed_sync_nothing_is_written_until_it_is_opened_anew(path: Path, shim: Path, work: str) -> None:
    path.mkdir()
    in_process(
        "import sys; from pathlib import Path; from tests.topic_crash import test_disk as t; "
        f"t.FAILS[{work!r}](Path({str(path / 'log')!r}), Path({str(path / 'flag')!r}))",
        LD_PRELOAD=str(shim),
        FAIL_SYNCS_WHILE=str(path / "flag"),
    )
