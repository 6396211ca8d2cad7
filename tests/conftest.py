"""Fixtures for every test. The suite runs three times: native kernel, reference kernel, and native without futex, robust
mutex and fallocate (PENSTOCK_PORTABLE=1); see the Makefile.
"""

from pathlib import Path

import pytest

# Their asserts are to say as much as those of the tests.
pytest.register_assert_rewrite(
    "tests.support",
    "tests.queue.crash",
    "tests.queue.dying",
    "tests.channel_crash.story",
    "tests.channel_crash.wreck",
    "tests.topic.conftest",
    "tests.topic_crash.wreck",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's log goes: not there yet."""
    return tmp_path / "log"
