"""Fixtures for every test. The suite runs three times: native kernel, reference kernel, and native without futex, robust
mutex and fallocate (PENSTOCK_PORTABLE=1); see the Makefile.
"""

import signal
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


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Ctrl-C is ignored by jobs in the background, and where a test before this one has left it so; processes that a test starts would
    inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's log goes: not there yet."""
    return tmp_path / "log"
