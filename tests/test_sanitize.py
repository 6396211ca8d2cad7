"""What `make sanitize` runs. The runs themselves take minutes."""

from __future__ import annotations

import tomllib

import pytest

from tests import sanitize
from tests.fuzz import campaign


@pytest.mark.parametrize(("given", "run"), [([], ["address", "thread"]), (["--only", "thread"], ["thread"])])
def test_all_sanitizers_or_one(monkeypatch: pytest.MonkeyPatch, given: list[str], run: list[str]) -> None:
    ran: list[str] = []
    monkeypatch.setattr(sanitize, "sanitize", lambda name: ran.append(name) or True)
    assert sanitize.main(given) == 0
    assert ran == run


def test_the_hostile_files_are_others_each_time() -> None:
    """They are the same that a failure is tried again with: the campaign is given the seed, and takes all that it is given."""
    (run,) = (run for one in sanitize.SANITIZERS.values() for run in one.runs if campaign.__name__ in run)
    given = campaign.arguments(run[2:])
    assert (given.kills, given.seed, given.unlimited) == (350, sanitize.SEED, True)


def test_what_the_kernel_is_built_with_is_there() -> None:
    """It is built in the checkout's own environment, so that its flags are ours."""
    project = tomllib.loads((sanitize.ROOT / "pyproject.toml").read_text())
    assert set(project["build-system"]["requires"]) <= set(project["project"]["optional-dependencies"]["dev"])
