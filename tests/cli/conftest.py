"""Commands, called as a shell would call them, in one process with one Spark session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("typer", reason="pip install 'penstock[cli]'")

from typer.testing import CliRunner, Result

from tests.spark.conftest import spark as spark


@pytest.fixture
def run() -> Callable[..., Result]:
    from penstock.cli.app import app

    def call(*args: object) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return call
