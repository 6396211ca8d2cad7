"""Many processes on one queue: writing, reading, sleeping, stopped; on a copied or rebooted directory; with another kernel."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LogBusy, Queue, Roll, kernel
from penstock.formats import queue as fmt
from penstock.kernel import layout
from penstock.storage import files
from penstock.storage.log import Log
from tests.support import ROOT, until
from tests.torture import Judge, make

SLOW = kernel.NAME == "reference" or files.PORTABLE
DEADLINE_S = 60.0


@contextlib.contextmanager
def started(function: str, *arguments: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A function of this module in a process of its own, which talks by lines."""
    code = f"import sys; from tests.queue import test_processes as t; t.{function}(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **env},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> list[str]:
    """What it said until it ended well."""
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return out.splitlines()


def run(function: str, *arguments: object, **env: str) -> list[str]:
    with started(function, *arguments, **env) as process:
        return ended(process)


def say(*words: object) -> None:
    print(*words, flush=True)


# ---- what the processes do ----


def make_and_append(path: str, me: str) -> None:
    say("ready")
    sys.stdin.readline()
    with Queue(path, file_size=1 << 16, index_interval=8) as q:
        say(q.append(me.encode()))


def write(path: str, me: str, count: str) -> None:
    say("ready")
    sys.stdin.readline()
    counter, batch = 0, 0
    with Queue(path, roll=Roll.count(700 + 100 * int(me))) as q:
        while counter < int(count):
            size = 1 + batch % 7 if batch % 2 else 1
            records = [make(int(me), counter + i, batch, i, size, (counter * 37) % 200) for i in range(size)]
            first = q.append(records[0]) if size == 1 else q.append_batch(records)[0]
            say(counter, size, first)
            counter += size
            batch += 1


def read(path: str, total: str) -> None:
    with Queue(path) as q, q.tailer() as tailer:
        say("ready")
        judge = Judge(0, {})
        for message in tailer.follow():
            judge.take(message)
            if judge.sequence == int(total):
                break
            if judge.sequence % 1000 == 0:
                judge_ends(q, judge.sequence)
        judge.at_end()
        say(judge.sequence)


def judge_ends(q: Queue, at: int) -> None:
    assert q.next_sequence >= at


def sleep(path: str, how: str) -> None:
    say("start")
    sys.stdin.readline()
    with Queue(path) as q, q.tailer(at="end") as tailer:
        say("ready")
        before = resource.getrusage(resource.RUSAGE_SELF)
        if how == "read":
            message = tailer.read(timeout_s=DEADLINE_S)
        elif how == "read for ever":
            message = tailer.read(timeout_s=None)
        else:
            message = next(tailer.follow())
        now = time.monotonic()
        used = resource.getrusage(resource.RUSAGE_SELF)
        assert message is not None
        cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        say(now, cpu_s, used.ru_nvcsw - before.ru_nvcsw, message.payload.decode())


def append_twice(path: str) -> None:
    with Queue(path) as q:
        assert q._janitor is not None
        q.append(b"stopped")
        q.sync()
        q._janitor.stop()
        say("ready")
        sys.stdin.readline()
        q.append(b"continued")


def open_and_append(path: str, boot: str = "") -> None:
    if boot:
        files.boot_id = lambda: boot.encode().ljust(16)
    began = time.monotonic()
    with Queue(path) as q:
        say(q.recovery.how, time.monotonic() - began)
        say(*[m.payload.decode() for m in q.tailer()])
        q.append(b"more")
        say(*[m.payload.decode() for m in q.tailer()])


def open_only(path: str) -> None:
    try:
        Queue(path).close()
    except LogBusy as error:
        say("LogBusy", error)
    else:
        say("opened")


# ---- the tests ----


