"""SIGKILL at every call that changes a file, over each thing that a journal does with files.

A process counts such calls and kills itself at the n-th, whatever thread makes it. What it leaves is judged as that of this boot,
and as if the machine had gone down right then with all of it on the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import Journal, journal
from penstock.storage import files
from penstock.storage.janitor import Janitor
from penstock.testing.standing_in import CHANGING, standing_in
from penstock.testing.state import Boot
from tests.journal import by_hand
from tests.journal_crash.campaign import strays
from tests.journal_crash.story import Life
from tests.journal_crash.wreck import EVERY, one_in, settle_pages
from tests.queue.crash import NATIVE, Yard
from tests.queue.dying import Countdown, Zygote, die, open_zygote, stand

FILE_BYTES = 200
BOOTS: list[Boot] = ["same", "new"]


# ---- what is there before ----


def filled(life: Life) -> None:
    """Five groups in some files, of which one is retired, and an open one."""
    for _ in range(5):
        life.append(30)
        life.append(5, 0, 60)
        life.register(wait=True)
    life.retire(wait=True)
    life.append(40)
    life.acknowledge(wait=True)


def closed(base: Path) -> None:
    life = Life(base)
    life.open()
    filled(life)
    life.close()


def died(base: Path) -> None:
    """As a kill leaves it, with files to be sealed and deleted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Janitor, "serve", lambda self, log: None)
        life = Life(base)
        life.open()
        filled(life)
        life.append(33)
        life.retire(wait=False)
        life.acknowledge(wait=True)
        kept = base.with_name(base.name + "-kept")
        shutil.copytree(base, kept)
        life.close()
    shutil.rmtree(base)
    kept.rename(base)
    settle_pages(base, "same")


def unfinished(base: Path) -> None:
    """Two sessions of which one was walked over in part, and a third that died."""
    closed(base)
    life = Life(base)
    life.open()
    life.walk(most=4)
    life.register(wait=True)
    life.close()
    died(base)


def foreign(base: Path) -> None:
    """What another implementation left."""
    path = base / "log"
    path.mkdir(parents=True)
    for n in range(3):
        size = 16 * (n % 2)
        records = [by_hand.data(b"%d.%d." % (0, 3 * n + i) + bytes([3 * n + i]) * 5) for i in range(3)]
        content = [by_hand.checkpoint(0, n, size=size), *records, by_hand.checkpoint(0, n + 1, size=size)]
        (path / f"{n}.journal").write_bytes(b"".join(content))
    notes = ["open 0 0 0"]
    for n in range(3):
        notes += [f"append 5 {n + 1}"] * 3 + [f"register {n + 1}", f"registered {n + 1}"]
    (base / "0.notes").write_text("\n".join([*notes, "appended 9", ""]))


def nothing(base: Path) -> None:
    base.mkdir(exist_ok=True)


# ---- what is done until the end: in a process of its own ----


def act_open(life: Life, counting: Callable[[], None]) -> None:
    counting()
    life.open()


def act_go_on(life: Life, counting: Callable[[], None]) -> None:
    """Rolls, seals and deletes, with the background at work."""
    life.open()
    life.walk(again=False)
    counting()
    for i in range(12):
        life.append(70)
        life.append(10, 20)
        life.register(wait=i % 2 == 0)
        if i > 2:
            life.retire(wait=True)
        life.acknowledge(wait=True)


def act_walk(life: Life, counting: Callable[[], None]) -> None:
    """Each record is appended again, which rolls, and the walk comes to its end."""
    life.open()
    counting()
    life.walk()
    life.register(wait=True)


def act_end(life: Life, counting: Callable[[], None]) -> None:
    """The end of the walk alone."""
    life.open()
    life.walk(most=len(life.coming) - 1)
    life.acknowledge(wait=True)
    counting()
    life.walk(again=False)
    life.append(3)
    life.acknowledge(wait=True)


def act_close(life: Life, counting: Callable[[], None]) -> None:
    life.open()
    life.walk(again=False)
    filled(life)
    counting()
    life.close()


def act_leave(life: Life, counting: Callable[[], None]) -> None:
    """Closing with the walk not finished."""
    life.open()
    life.walk(most=2)
    counting()
    life.close()


def act_register(life: Life, counting: Callable[[], None]) -> None:
    """Two checkpoints, the second one in a new file."""
    life.open()
    life.walk(again=False)
    life.append(5, 0, 60)
    life.acknowledge(wait=True)
    counting()
    life.register(wait=True)
    life.append(90)
    life.register(wait=True)


def act_retire(life: Life, counting: Callable[[], None]) -> None:
    """Some groups, and then the files that have no others."""
    life.open()
    life.walk(again=False)
    filled(life)
    counting()
    for _ in range(2):
        life.retire(wait=True)
    life.journal._janitor.look_again()
    life.journal._janitor._turn()


ACTS = {
    f.__name__.removeprefix("act_"): f
    for f in (act_open, act_go_on, act_walk, act_end, act_close, act_leave, act_register, act_retire)
}


def die_at(base: str, act: str, at: int, own: bool, there: Callable[[], object] = die) -> None:
    """`own`: also at those calls that the kernel makes by itself, over a batch, and half-way through a write. (The reference kernel, then,
    whose calls can be counted.)"""
    journal.MAX_FILE_BYTES = FILE_BYTES  # type: ignore[misc]
    warnings.simplefilter("ignore")
    counter = Countdown(at, halves=own, there=there)
    with standing_in(CHANGING, counter.wrap) if own else contextlib.nullcontext():
        if not own:
            counter.lay()
        life = Life(Path(base))
        ACTS[act](life, counter.begin)
        counter.end()
        assert life.journal is not None
        (Path(base) / "counted").write_text(str(counter.calls))
        (Path(base) / "counted").rename(Path(base) / "calls")  # at once: the background may die any moment
        die()  # it got through: it dies then


