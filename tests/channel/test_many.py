"""A hundred thousand messages, with every number of receivers and every compression: each receiver gets them all, in order.

Live, while they are sent, and after a restart; with segments that are rolled, compressed and removed all the time.
"""

from __future__ import annotations

from itertools import count as counting
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Receiver, kernel
from tests.channel.by_hand import numbers, packed, plain
from tests.channel.conftest import Ran
from tests.support import until

COUNT = 20_000 if kernel.NAME == "reference" else 100_000
SEGMENT_BYTES = 64 << 10
COMPRESSIONS: list[Any] = [None, "snappy", "gzip", "zstd"]


def message(i: int) -> bytes:
    """Of 0 to 38 bytes: some 40 segments."""
    return (b"%d " % (i * 7919) * 4)[: i % 39]


SENT = [message(i) for i in range(COUNT)]


def receive(rx: Receiver[bytes], first: int, end: int, how: int) -> None:
    """Messages first to end, one at a time, several at once, or acknowledged later."""
    at = first
    for turn in counting():
        if at >= end:
            return
        many = min(end - at, 1 + turn % 500)
        got = rx.recv_many(many, timeout_s=60) if how else [rx.recv(timeout_s=60)]
        assert got == SENT[at : at + len(got)]
        at += len(got)
        if how == 2 and (turn % 3 == 0 or at == end):
            rx.ack(rx.unacked)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("receivers", [1, 2, 4])
def test_every_receiver_gets_all_of_them_live_and_after_a_restart(path: Path, receivers: int, compression: Any) -> None:
    options = {"segment_bytes": SEGMENT_BYTES, "compression": compression}
    half = COUNT // 2
    with Channel(path, **options) as ch:
        # The first is live, the second half-way: the others have received nothing when it is closed.
        live = [ch.rx(f"r{i}", ack=i == 2) for i in range(receivers)]
        kept = ch.rx("kept")
        running = [
            Ran(lambda i=i: receive(live[i], 0, COUNT if i == 0 else half, i % 3)) for i in range(min(2, receivers))
        ]
        tx = ch.tx()
        for i in range(0, COUNT, 100):
            tx.send_many(SENT[i : i + 50])
            for sent in SENT[i + 50 : i + 100]:
                tx.send(sent)
        for thread in running:
            thread.result()
        assert kept.offset == ch.stats().first_offset == 0
        last = max(numbers(path))
        assert last >= COUNT // 4000
        if compression:
            until(lambda: plain(path) == {last}, "all but the last are compressed")
    assert packed(path) == (set(range(last)) if compression else set())
    with Channel(path, **options) as ch:
        assert ch.recovery.clean
        running = [
            Ran(lambda i=i, rx=ch.rx(f"r{i}", ack=i == 2): receive(rx, half if i == 1 else 0, COUNT, i % 3))  # noqa: B008
            for i in range(1, receivers)
        ]
        receive(ch.rx("kept"), 0, COUNT, 1)
        for thread in running:
            thread.result()
        assert ch.rx("r0").try_recv() is None
        end = ch.stats().write_offset
        assert end == sum(8 + len(m) for m in SENT)
        assert {r.offset for r in ch.stats().receivers.values()} == {end}
        until(lambda: ch.stats().segments == 1, "all but the last are removed")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_receivers_that_keep_pace_leave_little_on_the_disk(path: Path, compression: Any) -> None:
    with Channel(path, segment_bytes=SEGMENT_BYTES, compression=compression) as ch:
        running = [Ran(lambda rx=ch.rx(f"r{i}"): receive(rx, 0, COUNT, 1)) for i in range(4)]  # noqa: B008
        tx = ch.tx()
        for sent in SENT:
            tx.send(sent)
        for thread in running:
            thread.result()
        until(lambda: ch.stats().segments == 1, "all but the last are removed")
    assert len(numbers(path)) == 1
    with Channel(path) as ch:
        assert all(ch.rx(f"r{i}").try_recv() is None for i in range(4))
