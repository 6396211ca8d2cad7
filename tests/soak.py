"""The long run: all four uses under load at once, with rolls, retention, compression, slow readers and readers that are killed.

    python -m tests.soak --minutes 30

What a process takes must not grow with the time it runs: memory, maps, descriptors, disk, and how long an append takes. Each is compared
between the first and the last third of the run, after a time to warm up; beyond the bounds below it ends with 1, and leaves its directory.
It ends so, too, if a use's files never went as they should: rolled, removed, and those of the channel compressed. Every reader checks
what it reads, those that are killed too: records come in order, from where its name or group had come to, and none is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock import Channel, Journal, Queue, Retention, Roll, Topic, TopicMessage, Topics, journal
from penstock.storage import files
from tests.support import ROOT
from tests.torture_table import again

EACH_S = 1.0  # a sample
TELL_S = 60.0
WARM_UP = 0.2  # of the run
PACE_S = 0.0005  # between appends: what is looked for grows by time and by records, not by speed
KILL_S = 3.0  # a reader lives for about so long once it reads
STALL_S = 30.0  # and has to read something in this time
MORE_MEMORY = 0.10  # may be taken in the last third, or LEAST_MEMORY_BYTES
LEAST_MEMORY_BYTES = 8 << 20
MORE_DESCRIPTORS = 4
MORE_MAPS = 24
MORE_LATENCY = {
    "p50": 1.5,
    "p99": 2.0,
}  # times that of the first third, or of what is little: what grows all the time is 2.6 times that
LITTLE_US = {"p50": 50.0, "p99": 1000.0}  # other programs run here, too
MORE_BY_SYNCS = 2.5  # times that is little where an append waits for the disk
MORE_DISK = 1.5  # times, or LEAST_DISK_BYTES: so much may be kept
LEAST_DISK_BYTES = 64 << 20
ALL_HAPPENS_S = 60.0  # in this time every use has rolled and removed files
FILES = {  # that are rolled to, and their numbers
    "queue": re.compile(r"queue/.*-(\d+)\.data"),
    "channel": re.compile(r"channel/segment\.(\d+)(?:\.z)?"),
    "journal": re.compile(r"journal/(\d+)\.journal"),
    "topic": re.compile(r"topics/t/partition_0_segment_(\d+)\.log"),
}
_BARS = "▁▂▃▄▅▆▇█"


class Broken(Exception):
    """A record that should not be there, or is not."""


# ---- what each process does ----


def payload(i: int) -> bytes:
    return b"%012d" % i + b"x" * (i * 7919 % 300)


def _number(data: bytes) -> int:
    i = int(data[:12])
    if data != payload(i):
        raise Broken(f"record {i} is not what was appended")
    return i


class Order:
    """Records come one after the other, beginning with a given one."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def take(self, data: bytes) -> None:
        i = _number(data)
        if i != self._next:
            raise Broken(f"record {i} where {self._next} should be")
        self._next = i + 1

    def end(self, end: int) -> None:
        """No more come, though there are so many."""
        if self._next != end:
            raise Broken(f"no record {self._next}, and there are {end}")


def check_group(t: Topic, messages: Iterable[TopicMessage]) -> None:
    """What a member was given, and has not committed: of each partition all that comes after what the group has committed, whoever had it
    before. (While it has a partition, nobody else commits there.)"""
    done = t.committed("group")
    orders: dict[int, Order] = {}
    for message in messages:
        orders.setdefault(message.partition, Order(done.get(message.partition, 0))).take(message.payload)


def _queue(top: Path) -> Iterator[Callable[[], object]]:
    """Rolls and retention, a reader that keeps up, one that comes now and then, and one of another process that dies."""
    kept = Retention(max_bytes=8 << 20, ignore_cursors=False)
    with Queue(top / "queue", file_size=1 << 20, roll=Roll.size(512 << 10), retention=kept) as q:
        quick, slow, orders, i = q.tailer("quick"), q.tailer("slow"), (Order(), Order()), 0
        while True:
            yield partial(q.append, payload(i))
            i += 1
            for every, tailer, order in ((50, quick, orders[0]), (5000, slow, orders[1])):
                if i % every == 0:
                    for message in tailer:
                        order.take(message.payload)
                    tailer.commit()


