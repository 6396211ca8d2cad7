"""What the tests of topics share."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import Topic, Topics, TopicTailer, kernel
from penstock.kernel import layout
from penstock.storage import files
from penstock.topic.partition import OpenPartition
from tests.support import ROOT

SLOW = kernel.NAME == "reference" or files.PORTABLE
AT_ONCE_S = 0.3  # what waits looks by itself after a second: faster than that, it was woken
FOREVER_S = 3600.0  # a linger: only what asks for a batch gets it written


def open_topics(path: Path, **options: Any) -> Topics:
    """Topics that write as soon as there is something."""
    return Topics(path, **{"linger_s": 0.0, **options})


def payload(i: int) -> bytes:
    """A message that no other is like; they are of different lengths, and some are empty."""
    return b"%d." % i * (1 + i * 7 % 11) if i % 13 else b""


def part_of(topic: Topic, partition: int = 0) -> OpenPartition:
    return topic._here(partition)


def segment(path: Path, partition: int, number: int) -> Path:
    """The file of a segment, in the directory of its topic."""
    return path / f"partition_{partition}_segment_{number}.log"


def segments(path: Path, partition: int = 0) -> list[Path]:
    """The files of a partition, oldest first."""
    found = path.glob(f"partition_{partition}_segment_*.log")
    return sorted(found, key=lambda p: int(p.stem.split("_")[-1]))


def parse(data: bytes) -> list[bytes]:
    """What anybody reads a file with."""
    out = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        assert len(data) >= 4 + size
        out.append(data[4 : 4 + size])
        data = data[4 + size :]
    return out


def on_disk(path: Path, partition: int = 0) -> list[bytes]:
    """All messages of a partition, by the files alone."""
    return [message for file in segments(path, partition) for message in parse(file.read_bytes())]


def messages(topic: Topic, partition: int = 0) -> list[bytes]:
    """All messages of a partition, by reading it; their offsets are checked."""
    first = topic.stats()[partition].first_offset
    found = topic.read(partition, first, 1 << 30)
    assert [m.offset for m in found] == list(range(first, topic.ends()[partition]))
    assert {m.partition for m in found} <= {partition}
    return [m.payload for m in found]


def batches(path: Path, number: int = 0, partition: int = 0) -> list[int]:
    """How many messages each batch of a segment has, as its companion says."""
    times = segment(path, partition, number).with_suffix(".log.time").read_bytes()[64:]
    out, count = [], 0
    for us, _ in struct.iter_unpack("<qQ", times):
        assert us
        count += 1
        if us > 0:
            out.append(count)
            count = 0
    assert count == 0
    return out


@contextmanager
def held_up(topic: Topic, partition: int = 0) -> Iterator[None]:
    """The lock of a partition is somebody else's: nothing is written, as if a sync took for ever."""
    control = part_of(topic, partition).log.control
    assert control is not None
    with control.page:
        yield


def asleep(topic: Topic, partition: int = 0) -> bool:
    """Whether some reader sleeps. Where sleepers only look now and then this cannot be told, and need not."""
    control = part_of(topic, partition).log.control
    assert control is not None
    return SLOW or bool(control.page.load(layout.WAITERS) & 0xFFFFFFFF)


def drained(tailer: TopicTailer) -> dict[int, list[bytes]]:
    """All that a tailer gives up to the end, by partition."""
    out: dict[int, list[bytes]] = {}
    for message in tailer:
        out.setdefault(message.partition, []).append(message.payload)
    return out


class Ran(threading.Thread):
    """A function in a thread of its own; what it returned or raised is had by `result`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._out: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._out = self._function()
        except BaseException as error:
            self._error = error

    def result(self, seconds: float = 60.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error
        return self._out


class Other:
    """Another process with a topic open as `t`, and `logs`. It does what it is told, a line at a time, and can be killed."""

    _CODE = """
import sys, time, os
import penstock
from penstock import *
logs = Topics(sys.argv[1], **eval(sys.argv[2]))
t = logs.topic("t")
names = globals()
print("open", flush=True)
for line in sys.stdin:
    try:
        try:
            code = compile(eval(line), "<told>", "eval")
        except SyntaxError:
            exec(eval(line), names)
            print("None", flush=True)
        else:
            print(repr(eval(code, names)), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
logs.close()
"""

    def __init__(self, path: Path, **options: Any) -> None:
        told = {"linger_s": 0.0, **options}
        command = [sys.executable, "-W", "error", "-c", self._CODE, str(path), repr(told)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "open"

    def tell(self, code: str) -> None:
        """Have it do something, without waiting for it."""
        assert self.process.stdin is not None
        print(repr(code), file=self.process.stdin, flush=True)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, code: str) -> str:
        """What an expression (or statements) gives there, or the name of the error."""
        self.tell(code)
        return self.answer()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.communicate(timeout=60)

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait(60) == 0
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
