"""Single flipped bits, one at a time, in every file of a channel: found or harmless, and never at the cost of other messages.

A frame's flip costs its message. Headers have no checksum, nor have the offsets: the manifest knows what the former must say,
and the latter are there three times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from penstock import Channel, CorruptRecord, NotALog
from penstock.formats import channel as fmt
from penstock.storage import companion
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
    packed,
    plain,
    work,
)
from tests.queue.crash import Image, Yard, payload

# Frames of 8, 12, 16, 32, 64 bytes: a flipped length swallows just the next ones, or is that of an empty message.
SIZES = [8, 0, 4, 24, 0, 0, 56, 1, 8, 0]
COUNT = len(SIZES)
ONCE = [payload(i, n) for i, n in enumerate(SIZES)]
ONCE[3] = bytes(24)  # frames of empty messages, if its length is not believed
SEGMENT = offsets(ONCE)[-1]
STEP = one_in(1)


class Flipper:
    """Flips bits of a file under a channel, and back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def flip(self, bit: int) -> None:
        with self._path.open("r+b") as f:
            f.seek(bit // 8)
            (old,) = f.read(1)
            f.seek(bit // 8)
            f.write(bytes([old ^ 1 << bit % 8]))

    def each(self, bits: Iterable[int]) -> Iterator[int]:
        """One bit after the other is flipped, and right again before the next."""
        for bit in bits:
            self.flip(bit)
            yield bit
            self.flip(bit)


def reopened(path: Path, **options: object) -> Channel[bytes]:
    return open_channel(path, segment_bytes=SEGMENT, **options)


def filled(path: Path, rounds: int, **options: object) -> Image:
    """So many segments of the messages, the last one active; `done` has received all, `half` half of them, `gap` every
    other of the first ten. As a crash leaves it."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with reopened(path, **options) as ch:
            ch.rx("slow").close()
            for p in ONCE * rounds:
                ch.tx().send(p)
            drain(ch.rx("done"))
            ch.rx("half").recv_many(rounds * COUNT // 2)
            some, others = (ch.rx("gap", ack=True, shared=True) for _ in range(2))
            for i in range(10):
                (some if i % 2 else others).recv()
            some.ack(5)
            work(ch)
            return Image.take(path)


@pytest.fixture(scope="module")
def crashed(yard: Yard) -> Image:
    """Two sealed segments and an active one, all of it synced."""
    return filled(yard.keep(), 3, crash_consistent=True)


@pytest.fixture(scope="module")
def closed(crashed: Image, yard: Yard) -> Image:
    path = crashed.lay(yard.keep(), "same")
    with reopened(path):
        pass
    return Image.take(path)


@pytest.fixture(scope="module")
def images(crashed: Image, closed: Image) -> dict[str, Image]:
    return {"crashed": crashed, "closed": closed}


ALL = ONCE * 3
PLACES = {"done": len(ALL), "half": len(ALL) // 2, "slow": 0}
LEFT = {name: ALL[n:] for name, n in PLACES.items()} | {"gap": [p for i, p in enumerate(ALL) if i > 9 or i % 2 == 0]}


def received(ch: Channel[bytes]) -> dict[str, list[bytes]]:
    """What each receiver has yet to receive."""
    return {name: drain(ch.rx(name, ack=True)) for name in LEFT}


def hit_by(bit: int) -> int:
    """Which message of a segment a bit belongs to."""
    return next(i for i, (_, end) in enumerate(frames(ONCE)) if bit // 8 < end)


# ---- frames ----


@pytest.mark.parametrize("segment", [1, 2], ids=["finished", "active"])
def test_every_flip_in_a_frame_costs_exactly_that_message(closed: Image, yard: Yard, segment: int) -> None:
    path = closed.lay(yard.new(), "same")
    with reopened(path) as ch, ch.rx() as rx:
        everything, at = ALL, offsets(ALL)
        if segment == 2:
            ch.tx().send(b"after")  # so that the file is not at its end
            everything, at = [*ALL, b"after"], offsets([*ALL, b"after"])
        flipper = Flipper(path / fmt.name(segment))
        for bit in flipper.each(range(8 * HEADER, 8 * (HEADER + SEGMENT), STEP)):
            hit = segment * COUNT + hit_by(bit)
            rx.seek(at[hit - 3])
            assert [rx.recv(0.0) for _ in range(3)] == everything[hit - 3 : hit], bit
            with pytest.raises(CorruptRecord) as info:
                rx.recv(0.0)
            assert info.value.sequence == hit, bit
            assert info.value.position == frames(ONCE)[hit_by(bit)][0]
            assert info.value.path == str(path / fmt.name(segment))
            rx.seek(at[hit + 1])
            assert drain(rx) == everything[hit + 1 :], bit
            if bit % 5 == 0:
                for to in range(segment * COUNT, len(everything)):
                    rx.seek(at[to])
                    if to == hit:
                        with pytest.raises(CorruptRecord):
                            rx.recv(0.0)
                    else:
                        assert rx.recv(0.0) == everything[to], (bit, to)


@pytest.mark.parametrize("boot", ["same", "new"])
def test_every_flip_below_the_promised_end_is_named_at_opening_and_holds_nobody_up(
    crashed: Image, yard: Yard, boot: Boot
) -> None:
    """Whoever has passed it, or has not reached it, goes on as if there were none."""
    name = plain(crashed)[-1]
    for bit in range(8 * HEADER, 8 * (HEADER + SEGMENT), one_in(11)):
        hit = 2 * COUNT + hit_by(bit)
        with reopened(crashed.flipped(name, bit).lay(yard.new(), boot)) as ch:
            (found,) = ch.recovery.damage
            start = frames(ONCE)[hit_by(bit)][0]
            assert f"{name}: byte {start}: sequences {hit} to {hit} are lost" in found, bit
            assert not ch.recovery.torn
            ch.tx().send(b"after")
            assert drain(ch.rx("done")) == [b"after"], bit
            with ch.rx("half") as rx:
                assert rx.recv_many(hit - PLACES["half"], 0.0) == ALL[PLACES["half"] : hit]
                with pytest.raises(CorruptRecord):
                    rx.recv(0.0)
                rx.seek(offsets(ALL)[hit + 1])
                assert drain(rx) == [*ALL[hit + 1 :], b"after"]


# ---- headers ----


@pytest.mark.parametrize("state", ["closed", "crashed"])
@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_header_of_the_last_segment_costs_nothing_and_is_reported(
    images: dict[str, Image], yard: Yard, state: str, boot: Boot
) -> None:
    name = plain(images[state])[-1]
    for bit in range(0, 8 * HEADER, one_in(11)):
        path = images[state].flipped(name, bit).lay(yard.new(), boot)
        for again in range(2):
            with reopened(path) as ch:
                if not again:
                    (found,) = ch.recovery.damage
                    assert name in found
                    ch.tx().send(b"after")
                assert messages(ch) == [*ALL, b"after"], bit
                assert received(ch) == {k: [*v, b"after"] for k, v in LEFT.items()}, bit
                assert ch.stats().write_offset == offsets([*ALL, b"after"])[-1]


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_header_of_a_finished_segment_costs_nothing(crashed: Image, yard: Yard, boot: Boot) -> None:
    for which in (0, 1):
        name = plain(crashed)[which]
        for bit in range(which, 8 * HEADER, one_in(11)):
            with reopened(crashed.flipped(name, bit).lay(yard.new(), boot)) as ch:
                assert messages(ch) == ALL, bit
                assert received(ch) == LEFT, bit
                assert ch.stats().write_offset == offsets(ALL)[-1]


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_header_of_the_only_segment_that_is_left_costs_nothing_and_is_reported(
    yard: Yard, boot: Boot
) -> None:
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with reopened(path) as ch:
            for p in [*ALL, *ONCE[:5]]:
                ch.tx().send(p)
            ch.rx("some").recv_many(len(ALL) + 2)
            work(ch)
            assert ch.stats().first_offset == offsets(ALL)[-1]
    image = Image.take(path)
    (name,) = plain(image)
    for bit in range(0, 8 * HEADER, one_in(11)):
        with reopened(image.flipped(name, bit).lay(yard.new(), boot)) as ch:
            (found,) = ch.recovery.damage
            assert name in found
            assert ch.stats().first_offset == offsets(ALL)[-1]
            assert messages(ch) == ONCE[:5]
            assert drain(ch.rx("some")) == ONCE[2:5]


# ---- what lies beside ----


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
@pytest.mark.parametrize("suffix", [".time", ".index"])
def test_a_flip_beside_a_segment_costs_nothing(
    images: dict[str, Image], yard: Yard, suffix: str, state: str, boot: Boot
) -> None:
    image = images[state]
    for which in (1, 2):
        name = fmt.name(which) + suffix
        used = companion.HEADER_BYTES + 8 * COUNT if suffix == ".time" else 256 + 16 * (COUNT // 3 + 1)
        bits = [*range(8 * 64), *range(8 * (64 if suffix == ".time" else 256), 8 * min(used, len(image[name])))]
        for bit in bits[:: one_in(37)]:
            with reopened(image.flipped(name, bit).lay(yard.new(), boot)) as ch:
                assert not ch.recovery.damage
                assert not ch.recovery.torn
                assert messages(ch) == ALL, bit
                with ch.rx() as rx:
                    for to in range(which * COUNT, len(ALL)):
                        rx.seek(offsets(ALL)[to])
                        assert rx.recv(0.0) == ALL[to], (bit, to)
                assert drain(ch.rx("half")) == LEFT["half"]


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_a_flip_in_the_manifest_loses_and_invents_nothing(
    images: dict[str, Image], yard: Yard, state: str, boot: Boot
) -> None:
    image = images[state]
    for bit in range(0, 8 * len(image["manifest"]), one_in(37)):
        path = image.flipped("manifest", bit).lay(yard.new(), boot)
        with reopened(path) as ch:
            assert not ch.recovery.damage
            assert not ch.recovery.torn
            assert messages(ch) == ALL, bit
            assert received(ch) == LEFT, bit
            assert ch.stats().write_offset == offsets(ALL)[-1]
        with reopened(path) as ch:
            assert ch.recovery.clean
            assert messages(ch) == ALL


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_a_flip_in_the_offsets_is_put_right(images: dict[str, Image], yard: Yard, state: str, boot: Boot) -> None:
    image = images[state]
    slots = [0, 1, 2, 3, 4, 5, 511]
    bits = [8 * (page * 4096 + 8 * slot) + bit for page in range(3) for slot in slots for bit in range(64)]
    for bit in bits[:: one_in(19)]:
        path = image.flipped("offset", bit).lay(yard.new(), boot)
        with reopened(path) as ch:
            assert ch.recovery.clean
            assert messages(ch) == ALL, bit
            assert received(ch) == LEFT, bit
            assert ch.stats().write_offset == offsets(ALL)[-1]


def test_a_flip_in_a_cursor_is_refused_and_holds_everything_back(closed: Image, yard: Yard) -> None:
    for name in ("done", "gap"):
        file = f"cursors/{name}"
        for bit in range(0, 8 * len(closed[file]), one_in(13)):
            if 28 <= bit // 8 < 64:
                continue  # zeros that mean nothing
            with pytest.MonkeyPatch.context() as patch:
                by_hand(patch)
                with reopened(closed.flipped(file, bit).lay(yard.new(), "same")) as ch:
                    with pytest.raises(NotALog, match=file):
                        ch.rx(name, ack=True)
                    for other in LEFT.keys() - {name}:
                        assert drain(ch.rx(other)) == LEFT[other]
                    work(ch)
                    assert ch.stats().first_offset == 0, "it holds back what it may not have received"
                    with pytest.raises(NotALog, match=file):
                        ch.rx(name, ack=True)
                    ch.forget(name)
                    work(ch)
                    assert drain(ch.rx(name)) == ALL[2 * COUNT :], "a new one begins with what is left"


# ---- compressed ----


@pytest.fixture(scope="module", params=["snappy", "gzip", "zstd"])
def shrunk(request: pytest.FixtureRequest, yard: Yard) -> Image:
    path = yard.keep()
    filled(path, 3, compression=request.param)
    image = Image.take(path)
    assert len(packed(image)) == 2
    assert len(plain(image)) == 1
    return image


def test_every_flip_in_a_compressed_segment_is_found_or_harmless(shrunk: Image, yard: Yard) -> None:
    """What can be inflated before the damage is read, and so is every other segment."""
    path = shrunk.lay(yard.new(), "new")
    at = offsets(ALL)
    with reopened(path) as ch, ch.rx() as rx:
        for which in (0, 1):
            name = packed(shrunk)[which]
            for bit in Flipper(path / name).each(range(0, 8 * len(shrunk[name]), one_in(5))):
                rx.seek(at[COUNT * (2 - which)])  # off it, or the file that was inflated before is read on
                rx.seek(at[which * COUNT])
                got = []
                try:
                    while len(got) < COUNT:
                        got.append(rx.recv(0.0))
                except CorruptRecord as error:
                    assert error.sequence == which * COUNT + len(got)
                assert got == ONCE[: len(got)], bit
                if bit < 8 * HEADER:
                    assert len(got) == COUNT, f"bit {bit} of the header cost what the stream still holds"
                rx.seek(at[2 * COUNT])
                assert drain(rx) == ONCE, bit
                with ch.rx() as other:
                    other.seek(at[(1 - which) * COUNT])
                    assert [other.recv(0.0) for _ in range(COUNT)] == ONCE, bit


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_a_compressed_segment_keeps_no_channel_from_opening(shrunk: Image, yard: Yard, boot: Boot) -> None:
    name = packed(shrunk)[1]
    bits = [*range(0, 8 * HEADER, 13), *range(8 * HEADER, 8 * len(shrunk[name]), 37)]
    for bit in bits[:: one_in(1)]:
        with reopened(shrunk.flipped(name, bit).lay(yard.new(), boot)) as ch:
            assert drain(ch.rx("done")) == []
            assert ch.stats().write_offset == offsets(ALL)[-1]
            with ch.rx() as rx:
                assert [rx.recv(0.0) for _ in range(COUNT)] == ONCE, bit
                rx.seek(offsets(ALL)[2 * COUNT])
                assert drain(rx) == ONCE, bit


def test_a_flip_is_found_when_its_segment_is_to_be_compressed(closed: Image, yard: Yard) -> None:
    """A damaged segment stays as it is, or its damage is compressed with it: nothing is made good, and nothing else lost."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        name = fmt.name(0)
        for bit in range(0, 8 * (HEADER + SEGMENT), one_in(53)):
            with reopened(closed.flipped(name, bit).lay(yard.new(), "same"), compression="zstd") as ch:
                work(ch)
                assert (ch.path / "segment.1.z").exists()
                at = offsets(ALL)
                hit = hit_by(bit) if bit >= 8 * HEADER else None
                with ch.rx() as rx:
                    for to in range(len(ALL)):
                        rx.seek(at[to])
                        if to == hit:
                            with pytest.raises(CorruptRecord):
                                rx.recv(0.0)
                        else:
                            assert rx.recv(0.0) == ALL[to], (bit, to)


# ---- the control page ----


@pytest.mark.parametrize("boot", ["same", "new"])
def test_a_flip_in_the_control_page_of_a_closed_channel_loses_and_invents_nothing(
    closed: Image, yard: Yard, boot: Boot
) -> None:
    used = [
        b for b in [*range(64), *range(192, 712)] if b not in range(8, 12)
    ]  # the mutex is made anew; the version told
    for bit in [8 * byte + bit for byte in used for bit in range(8)][:: one_in(59)]:
        path = closed.lay(yard.new(), boot)  # first laid out: the page holds this file's inode
        Flipper(path / ".lock").flip(bit)
        with reopened(path) as ch:
            assert not ch.recovery.damage
            assert messages(ch) == ALL, bit
            assert received(ch) == LEFT, bit
            assert log_of(ch).active().next == len(ALL)
