"""A copy of a queue that was made while it was written, by the lines that docs/operating.md gives: an exact prefix, batches whole, with
everything that was appended before the copy began. And copies of closed logs, which are the same logs elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Channel, CorruptRecord, Journal, NotALog, Queue, Retention, Roll, Topics
from penstock.repair import apply
from penstock.retaining import retain
from tests.support import until

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
COPIES = 2

# Batches of all sizes, some of them longer than a file, each record with its number, its batch's first and that one's size.
WRITE = """
import itertools, struct, sys
from penstock import Queue, Retention
q = Queue(sys.argv[1], file_size=1 << 18, retention=Retention(max_bytes=4 << 20))
first = 0
for size in itertools.cycle([1, 2, 60, 1, 7, 600, 40]):
    q.append_batch([struct.pack("<QQQ", first + i, first, size) + bytes(i * 7 % 1200) for i in range(size)])
    first += size
    q.sync()
    print(first, flush=True)
"""


def lines_of_the_page() -> str:
    """The block that makes a copy."""
    blocks = re.findall(r"```sh\n(.*?)```", OPERATING.read_text(), re.DOTALL)
    (block,) = (b for b in blocks if "mkdir copy" in b)
    return block


def run(lines: str, top: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-eu", "-c", lines], cwd=top, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """The directory above `orders`, which another process writes without a pause."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path / "orders")], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < 5_000:
            pass
        try:
            yield tmp_path
            assert writer.poll() is None, "the writer was disturbed"
        finally:
            writer.kill()


def sequences(q: Queue) -> range:
    """Those of all records, each found to be what was appended as that, and the last one to end its batch."""
    found = [(m.sequence, *struct.unpack_from("<QQQ", m.payload)) for m in q.tailer()]
    assert all(sequence == number for sequence, number, _, _ in found)
    last, _, first, size = found[-1]
    assert last == first + size - 1, "a part of a batch"
    assert [f[0] for f in found] == list(range(found[0][0], last + 1))
    return range(found[0][0], last + 1)


def test_a_copy_of_a_live_queue_is_a_prefix_with_all_that_was_appended_before(live: Path) -> None:
    for _ in range(COPIES):
        with Queue(live / "orders", read_only=True) as q:
            next_ = q.next_sequence
        run(lines_of_the_page(), live)
        with Queue(live / "copy", read_only=True) as q:
            seen = sequences(q)
        with Queue(live / "copy", verify_on_startup=True) as q:
            assert sequences(q) == seen, "opened to read only it ended elsewhere"
            assert seen.stop >= next_
            assert not q.recovery.damage
            assert q.cursors() == {}
            assert q.append(b"next") == seen.stop
        with Queue(live / "copy", verify_on_startup=True) as q:
            assert q.recovery.clean
        shutil.rmtree(live / "copy")


def test_a_copy_in_the_wrong_order_is_told(live: Path) -> None:
    """What says how far the log goes comes last: it then speaks of records that the copy has not. They are named, not left out."""
    lines = lines_of_the_page().splitlines(keepends=True)
    small = next(line for line in lines if line.startswith("cp -p .lock"))
    large = next(line for line in lines if line.startswith("find [0-9]*"))
    swapped = "".join({small: large, large: small}.get(line, line) for line in lines)

    def told() -> bool:
        shutil.rmtree(live / "copy", ignore_errors=True)
        run(swapped, live)
        try:
            with Queue(live / "copy", read_only=True) as q:
                sequences(q)
        except (CorruptRecord, NotALog):  # damage, or the last file is missing
            return True
        return False

    until(told, "a copy that claims more than it has")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A directory with `orders`, in ten large files with holes, and `copy`; retention ran while the copy was made. And what was appended."""
    top = tmp_path_factory.mktemp("copied")
    small = next(line for line in lines_of_the_page().splitlines() if line.startswith("cp -p .lock"))
    payloads = [b"%d" % i for i in range(100)]
    with Queue(top / "orders", file_size=64 << 20, roll=Roll.count(10)) as q:
        for payload in payloads:
            q.append(payload)
        run(lines_of_the_page().replace(small, f"{small}\npenstock retain . --max-bytes 1"), top)
    return top, payloads


def test_retention_waits_for_a_copy_and_not_for_longer(copied: tuple[Path, list[bytes]]) -> None:
    top, payloads = copied
    with Queue(top / "copy") as q:
        assert [m.payload for m in q.tailer()] == payloads
    with Queue(top / "orders") as q:
        assert q.first_sequence == 0
        retain(top / "orders", Retention(max_bytes=1))
        assert q.first_sequence == 90


def test_a_copy_keeps_holes(copied: tuple[Path, list[bytes]]) -> None:
    taken = [sum(f.stat().st_blocks * 512 for f in (copied[0] / name).rglob("*.data")) for name in ("orders", "copy")]
    assert taken[1] <= taken[0] + (1 << 20), "a file took its whole length"


@pytest.mark.parametrize("format", ["queue", "channel", "journal", "topic"])
def test_a_copy_of_a_closed_log_is_the_same_log(tmp_path: Path, format: str) -> None:
    payloads = [b"%d" % i for i in range(100)]
    log, copy = tmp_path / "log", tmp_path / "elsewhere" / "log"
    for top, written in ((log, True), (copy, False)):
        if not written:
            shutil.copytree(log, copy)
        if format == "queue":
            with Queue(top, file_size=8192) as q:
                if written:
                    q.append_batch(payloads)
                assert [m.payload for m in q.tailer()] == payloads
                assert q.recovery.clean
                assert not written or q.tailer("reader", at=7)
                assert q.cursors() == {"reader": 7}
        elif format == "channel":
            with Channel[bytes](top) as ch, ch.rx("reader") as rx:
                if written:
                    ch.tx().send_many(payloads)
                    assert rx.recv_many(7) == payloads[:7]
                else:
                    assert rx.recv_many(100) == payloads[7:]
        elif format == "journal":
            with Journal(top) as j:
                found = [record.payload for record in j.recovered()]
                assert found == ([] if written else payloads)
                if written:
                    j.append_many(payloads).result()
        else:
            with Topics(top, linger_s=0) as topics:
                orders = topics.topic("orders", partitions=1)
                if written:
                    orders.publish_many(payloads).wait()
                assert [m.payload for m in orders.read(0, 0, 200)] == payloads


def test_a_copy_of_a_repaired_queue_knows_what_is_lost(tmp_path: Path) -> None:
    """Its list of losses comes along; and a ledger, if there is one."""
    with Queue(tmp_path / "orders", file_size=8192) as q:
        q.append_batch([b"order %03d" % i for i in range(60)])
    (data,) = (tmp_path / "orders").rglob("*.data")
    with data.open("r+b") as file:
        file.seek(data.read_bytes().index(b"order 040"))
        file.write(b"X")
    assert apply(tmp_path / "orders").left == ()
    (tmp_path / "orders" / "ledger").write_bytes(b"as it is")
    with Queue(tmp_path / "orders") as q:
        q.append(b"one more")
        run(lines_of_the_page(), tmp_path)
    with Queue(tmp_path / "copy") as q:
        assert [m.sequence for m in q.tailer()] == [i for i in range(61) if i != 40]
    assert (tmp_path / "copy" / "ledger").read_bytes() == b"as it is"
