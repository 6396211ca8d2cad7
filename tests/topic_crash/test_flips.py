"""Single flipped bits, one at a time, in every file of a small topic: found or harmless, and never at the cost of others.

Frames have no checksum: those in the companion tell. A flip in there costs its message too, as nobody can tell which is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import CorruptRecord, NotALog, UnknownVersion
from penstock.kernel import layout
from penstock.storage import companion, index
from penstock.testing.state import Boot
from tests.queue.crash import Image, Yard, payload
from tests.topic_crash.wreck import (
    by_hand,
    data,
    entry,
    found,
    frames,
    judge,
    lay,
    lost,
    open_topics,
    page,
    some_of,
    work,
)

# A length that is flipped swallows just the next ones, or is that of an empty message.
SIZES = [8, 0, 4, 24, 0, 0, 12, 60, 0, 1]
COUNT = len(SIZES)
ONCE = [payload(i, n) for i, n in enumerate(SIZES)]
ONCE[3] = bytes(24)  # frames of empty messages, if its length is not believed
SEGMENT = frames(ONCE)[-1][1]
ROUNDS = 3
ALL = ONCE * ROUNDS


def fill(path: Path) -> Iterator[Image]:
    """A topic of two partitions; the first has two finished segments and an active one. Its files while it is open, with the
    finished ones sealed and not, and after it was closed."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_topics(path, segment_bytes=SEGMENT) as logs:
            t = logs.topic("t", partitions=2)
            t.publish(b"elsewhere", partition=1)
            for _ in range(ROUNDS):
                for few in (ONCE[:3], ONCE[3:9], ONCE[9:]):
                    t.publish_many(few, partition=0)
                    t.flush()
            with t.tailer("half", partitions=[0]) as tailer:
                for _ in range(COUNT * ROUNDS // 2):
                    tailer.read()
                tailer.commit()
            assert t.segments(0) == [0, 1, 2]
            yield Image.take(path)
            work(t)
            yield Image.take(path)
    yield Image.take(path)


@pytest.fixture(scope="module")
def images(yard: Yard) -> dict[str, Image]:
    return dict(zip(("crashed", "sealed", "closed"), fill(yard.keep()), strict=True))


STATES = pytest.mark.parametrize("state", ["crashed", "sealed", "closed"])
BOOTS = pytest.mark.parametrize("boot", ["same", "new"])


def hit_by(bit: int, segment: int) -> int:
    """Which message a bit of a data file belongs to."""
    return segment * COUNT + next(i for i, (_, end) in enumerate(frames(ONCE)) if bit // 8 < end)


@STATES
@BOOTS
def test_untouched_they_are_whole(images: dict[str, Image], yard: Yard, state: str, boot: Boot) -> None:
    """Else the other tests would prove nothing."""
    assert judge(lay(images[state], yard.new(), boot), ALL) == set()
    path = lay(images[state], yard.new(), boot)
    with open_topics(path) as logs:
        t = logs.topic("t")
        report = t.recovery(0)
        assert (report.damage, report.torn, report.cursors_set_back) == ([], [], {})
        assert t.committed("half") == {0: len(ALL) // 2}
        assert found(t, 1) == ({0: b"elsewhere"}, [])


@STATES
@BOOTS
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_every_flip_in_a_frame_costs_that_message_alone(
    images: dict[str, Image], yard: Yard, state: str, boot: Boot, segment: int
) -> None:
    image, name = images[state], data(segment)
    for bit in some_of(range(8 * SEGMENT), 101, state, boot, segment):
        gone = judge(lay(image.flipped(name, bit), yard.new(), boot), ALL, why=(bit, hit_by(bit, segment)))
        assert gone == {hit_by(bit, segment)}, bit


def test_every_flip_in_a_frame_is_told_with_its_place(images: dict[str, Image], yard: Yard) -> None:
    path = lay(images["closed"], yard.new(), "same")
    with open_topics(path, segment_bytes=SEGMENT) as logs:
        t = logs.topic("t")
        for bit in some_of(range(8 * SEGMENT), 2):
            for segment in (1, 2):
                file, hit = path / data(segment), hit_by(bit, segment)
                content = images["closed"].flipped(data(segment), bit)[data(segment)]
                file.write_bytes(content)
                got = []
                with pytest.raises(CorruptRecord) as info:
                    while True:
                        got += t.read(0, len(got), 7)
                assert [m.payload for m in got] == ALL[:hit], bit
                assert (info.value.sequence, info.value.path) == (hit, str(file)), bit
                assert info.value.position == frames(ONCE)[hit - segment * COUNT][0]
                assert [m.payload for m in t.read(0, hit + 1, 100)] == ALL[hit + 1 :], bit
                file.write_bytes(images["closed"][data(segment)])


@STATES
@BOOTS
@pytest.mark.parametrize("segment", [0, 2])
def test_a_flip_in_a_companion_costs_at_most_its_message(
    images: dict[str, Image], yard: Yard, state: str, boot: Boot, segment: int
) -> None:
    image, name = images[state], data(segment) + ".time"
    assert len(image[name]) == entry(name, COUNT)
    for bit in some_of(range(8 * len(image[name])), 127, state, boot, segment):
        gone = judge(lay(image.flipped(name, bit), yard.new(), boot), ALL, why=bit)
        place, within = divmod(bit // 8 - companion.HEADER_BYTES, 16)
        assert gone == ({segment * COUNT + place} if place >= 0 and within >= 8 else set()), bit


@STATES
@BOOTS
def test_a_flip_in_an_index_costs_nothing(images: dict[str, Image], yard: Yard, state: str, boot: Boot) -> None:
    for segment in (1, 2):
        name = data(segment) + ".index"
        bits = [*range(8 * 16), *range(8 * index.HEADER_BYTES, 8 * len(images[state][name]))]
        for bit in some_of(bits, 61, state, boot, segment):
            path = lay(images[state].flipped(name, bit), yard.new(), boot)
            with open_topics(path) as logs:
                t = logs.topic("t")
                assert not t.recovery(0).damage
                for at in range(segment * COUNT, (segment + 1) * COUNT):
                    assert [m.payload for m in t.read(0, at, 1)] == [ALL[at]], (bit, at)


@STATES
@BOOTS
def test_a_flip_in_the_manifest_costs_nothing(images: dict[str, Image], yard: Yard, state: str, boot: Boot) -> None:
    name = "t/.partition_0/manifest"
    for bit in some_of(range(8 * len(images[state][name])), 113, state, boot):
        assert judge(lay(images[state].flipped(name, bit), yard.new(), boot), ALL, why=bit) == set()


@STATES
@BOOTS
def test_a_flip_in_the_control_page_costs_nothing(images: dict[str, Image], yard: Yard, state: str, boot: Boot) -> None:
    """Also in one that was not closed clean: the records and the durable mark, which has a checksum, say that it is wrong."""
    words = (
        range(layout.TURN, 720, 8) if boot == "same" and state != "closed" else ()
    )  # the lowest bit of each, in any case
    for bit in [*some_of(range(8 * 720), 211, state, boot), *(8 * word for word in words)]:
        path = lay(images[state], yard.new(), boot)  # first laid out: the page holds this file's inode
        flipped = Image({page(): (path / page()).read_bytes()}).flipped(page(), bit)
        (path / page()).write_bytes(flipped[page()])
        if bit // 8 in range(8, 12):
            with open_topics(path) as logs, pytest.raises(UnknownVersion, match=r"\.lock: control page version"):
                logs.topic("t").ends()
        else:
            assert judge(path, ALL, why=bit) == set(), bit


def test_a_flip_in_a_cursor_is_refused(images: dict[str, Image], yard: Yard) -> None:
    name = "t/.partition_0/cursors/half"
    for bit in some_of(range(8 * 28), 3):
        path = lay(images["closed"].flipped(name, bit), yard.new(), "same")
        with open_topics(path) as logs:
            t = logs.topic("t")
            for call in (lambda: t.tailer("half"), lambda: t.group("half"), lambda: t.committed("half")):  # noqa: B023
                with pytest.raises(NotALog, match=r"cursors/half: .*forget it|cursors/half: not a cursor"):
                    call()
            assert t.stats()[0].lag == {"half": len(ALL)}, "it counts as standing at the start"
            assert lost(found(t)[1]) == set()
            t.forget("half")
            with t.tailer("half") as tailer:
                assert tailer.positions == {0: 0, 1: 0}


def test_a_flip_in_the_settings_is_refused_or_harmless(images: dict[str, Image], yard: Yard) -> None:
    """They are text: a flipped digit makes another number, and no number of partitions loses what is in the first ones."""
    name, text = "t/metadata.json", images["closed"]["t/metadata.json"]
    for bit in some_of(range(8 * len(text)), 3):
        path = lay(images["closed"].flipped(name, bit), yard.new(), "same")
        try:
            with open_topics(path) as logs:
                t = logs.topic("t")
                assert found(t) == (dict(enumerate(ALL)), []), bit
                assert json.loads((path / name).read_bytes())["partitions"] == t.partitions
        except (NotALog, UnknownVersion) as error:
            assert "log" in str(error) or "t:" in str(error) or name in str(error)