def test_many_processes_append_and_read_at_once(path: Path) -> None:
    count = 300 if SLOW else 4000
    Queue(path, file_size=1 << 18, index_interval=16).close()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(started("write", path, i, count)) for i in range(4)]
        total = sum(len(range(count)) for _ in writers)
        for process in writers:
            assert heard(process) == "ready"
        # each may overshoot by the rest of its last batch, the same for all
        size, batch, counter = 0, 0, 0
        while counter < count:
            size = 1 + batch % 7 if batch % 2 else 1
            counter, batch = counter + size, batch + 1
        total = counter * len(writers)
        readers = [stack.enter_context(started("read", path, total)) for _ in range(2)]
        for process in readers:
            assert heard(process) == "ready"
        for process in writers:
            go(process)
        said: dict[int, int] = {}
        for me, process in enumerate(writers):
            for line in ended(process):
                first_counter, size, sequence = map(int, line.split())
                for i in range(size):
                    assert sequence + i not in said, "a sequence was given twice"
                    said[sequence + i] = me << 32 | first_counter + i
        for process in readers:
            assert ended(process) == [str(total)]
    assert sorted(said) == list(range(total))
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.damage == []
        judge = Judge(0, {})
        for message in q.tailer():
            writer, counter = judge.take(message)
            assert said[message.sequence] == writer << 32 | counter
        judge.at_end()
        assert judge.sequence == total


def test_many_processes_make_the_same_queue_at_once(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started("make_and_append", path, i)) for i in range(6)]
        for process in processes:
            assert heard(process) == "ready"
        for process in processes:
            go(process)
        said = [ended(process) for process in processes]
    assert sorted(said) == [[str(i)] for i in range(6)]
    with Queue(path) as q:
        assert sorted(m.payload for m in q.tailer()) == [b"%d" % i for i in range(6)]


@pytest.mark.parametrize("how", ["read", "read for ever", "follow"])
def test_sleeping_reader_is_woken_by_an_append(path: Path, how: str) -> None:
    with Queue(path) as q, started("sleep", path, how) as process:
        assert heard(process) == "start"
        q.append_batch(
            [b"before", b"before"]
        )  # so that the one that is to wake is a plain append, and nothing else is due
        go(process)
        assert heard(process) == "ready"
        assert q._log is not None
        assert q._log.control is not None
        page = q._log.control.page
        if not SLOW:
            until(lambda: page.load(layout.WAITERS) & 0xFFFFFFFF, "the reader falls asleep")
        time.sleep(1.1)  # what it costs to sleep is to be measured
        began = time.monotonic()
        q.append(b"wake up")
        woken, cpu_s, switches, payload = heard(process).split(maxsplit=3)
        assert payload == "wake up"
        if SLOW:
            assert float(woken) - began < 1.0
            assert float(cpu_s) < 0.5
        else:
            assert float(woken) - began < 0.7, "it was not woken, but looked by itself after a second"
            assert float(cpu_s) < 0.05
            assert int(switches) < 40, "it polled"


def test_sleeping_reader_is_woken_by_a_roll_and_what_comes_after(path: Path) -> None:
    with Queue(path, roll=Roll.count(1)) as q:
        q.append(b"a")
        with started("sleep", path, "follow") as process:
            assert heard(process) == "start"
            go(process)
            assert heard(process) == "ready"
            began = time.monotonic()
            q.append(b"in the next file")
            woken, _, _, payload = heard(process).split(maxsplit=3)
            assert payload == "in the next file"
            assert float(woken) - began < 1.0


def _asleep(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task")
    try:
        return {(task / "stat").read_text().rsplit(") ", 1)[1][0] for task in tasks.iterdir()} == {"S"}
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended


def test_stopped_writer_without_the_lock_holds_nobody_up(path: Path) -> None:
    with Queue(path, file_size=1 << 16) as q, started("append_twice", path) as process:
        assert heard(process) == "ready"
        until(lambda: _asleep(process.pid), "it comes to rest")
        process.send_signal(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1][0] == "T", "it stops")
        began = time.monotonic()
        for i in range(2000):
            q.append(b"%d" % i * 20)  # rolls a few times
        q.sync()
        assert time.monotonic() - began < 20.0
        with q.tailer() as tailer:
            assert sum(1 for _ in tailer) == 2001
        process.send_signal(signal.SIGCONT)
        go(process)
        ended(process)
        assert q.next_sequence == 2002
        with q.tailer(direction="backward") as tailer:
            last = tailer.read()
        assert last is not None
        assert last.payload == b"continued"


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def test_copy_of_a_live_queue_opens_in_its_new_place(path: Path, tmp_path: Path) -> None:
    with Queue(path, file_size=1 << 16) as q:
        q.append_batch([b"a", b"b"])
        copy(path, tmp_path / "copy")
        how, before, after = run("open_and_append", tmp_path / "copy")
        assert how.startswith("new boot")
        assert (before, after) == ("a b", "a b more")
        q.append(b"c")
        assert [m.payload for m in q.tailer()] == [b"a", b"b", b"c"]


