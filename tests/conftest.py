"""Fixtures for every test. The suite runs three times: native kernel, reference kernel, and native without futex, robust
mutex and fallocate (PENSTOCK_PORTABLE=1); see the Makefile.
"""

from pathlib import Path

import pytest

# Their asserts are to say as much as those of the tests.
pytest.register_assert_rewrite("tests.support", "tests.queue.crash", "tests.queue.dying")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's log goes: not there yet."""
    return tmp_path / "log"


SPARK = ("spark", "cli", "demo")  # directories of tests that start Spark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests on Spark in one process, which has one session, and first: they are the longest row."""
    root = Path(__file__).parent
    on_spark = [item for item in items if item.path.relative_to(root).parts[0] in SPARK]
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    chosen = set(map(id, on_spark))
    items[:] = on_spark + [item for item in items if id(item) not in chosen]
