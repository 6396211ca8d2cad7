"""Looks at logs again and again while the process that writes them opens and closes them, rolls, compresses, removes, and is killed.

    python -m tests.looking.campaign --kills 200

Nothing is wrong with such a log at any moment, so nothing may be found: whoever verifies it, asks what it holds, reads it, or puts it
on the disk, sees it as it is. That a record was removed before it was read may be told, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Channel, Journal, LogNotFound, Queue, RecordGone, Retention, Topics
from penstock.inspect import find, logs
from penstock.inspect.facts import look
from penstock.inspect.rows import Rows
from penstock.verify import verify
from tests.support import until
from tests.torture_table import Row, add, again

LIVES_S = (0.02, 0.1, 0.4)  # a log is open for one of these
KILLED_AFTER_S = (0.2, 1.0)
_LAST = 100


class Broken(Exception):
    """Something was told of a log that is not so."""


# ---- what is looked at ----


def _payload(i: int) -> bytes:
    return b"%050d" % i


def _queue(path: Path, until_s: float, i: int, rng: random.Random) -> int:
    with Queue(path, file_size=65536, index_interval=8, retention=Retention(max_bytes=400_000)) as q:
        while time.monotonic() < until_s:
            i = q.append_batch([_payload(n) for n in range(i, i + 20)])[-1] + 1
    return i


def _channel(path: Path, until_s: float, i: int, rng: random.Random) -> int:
    with Channel[bytes](path, segment_bytes=20_000, compression=rng.choice(("zstd", "gzip", "snappy"))) as ch:
        tx, rx = ch.tx(), ch.rx("reader")
        while time.monotonic() < until_s:
            tx.send(_payload(i))
            i += 1
            if rng.random() < 0.9:  # what it lags behind is compressed
                rx.try_recv()
    return i


def _topic(path: Path, until_s: float, i: int, rng: random.Random) -> int:
    with Topics(path, segment_bytes=30_000, linger_s=0.001, retention=Retention(max_bytes=200_000)) as topics:
        topic = topics.topic("orders", partitions=2)
        while time.monotonic() < until_s:
            topic.publish_many([_payload(n) for n in range(i, i + 50)]).wait()
            i += 50
    return i


def _journal(path: Path, until_s: float, i: int, rng: random.Random) -> int:
    with Journal(path) as journal:
        for _ in journal.recovered():
            pass
        while time.monotonic() < until_s:
            journal.append_many([_payload(n) for n in range(i, i + 300)]).result()
            i += 300
            journal.checkpoint().result()
            if rng.random() < 0.5:
                journal.check().result()
    return i


WRITERS: dict[str, Callable[[Path, float, int, random.Random], int]] = {
    "queue": _queue,
    "channel": _channel,
    "topic": _topic,
    "journal": _journal,
}


def _write(use: str, path: Path, seed: str) -> None:
    """Until this process is killed."""
    rng, i = random.Random(seed), 0
    while True:
        i = WRITERS[use](path, time.monotonic() + rng.choice(LIVES_S), i, rng)


# ---- who looks ----


def _verifies(path: Path) -> int:
    report = verify(path, deep=True)
    if report.findings:
        raise Broken(f"verify: {'; '.join(map(str, report.findings[:3]))}")
    return report.records


def _asks(path: Path) -> int:
    for facts in look(path):
        if told := [problem for problem in facts.problems if "did not close it" not in problem]:
            raise Broken(f"info: {'; '.join(told)}")
    return 0


def _syncs(path: Path) -> int:
    for found in logs(path, durable=True):
        if found.error:
            raise Broken(f"durable: {found.error}")
    return 0


def _reads(path: Path, last: int | None = None) -> int:
    before: dict[int, int] = {}
    count = 0
    with Rows(find(path), last=last) as rows:
        for row in rows.now():
            if row.offset <= before.get(row.part.partition, -1):
                raise Broken(f"offset {row.offset} comes after {before[row.part.partition]}")
            if row.payload != _payload(int(row.payload)):
                raise Broken(f"offset {row.offset} is {row.payload!r}")
            before[row.part.partition] = row.offset
            count += 1
    return count


def _reads_the_last(path: Path) -> int:
    return _reads(path, _LAST)


LOOKS = (_verifies, _asks, _syncs, _reads, _reads_the_last)


@dataclass
class Result:
    """What a campaign did."""

    kills: int = 0
    looks: int = 0
    records: int = 0
    failures: list[str] = field(default_factory=list)


def campaign(use: str, path: Path, kills: int, seed: int) -> Result:
    """Kill the writer of one log so many times, and look at it all the time."""
    result, rng = Result(), random.Random(f"{use} {seed}")
    while result.kills < kills and not result.failures:
        writer = _started(use, path, f"{use} {seed} {result.kills}")
        try:
            until(lambda: _is_made(path), "it is made")
            until_s = time.monotonic() + rng.uniform(*KILLED_AFTER_S)
            while time.monotonic() < until_s and not result.failures:
                _look_once(path, rng.choice(LOOKS), result)
        finally:
            os.kill(writer, signal.SIGKILL)
            _, status = os.waitpid(writer, 0)
        if not os.WIFSIGNALED(status):
            result.failures.append(f"the writer ended by itself: {os.waitstatus_to_exitcode(status)}, see above")
        for one in LOOKS:  # what it left
            _look_once(path, one, result)
        result.kills += 1
    return result


def _look_once(path: Path, one: Callable[[Path], int], result: Result) -> None:
    try:
        result.records += one(path)
        result.looks += 1
    except RecordGone:
        result.looks += 1
    except Exception as error:
        if "no data files here" in str(error) and not any(path.rglob("*.journal")):
            return  # all were walked over, and it was killed before it had made the first of the next session
        result.failures.append(traceback.format_exc())


def _is_made(path: Path) -> bool:
    """Whether there are records; before that it is rightly told that there is no log, or no file of it."""
    with suppress(LogNotFound):
        return all(part.look(lambda view: view.end) for part in find(path))
    return False


def _started(use: str, path: Path, seed: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _write(use, path, seed)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.looking.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="of the writers of all logs together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--use", choices=WRITERS, help="this one alone")
    a = parser.parse_args()
    print(f"seed {a.seed}, {a.kills} kills", flush=True)
    uses = [a.use] if a.use else list(WRITERS)
    for use in uses:
        top = Path(tempfile.mkdtemp(prefix="looking"))
        result = campaign(use, top / use, -(-a.kills // len(uses)), a.seed)
        print(f"{use:8} {result.kills} kills, {result.looks} looks, {result.records} records", flush=True)
        add(Row(use, "looked at while killed", result.looks, len(result.failures), result.records))
        if result.failures:
            kills = -(-a.kills // len(uses))
            print("\n".join(result.failures), f"\n{top} is kept")
            print(again("tests.looking.campaign", use=use, kills=kills, seed=a.seed))
            return 1
        shutil.rmtree(top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
