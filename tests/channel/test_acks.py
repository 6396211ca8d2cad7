"""Acknowledging: what was received comes again until it is acknowledged, after a restart and after a failed acknowledgement."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, DiskFull, InvalidAck, codecs
from penstock.storage import files
from tests.channel.conftest import offsets_of, payload
from tests.support import until

SENT = [payload(i) for i in range(40)]
AT = offsets_of(SENT)


@pytest.fixture(params=[1 << 20, 100], ids=["one segment", "many"])
def segment_bytes(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def filled(path: Path, segment_bytes: int) -> Path:
    with Channel(path, segment_bytes=segment_bytes) as ch:
        for message in SENT:
            ch.tx().send(message)
    return path


def test_what_is_not_acknowledged_comes_again_after_a_restart(filled: Path, segment_bytes: int) -> None:
    done = 0
    for take, ack in ((10, 4), (6, 0), (1, 1), (20, 20), (0, 0), (15, 3)):
        with Channel(filled, segment_bytes=segment_bytes) as ch:
            rx = ch.rx("worker", ack=True)
            assert rx.offset == AT[done]
            assert rx.unacked == 0
            assert [rx.recv(timeout_s=5) for _ in range(take)] == SENT[done : done + take]
            assert (rx.unacked, rx.offset) == (take, AT[done])
            rx.ack(ack)
            done += ack
            assert (rx.unacked, rx.offset) == (take - ack, AT[done])
            assert ch.stats().receivers["worker"].offset == AT[done]


def test_what_is_not_acknowledged_goes_to_the_next_receiver_of_that_name(filled: Path) -> None:
    with Channel(filled) as ch:
        with ch.rx("worker", ack=True) as rx:
            assert rx.recv_many(5) == SENT[:5]
            rx.ack(2)
        with ch.rx("worker", ack=True) as rx:
            assert rx.recv_many(6) == SENT[2:8]
            rx.ack(6)
        with ch.rx("worker") as rx:
            assert rx.recv() == SENT[8]
        with ch.rx("worker", ack=True) as rx:
            assert rx.recv() == SENT[9]


def test_acknowledging_goes_from_the_oldest_on(filled: Path) -> None:
    with Channel(filled) as ch:
        rx = ch.rx("worker", ack=True)
        rx.recv_many(10)
        for i in range(1, 6):
            rx.ack()
            assert (rx.unacked, rx.offset) == (10 - i, AT[i])
        rx.ack(5)
        assert (rx.unacked, rx.offset) == (0, AT[10])
        assert rx.recv() == SENT[10]


@pytest.mark.parametrize("n", [-1, 4, 100])
def test_more_than_is_unacknowledged_is_refused_and_nothing_is_done(filled: Path, n: int) -> None:
    with Channel(filled) as ch:
        rx = ch.rx("worker", ack=True)
        rx.recv_many(5)
        rx.ack(2)
        with pytest.raises(InvalidAck, match=rf"ack\({n}\), but 3 were received"):
            rx.ack(n)
        assert (rx.unacked, rx.offset) == (3, AT[2])
        rx.ack(0)
        assert (rx.unacked, rx.offset) == (3, AT[2])
        rx.ack(3)
        with pytest.raises(InvalidAck, match=r"but 0 were"):
            rx.ack()
        assert rx.offset == AT[5]


def test_a_receiver_that_acknowledges_by_receiving_says_so(filled: Path) -> None:
    with Channel(filled) as ch:
        for rx in (ch.rx("worker"), ch.rx()):
            rx.recv()
            assert rx.unacked == 0
            with pytest.raises(ValueError, match="ack=True"):
                rx.ack()


def test_peek_shows_what_comes_next_and_takes_nothing(filled: Path) -> None:
    with Channel(filled) as ch:
        rx = ch.rx("worker", ack=True)
        assert rx.peek(0) == rx.peek(-1) == []
        assert rx.peek(5) == rx.peek(5) == SENT[:5]
        assert (rx.unacked, rx.offset) == (0, 0)
        assert rx.recv_many(3) == SENT[:3]
        assert rx.peek(1) == [SENT[3]]
        assert rx.peek(100) == SENT[3:]
        rx.ack(1)
        assert rx.peek(2) == SENT[3:5]
        assert rx.recv_many(100) == SENT[3:]
        assert rx.peek(1) == []
        ch.tx().send(b"more")
        assert rx.peek(5) == [b"more"]
        plain = ch.rx("plain")
        assert plain.peek(2) == SENT[:2]
        assert plain.recv() == SENT[0]


def test_peek_shows_first_what_was_given_back(filled: Path) -> None:
    with Channel(filled) as ch:
        stays = ch.rx("pool", ack=True, shared=True)
        leaves = ch.rx("pool", ack=True, shared=True)
        assert [leaves.recv(), stays.recv(), leaves.recv()] == SENT[:3]
        leaves.close()
        assert stays.peek(4) == [SENT[0], SENT[2], SENT[3], SENT[4]]
        assert stays.recv_many(3) == [SENT[0], SENT[2], SENT[3]]
        assert stays.peek(1) == [SENT[4]]


def test_seek_drops_what_was_not_acknowledged(filled: Path) -> None:
    with Channel(filled) as ch:
        ch.rx("holds-all")
        rx = ch.rx("worker", ack=True)
        rx.recv_many(10)
        rx.seek(AT[20])
        assert (rx.unacked, rx.offset) == (0, AT[20])
        with pytest.raises(InvalidAck):
            rx.ack()
        assert rx.recv_many(2) == SENT[20:22]
        rx.seek(AT[3])
        assert (rx.unacked, rx.offset) == (0, AT[3])
        assert rx.recv_many(2) == SENT[3:5]
    with Channel(filled) as ch:
        assert ch.rx("worker", ack=True).recv() == SENT[3]


def test_what_is_not_acknowledged_is_not_removed(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        rx = ch.rx("worker", ack=True)
        for message in SENT:
            ch.tx().send(message)
        assert rx.recv_many(100) == SENT
        rx.ack(1)
        until(lambda: ch.stats().first_offset == AT[1], "what is done is removed")
        rx.ack(20)
        until(lambda: ch.stats().first_offset == AT[21], "what is done is removed")
        assert ch.rx().recv_many(100) == SENT[21:]


def test_a_receiver_without_a_name_acknowledges_for_itself(filled: Path) -> None:
    with Channel(filled) as ch:
        rx = ch.rx(ack=True)
        assert rx.recv_many(5) == SENT[:5]
        assert rx.offset == 0
        rx.ack(2)
        assert (rx.unacked, rx.offset) == (3, AT[2])


def test_messages_of_any_type_are_peeked_and_acknowledged(path: Path) -> None:
    objects: list[Any] = [None, 0, "", {"a": [1]}]
    with Channel(path, codecs.json(Any)) as ch:
        ch.tx().send_many(objects)
        rx = ch.rx("worker", ack=True)
        assert rx.peek(10) == rx.recv_many(10) == objects
        rx.ack(4)
        assert rx.peek(1) == []


# ---- when acknowledging fails ----


def test_an_acknowledgement_that_a_full_disk_refuses_can_be_given_again(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a gap it takes a file of its own. To close one does not, nor to go on to a later place."""

    def full(path: Path, data: bytes, **_: object) -> None:
        raise DiskFull(path, 0)

    with Channel(filled) as ch:
        slow, fast = (ch.rx("pool", ack=True, shared=True) for _ in range(2))
        assert [slow.recv(), fast.recv(), fast.recv(), slow.recv()] == SENT[:4]
        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", full)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    fast.ack(2)
                assert (fast.unacked, slow.unacked, fast.offset) == (2, 2, 0)
        fast.ack(1)
        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", full)
            slow.ack(1)  # closes the gap
            assert (fast.unacked, slow.unacked, fast.offset) == (1, 1, AT[2])
            assert ch.stats().receivers["pool"].offset == AT[2]
            with pytest.raises(DiskFull):
                slow.ack(1)
            with pytest.raises(DiskFull):
                fast.seek(0)
            assert (fast.unacked, slow.unacked, fast.offset) == (1, 1, AT[2])
            assert fast.peek(1) == [SENT[4]]
        slow.ack(1)
        assert (slow.unacked, slow.offset) == (0, AT[2])
        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", full)
            fast.ack(1)
            assert slow.offset == AT[4]
            assert slow.recv() == SENT[4]
            fast.seek(AT[10])
            assert (slow.unacked, slow.offset) == (0, AT[10])
        assert slow.recv() == SENT[10]


