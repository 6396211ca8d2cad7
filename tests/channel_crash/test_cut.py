"""A process that dies at any of its calls that change a file, over each thing that a channel does with files; by SIGKILL.

What it leaves is opened by the next process, which finds everything acknowledged, and as if the machine had gone down with
all of it on the disk. Either way the next clean close leaves no file behind that does not belong there.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.compressing import compress
from penstock.kernel import layout
from penstock.storage.control import Control
from tests.channel_crash.story import Story
from tests.channel_crash.wreck import (
    EVERY,
    by_hand,
    drain,
    everything,
    log_of,
    messages,
    offsets,
    open_channel,
    small_files,
    work,
)
from tests.queue.crash import NATIVE, Cut, Yard, payload
from tests.queue.dying import Countdown, Zygote, die, open_zygote, stand


@dataclass
class Act:
    """What is done before, what is done until the end, and how the channel is opened."""

    first: Callable[[Story], None]
    then: Callable[[Story], None]
    options: dict[str, Any]
    calls: int = 4  # it makes at least so many
    step: int = 3  # it dies at one in so many of them
    halves: bool = False  # and half-way through a write


def nothing(story: Story) -> None:
    """A channel of which nothing is there yet."""
    story.close()
    for path in story.path.rglob("*"):
        if path.is_file():
            path.unlink()


def closed(story: Story) -> None:
    filled(story)
    story.close()


def died(story: Story) -> None:
    """As a kill leaves it, with half of everything done."""
    filled(story)
    image = everything(story.path)
    story.close()
    for name in everything(story.path):
        (story.path / name).unlink()
    image.lay(story.path, "same")


def went_down(story: Story) -> None:
    """After a power cut, with a torn tail, and receivers beyond it."""
    filled(story)
    image = everything(story.path)
    now = log_of(story.ch).active()
    story.close()
    for name in everything(story.path):
        (story.path / name).unlink()
    name = f"segment.{now.segment}"
    image.put(name, now.end - 20, b"\xaa" * 7).lay(story.path, "new")


def filled(story: Story) -> None:
    """Some segments, of which those who read them have passed none; `bob` has a gap."""
    story.new_reader("ada", ack=False)
    story.new_reader("bob", ack=True)
    for size in (70, 0, 100, 56, 0, 130, 24) * 3:
        story.send(size)
    for _ in range(6):
        story.receive("bob")
    story.receive("ada")
    story.acknowledge("bob", 1)


def passed(story: Story) -> None:
    """All have received everything, and the segments are sealed."""
    filled(story)
    for name in ("ada", "bob"):
        story.receive_all(name)
    log_of(story.ch).seal_finished()


def sealed(story: Story) -> None:
    filled(story)
    log_of(story.ch).seal_finished()
    assert log_of(story.ch).finished()


def shrunk(story: Story) -> None:
    sealed(story)
    work(story.ch)
    assert list(story.path.glob("*.z"))
    for name in ("ada", "bob"):
        story.receive_all(name)


def forgotten(story: Story) -> None:
    filled(story)
    story.new_reader("eve", ack=True)


def prepared(story: Story) -> None:
    filled(story)
    log_of(story.ch).prepare_next()


def roll(story: Story) -> None:
    before = log_of(story.ch).active().segment
    while log_of(story.ch).active().segment == before:
        story.send(90)


def roll_by_a_batch(story: Story) -> None:
    for _ in range(2):
        story.send_many([90] * 12)


def batch_over_files(story: Story) -> None:
    story.send_many([900] * 12)


def open_again(story: Story) -> None:
    story.open()


def background(story: Story) -> None:
    work(story.ch)


def close_gap(story: Story) -> None:
    for n in (1, 0):
        story.acknowledge("bob", 2, of=n)


def hand_over(story: Story) -> None:
    """What one of those who share a name had goes to the other, who acknowledges it."""
    story.leave("bob", 0)
    for _ in range(4):
        story.receive("bob", of=0)
    for _ in range(2):
        story.acknowledge("bob", 3, of=0)


def compress_closed(story: Story) -> None:
    """Another process does it, while nobody has the channel open."""
    compress(story.path)


ACTS: dict[str, Act] = {
    "making a channel": Act(nothing, open_again, {}, 20),
    "opening one that was closed": Act(closed, open_again, {}),
    "opening one that died": Act(died, open_again, {}, step=2),
    "opening one after a power cut": Act(went_down, open_again, {}),
    "rolling": Act(filled, roll, {}),
    "rolling to prepared files": Act(prepared, roll, {}),
    "rolling, crash consistent": Act(filled, roll, {"crash_consistent": True}),
    "a batch that rolls": Act(filled, roll_by_a_batch, {}),
    "a batch over several files": Act(filled, batch_over_files, {}, 20),
    "sealing": Act(filled, background, {}, 20),
    "compressing": Act(sealed, background, {"compression": "zstd"}, 10, step=1, halves=True),
    "compressing what nobody has open": Act(closed, compress_closed, {}, 20, step=2),
    "removing": Act(passed, background, {}, 10),
    "removing compressed ones": Act(shrunk, background, {"compression": "zstd"}, 8),
    "a new receiver": Act(filled, lambda story: story.new_reader("eve", ack=True), {}),
    "forgetting one": Act(forgotten, lambda story: story.forget("eve"), {}, 2),
    "acknowledging past a gap": Act(filled, lambda story: story.acknowledge("bob", 1, of=1), {}),
    "acknowledging past a gap, crash consistent": Act(
        filled, lambda story: story.acknowledge("bob", 1, of=1), {"crash_consistent": True}
    ),
    "closing a gap": Act(filled, close_gap, {}),
    "closing a gap, crash consistent": Act(filled, close_gap, {"crash_consistent": True}),
    "handing over": Act(filled, hand_over, {"crash_consistent": True}),
    "closing": Act(filled, lambda story: story.close(), {}, 20),
    "closing, with segments to seal": Act(filled, lambda story: story.close(), {"compression": "gzip"}, 20),
}


def run(path: str, name: str, after: int, notes: str, there: Callable[[], object] = die) -> None:
    """In a child: do it, and die at the n-th call. What was acknowledged by then, and how many calls it made, is told outside."""
    act, patch = ACTS[name], pytest.MonkeyPatch()
    by_hand(patch)
    small_files(patch)
    story = Story(Path(path), 1, **act.options)

    def tell() -> None:
        Path(notes).write_bytes(pickle.dumps((story.told(), countdown.calls)))

    countdown = Countdown(after, tell, halves=act.halves, there=there)
    countdown.lay()
    story.open()
    act.first(story)
    countdown.begin()
    act.then(story)
    tell()
    os._exit(7)  # without closing anything


def run_and_stand(path: str, name: str, after: int, notes: str) -> None:
    """In a child: the same, but stand still there."""
    run(path, name, after, notes, stand)


@pytest.fixture(scope="module")
def child() -> Iterator[Zygote]:
    with open_zygote(run) as zygote:
        yield zygote


@pytest.mark.parametrize("name", ACTS)
def test_a_death_at_any_call_loses_nothing_and_leaves_nothing_behind(
    yard: Yard, child: Zygote, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(monkeypatch)
    act = ACTS[name]
    after, step = 1, 1 if EVERY else act.step if NATIVE else 5
    while True:
        path, notes = yard.new(), yard.keep()
        ended = child(path, name, after, str(notes))
        assert ended in (7, -signal.SIGKILL)
        story, made = pickle.loads(notes.read_bytes())
        notes.unlink()
        if ended == 7:
            break
        left = everything(path)
        strict = story.options.get("crash_consistent", False)
        lost = act.first is went_down
        story.judge(path, strict=not lost)
        story.judge(left.lay(yard.new(), "new"), strict=not lost and strict)
        after += step
    assert made >= act.calls, "there was hardly anything to die over"
    assert after > act.calls


def test_what_a_receiver_acknowledged_by_receiving_is_done_whenever_the_process_dies(yard: Yard) -> None:
    """Between the stores of its place, too, of which there are three."""
    path = yard.keep()
    story = Story(path, 1)
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        story.open()
        filled(story)
        image = everything(path)
        at = 8  # ada's, the first slot
        old, new = (offsets(story.sent)[n].to_bytes(8, "big") for n in (1, 2))
        assert image["offset"][at : at + 8] == old
        for stored in range(4):
            now = image
            for copy in range(stored):
                now = now.put("offset", at + 4096 * copy, new)
            story.readers["ada"].doing = {1}
            story.judge(now.lay(yard.new(), "same"), strict=True)
        story.readers["ada"].doing = set()
        assert drain(story.ch.rx()) == story.sent
        story.close()


def test_the_write_offset_is_in_its_file_when_a_send_returns(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(monkeypatch)  # or files come and go while they are copied
    path = yard.keep()
    with open_channel(path) as ch:
        sent = []
        for i in range(40):
            sent.append(payload(i, 7 * i % 90))
            ch.tx().send(sent[-1])
            assert (path / "offset").read_bytes()[:8] == offsets(sent)[-1].to_bytes(8, "big")
        sent += [b"", b"x", b""]
        ch.tx().send_many(sent[-3:])
        assert (path / "offset").read_bytes()[:8] == offsets(sent)[-1].to_bytes(8, "big")
        left = everything(path)
    with open_channel(left.lay(path := yard.new(), "same")):
        assert (path / "offset").read_bytes()[:8] == offsets(sent)[-1].to_bytes(8, "big")


@pytest.mark.parametrize("step", ["_put", "_fill_slot", "mark_durable"])
def test_a_death_while_the_control_page_is_made_anew_loses_no_empty_message(yard: Yard, step: str) -> None:
    """It says nothing then, though a kill left all that was sent: zeros must still be told from messages."""
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_channel(path) as ch:
            sent = [b"first", *[b"", b"", payload(1, 70)] * 10, b"", b""]
            for p in sent:
                ch.tx().send(p)
            assert log_of(ch).finished()
            image = everything(path)
        again = image.lay(yard.keep(), "same")
        with pytest.MonkeyPatch.context() as dying:
            real = getattr(Control, step)

            def die(self: Control, *args: Any) -> None:
                if self.page.load(layout.READY) == 0:
                    raise Cut
                real(self, *args)

            dying.setattr(Control, step, die)
            with pytest.raises(Cut):
                open_channel(again)
        for boot in ("same", "new"):
            with open_channel(everything(again).lay(yard.new(), boot)) as ch:
                assert messages(ch) == sent
