"""Fixtures for every test. The suite runs three times: native kernel, reference kernel, and native without futex, robust
mutex and fallocate (PENSTOCK_PORTABLE=1); see the Makefile.
"""

import errno
import os
import random
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import core

from penstock.storage.janitor import Janitor
from tests.torture_table import forced

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


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Hypothesis takes a seed that is known, another in each run: a failure can then say it."""
    if core.global_force_seed is None:  # else it was given: --hypothesis-seed
        core.global_force_seed = int(os.environ.get("PENSTOCK_SEED", random.getrandbits(32)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share a Spark session come first, so that of several processes one runs them all (what another has not come to yet is taken from
    the end): each would start a Java and workers of its own."""
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What hypothesis found comes with the command that finds it again."""
    report = yield
    if report.failed and call.excinfo and any("hypothesis" in entry.path.parts for entry in call.excinfo.traceback):
        command = f"{forced()}python -m pytest -n 0 '{item.nodeid}' --hypothesis-seed={core.global_force_seed}"
        report.sections.append(("again with", command))
    return report


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Ctrl-C is ignored by jobs in the background, and where a test before this one has left it so; processes that a test starts would
    inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def good_descriptors() -> Iterator[None]:
    """The background of a log goes on after an error, and tries again; but a bad descriptor is a mistake of ours: another thread has closed
    it, and its number may be another file's by then."""
    turn, bad = Janitor._turn, list[OSError]()

    def looked_at(self: Janitor) -> None:
        try:
            turn(self)
        except OSError as error:
            if error.errno == errno.EBADF and threading.current_thread() is self:
                bad.append(error)
            raise

    with mock.patch.object(Janitor, "_turn", looked_at):
        yield
    if bad:
        raise bad[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's log goes: not there yet."""
    return tmp_path / "log"
