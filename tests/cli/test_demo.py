"""`penstock demo` passes on what it is given. What it then does is tested in tests/demo."""

from collections.abc import Callable

from typer.testing import Result


def test_its_help_is_the_demos(run: Callable[..., Result]) -> None:
    told = run("demo", "--help")
    assert told.exit_code == 0
    assert "--records N" in told.output


def test_wrong_use(run: Callable[..., Result]) -> None:
    assert run("demo", "--records", "5").exit_code == 2