def _channel(top: Path) -> Iterator[Callable[[], object]]:
    """Compression, since one receiver is slow."""
    with Channel[bytes](top / "channel", segment_bytes=256 << 10, compression="zstd") as c:
        tx, quick, slow, orders, i = c.tx(), c.rx("quick", ack=True), c.rx("slow"), (Order(), Order()), 0
        while True:
            yield partial(tx.send, payload(i))
            i += 1
            if i % 50 == 0:
                for data in quick.recv_many(50):
                    orders[0].take(data)
                quick.ack(quick.unacked)
            if i % 5000 == 0:
                for data in slow.recv_many(5000):
                    orders[1].take(data)


GROUP = 100  # records of a journal between two checkpoints, which are numbered from 1


def _journal(top: Path) -> Iterator[Callable[[], object]]:
    """Groups that are retired, and a new session now and then, to which those come that were not."""
    journal.MAX_FILE_BYTES = 256 << 10  # type: ignore[misc]
    i = kept = 0
    while True:
        with Journal(top / "journal") as j:
            order = Order(kept)
            for record in j.recovered():
                order.take(record.payload)
            order.end(i)
            for _ in range(20_000):
                yield partial(_record, j, payload(i))
                i += 1
                if i % GROUP == 0:
                    j.checkpoint().result()
                while j.current - j.first_unchecked >= 5:
                    j.check().result()
            kept = GROUP * (j.first_unchecked - 1)


def _record(j: Journal, data: bytes) -> None:
    j.append(data).result()


def _publish(t: Topic, data: bytes, partition: int) -> None:
    t.publish(data, partition=partition).wait()


