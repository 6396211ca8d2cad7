"""A process that stands still (SIGSTOP) at any of its calls that change a file, over each thing that a channel does with files: readers
beside it go on, nobody breaks in, and when it goes on it does so as if nothing had been.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import LogBusy
from tests.channel.conftest import Ran
from tests.channel_crash.story import Story
from tests.channel_crash.test_cut import ACTS, run_and_stand, went_down
from tests.channel_crash.wreck import by_hand, everything, messages, open_channel
from tests.queue.crash import NATIVE, Yard
from tests.queue.dying import Zygote, open_zygote
from tests.stopping import some_calls

STEPS = {  # it stands still at one in so many calls
    "opening one that died": 7,
    "opening one after a power cut": 7,
    "rolling": 5,
    "a batch over several files": 9,
    "sealing": 9,
    "compressing": 3,
    "compressing what nobody has open": 9,
    "removing": 5,
    "closing a gap, crash consistent": 3,
    "handing over": 3,
    "closing, with segments to seal": 7,
}
OTHERS = ("opening one that died", "opening one after a power cut", "compressing what nobody has open")


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(run_and_stand) as zygote:
        yield zygote


@pytest.mark.parametrize("name", STEPS)
def test_one_that_stands_still_at_any_call_holds_no_reader_up_and_goes_on(
    yard: Yard, child: Zygote, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(monkeypatch)
    act, stood = ACTS[name], 0
    lost = act.first is went_down
    for after in some_calls(STEPS[name] * (1 if NATIVE else 3)):
        path, notes = yard.new(), yard.keep()
        child.tell(str(path), name, after, str(notes))
        said = child.answer()
        with child.standing(said) as stands:
            if stands:
                stood += 1
                story: Story = pickle.loads(notes.read_bytes())[0]
                reading = Ran(lambda path=path: look(path))
                if name not in OTHERS:  # they have it open, and only they
                    seen(reading.result(), story)
                    with pytest.raises(LogBusy):
                        open_channel(path)
        if stands:
            said = child.answer()
            if name in OTHERS:  # it may have waited for them
                seen(reading.result(), story, lost=lost)
        assert said == "7"
        story = pickle.loads(notes.read_bytes())[0]
        notes.unlink()
        left = everything(path)
        strict = story.options.get("crash_consistent", False)
        story.judge(path, strict=not lost)
        story.judge(left.lay(yard.new(), "new"), strict=not lost and strict)
        if not stands:
            break
    assert stood, "it never stood still"


def look(path: Path) -> list[bytes]:
    """Without a name, beside whoever has it open."""
    with open_channel(path, read_only=True) as ch:
        return messages(ch)


def seen(got: list[bytes], story: Story, *, lost: bool = False) -> None:
    """All that was acknowledged and is not removed, and of what was not, whole batches."""
    sent = [*story.sent, *story.sending]
    ends = {*story.ends, len(sent)}
    assert any(
        got == sent[end - len(got) : end] for end in ends if len(got) <= end and (lost or end >= len(story.sent))
    )
