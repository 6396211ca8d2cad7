"""What the crash tests of topics share: a small topic as bytes, laid out again as a crash or a power cut would have left it.

Images and the two boots are those of `tests.queue.crash`. Each partition has a control page of its own.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Loss, PenstockError, Topic, Topics
from penstock.formats import topic as fmt
from penstock.storage import companion, files
from penstock.storage.janitor import Janitor
from penstock.testing.state import Boot
from penstock.topic import topics
from tests.queue.crash import NATIVE, Image
from tests.topic.conftest import FOREVER_S

SEGMENT_BYTES = 160
INTERVAL = 3
OVERHEAD = fmt.SPEC.overhead
EVERY = bool(os.environ.get("PENSTOCK_EVERY"))  # every single bit and byte; else a sample, where each costs an opening


def one_in(n: int) -> int:
    """The step of a sample; ten times as long where the kernel is slow."""
    return 1 if EVERY else n if NATIVE else 10 * n


def some_of(bits: Sequence[int], n: int, *salt: object) -> Sequence[int]:
    """One in `n` of them, others for each salt; all of them if every one is to be tried."""
    step = one_in(n)
    return bits[zlib.crc32(repr(salt).encode()) % step :: step]


def open_topics(path: Path, **options: Any) -> Topics:
    """Topics that write when they are asked to."""
    return Topics(path, **{"linger_s": FOREVER_S, "segment_bytes": SEGMENT_BYTES, **options})


def by_hand(patch: pytest.MonkeyPatch) -> None:
    """No background thread: `work` does what it would, when a test says so. And an index entry for every third message."""
    patch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
    patch.setattr(topics, "INDEX_INTERVAL", INTERVAL)


def work(t: Topic, partition: int = 0) -> None:
    """All that the background has to do for a partition."""
    janitor = t._here(partition)._janitor
    janitor.look_again()
    janitor._turn()


def data(segment: int, partition: int = 0) -> str:
    """The name of a data file in an image."""
    return f"t/partition_{partition}_segment_{segment}.log"


def last(image: Image, partition: int = 0) -> str:
    """That of the last one."""
    numbers = [place.segment for n in image if (place := fmt.parse(n[2:])) and place.partition == partition]
    return data(max(numbers), partition)


def page(partition: int = 0) -> str:
    return f"t/.partition_{partition}/.lock"


def lay(image: Image, top: Path, boot: Boot) -> Path:
    """Write the files down: as this boot's, where the control pages are exact, or as an earlier one's."""
    return image.lay(top, boot)


def everything(top: Path) -> Image:
    """All files: what a kill leaves."""
    return Image({name: (top / name).read_bytes() for name in files.walk(top)})


def frames(payloads: list[bytes]) -> list[tuple[int, int]]:
    """Where each message's frame begins and ends."""
    out, at = [], 0
    for p in payloads:
        out.append((at, at + OVERHEAD + len(p)))
        at = out[-1][1]
    return out


def entry(name: str, place: int) -> int:
    """Where a message's entry in the companion begins."""
    return companion.length(fmt.SPEC, place)


def found(t: Topic, partition: int = 0) -> tuple[dict[int, bytes], list[Loss]]:
    """All that can be read of a partition, by offset, and what could not."""
    with t.tailer(partitions=[partition], on_corrupt="skip") as tailer:
        return {m.offset: m.payload for m in tailer}, tailer.losses.get(partition, [])


def lost(losses: list[Loss]) -> set[int]:
    return {i for loss in losses for i in range(loss.first, loss.last + 1)}


def named(t: Topic, partition: int = 0) -> set[int]:
    """Which messages opening says are lost."""
    ranges = [re.search(r"sequences (\d+) to (\d+) are lost", told) for told in t.recovery(partition).damage]
    return {i for m in ranges if m for i in range(int(m[1]), int(m[2]) + 1)}


def judge(path: Path, was: list[bytes], partition: int = 0, why: object = "") -> set[int]:
    """Open what is left and go on with it: whatever can be read is what was there, at its offset; whatever cannot is named.
    Which ones are lost; all of them if the topic cannot be opened, which is told by an error of ours."""
    try:
        logs = open_topics(path)
    except PenstockError:
        return set(range(len(was)))
    with logs:
        try:
            t = logs.topic("t")
            got, losses = found(t, partition)
        except PenstockError:
            return set(range(len(was)))
        report = t.recovery(partition)
        end = t.ends()[partition]
        assert all(i < len(was) and was[i] == p for i, p in got.items()), f"invented or changed, {why}: {got}"
        gone = set(range(len(was))) - got.keys()
        told = lost(losses) | named(t, partition)
        if end < len(was):
            assert report.torn or report.damage, f"the end is {end}, and nothing says so, {why}: {report}"
            told |= set(range(end, len(was)))
        assert gone <= told, f"lost and not named, {why}: {gone - told}"
        assert lost(losses) <= gone, f"lost and there, {why}"
        more = [b"after", b"", b"that"]
        made = t.publish_many(more, partition=partition)
        t.flush()
        assert made.wait() == [range(end, end + 3)], why
        assert [m.payload for m in t.read(partition, end, 10)] == more, why
    with open_topics(path) as logs:
        t = logs.topic("t")
        again, _ = found(t, partition)
        assert again == {**got, **dict(enumerate(more, end))}, why
    return gone