def test_copy_of_a_queue_whose_lock_is_held_opens_in_its_new_place(path: Path, tmp_path: Path) -> None:
    with Queue(path, file_size=1 << 16) as q:
        q.append_batch([b"a", b"b"])
        assert q._log is not None
        with q._log.locked():
            copy(path, tmp_path / "copy")
            how, before, after = run("open_and_append", tmp_path / "copy")
        assert float(how.split()[-1]) < 5.0
        assert (before, after) == ("a b", "a b more")
        with Queue(tmp_path / "copy", read_only=True) as reader:
            assert [m.payload for m in reader.tailer()] == [b"a", b"b", b"more"]


def test_control_page_that_is_older_than_the_data_is_not_believed(path: Path, tmp_path: Path) -> None:
    """A directory is copied file by file, while it is written: what counts is what the data files hold."""
    with Queue(path, file_size=1 << 16) as q:
        q.append(b"a")
        (tmp_path / "copy").mkdir()
        shutil.copy2(path / ".lock", tmp_path / "copy" / ".lock")
        q.append_batch([b"b", b"c"])
        for child in path.iterdir():
            if child.name != ".lock":
                copy(child, tmp_path / "copy")
    _, before, after = run("open_and_append", tmp_path / "copy")
    assert (before, after) == ("a b c", "a b c more")


def test_rebooted_directory_opens_though_its_page_says_locked(path: Path) -> None:
    """After a power cut the page on disk may hold a mutex that some process of another boot had locked, and an end that is
    older than the data."""
    with Queue(path, file_size=1 << 16) as q:
        q.append(b"a")
        assert q._log is not None
        with q._log.locked():
            page = (path / ".lock").read_bytes()
        q.append_batch([b"b", b"c"])
        if not SLOW:
            assert any(page[layout.LOCK : layout.LOCK + 4]), "the mutex was not locked"
        names = {p: p.read_bytes() for p in path.rglob("*.data")}
    for name, data in names.items():
        name.write_bytes(data)  # as they were before the clean close
    with (path / ".lock").open("r+b") as lock:  # the same inode
        lock.write(page)
    how, before, after = run("open_and_append", path, "another boot")
    assert how.startswith("new boot")
    assert float(how.split()[-1]) < 5.0
    assert (before, after) == ("a b c", "a b c more")


def test_rebooted_directory_is_read_without_being_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(path, file_size=1 << 16) as q:
        q.append_batch([b"a", b"b"])
        copy(path, path.with_name("cut"))
    monkeypatch.setattr(files, "boot_id", lambda: b"another boot    ")
    before = {p: p.read_bytes() for p in path.with_name("cut").rglob("*") if p.is_file()}
    with Queue(path.with_name("cut"), read_only=True) as reader:
        assert [m.payload for m in reader.tailer()] == [b"a", b"b"]
    assert {p: p.read_bytes() for p in path.with_name("cut").rglob("*") if p.is_file()} == before


def _other_kinds() -> list[dict[str, str]]:
    if SLOW:
        return [{"PENSTOCK_KERNEL": "native", "PENSTOCK_PORTABLE": "0"}]
    return [{"PENSTOCK_PORTABLE": "1"}, {"PENSTOCK_KERNEL": "reference"}]


@pytest.mark.parametrize("env", _other_kinds(), ids=str)
def test_process_that_locks_in_another_way_is_refused(path: Path, env: dict[str, str]) -> None:
    pytest.importorskip("penstock.kernel._native")
    with Queue(path, file_size=1 << 16) as q:
        q.append(b"a")
        (said,) = run("open_only", path, **env)
        assert said.startswith("LogBusy")
        assert "use the same kernel everywhere" in said
        q.append(b"b")
    assert run("open_only", path, **env) == ["opened"]
    with Queue(path) as q:
        assert [m.payload for m in q.tailer()] == [b"a", b"b"]


