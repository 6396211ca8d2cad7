"""Publishers that sync beside some that do not, on one partition: what is durable holds for all before it, whoever wrote that.

What the kernel syncs is not seen here, only what Python code does: the segments that somebody has left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import SyncFailed, Topic
from penstock.storage import files, growing
from penstock.storage.bulk import Part, append
from penstock.testing.crashes import power_cuts
from penstock.testing.recording import recorded
from tests.topic.conftest import messages, open_topics, part_of

SEGMENT = 256
MESSAGE = b"x" * 200  # one to a segment


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the finished segments that were put on the disk for one who syncs, in that order."""
    numbers: list[int] = []
    real = growing.sync

    def sync(top: Path, fmt: growing.Format, segment: int) -> None:
        real(top, fmt, segment)
        numbers.append(segment)

    monkeypatch.setattr(growing, "sync", sync)
    return numbers


@pytest.fixture
def two(tmp_path: Path, synced: list[int]) -> Iterator[tuple[Topic, Topic]]:
    """One topic, opened without syncs and with them. The second stands on the first segment already."""
    with (
        open_topics(tmp_path, segment_bytes=SEGMENT, flush="none") as fast,
        open_topics(tmp_path, segment_bytes=SEGMENT, flush="fsync") as safe,
    ):
        safe.topic("t").publish(b"first").wait()
        yield fast.topic("t"), safe.topic("t")


def test_what_others_rolled_is_on_the_disk_before_the_mark_passes_it(
    two: tuple[Topic, Topic], synced: list[int]
) -> None:
    fast, safe = two
    for _ in range(4):
        fast.publish(MESSAGE).wait()
    assert fast.stats()[0].durable_offset == 1
    assert synced == []
    safe.publish(b"y").wait()
    assert safe.stats()[0].durable_offset == 6
    assert synced == [0, 1, 2]


def test_the_same_where_the_one_who_syncs_rolls(two: tuple[Topic, Topic], synced: list[int]) -> None:
    fast, safe = two
    fast.publish(b"z" * 40).wait()  # in the segment that the other one stands on
    safe.publish(MESSAGE).wait()
    assert synced == [0]
    for _ in range(3):
        safe.publish(MESSAGE).wait()
    assert synced == [0], "what it synced itself it does not sync again"


def test_frames_that_were_encoded_elsewhere(two: tuple[Topic, Topic], synced: list[int]) -> None:
    fast, _ = two
    for _ in range(2):
        fast.publish(MESSAGE).wait()
    frame = len(MESSAGE).to_bytes(4, "big") + MESSAGE
    append(part_of(fast).log, [Part(frame)], lambda batch: None)
    assert fast.stats()[0].durable_offset == 4
    assert synced == [0, 1]


def test_one_who_syncs_alone_syncs_nothing_twice(tmp_path: Path, synced: list[int]) -> None:
    with open_topics(tmp_path, segment_bytes=SEGMENT) as logs:
        for _ in range(5):
            logs.topic("t").publish(MESSAGE).wait()
    assert synced == []


def test_a_failed_sync_of_what_others_wrote_fails_the_promise(
    two: tuple[Topic, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, safe = two
    for _ in range(2):
        fast.publish(MESSAGE).wait()

    def sync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(files, "sync", sync)
        with pytest.raises(SyncFailed):
            safe.publish(b"y").wait()
    assert fast.stats()[0].durable_offset == 1
    with pytest.raises(SyncFailed):  # else its close would have to tell
        fast.flush()


# ---- what a power cut leaves ----


def cut_anywhere(top: Path, run: Callable[[Path, Callable[[int], None]], None], most: int = 200) -> int:
    """Run, cut the power in every way there is (or so many of them by chance), and hold what is left to how many messages were promised;
    how many cuts."""
    promised = [0]
    left = top / "left"
    with recorded(top / "run", lambda: promised[0]) as recording:

        def promise(count: int) -> None:
            promised[0] = count
            recording.moment("a promise")

        run(top / "run", promise)
    cuts = power_cuts(recording.moments, random.Random(1), most).all
    for cut in cuts:
        cut.lay(left)
        with open_topics(left) as logs:
            assert len(messages(logs.topic("t"))) >= cut.moment.note, str(cut)  # type: ignore[operator]
        shutil.rmtree(left)
    return len(cuts)


def test_a_power_cut_takes_nothing_from_below_a_promise(tmp_path: Path) -> None:
    def run(top: Path, promise: Callable[[int], None]) -> None:
        with (
            open_topics(top, segment_bytes=SEGMENT, flush="none") as fast,
            open_topics(top, segment_bytes=SEGMENT) as safe,
        ):
            for _ in range(3):
                fast.topic("t").publish(MESSAGE).wait()
            safe.topic("t").publish(b"y").wait()
            promise(4)

    assert cut_anywhere(tmp_path, run) > 20


def test_flush_promises_empty_messages_too(tmp_path: Path) -> None:
    def run(top: Path, promise: Callable[[int], None]) -> None:
        with open_topics(top, flush="none") as fast:
            t = fast.topic("t")
            for i, message in enumerate([b"x", b"", b"y"]):
                t.publish(message)
                t.flush()
                promise(i + 1)

    assert cut_anywhere(tmp_path, run) > 20


def test_who_syncs_puts_the_entries_of_others_on_the_disk_too(tmp_path: Path) -> None:
    """An empty message in the same segment is told from zeros by its entry alone, and who appended it did not sync that."""

    def run(top: Path, promise: Callable[[int], None]) -> None:
        with open_topics(top, flush="none") as fast, open_topics(top) as safe:
            safe.topic("t").publish(b"x").wait()
            fast.topic("t").publish(b"").wait()
            safe.topic("t").publish(b"y").wait()
            promise(3)

    assert cut_anywhere(tmp_path, run) > 20