@pytest.mark.parametrize("crash_consistent", [False, True])
def test_a_crash_between_the_steps_of_an_acknowledgement_takes_none_back(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_consistent: bool
) -> None:
    """The directory is copied whenever a file is about to be replaced and when it was: what a kill there would leave."""
    real, copies = files.replace, list[tuple[Path, set[int]]]()
    acked: set[int] = set()

    def copying(path: Path, data: bytes, **options: Any) -> None:
        for step in (lambda: None, lambda: real(path, data, **options)):
            step()
            copies.append((tmp_path / f"copy{len(copies)}", set(acked)))
            shutil.copytree(filled, copies[-1][0], ignore=shutil.ignore_patterns("*.tmp", "*.next"))

    with Channel(filled, crash_consistent=crash_consistent) as ch:
        slow, fast = (ch.rx("pool", ack=True, shared=True) for _ in range(2))
        slow.recv()
        fast.recv_many(3)
        slow.recv()
        fast.recv()
        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", copying)
            for rx, messages in ((fast, [1, 2]), (slow, [0]), (fast, [3, 5]), (slow, [4])):
                rx.ack(len(messages))
                acked.update(messages)
    assert len(copies) == 4  # only what goes beyond a gap, and what comes with that, takes more than one store
    for copy, before in copies:
        with Channel(copy) as ch:
            left = {SENT[i] for i in range(6)} & set(ch.rx("pool", ack=True).recv_many(6))
            again = {i for i in before if SENT[i] in left}
            assert not again, f"{copy.name}: acknowledged, and came again"