def test_tailer_at_the_start_is_not_bothered_by_a_retention_that_was_faster(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between asking for the oldest record and going there, another process may remove it."""
    with Queue(path, roll=Roll.count(2)) as q:
        for i in range(9):
            q.append(b"%d" % i)
        assert q._log is not None
        q._log.seal_finished()
        q._log.retire(min(q._log.finished().values(), key=lambda s: s.id))
        assert q.first_sequence == 2
        real: Any = Log.first_sequence
        stale = iter([1])  # as it was a moment ago
        monkeypatch.setattr(Log, "first_sequence", property(lambda log: next(stale, None) or real.fget(log)))
        with q.tailer() as tailer:
            assert tailer.position == 2
            assert [m.payload for m in tailer] == [b"%d" % i for i in range(2, 9)]


def test_processes_that_lock_alike_share_a_queue(path: Path) -> None:
    with Queue(path, file_size=1 << 16):
        assert run("open_only", path) == ["opened"]


def test_file_headers_name_the_sequences_in_order(path: Path) -> None:
    """Sequences are not in the frames, they are counted: each file's base is where the one before it ended."""
    Queue(path, file_size=1 << 16, index_interval=16).close()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(started("write", path, i, 900)) for i in range(2)]
        for process in writers:
            assert heard(process) == "ready"
            go(process)
        for process in writers:
            ended(process)
    expected = 0
    for name in sorted(path.rglob("*.data")):
        data = name.read_bytes()
        assert struct.unpack_from("<8sIIQ", data)[3] == expected
        expected += kernel.scan(fmt.SPEC, data, fmt.HEADER_BYTES, len(data)).count
    with Queue(path) as q:
        assert q.next_sequence == expected


def test_writing_the_manifest_anew_keeps_what_another_process_added_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one rolls right before each time that this one takes the lock."""
    options = {"file_size": 8192, "roll": Roll.count(1)}
    with Queue(path, **options) as one, Queue(path, **options) as other:  # type: ignore[arg-type]
        log = one._log
        assert log is not None
        assert one._janitor is not None
        one._janitor.stop()  # it would take the lock too
        for i in range(3):
            one.append(b"%d" % i)
        real = log.locked

        def locked() -> Any:
            other.append(b"of the other")
            return real()

        log.manifest._edits = 1 << 20  # long enough to be written anew
        monkeypatch.setattr(log, "locked", locked)
        log.seal_finished()
        monkeypatch.undo()
        assert log.manifest._edits < 1 << 20
        count = one.next_sequence
        for q in (one, other):
            assert [m.sequence for m in q.tailer()] == list(range(count))
    with Queue(path, verify_on_startup=True) as q:
        assert q.recovery.clean
        assert [m.sequence for m in q.tailer()] == list(range(count))


APPEND = """
import sys
from penstock import LogBusy, Queue
try:
    with Queue(sys.argv[1]) as q:
        print(q.append(b"from another container"))
except LogBusy as busy:
    print(busy)
"""


def in_another_container(path: Path) -> str:
    """What a process says that numbers processes in its own way, as in a container of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", APPEND, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"needs root: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_has_other_numbers_for_threads_shares_no_mutex(path: Path) -> None:
    """Two containers with one volume: a mutex would be let go by the death of a thread that only has its owner's number."""
    with Queue(path) as q:
        q.append(b"here")
        said = in_another_container(path)
        if files.PORTABLE or not kernel.ROBUST:
            assert said == "1"
        else:
            assert "another PID namespace" in said
            assert "PENSTOCK_PORTABLE=1" in said
            assert q.append(b"still here") == 1
    assert in_another_container(path) == "2"  # when nobody else has it open


def test_temporary_names_are_not_those_of_another_container(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """There a process may have the same number, and its threads, too: one would write to a file that the other has put in its place."""
    here = files.temporary(path)
    assert files.temporary(path) == here
    files._number_of.cache_clear()  # what a process of the same number would begin with
    assert files.temporary(path) != here
