"""What `make sanitize` runs. The runs themselves take minutes."""

from __future__ import annotations

import tomllib

import pytest

from tests import sanitize


@pytest.mark.parametrize(("given", "run"), [([], ["address", "thread"]), (["--only", "thread"], ["thread"])])
def test_all_sanitizers_or_one(monkeypatch: pytest.MonkeyPatch, given: list[str], run: list[str]) -> None:
    ran: list[str] = []
    monkeypatch.setattr(sanitize, "sanitize", lambda name: ran.append(name) or True)
    assert sanitize.main(given) == 0
    assert ran == run


def test_what_the_kernel_is_built_with_is_there() -> None:
    """It is built in the checkout's own environment, so that its flags are ours."""
    project = tomllib.loads((sanitize.ROOT / "pyproject.toml").read_text())
    assert set(project["build-system"]["requires"]) <= set(project["project"]["optional-dependencies"]["dev"])
