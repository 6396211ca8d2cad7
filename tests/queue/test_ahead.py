"""The native kernel's thread that works ahead of a writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Flush, Queue
from penstock.kernel import NAME
from penstock.storage import files

TASKS = Path("/proc/self/task")

pytestmark = pytest.mark.skipif(not TASKS.is_dir(), reason="needs /proc, to count threads")


def test_whoever_appends_little_starts_no_thread_in_the_kernel(path: Path) -> None:
    works_ahead = NAME == "native" and not files.PORTABLE
    with Queue(path, flush=Flush.none()) as queue:
        before = set(TASKS.iterdir())
        queue.append(bytes(1000))
        assert set(TASKS.iterdir()) <= before
        queue.append_batch([bytes(1000)] * 100)
        started = set(TASKS.iterdir()) - before
        assert len(started) == works_ahead
    assert not started & set(TASKS.iterdir())
