"""After a power cut a file may have its new length, and zeros where a block of it was never written (ext4 does this). Frames
have no checksum: a record with a part in such a block is cut, unless the companion proves it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.kernel.spec import BLOCK_BYTES
from tests.queue.crash import Image, Yard
from tests.topic_crash.wreck import by_hand, data, found, frames, lay, open_topics, page

BEFORE = [b"durable %d" % i for i in range(3)]
LAST = [bytes([1 + i]) * (90 + 37 * i) for i in range(24)]  # several to a block, and none with a zero
BIG = 1 << 20


@dataclass
class Cut:
    """A topic whose last batch nobody was told of: the page is the one that was there before it."""

    image: Image
    payloads: list[bytes]

    def without_companion(self) -> Image:
        """Its length is there, and no entry."""
        name = data(0) + ".time"
        return self.image.changed(name, self.image[name][:64].ljust(len(self.image[name]), b"\0"))


def cut(yard: Yard, last: list[bytes]) -> Cut:
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_topics(path, segment_bytes=BIG) as logs:
            t = logs.topic("t")
            t.publish_many(BEFORE)
            t.flush()
            was = (path / page()).read_bytes()
            t.publish_many(last)
            t.flush()
            return Cut(Image.take(path).changed(page(), was), BEFORE + last)


def come_back(image: Image, yard: Yard) -> list[bytes]:
    """What there is after the power is back, to be read and to go on with."""
    path = lay(image, yard.new(), "new")
    with open_topics(path, segment_bytes=BIG) as logs:
        t = logs.topic("t")
        got, losses = found(t)
        assert not losses and not t.recovery(0).damage
        t.publish(b"after", partition=0)
        t.flush()
    with open_topics(path, segment_bytes=BIG) as logs:
        assert [*found(logs.topic("t"))[0].values()] == [*got.values(), b"after"]
    return [*got.values()]


@pytest.mark.parametrize("size", [BLOCK_BYTES, 2 * BLOCK_BYTES])
def test_a_record_with_a_part_in_a_block_that_was_never_written_is_cut(yard: Yard, size: int) -> None:
    was = cut(yard, LAST)
    plain, name = was.without_companion(), data(0)
    assert come_back(plain, yard) == was.payloads, "without a companion the length counts"
    for start in range(BLOCK_BYTES, len(plain[name]), size):
        zeros = bytes(min(size, len(plain[name]) - start))
        whole = [i for i, (_, end) in enumerate(frames(was.payloads)) if end <= start]
        assert come_back(plain.put(name, start, zeros), yard) == [was.payloads[i] for i in whole], start


def test_a_tail_of_zeros_takes_the_record_that_reaches_into_it(yard: Yard) -> None:
    was = cut(yard, LAST)
    plain, name = was.without_companion(), data(0)
    for start in range(BLOCK_BYTES, len(plain[name]), BLOCK_BYTES):
        whole = [i for i, (_, end) in enumerate(frames(was.payloads)) if end <= start]
        zeros = bytes(len(plain[name]) - start)
        assert come_back(plain.put(name, start, zeros), yard) == [was.payloads[i] for i in whole], start


@pytest.mark.parametrize(
    "zeros",
    [[bytes(3 * BLOCK_BYTES)], [b"x" + bytes(3 * BLOCK_BYTES) + b"y", b"z"], [b"x", bytes(5 * BLOCK_BYTES), b"", b"z"]],
    ids=["last", "within", "between"],
)
def test_zeros_that_were_appended_stay(yard: Yard, zeros: list[bytes]) -> None:
    """Their companion is synced before they are: tests/kernel/test_buffered_index.py."""
    was = cut(yard, zeros)
    assert come_back(was.image, yard) == was.payloads
