"""`penstock top`: rates and lags, on a screen and as one frame."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from penstock import Queue
from penstock.cli.frame import frame
from penstock.inspect.facts import look
from penstock.inspect.pace import paces
from tests.cli.conftest import FORMATS, Live, Terminal, piped

Run = Callable[..., Result]


def test_rates_are_what_changed(path: Path) -> None:
    with Queue(path) as q:
        q.append_batch([b"x" * 100] * 1000)
        tailer = q.tailer("billing")
        before = look(path)
        q.append_batch([b"x" * 100] * 500)
        tailer.read_batch(200)
        tailer.commit()
        [pace] = paces(before, look(path), 2.0)
    assert pace.records_s == 250
    assert pace.bytes_s == pytest.approx(250 * 112, rel=0.05)
    assert [(one.reader.name, one.records_s, one.reader.lag) for one in pace.readers] == [("billing", 100, 1300)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60)])
def test_a_frame_fits_the_screen(path: Path, width: int, height: int) -> None:
    with Queue(path) as q:
        q.append_batch([b"x"] * 1000)
        for i in range(40):
            q.tailer(f"reader-of-some-name-{i}")
        found = look(path)
    out = StringIO()
    Console(file=out, width=width).print(frame(paces(found, found, 1.0), width, height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert (" lines more" in lines[-1]) == (height < 43)


def test_something_wrong_is_shown(path: Path) -> None:
    with Queue(path) as q:
        q.append(b"x")
        found = [replace(facts, problems=("a sync failed",)) for facts in look(path)]
    out = StringIO()
    Console(file=out, width=100).print(frame(paces(found, found, 1.0), 100))
    assert "a sync failed" in out.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_one_frame_beside_a_live_writer(run: Run, live: Live, format: str) -> None:
    stop = threading.Event()

    def keep_appending() -> None:
        while not stop.wait(0.01):
            live.append(format, "news")

    appender = threading.Thread(target=keep_appending)
    appender.start()
    try:
        told = run("top", live.path(format), "--json")
    finally:
        stop.set()
        appender.join()
    assert told.exit_code == 0, told.output
    assert sum(log["append_records_s"] for log in json.loads(told.stdout)["logs"]) > 1


def test_a_pipe_has_one_frame(live: Live) -> None:
    told = piped("top", live.path("queue"), live.path("topic"))
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"3 logs" in told.stdout
    assert b"\x1b" not in told.stdout


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_a_screen_that_ends_by_a_key(live: Live, terminal: Callable[..., Terminal], key: str) -> None:
    live.append("queue", "x")
    shown = terminal("top", live.path("queue"), "--interval", "0.1")
    shown.until("records/s")
    assert "\x1b[?1049h" in shown.shown  # a screen of its own
    frames = shown.shown.count("1 log")
    live.append("queue", "y")
    while shown.shown.count("1 log") < frames + 3:
        shown._read(0.5)
    shown.type(key)
    assert shown.ended() == 0
    assert "\x1b[?1049l" in shown.shown
    assert "\x1b[2J" not in shown.shown.split("1 log", 1)[1]  # it is written over, not wiped: no flicker
    assert "Traceback" not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.shown)


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    assert run("top", tmp_path / "nothing").exit_code == 2
    assert run("top").exit_code == 2
    assert "Example: penstock top " in run("top", "--help").stdout
