"""The demo as a user runs it: producers, Spark, a kill, the proof; and what it says when it cannot be run."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import extras
from penstock.demo import check, command, main, run
from penstock.demo.children import Child
from penstock.demo.screen import Screen
from penstock.demo.words import told
from tests.demo.results import result

Run = tuple[run.Result, str]
# As `python -m penstock.demo`, with fewer micro-batches: each takes Spark a second or two, however few records it has.
FEWER = "import sys; from penstock.demo import command, run; run._BATCHES = 4; sys.exit(command.main())"


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="the extra `spark` is not installed")
def test_every_record_comes_through_a_killed_driver_exactly_once(tmp_path: Path) -> None:
    top = tmp_path / "work"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", FEWER, "--records", "6000", "--dir", str(top)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    if "Spark needs Java" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"driver \d+ killed with SIGKILL; done by then: bars [\d,]*[1-9]", ran.stdout)
    proved(ran.stdout)
    assert f"report: {top / 'report.html'}" in ran.stdout
    assert "The proof holds" in (top / "report.html").read_text()
    assert not (top / "scratch").exists()
    assert "\x1b" not in ran.stdout  # no terminal, no live line


def proved(out: str) -> None:
    """The proof of 6,000 records, as it is printed."""
    assert "the proof holds: every record exactly once" in out
    rows = re.findall(r"^(\w[\w ]+?) +([\d,]+) +([\d,]+) +0 +0 +0$", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["records in the queue", "orders in bars", "bars", "alerts", "dead letters"]
    assert all(expected == there for _, expected, there in rows)
    assert rows[0][1] == "6,001"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Run]:
    """Runs the demo with a driver that has these lives, one after the other."""
    monkeypatch.setattr(run, "_MINUTE_S", 0.0)
    monkeypatch.setattr(
        run, "Child", lambda module, *rest: Child(module.replace("penstock.demo.pipeline", "tests.demo.driver"), *rest)
    )
    monkeypatch.setattr(check, "read_found", lambda places: None)
    monkeypatch.setattr(check, "prove", lambda *_: result(tmp_path).proof)

    def lives(*how: str) -> Run:
        (tmp_path / "lives").write_text("\n".join(how))
        out = io.StringIO()
        return run.run(Screen(out), records=1000, directory=tmp_path / "work"), out.getvalue()

    return lives


def test_a_driver_that_ends_unasked_is_started_again(driver: Callable[..., Run]) -> None:
    """Whatever it was at. What the next one is to hear it is told, too."""
    made, out = driver("is killed", "fails", "fails at the end", "ends")
    assert len(re.findall(r"driver \d+ ended unasked; .+driver.log tells why", out)) == 2
    assert len(re.findall(r"driver \d+ starts from the checkpoints", out)) == 3
    assert made.watch.restarts == 2
    assert any(re.fullmatch(r"drivers that ended unasked, .+ 2", line) for line in told(made))


def test_but_not_for_ever(driver: Callable[..., Run]) -> None:
    with pytest.raises(run.DemoFailed, match="Task not serializable"):
        driver("is killed", *["fails"] * 9)


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Spark were there, and had nothing to do."""
    monkeypatch.setattr(command, "_check_spark", lambda: None)


def test_the_exit_status_is_that_of_the_proof(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = result(tmp_path)
    monkeypatch.setattr(command, "run", lambda screen, **_: made)
    assert main([]) == 0
    assert "the proof holds" in capsys.readouterr().out
    made = replace(made, proof=replace(made.proof, tallies=(replace(made.proof.tallies[0], duplicates=1),)))
    (tmp_path / "orders").mkdir()
    assert main(["--remove"]) == 1
    assert "THE PROOF DOES NOT HOLD" in capsys.readouterr().out
    assert (tmp_path / "orders").exists()  # to look for the reason


def test_remove_leaves_the_report_alone(without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = result(tmp_path)
    monkeypatch.setattr(command, "run", lambda screen, **_: made)
    (tmp_path / "orders").mkdir()
    (tmp_path / "driver.log").touch()
    assert main(["--remove"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_directory_with_something_in_it_is_refused(
    without_spark: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert main(["--dir", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--dir", str(tmp_path)]) == 2
    assert extras.install("spark") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_fails_is_told_of_with_its_last_words(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyspark.py").write_text("raise ImportError('no such luck')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(broken), os.environ.get("PYTHONPATH", "")]))
    assert main(["--dir", str(tmp_path / "work")]) == 2
    told = capsys.readouterr().err
    assert "pipeline" in told
    assert "no such luck" in told


@pytest.mark.parametrize("records", ["0", "999", "-5", "many"])
def test_too_few_records_are_refused(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--records", records])
    assert ended.value.code == 2
    assert "--records" in capsys.readouterr().err


def test_help_says_what_it_does_and_what_the_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for word in ("SIGKILL", "exit status: 0", "--seed", "--dir", "--remove", "examples:"):
        assert word in told


def test_a_pipe_gets_plain_lines_now_and_then() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for i in range(100):
        screen.progress(f"at {i}")
    screen.line("done")
    assert out.getvalue() == "at 0\ndone\n"


def test_a_terminal_gets_one_line_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    main_end, end = os.openpty()
    with os.fdopen(end, "w") as out, os.fdopen(main_end, "rb", buffering=0) as seen:
        screen = Screen(out)
        screen.progress("at 1")
        screen.line("done")
        told = b""
        while not told.endswith(b"\n"):  # a terminal hands on what it was given bit by bit
            told += seen.read(1000) or b""
    assert told == b"at 1\r\x1b[2Kdone\r\n"