def _topic(top: Path) -> Iterator[Callable[[], object]]:
    """Two partitions; a group of which one member is another process, which dies."""
    kept = Retention(max_bytes=4 << 20, ignore_cursors=False)
    with Topics(top / "topics", segment_bytes=256 << 10, batch=50, linger_s=0.0, retention=kept) as logs:
        t, i = logs.topic("t", 2), 0
        tailer, orders = t.tailer("quick"), {0: Order(), 1: Order()}
        with t.group("group") as member:
            while True:
                yield partial(_publish, t, payload(i // 2), i % 2)
                i += 1
                if i % 50 == 0:
                    for message in tailer:
                        orders[message.partition].take(message.payload)
                    tailer.commit()
                    check_group(t, member.poll_many(200))
                    member.commit()


USES: dict[str, Callable[[Path], Iterator[Callable[[], object]]]] = {
    "queue": _queue,
    "channel": _channel,
    "journal": _journal,
    "topic": _topic,
}


def work(use: str, top: Path) -> None:
    """Append for ever, and say once a second how it goes."""
    samples: list[float] = []
    due = time.monotonic() + EACH_S
    for append in USES[use](top):
        began = time.perf_counter()
        append()
        samples.append((time.perf_counter() - began) * 1e6)
        if time.monotonic() >= due:
            print(json.dumps(_sample(samples, top)), flush=True)
            samples, due = [], time.monotonic() + EACH_S
        time.sleep(PACE_S)


def _sample(latencies_us: list[float], top: Path) -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    cuts = statistics.quantiles(latencies_us, n=100) if len(latencies_us) > 1 else latencies_us * 99
    return {
        "appends": len(latencies_us),
        "memory": int(status["RssAnon"].split()[0]) * 1024,
        "maps": Path("/proc/self/maps").read_text().count("\n"),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "p50": cuts[49],
        "p99": cuts[98],
    }


def read(use: str, top: Path) -> None:
    """A reader that is to be killed; it says how far it has come."""
    if use == "queue":
        with Queue(top / "queue", retention=None) as q, q.tailer("dying") as tailer:
            order = Order(tailer.position)
            for n, message in enumerate(tailer.follow()):
                order.take(message.payload)
                if n % 100 == 0:
                    tailer.commit()
                    print(n + 1, flush=True)
    with Topics(top / "topics") as logs, logs.topic("t").group("group") as member:
        n = 0
        while True:
            got = member.poll_many(50, timeout_s=None)
            check_group(logs.topic("t"), got)
            member.commit()
            n += len(got)
            print(n, flush=True)


# ---- what is made of it ----


@dataclass
class Series:
    """The samples of one use."""

    samples: list[dict[str, float]] = field(default_factory=list)

    def thirds(self, what: str) -> tuple[float, float]:
        """The median of the first third and of the last, after the time to warm up."""
        values = [sample[what] for sample in self.samples[int(len(self.samples) * WARM_UP) :]]
        third = max(1, len(values) // 3)
        return statistics.median(values[:third]), statistics.median(values[-third:])


@dataclass
class Result:
    """What was measured of each use, how much disk there was in use, and what is beyond the bounds."""

    uses: dict[str, Series]
    disk: Series
    killed: int = 0  # readers
    read: int = 0  # records, by them
    failures: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # files

    @property
    def records(self) -> int:
        return int(sum(sample["appends"] for series in self.uses.values() for sample in series.samples))


def judge(result: Result) -> None:
    """Name what grew."""
    for use, series in result.uses.items():
        if len(series.samples) < 6:
            result.failures.append(f"{use}: {len(series.samples)} samples are too few to say anything")
            continue
        first, last = series.thirds("memory")
        if last - first > max(LEAST_MEMORY_BYTES, MORE_MEMORY * first):
            result.failures.append(f"{use}: memory grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB")
        first, last = series.thirds("descriptors")
        if last - first > MORE_DESCRIPTORS:
            result.failures.append(f"{use}: descriptors grew from {first:.0f} to {last:.0f}")
        first, last = series.thirds("maps")
        if last - first > MORE_MAPS:
            result.failures.append(f"{use}: maps grew from {first:.0f} to {last:.0f}")
        for what, times in MORE_LATENCY.items():
            first, last = series.thirds(what)
            little = LITTLE_US[what] * (MORE_BY_SYNCS if use in ("journal", "topic") else 1)
            if last > times * max(first, little):
                result.failures.append(f"{use}: {what} of an append went from {first:.0f} to {last:.0f} us")
    if len(result.disk.samples) >= 6:
        first, last = result.disk.thirds("bytes")
        if last > max(MORE_DISK * first, LEAST_DISK_BYTES):
            result.failures.append(f"disk: grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB")


def judge_files(result: Result, left: set[str]) -> None:
    """Name the uses whose files did not go as they should: a run in which they stay proves nothing of that."""
    for use, named in FILES.items():
        came, stays = ({int(m[1]) for name in some if (m := named.fullmatch(name))} for some in (result.seen, left))
        if len(came) < 3:
            result.failures.append(f"{use}: never rolled; there were files {sorted(came)}")
        elif came <= stays:
            result.failures.append(f"{use}: nothing was ever removed, of {len(came)} files")
    if not any(name.endswith(".z") for name in result.seen):
        result.failures.append("channel: nothing was ever compressed")


def plot(values: Sequence[float], width: int = 60) -> str:
    """The course of some values as a line of bars, the lowest of them at the bottom."""
    if not values:
        return ""
    step = max(1, len(values) // width)
    means = [statistics.fmean(values[i : i + step]) for i in range(0, len(values), step)]
    low, high = min(means), max(means)
    return "".join(_BARS[int((v - low) / (high - low) * (len(_BARS) - 1)) if high > low else 0] for v in means)


def report(result: Result) -> str:
    lines = [f"{'':10}{'appends':>10}{'memory MB':>16}{'descriptors':>14}{'p50 us':>14}{'p99 us':>16}"]
    for use, series in result.uses.items():
        pairs = (
            {what: series.thirds(what) for what in ("memory", "descriptors", "p50", "p99")} if series.samples else {}
        )
        total = sum(sample["appends"] for sample in series.samples)
        cells = [
            _pair(pairs.get("memory"), 1e6, 1),
            _pair(pairs.get("descriptors"), 1, 0),
            _pair(pairs.get("p50"), 1, 0),
            _pair(pairs.get("p99"), 1, 0),
        ]
        lines.append(f"{use:10}{total:>10.0f}{cells[0]:>16}{cells[1]:>14}{cells[2]:>14}{cells[3]:>16}")
    if result.disk.samples:
        lines.append(f"{'disk':10}{'':10}{_pair(result.disk.thirds('bytes'), 1e6, 1):>16}")
    for use, series in result.uses.items():
        for what in ("memory", "p99"):
            lines.append(f"{use:8} {what:7} {plot([sample[what] for sample in series.samples])}")
    return "\n".join(lines)


def progress(result: Result) -> str:
    """How it goes, in a line."""
    took = (
        f"{use} {series.samples[-1]['memory'] / 1e6:.0f} MB, {series.samples[-1]['p99']:.0f} us"
        for use, series in result.uses.items()
        if series.samples
    )
    return f"{result.records:,} appends, {result.killed} readers killed after {result.read:,} records; memory and p99 of {'; '.join(took)}"


def _pair(values: tuple[float, float] | None, unit: float, digits: int) -> str:
    return "" if values is None else f"{values[0] / unit:.{digits}f} -> {values[1] / unit:.{digits}f}"


def _disk_bytes(top: Path, seen: set[str]) -> int:
    total = 0
    for name in files.walk(top):
        seen.add(name)
        with suppress(FileNotFoundError):  # retention was here
            total += (top / name).stat().st_blocks * 512
    return total


class _Process(ABC):
    """One process, and the thread that takes what it says."""

    def __init__(self, what: str, use: str, top: Path) -> None:
        self.use = use
        command = [sys.executable, "-m", "tests.soak", "--role", what, use, str(top)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @abstractmethod
    def _take(self, line: str) -> None: ...

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # else it was killed over it
                self._take(line)

    def end(self) -> str:
        """What it says of its own death, if it died."""
        died = self.process.poll() is not None
        self.process.kill()
        self._thread.join()
        assert self.process.stderr is not None
        told = self.process.stderr.read()
        self.process.wait()
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return f"{self.use}: {self} ended by itself\n{told[-3000:]}" if died else ""


class _Worker(_Process):
    """One use's process."""

    def __init__(self, use: str, top: Path) -> None:
        self.series = Series()
        super().__init__("work", use, top)

    def __str__(self) -> str:
        return "its process"

    def _take(self, line: str) -> None:
        self.series.samples.append(json.loads(line))


class _Reader(_Process):
    """A reader, to be killed so long after it has read something."""

    def __init__(self, use: str, top: Path, lives_s: float) -> None:
        self.read = 0
        self._dies_s = time.monotonic() + STALL_S
        self._lives_s = lives_s
        super().__init__("read", use, top)

    def __str__(self) -> str:
        return "a reader"

    def _take(self, line: str) -> None:
        if not self.read:
            self._dies_s = time.monotonic() + self._lives_s
        self.read = int(line)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._dies_s or self.process.poll() is not None

    def end(self) -> str:
        return super().end() or ("" if self.read else f"{self.use}: a reader has read nothing in {STALL_S:g} s")


def soak(top: Path, seconds: float, seed: int = 1, tell: Callable[[str], None] = lambda line: None) -> Result:
    """Run for so long; now and then it is told how it goes."""
    dice = random.Random(seed)
    workers = [_Worker(use, top) for use in USES]
    result = Result({worker.use: worker.series for worker in workers}, Series())
    readers: dict[str, _Reader] = {}
    began = told = time.monotonic()
    try:
        while time.monotonic() < began + seconds and not result.failures:
            if any(worker.process.poll() is not None for worker in workers):
                break
            time.sleep(EACH_S)
            result.disk.samples.append({"bytes": _disk_bytes(top, result.seen)})
            if time.monotonic() >= told + TELL_S:
                told = time.monotonic()
                tell(f"{(told - began) / 60:.0f} of {seconds / 60:g} min: {progress(result)}")
            if not all(worker.series.samples for worker in workers):
                continue  # there is nothing to be read yet
            for use in ("queue", "topic"):
                reader = readers.get(use)
                if reader is not None and reader.is_due:
                    _count(result, readers.pop(use))
                if use not in readers:
                    readers[use] = _Reader(use, top, dice.uniform(0.3, 2) * KILL_S)
    finally:
        for reader in readers.values():
            if reader.is_due:
                _count(result, reader)
            else:
                reader.end()
        result.failures += [told for worker in workers if (told := worker.end())]
    judge(result)
    if seconds >= ALL_HAPPENS_S and not result.failures:
        judge_files(result, set(files.walk(top)))
    return result


def _count(result: Result, reader: _Reader) -> None:
    """One that is killed in time is what should be; any other is a failure."""
    if told := reader.end():
        result.failures.append(told)
    else:
        result.killed += 1
        result.read += reader.read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of how long readers live")
    parser.add_argument("--base", type=Path, help="where to work (a new directory under /tmp)")
    parser.add_argument("--role", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.role:
        {"work": work, "read": read}[a.role[0]](a.role[1], Path(a.role[2]))
    top = a.base or Path(tempfile.mkdtemp(prefix="soak"))
    print(f"all four uses for {a.minutes:g} min, in {top}; the table comes at the end", flush=True)
    result = soak(top, 60 * a.minutes, a.seed, tell=partial(print, flush=True))
    print(report(result))
    killed = f"{result.killed} readers killed after {result.read:,} records"
    print(f"{result.records:,} appends, {killed}, {len(result.failures)} failures")
    for failure in result.failures:
        print(failure)
    if result.failures:
        print(f"{top} is left; {again('tests.soak', minutes=f'{a.minutes:g}', seed=a.seed)}")
        return 1
    shutil.rmtree(top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