def stand_at(base: str, act: str, at: int, own: bool) -> None:
    """The same, but it stands still there, goes on when it is told to, and dies at the end."""
    die_at(base, act, at, own, stand)


# ---- the tests ----


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(die_at) as made:
        yield made


@dataclass(frozen=True)
class Case:
    before: Callable[[Path], None]
    act: str
    calls: int  # it makes at least so many; of a close, whatever the background has left to it
    own: bool = False  # and dies over those of the kernel too


CASES = {
    "making a journal": Case(nothing, "open", 20),
    "opening one that was closed": Case(closed, "open", 25),
    "opening one that died": Case(died, "open", 25),
    "opening one with sessions left": Case(unfinished, "open", 25),
    "opening another implementation's": Case(foreign, "open", 25),
    "going on": Case(closed, "go_on", 60),
    "walking": Case(unfinished, "walk", 40),
    "ending the walk": Case(unfinished, "end", 2),
    "ending the walk over another's": Case(foreign, "end", 2),
    "walking, with each batch": Case(closed, "walk", 20, own=True),
    "registering a checkpoint": Case(closed, "register", 20, own=True),
    "retiring checkpoints": Case(closed, "retire", 20, own=True),
    "closing": Case(closed, "close", 2),
    "leaving": Case(unfinished, "leave", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_death_at_any_call_loses_nothing_and_brings_nothing_back(
    yard: Yard, dies: Zygote, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
    case = CASES[name]
    ready = yard.keep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.before(ready)
    step = 1 if NATIVE and (case.act == "open" or case.own) else one_in(2)
    for n in itertools.count():
        base = lay(ready, yard.new())
        assert dies(base, case.act, 1 + n * step, case.own) == -signal.SIGKILL
        through = (base / "calls").exists()
        for boot in BOOTS if EVERY else ["same"] if case.own else [BOOTS[n % 2]]:
            judge_what_is_left(lay(base, yard.keep(), boot))
        if through:
            assert int((base / "calls").read_text()) >= case.calls, "there was hardly anything to cut off"
            break


def lay(base: Path, top: Path, boot: Boot = "same") -> Path:
    shutil.copytree(base, top)
    settle_pages(top, boot)
    return top


def judge_what_is_left(base: Path) -> None:
    """Opened by somebody who does not finish the walk, and by one who does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for again in (True, False):
            life = Life(base)
            life.open()
            life.append(7)
            life.walk(most=3 if again else 1 << 62, again=again)
            life.register(wait=True)
            life.close()
    assert strays(base / "log") == []
    shutil.rmtree(base)


# ---- the move, step by step ----


def test_files_are_moved_in_ascending_order_and_the_control_page_last(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
    base = yard.keep()
    closed(base)
    path = base / "log"
    before = by_hand.numbers(path)
    assert len(before) > 3
    moved: list[str] = []
    real = files.rename

    def rename(old: Path, new: Path) -> None:
        if new.parent.parent.name == "recovery":
            moved.append(old.name)
        real(old, new)

    monkeypatch.setattr(files, "rename", rename)
    j = Journal(path)
    assert [name for name in moved if name.endswith(".journal")] == [f"{n}.journal" for n in before]
    assert moved[-1] == ".lock"
    for n in before:  # a data file is never without its companion
        assert moved.index(f"{n}.journal.time") < moved.index(f"{n}.journal")
    list(j.recovered())
    j.close()


def test_a_move_that_was_cut_short_is_finished_before_anything_else(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was moved and what was not are one session, also if the next open dies over it again."""
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
    base = yard.keep()
    closed(base)
    path = base / "log"
    numbers = by_hand.numbers(path)
    there = path / "recovery" / "0"
    there.mkdir(parents=True)
    for n in numbers[:2]:
        for suffix in ("", ".time"):
            (path / f"{n}.journal{suffix}").rename(there / f"{n}.journal{suffix}")
        with contextlib.suppress(RuntimeError), monkeypatch.context() as patch:
            patch.setattr(files, "rename", _refuse)
            Journal(path)
    j = Journal(path)
    assert by_hand.numbers(there) == numbers
    assert by_hand.numbers(path) == [numbers[-1] + 1]
    assert {r.session for r in j.recovered()} == {0}
    j.close()


@pytest.mark.parametrize("began", [False, True], ids=["anew", "cut short"])
def test_nothing_is_moved_to_a_directory_whose_name_a_power_cut_may_take(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    """With all that it holds; also when it is there, made by one who died before he synced that."""
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
    base = yard.keep()
    closed(base)
    path = base / "log"
    if began:
        (path / "recovery" / "0").mkdir(parents=True)
    done: list[Path] = []
    sync_directory, rename = files.sync_directory, files.rename
    monkeypatch.setattr(files, "sync_directory", lambda place: (done.append(place), sync_directory(place)))
    monkeypatch.setattr(files, "rename", lambda old, new: (done.append(new), rename(old, new)))
    j = Journal(path)
    before = done[: next(i for i, to in enumerate(done) if to.parent == path / "recovery" / "0")]
    assert {path, path / "recovery"} <= set(before)
    list(j.recovered())
    j.close()


def _refuse(old: Path, new: Path) -> None:
    raise RuntimeError("not now")
