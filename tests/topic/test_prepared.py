"""Files of a topic's next segment are made before they are needed: what a roll would wait for is done in the background."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Topics
from tests.support import until

SEGMENT = 4096
MESSAGE = bytes(1000)
SUFFIXES = ("", ".index", ".time")


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*.next"))


def expected(segment: int) -> list[str]:
    return sorted(f"partition_0_segment_{segment}.log{suffix}.next" for suffix in SUFFIXES)


def test_from_the_first_roll_on_the_next_files_are_there_before_they_are_needed(tmp_path: Path) -> None:
    with Topics(tmp_path, segment_bytes=SEGMENT) as logs:
        t = logs.topic("a")
        t.publish(MESSAGE).wait()
        assert names(tmp_path) == []  # most partitions never roll
        for _ in range(4):
            t.publish(MESSAGE).wait()
        until(lambda: names(tmp_path) == expected(2), "the next files are made")
        inodes = {
            suffix: (tmp_path / "a" / f"partition_0_segment_2.log{suffix}.next").stat().st_ino for suffix in SUFFIXES
        }
        for _ in range(4):
            t.publish(MESSAGE).wait()
        for suffix, inode in inodes.items():
            assert (tmp_path / "a" / f"partition_0_segment_2.log{suffix}").stat().st_ino == inode
        until(lambda: names(tmp_path) == expected(3), "and those after them")
    assert names(tmp_path) == []
    with Topics(tmp_path) as logs:
        assert [m.payload for m in logs.topic("a").read(0, 0, 100)] == [MESSAGE] * 9


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_lies_in_prepared_files_does_not_count(tmp_path: Path, suffix: str) -> None:
    """A process that died when it was about to take them has left its words in them."""
    with Topics(tmp_path, segment_bytes=SEGMENT) as logs:
        t = logs.topic("a")
        for _ in range(5):
            t.publish(MESSAGE).wait()
        until(lambda: names(tmp_path) == expected(2), "the next files are made")
        (tmp_path / "a" / f"partition_0_segment_2.log{suffix}.next").write_bytes(b"\xff" * 5000)
        for _ in range(7):
            t.publish(MESSAGE).wait()
        assert [m.offset for m in t.read(0, 0, 100)] == list(range(12))
    with Topics(tmp_path, read_only=True) as logs:
        assert [m.offset for m in logs.topic("a").read(0, 0, 100)] == list(range(12))


def test_where_some_of_them_are_missing_a_roll_makes_its_own(tmp_path: Path) -> None:
    with Topics(tmp_path, segment_bytes=SEGMENT) as logs:
        t = logs.topic("a")
        for _ in range(5):
            t.publish(MESSAGE).wait()
        until(lambda: names(tmp_path) == expected(2), "the next files are made")
        (tmp_path / "a" / "partition_0_segment_2.log.time.next").unlink()
        for _ in range(7):
            t.publish(MESSAGE).wait()
        assert [m.offset for m in t.read(0, 0, 100)] == list(range(12))
    assert names(tmp_path) == []
