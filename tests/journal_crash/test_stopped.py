"""A process that stands still (SIGSTOP) at any of its calls that change a file, over each thing that a journal does with files: who
looks at it meanwhile finds nothing wrong, nobody breaks in, and when it goes on it does so as if nothing had been.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Journal, LogBusy, journal
from penstock.verify import Finding, verify
from tests.channel.conftest import Ran
from tests.journal_crash.test_cut import CASES, FILE_BYTES, judge_what_is_left, lay, stand_at
from tests.queue.crash import Yard
from tests.queue.dying import Zygote, open_zygote
from tests.stopping import some_calls

STEPS = {  # it stands still at one in so many calls
    "opening one that died": 9,
    "opening one with sessions left": 15,
    "going on": 15,
    "ending the walk": 2,
    "registering a checkpoint": 5,
    "retiring checkpoints": 7,
    "closing": 3,
}
OPENING = ("opening one that died", "opening one with sessions left")


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(stand_at) as made:
        yield made


@pytest.mark.parametrize("name", STEPS)
def test_one_that_stands_still_at_any_call_is_left_alone_and_goes_on(
    yard: Yard, child: Zygote, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_FILE_BYTES", FILE_BYTES)
    case, ready, stood = CASES[name], yard.keep(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.before(ready)
    for at in some_calls(STEPS[name]):
        base = lay(ready, yard.new())
        child.tell(str(base), case.act, at, case.own)
        said = child.answer()
        with child.standing(said) as stands:
            if stands:
                stood += 1
                looking = Ran(lambda base=base: damage(base / "log"))
                if name not in OPENING:
                    assert looking.result() == []
                    with pytest.raises(LogBusy):
                        Journal(base / "log")
        if stands:
            said = child.answer()
            assert looking.result() == []  # one that opens it may have been waited for
        assert said == str(-signal.SIGKILL)
        assert (base / "calls").exists(), "it did not come to the end"
        judge_what_is_left(lay(base, yard.keep()))
        if not stands:
            break
    assert stood, "it never stood still"


def damage(path: Path) -> list[Finding]:
    """But for an edit that is half written, which is not told from one that was torn."""
    return [f for f in verify(path, deep=True).findings if f.kind != "manifest" or "edit" not in f.what]
