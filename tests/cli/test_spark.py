"""`penstock spark …`: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import Result

from penstock import extras
from tests.spark.conftest import read, values, write
from tests.spark.test_jobs_mend import plain_channel
from tests.spark.test_jobs_verify import flip, segments

Run = Callable[..., Result]
SENT = [b"%05d" % i * 5 for i in range(3000)]


def test_verify(spark: SparkSession, run: Run, path: Path) -> None:
    write(path, "queue", SENT)
    good = run("spark", "verify", path)
    assert good.exit_code == 0, good.output
    assert "3,000 records" in good.stdout
    assert "all good" in good.stdout
    seg = segments(path)[0].read()
    flip(seg.paths.data, seg.start + 6)
    bad = run("spark", "verify", path)
    assert bad.exit_code == 1
    assert "its checksum does not match" in bad.stdout
    assert str(seg.paths.data) in bad.stdout.replace("\n", "")
    told = run("spark", "verify", path, "--json")
    assert told.exit_code == 1
    report = json.loads(told.stdout)
    assert report["damaged"]
    assert report["findings"][0]["first"] == 0


def test_archive(spark: SparkSession, run: Run, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    done = run("spark", "archive", path, tmp_path / "archive", "--drop", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["logs"][0]["dropped_below"] == report["logs"][0]["droppable_below"] == report["rows"] > 0
    again = run("spark", "archive", path, tmp_path / "archive")
    assert again.exit_code == 0
    assert "now: 0 segments" in again.stdout


def test_stats(spark: SparkSession, run: Run, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    done = run("spark", "stats", path, "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "3,000 records" in done.stdout
    assert (tmp_path / "page.html").read_text().count("<svg") == 2
    assert run("spark", "stats", path, "--html", tmp_path / "no" / "page.html").exit_code == 1
    assert json.loads(run("spark", "stats", path, "--json").stdout)["logs"][0]["records"] == 3000


def test_replay_and_convert(spark: SparkSession, run: Run, path: Path, tmp_path: Path) -> None:
    write(path, "queue", SENT)
    times = ("--since", "2001-01-01", "--until", "2099-01-01T00:00:00")
    done = run("spark", "replay", path, tmp_path / "again", "--start", 5, "--end", 25, "--to", "channel", *times)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("20 records from ")
    assert len(values(read(spark, tmp_path / "again"))) == 20
    done = run("spark", "convert", tmp_path / "again", tmp_path / "topics", "--to", "topic", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["logs"][0]["records"] == 20
    assert run("spark", "convert", path, path, "--to", "topic").exit_code == 2
    assert run("spark", "convert", path, tmp_path / "x", "--to", "journal").exit_code == 2


def test_compress_and_reindex(spark: SparkSession, run: Run, path: Path) -> None:
    plain_channel(path)
    done = run("spark", "compress", path)
    assert done.exit_code == 0, done.output
    assert " became " in done.stdout
    segments(path)[0].paths().index.unlink()
    done = run("spark", "reindex", path)
    assert done.exit_code == 0, done.output
    assert "1 file made anew" in done.stdout
    assert run("spark", "compress", path, "--method", "rar").exit_code == 2


def test_wrong_use_is_told_in_one_line(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    missing = run("spark", "verify", tmp_path / "nothing")
    assert missing.exit_code == 2
    assert missing.stderr == f"penstock: {tmp_path / 'nothing'}: no such directory\n"
    assert missing.stdout == ""
    assert run("spark", "verify").exit_code == 2
    assert run("spark", "verify", tmp_path, "--fast").exit_code == 2
    assert run("spork").exit_code == 2


COMMANDS = ["verify", "stats", "archive", "replay", "convert", "compress", "reindex"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Run, command: str) -> None:
    told = run("spark", command, "--help")
    assert told.exit_code == 0
    assert f"Example: penstock spark {command} " in " ".join(told.stdout.split())


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    done = python(f"import sys; sys.modules['{missing}'] = None; import penstock.cli; penstock.cli.main()")
    assert done.returncode == 1
    assert done.stderr == f"penstock: the command line needs {missing}: {extras.install('cli')}\n"


def test_without_spark_it_says_what_to_install(path: Path) -> None:
    hide = "import sys; sys.modules['pyspark'] = None"
    done = python(f"{hide}; sys.argv = ['penstock', 'spark', 'verify', 'x']; import penstock.cli; penstock.cli.main()")
    assert done.returncode == 1
    assert done.stderr == f"penstock: this needs pyspark: {extras.install('spark')}\n"
