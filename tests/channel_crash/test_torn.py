"""Torn tails and damage of a channel are told apart: every byte prefix of a small one, lost tails, empty messages among others.

After a power cut what lies above the last promise counts as far as frames verify and are not zeros: a zero frame is an empty
message, but so is what was never written. Below it, and below the published end of this boot, nothing is cut.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import Channel, CorruptRecord
from penstock.formats import channel as fmt
from penstock.testing.state import Boot
from tests.channel_crash.wreck import (
    HEADER,
    by_hand,
    drain,
    frames,
    log_of,
    messages,
    offsets,
    one_in,
    open_channel,
    plain,
    work,
)
from tests.queue.crash import Image, Yard, payload

SIZES = [1, 30, 5, 60, 17, 0, 100, 4, 0, 0, 33, 7]
BATCH = range(2, 5)
FIRST_EMPTY = SIZES.index(0)
PAYLOADS = [payload(i, n) for i, n in enumerate(SIZES)]
BIG = 1 << 16  # a segment


@dataclass
class Small:
    """The messages in one segment, and three who read them: to the end, to the first, and with a gap."""

    crashed: Image  # nothing of it synced
    durable: Image  # crash consistent: all of it synced
    closed: Image


def send_all(ch: Channel[bytes]) -> None:
    tx = ch.tx()
    for p in PAYLOADS[: BATCH.start]:
        tx.send(p)
    tx.send_many(PAYLOADS[BATCH.start : BATCH.stop])
    for p in PAYLOADS[BATCH.stop :]:
        tx.send(p)
    drain(ch.rx("ahead"))
    ch.rx("behind").recv()
    one, two = (ch.rx("gap", ack=True, shared=True) for _ in range(2))
    for i in range(len(SIZES)):
        (two if i in GAP else one).recv()
    two.ack(len(GAP))


GAP = (3, 9, 10)


@pytest.fixture(scope="module")
def small(yard: Yard) -> Small:
    path, other = yard.keep(), yard.keep()
    with open_channel(path, segment_bytes=BIG) as ch:
        send_all(ch)
        crashed = Image.take(path)
    with open_channel(other, segment_bytes=BIG, crash_consistent=True) as ch:
        send_all(ch)
        durable = Image.take(other)
    return Small(crashed, durable, Image.take(path))


def reopened(path: Path) -> Channel[bytes]:
    return open_channel(path, segment_bytes=BIG)


DATA = fmt.name(0)
END = frames(PAYLOADS)[-1][1]


def cuts(step: int = 1) -> list[int]:
    """Every byte of the frames; a sample where the kernel is slow."""
    return sorted({*range(HEADER, END + 1, one_in(step)), END - 1, END})


def torn_at(image: Image, cut: int, how: str) -> Image:
    """The data file as if only its bytes before `cut` had reached the disk."""
    data = image[DATA]
    if how == "zeros":
        return image.changed(DATA, data[:cut].ljust(len(data), b"\0"))
    if how == "short":
        return image.changed(DATA, data[:cut])
    return image.changed(DATA, data[:cut] + random.Random(cut).randbytes(300).ljust(len(data) - cut, b"\0"))


def same(image: Image, was: Image) -> list[bool]:
    """Of each frame, whether it is as it was."""
    return [image[DATA][start:end] == was[DATA][start:end] for start, end in frames(PAYLOADS)]


def kept(image: Image, was: Image) -> int:
    """How many messages come back: the frames that are as they were and not zeros, without a part of a batch."""
    count = min([i for i, ok in enumerate(same(image, was)) if not ok] + [FIRST_EMPTY])
    return BATCH.start if count in BATCH[1:] else count


@pytest.mark.parametrize("how", ["zeros", "short", "noise"])
def test_torn_tail_is_cut_to_the_last_whole_message_or_batch(small: Small, yard: Yard, how: str) -> None:
    for cut in cuts(1 if how == "zeros" else 3):
        torn = torn_at(small.crashed, cut, how)
        keep = kept(torn, small.crashed)
        at = offsets(PAYLOADS)[keep]
        path = torn.lay(yard.new(), "new")
        with reopened(path) as ch:
            assert messages(ch) == PAYLOADS[:keep], cut
            assert ch.recovery.how == "new boot"
            assert not ch.recovery.damage
            assert ch.stats().write_offset == at
            tail = torn[DATA][HEADER + at :].rstrip(b"\0")
            saved = [p.read_bytes() for p in path.glob("*.torn")]
            assert saved == ([tail] if tail else []), cut
            assert len(ch.recovery.torn) == len(saved)
            assert not any((path / DATA).read_bytes()[HEADER + at :])
            stood = {"ahead": len(SIZES), "behind": 1, "gap": GAP[-1] + 1}
            assert ch.recovery.cursors_set_back == {name: offsets(PAYLOADS)[n] for name, n in stood.items() if n > keep}
            after = [payload(i, 9 * i) for i in range(8)]  # over where others had their places
            for p in after:
                ch.tx().send(p)
            assert drain(ch.rx("ahead")) == after
            assert drain(ch.rx("behind")) == [*PAYLOADS[1:keep], *after]
            assert drain(ch.rx("gap", ack=True)) == [
                *(p for i, p in enumerate(PAYLOADS[:keep]) if i not in GAP),
                *after,
            ]
        with reopened(path) as ch:
            assert ch.recovery.clean
            assert messages(ch) == [*PAYLOADS[:keep], *after]


def test_recovering_twice_gives_the_same(small: Small, yard: Yard) -> None:
    for cut in cuts(5):
        path = torn_at(small.crashed, cut, "noise").lay(yard.keep(), "new")
        with reopened(path) as ch:
            first = messages(ch)
            again = Image.take(path)
        with reopened(again.lay(yard.new(), "new")) as ch:
            assert messages(ch) == first
            assert not ch.recovery.torn
            assert not ch.recovery.cursors_set_back


def test_what_was_promised_to_be_on_the_disk_counts_with_its_empty_messages(small: Small, yard: Yard) -> None:
    """Also where the control page, which is synced once a second, says nothing of it."""
    began = small.crashed[".lock"]  # of a channel of which nothing was synced
    for image in (small.durable, small.durable.changed(".lock", began)):
        with reopened(image.lay(yard.new(), "new")) as ch:
            assert messages(ch) == PAYLOADS
            assert ch.recovery.clean
            assert drain(ch.rx("ahead")) == []
            assert drain(ch.rx("behind")) == PAYLOADS[1:]
            assert drain(ch.rx("gap", ack=True)) == [p for i, p in enumerate(PAYLOADS) if i not in GAP]


def test_zeros_behind_the_end_are_no_messages_wherever_it_is(yard: Yard) -> None:
    """Every number of empty messages, promised or not, before zeros that were allocated ahead."""
    for durable in (True, False):
        for count in range(5):
            path = yard.keep()
            with open_channel(path, crash_consistent=durable) as ch:
                sent = [b"x", *[b""] * count]
                for p in sent:
                    ch.tx().send(p)
                image = Image.take(path)
            assert not any(image[DATA][HEADER + 9 :])
            for boot in ("same", "new"):
                with open_channel(image.lay(yard.new(), boot)) as ch:
                    assert messages(ch) == (sent if durable or boot == "same" else sent[:1])
                    assert ch.recovery.clean


@pytest.mark.parametrize("boot", ["same", "new"])
def test_what_was_published_or_promised_is_never_cut_but_reported(small: Small, yard: Yard, boot: Boot) -> None:
    image = small.crashed if boot == "same" else small.durable
    for cut in cuts(2)[:-1]:
        lost = image.put(DATA, cut, b"\xaa" * (END - cut))
        bad = same(lost, image).index(False)
        path = lost.lay(yard.new(), boot)
        with reopened(path) as ch:
            assert not ch.recovery.torn
            assert ch.stats().write_offset == offsets(PAYLOADS)[-1]
            assert (path / DATA).read_bytes()[:END] == lost[DATA][:END]
            (found,) = ch.recovery.damage
            assert f"{DATA}: byte {frames(PAYLOADS)[bad][0]}: sequences {bad} to {len(SIZES) - 1} are lost" in found
            with ch.rx() as rx:
                assert rx.recv_many(bad, 0.0) == PAYLOADS[:bad]
                with pytest.raises(CorruptRecord) as info:
                    rx.recv(0.0)
            assert (info.value.sequence, info.value.position) == (bad, frames(PAYLOADS)[bad][0])
            assert info.value.path == str(path / DATA)
            ch.tx().send(b"next")
            with ch.rx() as rx:  # what comes is not lost with it
                rx.seek(offsets(PAYLOADS)[-1])
                assert drain(rx) == [b"next"]


@pytest.mark.parametrize("boot", ["same", "new"])
def test_zeros_where_messages_were_are_found_at_opening(small: Small, yard: Yard, boot: Boot) -> None:
    """Read by itself such a file would be one of empty messages: it is their number that tells."""
    image = small.crashed if boot == "same" else small.durable
    for cut in cuts(2)[:-1]:
        lost = image.put(DATA, cut, bytes(END - cut))
        gone = {i for i, ok in enumerate(same(lost, image)) if not ok}
        with reopened(lost.lay(yard.new(), boot)) as ch:
            assert not ch.recovery.torn
            assert ch.stats().write_offset == offsets(PAYLOADS)[-1]
            assert gone <= reported(ch), cut


def reported(ch: Channel[bytes]) -> set[int]:
    """Which messages opening says are lost."""
    ranges = [re.search(r"sequences (\d+) to (\d+) are lost", found) for found in ch.recovery.damage]
    return {i for m in ranges if m for i in range(int(m[1]), int(m[2]) + 1)}


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_closed_file_cut_short_is_reported_and_what_is_gone_is_not_read_as_empty(
    small: Small, yard: Yard, boot: Boot
) -> None:
    for cut in [0, 1, 63, *cuts(3)[:-1]]:
        path = small.closed.changed(DATA, small.closed[DATA][:cut]).lay(yard.new(), boot)
        keep = sum(end <= cut for _, end in frames(PAYLOADS))
        for again in range(2):  # also when it was opened and closed since
            with reopened(path) as ch:
                assert bool(ch.recovery.damage) or again
                assert not ch.recovery.torn
                with ch.rx() as rx:
                    assert rx.recv_many(keep, 0.0) == PAYLOADS[:keep] if keep else True
                    for _ in range(2):
                        with pytest.raises(CorruptRecord) as info:
                            rx.recv(0.0)
                        assert info.value.sequence == keep, cut
                    rx.seek(offsets(PAYLOADS)[-1])
                    assert drain(rx) == [b"next"] * again
                if not again:
                    ch.tx().send(b"next")
                    assert drain(ch.rx("ahead")) == [b"next"]


def test_a_closed_file_cut_short_keeps_its_offsets_when_all_before_it_is_gone(yard: Yard) -> None:
    path = yard.keep()
    sent = [payload(i, 60) for i in range(23)]
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_channel(path) as ch:
            for p in sent:
                ch.tx().send(p)
            drain(ch.rx("reader"))
            work(ch)
            first = ch.stats().first_offset
    image = Image.take(path)
    (name,) = plain(image)
    assert first > 0
    for cut in range(len(image[name]) - 1, HEADER, -7):
        path = image.changed(name, image[name][:cut]).lay(yard.new(), "same")
        for n in (1, 2):
            with open_channel(path) as ch:
                ch.tx().send(b"next")
                assert ch.stats().write_offset == offsets([*sent, *[b"next"] * n])[-1]
                assert drain(ch.rx("reader")) == [b"next"]


def test_bytes_beyond_a_power_cut_never_come_back_to_life(small: Small, yard: Yard) -> None:
    """The message that is torn away is followed by whole ones: they must not reappear behind one of the same size."""
    start, end = frames(PAYLOADS)[3]
    lost = small.crashed.put(DATA, start, bytes(8))
    path = lost.lay(yard.keep(), "new")
    with reopened(path) as ch:
        assert messages(ch) == PAYLOADS[: BATCH.start]
        for i in (2, 3):
            ch.tx().send(payload(90 + i, len(PAYLOADS[i])))
        assert log_of(ch).active().end == end
        again = Image.take(path)
    with reopened(again.lay(yard.new(), "new")) as ch:
        assert len(messages(ch)) == 4
