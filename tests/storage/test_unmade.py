"""A log whose process died over making it is an empty log, to whoever looks; one that has lost its files is not."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Channel, Journal, Queue
from penstock.appending import appending
from penstock.errors import LogNotFound, NotALog
from penstock.inspect import FormatName, View, find
from penstock.inspect.facts import look
from penstock.inspect.rows import Row, Rows
from penstock.storage import files, metadata
from penstock.verify import verify
from tests.queue.dying import Countdown, Zygote, die, open_zygote

FORMATS: tuple[FormatName, ...] = ("queue", "channel", "journal", "topic")


def make_and_die(path: str, format: FormatName, at: int) -> None:
    """Make a log, and die at the so-many-th call that changes a file; say so if it was made."""
    countdown = Countdown(at)
    countdown.lay()
    countdown.begin()
    with _made(path, format):
        (Path(path).parent / "through").touch()
        die()


def _made(path: str, format: FormatName) -> Queue | Channel[bytes] | Journal:
    """With files that are soon looked through."""
    if format == "journal":
        return Journal(path)
    return Queue(path, file_size=64 << 10) if format == "queue" else Channel[bytes](path, segment_bytes=64 << 10)


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(make_and_die) as made:
        yield made


def unmade(path: Path, format: FormatName) -> Path:
    """As it is when its settings were written."""
    with appending(path, format):
        pass
    settings = (path / metadata.FILE).read_bytes()
    shutil.rmtree(path)
    path.mkdir()
    (path / metadata.FILE).write_bytes(settings)
    return path


def payloads(path: Path) -> list[bytes]:
    with Rows(find(path)) as rows:
        return [row.payload for row in rows.now()]


@pytest.mark.parametrize("format", ["queue", "channel", "journal"])
def test_a_death_at_any_call_over_making_a_log_leaves_an_empty_one(
    tmp_path: Path, dies: Zygote, format: FormatName
) -> None:
    begun = 0
    for at in itertools.count(1):
        path = tmp_path / str(at) / "log"
        path.parent.mkdir()
        dies(path, format, at)
        if (path.parent / "through").exists():
            break
        if not (path / metadata.FILE).exists():
            continue  # nothing that anybody would look for
        begun += 1
        assert payloads(path) == []
        assert verify(path, deep=True).findings == ()
        assert [facts.problems for facts in look(path)] == [()]
    assert begun > 3


@pytest.mark.parametrize("format", FORMATS)
def test_whoever_follows_it_has_what_is_appended_when_it_is_made(tmp_path: Path, format: FormatName) -> None:
    path = unmade(tmp_path / "log", format)
    with Rows(find(path)) as rows:
        assert list(rows.now()) == []
        with appending(path) as append:
            append([b"first", b"second"])
        found = list[Row]()
        for some in rows.follow():
            found += some
            if len(found) == 2:
                break
    assert [(row.offset, row.payload) for row in found][-1][1] == b"second"


@pytest.mark.parametrize("format", FORMATS)
def test_it_ends_at_its_beginning(tmp_path: Path, format: FormatName) -> None:
    (part,) = find(unmade(tmp_path / "log", format))

    def ends(view: View) -> tuple[int, int, int]:
        return view.first, view.durable_end(), view.end_offset if format == "channel" else 0

    assert part.look(ends) == (0, 0, 0)


def all_but(*names: str) -> Callable[[Path], None]:
    def take_away(path: Path) -> None:
        for child in path.iterdir():
            if child.name not in (metadata.FILE, *names):
                shutil.rmtree(child) if child.is_dir() else child.unlink()

    return take_away


@pytest.mark.parametrize(
    ("format", "left"),
    [
        ("queue", (".lock",)),
        ("queue", ("manifest",)),
        ("queue", ("cursors",)),
        ("channel", ("offset",)),
        ("channel", (".lock", "offset", ".writer")),
        ("journal", (".lock",)),
        ("journal", ("0.journal.time", ".writer")),
    ],
)
def test_a_log_that_has_lost_its_records_is_no_empty_one(
    tmp_path: Path, format: FormatName, left: tuple[str, ...]
) -> None:
    path = tmp_path / "log"
    with appending(path, format) as append:
        append([b"first"])
    (path / "cursors").mkdir(exist_ok=True)
    (path / "cursors" / "reader").touch()
    all_but(*left)(path)
    assert any((path / name).exists() for name in left)
    with pytest.raises((LogNotFound, NotALog)):
        payloads(path)
    assert verify(path).findings


def test_a_journal_whose_earlier_session_has_lost_its_files_is_no_empty_one(tmp_path: Path) -> None:
    path = unmade(tmp_path / "log", "journal")
    (path / ".lock").touch()
    (path / "recovery" / "0").mkdir(parents=True)
    (path / "recovery" / "0" / "manifest").touch()
    with pytest.raises((LogNotFound, NotALog)):
        payloads(path)
    assert verify(path).findings


def test_one_that_another_process_is_just_making(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to be right after a look that did not find it."""
    real = files.is_directory

    def look(there: Path) -> bool:
        found = real(there)
        path.mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(files, "is_directory", look)
    with Queue(path) as q:
        assert q.append(b"some") == 0
