"""examples/pipeline with Spark's own command: two runs, the second over what is new, each with the right exit status."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock import extras
from tests.support import ROOT

EXAMPLE = ROOT / "examples" / "pipeline"


@pytest.fixture
def example(tmp_path: Path) -> ModuleType:
    """A copy of the example that keeps everything in this test's directory."""
    copy = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        settings = (copy / name).read_text()
        assert "/tmp/penstock-pipeline" in settings
        (copy / name).write_text(settings.replace("/tmp/penstock-pipeline", str(tmp_path / "work")))
    spec = importlib.util.spec_from_file_location("pipeline_example", copy / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_and_runs_again(example: ModuleType, tmp_path: Path) -> None:
    missing = [module for module in example.NEEDED if not example.is_there(module)]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    for records in ("1,500", "3,000"):
        ran = subprocess.run(
            [sys.executable, str(example.HERE / "run.py")],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=140,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"has {records} records" in ran.stdout
        assert "180 bars, all equal" in ran.stdout


def test_a_missing_package_is_named(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yaml" else there("json"))
    assert example.main() == 2
    assert capsys.readouterr().err == f"spark-pipelines needs yaml: {extras.install('pipelines')}\n"


def test_a_run_that_fails_is_not_a_success(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml", reason="the extra `pipelines` is not installed")
    monkeypatch.setattr(example, "is_there", lambda module: True)
    monkeypatch.setattr(example, "run_pipeline", lambda: 3)
    assert example.main() == 1
    assert "ended with status 3" in capsys.readouterr().err
    monkeypatch.setattr(example, "run_pipeline", lambda: 0)
    monkeypatch.setattr(example, "read_bars", lambda table: {})
    assert example.main() == 1
    assert "180 bars differ" in capsys.readouterr().err
