"""Every byte prefix of the last file of a small topic: cut short in this boot, or by a power cut, whatever the control page says.

The file's length is the truth where nothing says that it was longer. Where something does, what is missing is named.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock import CorruptRecord, Retention, Topics, kernel
from penstock.formats import topic as fmt
from penstock.testing.state import Boot
from tests.queue.crash import NATIVE, Image, Yard, payload
from tests.topic_crash.wreck import (
    by_hand,
    data,
    everything,
    found,
    frames,
    judge,
    lay,
    lost,
    named,
    one_in,
    open_topics,
    page,
    some_of,
)

SIZES = [1, 30, 5, 60, 17, 0, 10, 4, 0, 0, 33, 7]
PAYLOADS = [payload(i, n) for i, n in enumerate(SIZES)]
BATCHES = [range(2), range(2, 7), range(7, 10), range(10, 12)]
BEFORE = [payload(100 + i, 40) for i in range(4)]  # in a segment of their own
BIG = 1 << 12
SECOND = data(1)
TIMES = SECOND + ".time"
END = frames(PAYLOADS)[-1][1]
CONTENT = kernel.encode_many(fmt.SPEC, PAYLOADS)
ALL = BEFORE + PAYLOADS
NOISE, SHORT = bytes(range(1, 60)) * 2, struct.pack(">I", 3) + b"abc"


@dataclass
class Small:
    """The messages in the second segment, in four batches."""

    crashed: Image  # as a kill leaves it
    pages: list[bytes]  # the control page as it was before the first batch and after each
    closed: Image


@pytest.fixture(scope="module")
def small(yard: Yard) -> Iterator[Small]:
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_topics(path, segment_bytes=frames(BEFORE)[-1][1]) as logs:
            t = logs.topic("t")
            t.publish_many(BEFORE)
            t.flush()
        with open_topics(path, segment_bytes=frames(BEFORE)[-1][1]) as logs:
            t = logs.topic("t")
            t._here(0).log.roll_now()
            with Topics(path, linger_s=3600, segment_bytes=BIG) as others:
                t, pages = others.topic("t"), [(path / page()).read_bytes()]
                for batch in BATCHES:
                    t.publish_many([PAYLOADS[i] for i in batch])
                    t.flush()
                    pages.append((path / page()).read_bytes())
                with t.tailer("ahead") as tailer:
                    assert len(list(tailer)) == len(ALL)
                    tailer.commit()
                crashed = Image.take(path)
        closed = Image.take(path)
    assert crashed[SECOND] == closed[SECOND]
    assert crashed[SECOND] == CONTENT
    yield Small(crashed, pages, closed)


def cuts(step: int) -> list[int]:
    """A sample of the file's bytes (every one, if all are to be tried), and those around each message's beginning."""
    near = {at for start, end in frames(PAYLOADS) for at in (start, start + 4, end - 1, end)}
    return sorted({*range(0, END, one_in(step)), *(near if NATIVE else ()), END - 1, END})


def whole(content: bytes) -> int:
    """How many messages of a file are as they were."""
    same = [content[start:end] == CONTENT[start:end] for start, end in frames(PAYLOADS)]
    return [*same, False].index(False)


def kept(content: bytes, *, companion: bool = True, floor: int = 0) -> int:
    """How many messages come back of such a file, where only `floor` of them were promised. A companion tells a batch of
    which only a part is there, and an empty message from zeros that were never written."""
    count = whole(content)
    if companion:
        count = max([0, *(b.start for b in BATCHES if b.start <= count), *(b.stop for b in BATCHES if b.stop <= count)])
        return max(count, floor)
    return max(floor, min([count, *(i for i, size in enumerate(SIZES) if i >= floor and not size)]))


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_what_was_promised_and_is_cut_off_is_named(small: Small, yard: Yard, state: str, boot: Boot) -> None:
    """The page says where the topic ended: exactly, in this boot; and by its marks, which have checksums, after it."""
    image = small.crashed if state == "crashed" else small.closed
    for cut in cuts(5)[:-1]:
        short = image.changed(SECOND, image[SECOND][:cut])
        keep = len(BEFORE) + whole(CONTENT[:cut])
        path = lay(short, yard.new(), boot)
        with open_topics(path, segment_bytes=BIG) as logs:
            t = logs.topic("t")
            report = t.recovery(0)
            assert named(t) == set(range(keep, len(ALL))), (cut, report)
            assert any(SECOND.split("/")[1] in told for told in report.damage)
            assert not report.torn
            assert t.ends() == {0: len(ALL)}, "the next message has the offset that it would have had"
            got = []
            with pytest.raises(CorruptRecord) as info:
                while True:
                    got += t.read(0, len(got), 100)
            assert [m.payload for m in got] == ALL[:keep], cut
            assert info.value.sequence == keep
            assert t.committed("ahead") == {0: len(ALL)}
        assert judge(path, ALL, why=cut) == set(range(keep, len(ALL)))


@pytest.mark.parametrize("beside", ["companion", "short companion", "nothing"])
@pytest.mark.parametrize("promised", [0, 2, 3])
def test_after_a_power_cut_a_file_counts_as_far_as_it_goes(
    small: Small, yard: Yard, beside: str, promised: int
) -> None:
    """The page is one that was put on the disk when so many batches were there."""
    floor = BATCHES[promised - 1].stop if promised else 0
    least = frames(PAYLOADS)[floor - 1][1] if floor else 0
    image = small.crashed.changed(page(), small.pages[promised])
    for cut in cuts(5):
        if cut < least:
            continue  # what was promised is on the disk
        torn = image.changed(SECOND, image[SECOND][:cut])
        if beside == "nothing":
            torn = torn.without(TIMES, SECOND + ".index")
        elif beside == "short companion":
            torn = torn.changed(TIMES, image[TIMES][: 64 + 16 * whole(CONTENT[:cut])])
        keep = len(BEFORE) + kept(CONTENT[:cut], companion=beside != "nothing", floor=floor)
        path = lay(torn, yard.new(), "new")
        with open_topics(path, segment_bytes=BIG) as logs:
            t = logs.topic("t")
            report = t.recovery(0)
            assert report.how == "new boot"
            assert report.damage == [], cut
            assert found(t) == (dict(enumerate(ALL[:keep])), []), (cut, keep)
            assert t.ends() == {0: keep}
            assert report.cursors_set_back == ({"ahead": len(ALL)} if keep < len(ALL) else {})
            at = frames(PAYLOADS)[keep - len(BEFORE) - 1][1] if keep > len(BEFORE) else 0
            tail = image[SECOND][at:cut].rstrip(b"\0")
            assert [p.read_bytes() for p in path.glob("t/*.torn")] == ([tail] if tail else []), cut
            assert len(report.torn) == bool(tail)
            assert (path / SECOND).read_bytes() == image[SECOND][:at]
            more = [b"", b"one", b"two"]  # over where others were
            t.publish_many(more)
            t.flush()
            with t.tailer("ahead") as tailer:
                assert [m.payload for m in tailer] == more
        with open_topics(path, segment_bytes=BIG) as logs:
            assert logs.topic("t").recovery(0).clean
            assert found(logs.topic("t")) == (dict(enumerate([*ALL[:keep], *more])), [])


@pytest.mark.parametrize("with_page", [True, False])
def test_without_a_page_or_with_one_of_another_time_it_is_a_prefix(small: Small, yard: Yard, with_page: bool) -> None:
    for cut in cuts(7):
        image = small.crashed.changed(SECOND, small.crashed[SECOND][:cut])
        image = image.changed(page(), small.pages[0]) if with_page else image.without(page())
        keep = len(BEFORE) + kept(CONTENT[:cut])
        gone = judge(lay(image, yard.new(), "new"), ALL[:keep], why=cut)
        assert gone == set()


@pytest.mark.parametrize("extra", [bytes(1), bytes(4), bytes(8), bytes(100), NOISE, SHORT, SHORT + NOISE])
def test_what_lies_behind_the_end_is_no_message(small: Small, yard: Yard, extra: bytes) -> None:
    """A file system may leave zeros at the end of a file that grew, and others anything: where the companion does not agree,
    no message begins, and only it tells zeros from empty ones."""
    for promised in (0, 2):
        image = small.crashed.changed(page(), small.pages[promised])
        floor = BATCHES[promised - 1].stop if promised else 0
        for cut in cuts(7):
            content = CONTENT[:cut] + extra
            if whole(content) < floor or cut == END:
                continue
            with open_topics(lay(image.changed(SECOND, content), yard.new(), "new"), segment_bytes=BIG) as logs:
                t = logs.topic("t")
                keep = len(BEFORE) + kept(content, floor=floor)
                assert found(t) == (dict(enumerate(ALL[:keep])), []), cut
                assert not t.recovery(0).damage
                left = content[frames(PAYLOADS)[keep - len(BEFORE) - 1][1] if keep > len(BEFORE) else 0 :]
                assert bool(t.recovery(0).torn) == any(left)


def test_recovering_twice_gives_the_same(small: Small, yard: Yard) -> None:
    for cut in cuts(7):
        image = small.crashed.changed(SECOND, small.crashed[SECOND][:cut]).changed(page(), small.pages[0])
        path = lay(image, yard.keep(), "new")
        with open_topics(path, segment_bytes=BIG) as logs:
            first = found(logs.topic("t"))
            again = Image.take(path)
        with open_topics(lay(again, yard.new(), "new"), segment_bytes=BIG) as logs:
            assert found(logs.topic("t")) == first
            assert not logs.topic("t").recovery(0).torn


def test_a_power_cut_just_after_a_roll(small: Small, yard: Yard) -> None:
    """The new file's name is there and nothing in it, or its companion's alone."""
    for image in (
        small.crashed.changed(SECOND, b""),
        small.crashed.changed(SECOND, b"").without(TIMES),
        small.crashed.changed(SECOND, b"").changed(TIMES, b""),
        small.crashed.without(SECOND),
    ):
        for place in (small.pages[0], None):
            left = image.changed(page(), place) if place else image.without(page())
            if place and SECOND not in image:
                continue  # its name was synced before the page said that it is the last one
            path = lay(left, yard.new(), "new")
            assert judge(path, BEFORE) == set()


def test_a_missing_companion_costs_nothing_that_was_promised(small: Small, yard: Yard) -> None:
    """But times, and that damage can be told."""
    for state, boot in (("crashed", "same"), ("closed", "same"), ("closed", "new"), ("crashed", "new")):
        image: Image = getattr(small, state).without(TIMES, data(0) + ".time")
        path = lay(image, yard.new(), boot)  # type: ignore[arg-type]
        with open_topics(path, segment_bytes=BIG) as logs:
            t = logs.topic("t")
            assert {m.timestamp_us for m in t.read(0, 0, 100)} == {None}
        assert judge(path, ALL) == set()


@pytest.mark.parametrize("state", ["crashed", "closed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_what_is_cut_off_is_never_read_as_empty_messages(small: Small, yard: Yard, state: str, boot: Boot) -> None:
    """Also with no companion to tell zeros from them, and when it was closed and opened again since."""
    for cut in cuts(11)[:-1]:
        image = (small.crashed if state == "crashed" else small.closed).without(TIMES)
        path = lay(image.changed(SECOND, CONTENT[:cut]), yard.new(), boot)
        keep = len(BEFORE) + whole(CONTENT[:cut])
        for _ in range(3):
            with open_topics(path, segment_bytes=BIG) as logs:
                t = logs.topic("t")
                got, losses = found(t)
                assert {i: p for i, p in got.items() if i < len(ALL)} == dict(enumerate(ALL[:keep])), cut
                assert lost(losses) == set(range(keep, len(ALL))), cut
                t.publish(b"more")


def test_what_is_not_synced_may_be_missing_in_any_combination(yard: Yard) -> None:
    """Companions of segments that are not sealed, the manifest, the page: what was waited for is there without them."""
    path, sent = yard.keep(), [payload(i, 20 + i) for i in range(16)]
    with open_topics(path, segment_bytes=100) as logs:
        t = logs.topic("t")
        pages = []
        for p in sent:
            t.publish(p)
            t.flush()
            pages.append((path / page()).read_bytes())
        image, count = Image.take(path), len(t.segments(0))
    assert count > 3
    beside = [data(n) + ".time" for n in range(count)]
    for gone in {*some_of(range(1 << count), 3), (1 << count) - 1}:
        left = image.without(*(name for n, name in enumerate(beside) if gone >> n & 1))
        for place in (pages[-1], pages[len(pages) // 2], None):
            with_page = left.changed(page(), place) if place else left.without(page())
            for with_manifest in (True, False):
                last = with_page if with_manifest else with_page.without("t/.partition_0/manifest")
                with open_topics(lay(last, yard.new(), "new"), segment_bytes=100) as logs:
                    t = logs.topic("t")
                    assert found(t) == (dict(enumerate(sent)), []), (bin(gone), with_manifest)
                    assert not t.recovery(0).damage
                    assert not t.recovery(0).torn


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_removed_file_that_comes_back_alone_is_removed_again(yard: Yard, boot: Boot) -> None:
    """A power cut brings back its name, and not its companion's, which alone says what it held: it is told by its number."""
    path = yard.keep()
    with open_topics(path, retention=Retention(max_bytes=1)) as logs:
        t = logs.topic("t")
        for i in range(8):
            t.publish(payload(i, 60), partition=0)
            t.flush()
        removed = (path / data(0)).read_bytes()
        janitor = t._here(0)._janitor
        janitor._together = 1
        janitor._turn()
        left, _ = found(t)
        assert 0 not in left
        image = everything(path)
    image = image.changed(data(0), removed)
    path = lay(image, yard.new(), boot)
    with open_topics(path) as logs:
        assert found(logs.topic("t"))[0] == left
        assert not (path / data(0)).exists()


def test_a_part_of_an_entry_is_none(small: Small, yard: Yard) -> None:
    """It was written in two pieces, and the power failed between them. Once others stand behind it, it would speak against its record."""
    for less in range(1, 16):
        cut = small.crashed.changed(TIMES, small.crashed[TIMES][:-less])
        path = lay(cut, yard.new(), "new")
        with open_topics(path, segment_bytes=BIG) as logs:
            t = logs.topic("t")
            t.publish(b"more")
            t.flush()
            assert [m.payload for m in t.tailer()] == [*ALL, b"more"]
