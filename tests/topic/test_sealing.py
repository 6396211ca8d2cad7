"""Finished segments are sealed in the background, some at a time; what is not on the disk by then is put there first."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from penstock import Retention, Topics
from penstock.storage import files
from tests.support import until

SEGMENT = 4096
MESSAGE = bytes(4000)


def sealed(logs: Topics) -> list[int]:
    log = logs.topic("a")._part(0).log
    return sorted(s.id for s in log.finished().values() if s.sealed)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that Python code has put on the disk."""
    names: list[str] = []
    real = files.sync

    def sync(fd: int) -> None:
        real(fd)
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    if not Path("/proc/self/fd").exists():
        pytest.skip("which file it is can be seen only where the system tells")
    monkeypatch.setattr(files, "sync", sync)
    return names


@pytest.mark.parametrize("flush", ["fsync", "none"])
def test_eight_at_a_time(tmp_path: Path, synced: list[str], flush: Literal["fsync", "none"]) -> None:
    with Topics(tmp_path, segment_bytes=SEGMENT, flush=flush) as logs:
        t = logs.topic("a")
        for _ in range(8):
            t.publish(MESSAGE).wait()
        assert sealed(logs) == []
        synced.clear()
        t.publish(MESSAGE).wait()
        until(lambda: sealed(logs) == list(range(8)), "they are sealed")
        companions = [f"partition_0_segment_{i}.log.time" for i in range(8)]
        assert [name for name in synced if name.endswith(".time")] == companions
        # The batches' own syncs are the kernel's; where there were none, sealing must do it.
        data = [name for name in synced if name.endswith(".log")]
        assert data == ([] if flush == "fsync" else [f"partition_0_segment_{i}.log" for i in range(8)])


def test_one_at_a_time_where_they_are_to_go(tmp_path: Path) -> None:
    with Topics(tmp_path, segment_bytes=SEGMENT, retention=Retention(max_bytes=1 << 30)) as logs:
        t = logs.topic("a")
        for _ in range(3):
            t.publish(MESSAGE).wait()
        until(lambda: sealed(logs) == [0, 1], "they are sealed")


def test_the_rest_at_the_close(tmp_path: Path) -> None:
    with Topics(tmp_path, segment_bytes=SEGMENT) as logs:
        for _ in range(4):
            logs.topic("a").publish(MESSAGE).wait()
    with Topics(tmp_path, read_only=True) as logs:
        assert sealed(logs) == [0, 1, 2]
