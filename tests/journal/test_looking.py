"""Looking at a journal while it is opened, which moves its files, and forgets them when they have been walked over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Journal, RecoveryUnfinished
from penstock.inspect import Part, View, find, logs
from penstock.inspect.rows import Rows
from penstock.storage import sessions
from penstock.storage.holder import Holder
from penstock.storage.reader import OnCorrupt
from penstock.verify import check, look, report, verify

RECORDS = [b"%06d" % i for i in range(2000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with one session."""
    with Journal(tmp_path / "journal") as j:
        j.append_many(RECORDS).result()
    return tmp_path / "journal"


def open_anew(path: Path) -> None:
    with pytest.warns(RecoveryUnfinished):
        Journal(path).close()


def forget(path: Path) -> None:
    """Walk over it to the end."""
    with Journal(path) as j:
        assert sum(1 for _ in j.recovered()) == len(RECORDS)


def part_of(path: Path) -> Part:
    (part,) = find(path)
    return part


def payloads(view: View) -> list[bytes]:
    with Rows([view.part]) as rows:
        return [row.payload for row in rows.now()]


def test_it_is_looked_into_again(path: Path) -> None:
    seen = []

    def into(view: View) -> list[str]:
        if not seen:
            open_anew(path)
        seen.append([Path(segment.directory).name for segment in view.segments()])
        return seen[-1]

    assert part_of(path).look(into) == ["0", "journal"]
    assert len(seen) == 2


def test_it_is_looked_into_again_after_an_error(path: Path) -> None:
    tried = []

    def into(view: View) -> int:
        tried.append(view)
        if len(tried) == 1:
            open_anew(path)
            raise FileNotFoundError("moved")
        if len(tried) == 2:
            return view.end
        raise AssertionError

    assert part_of(path).look(into) > len(RECORDS)


def test_an_error_that_no_move_explains_is_told(path: Path) -> None:
    def into(view: View) -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        part_of(path).look(into)


@pytest.mark.parametrize("move", [open_anew, forget])
def test_a_move_while_a_view_opens_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None]
) -> None:
    open_anew(path)  # so that there are two to open
    real, opened = View._open, 0

    def late(view: View, fmt: Any, top: Path) -> Any:
        nonlocal opened
        opened += 1
        if opened == 2:
            move(path)
        return real(view, fmt, top)

    monkeypatch.setattr(View, "_open", late)
    with part_of(path).open() as view:
        assert not view.moved
        assert payloads(view) == (RECORDS if move is open_anew else [])
    assert opened > 2


def test_a_move_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as somebody is at it; what a crash has left is looked at as it is."""
    target = path / "recovery" / "0"
    target.mkdir(parents=True)
    for name in ("0.journal", "0.journal.time", "manifest"):
        (path / name).rename(target / name)
    cut_short = sessions.stand(path)
    assert cut_short[0] == (str(target), None)

    holder, waited = Holder(path, "journal"), []

    def finish(seconds: float) -> None:
        waited.append(seconds)
        (path / ".lock").rename(target / ".lock")

    monkeypatch.setattr(sessions.time, "sleep", finish)
    try:
        stand = sessions.stand(path)
    finally:
        holder.close()
    assert len(waited) == 1
    assert stand[0][1] is not None
    assert stand[1] == (str(path), None)


class Clock:
    """Time goes on by sleeping alone."""

    def __init__(self) -> None:
        self.began = self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("changed_s", "waited_s"), [(0, 5), (-4, 1), (-10, 0), (100, 5)])
def test_one_that_is_stopped_over_a_move_is_waited_for_once(
    path: Path, changed_s: float, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds after its last step; also where the clock was set back since."""
    target, clock = path / "recovery" / "0", Clock()
    target.mkdir(parents=True)
    os.utime(target, (clock.now + changed_s,) * 2)
    monkeypatch.setattr(sessions, "time", clock)
    holder = Holder(path, "journal")
    try:
        for _ in range(3):
            assert sessions.stand(path)[0][1] is None
            if changed_s <= 0:
                assert clock.now - clock.began == pytest.approx(waited_s, abs=0.01)
    finally:
        holder.close()
    assert waited_s - 0.01 < clock.now - clock.began < 3 * waited_s + 0.01


def test_a_segment_is_found_where_it_is_now(path: Path) -> None:
    (found,) = logs(path)
    open_anew(path)
    (segment,) = found.segments
    assert len(segment.read().data) == segment.end
    assert segment.times().us(0) > 0
    forget(path)
    assert segment.read().header_error


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    with Journal(tmp_path / "journal") as j:
        for i in range(0, len(RECORDS), 200):
            j.append_many([record + bytes(10_000) for record in RECORDS[i : i + 200]]).result()
    assert len(list((tmp_path / "journal").glob("*.journal"))) > 3
    return tmp_path / "journal"


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_rows_are_read_on_from_where_they_are_now(many_files: Path, on_corrupt: OnCorrupt) -> None:
    with Rows([part_of(many_files)], on_corrupt=on_corrupt) as rows:
        found: Iterator[Any] = rows.now()
        first = [next(found).payload[:6] for _ in range(3)]
        open_anew(many_files)
        assert [*first, *(row.payload[:6] for row in found)] == RECORDS
        assert rows.losses == {}


def test_what_was_forgotten_is_no_finding(path: Path) -> None:
    seen = look(path)
    forget(path)
    checked = [check(segment) for segment in seen[0].segments]
    assert any(one.findings for one in checked)
    assert report(path, seen, checked).findings == ()
    assert verify(path).findings == ()
