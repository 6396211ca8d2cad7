"""Messages that do not decode: a typed error that says where, and nothing before or after them is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, DecodeError, Receiver, codecs
from tests.channel.conftest import Ran, asleep, offsets_of
from tests.support import until

BAD = b'{"bad'


@pytest.fixture
def spoilt(path: Path) -> Path:
    """Two good messages, a bad one, two good ones."""
    with Channel(path) as ch:
        ch.tx().send_many([b"0", b"1", BAD, b"3", b"4"])
    return path


AT = offsets_of([b"0", b"1", BAD, b"3", b"4"])


def bad(call: Callable[[], object]) -> DecodeError:
    with pytest.raises(DecodeError, match=rf"offset {AT[2]}: .*codecs.json\(int\).*seek\({AT[3]}\)") as caught:
        call()
    assert (caught.value.offset, caught.value.next_offset) == (AT[2], AT[3])
    assert caught.value.__cause__ is not None
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.offset, again.next_offset) == (AT[2], AT[3])
    return caught.value


@pytest.mark.parametrize("ack", [False, True])
@pytest.mark.parametrize("way", ["recv", "try_recv", "recv_many", "iterate"])
def test_a_message_that_does_not_decode_is_stepped_over(spoilt: Path, ack: bool, way: str) -> None:
    ways: dict[str, Callable[[Receiver[int]], int | None]] = {
        "recv": lambda rx: rx.recv(timeout_s=5),
        "try_recv": lambda rx: rx.try_recv(),
        "recv_many": lambda rx: rx.recv_many(1, timeout_s=5)[0],
        "iterate": lambda rx: next(iter(rx)),
    }
    take = ways[way]
    with Channel(spoilt, codecs.json(int)) as ch:
        rx = ch.rx("worker", ack=ack)
        assert [take(rx), take(rx)] == [0, 1]
        for _ in range(3):
            error = bad(lambda: take(rx))
            assert rx.unacked == (2 if ack else 0)
            assert rx.offset == (0 if ack else AT[2])
        assert error.next_offset is not None
        rx.seek(error.next_offset)
        assert [take(rx), take(rx)] == [3, 4]
        assert rx.unacked == (2 if ack else 0)


@pytest.mark.parametrize("ack", [False, True])
def test_recv_many_gives_what_comes_before_one_that_does_not_decode(spoilt: Path, ack: bool) -> None:
    with Channel(spoilt, codecs.json(int)) as ch:
        rx = ch.rx("worker", ack=ack)
        assert rx.recv_many(100) == [0, 1]
        bad(lambda: rx.recv_many(100))
        bad(lambda: rx.recv_many(100))
        rx.seek(AT[3])
        assert rx.recv_many(100) == [3, 4]
    if not ack:
        with Channel(spoilt, codecs.json(int)) as ch:
            assert ch.rx("worker").try_recv() is None


@pytest.mark.parametrize("ack", [False, True])
def test_recv_many_that_had_to_wait_loses_nothing_before_one_that_does_not_decode(path: Path, ack: bool) -> None:
    with Channel(path, codecs.json(int)) as ch:
        rx = ch.rx("worker", ack=ack)
        waiting = Ran(lambda: rx.recv_many(100, timeout_s=30))
        until(lambda: asleep(ch), "it sleeps")
        assert ch._log is not None
        ch._log.append_batch([b"0", b"1", BAD, b"3"])
        assert waiting.result() == [0, 1]
        bad(lambda: rx.recv_many(100))


def test_peek_gives_what_comes_before_one_that_does_not_decode(spoilt: Path) -> None:
    with Channel(spoilt, codecs.json(int)) as ch:
        rx = ch.rx("worker", ack=True)
        assert rx.peek(100) == [0, 1]
        rx.recv_many(2)
        bad(lambda: rx.peek(1))
        bad(lambda: rx.peek(2))
        assert rx.unacked == 2


def test_one_that_does_not_decode_in_another_segment_is_stepped_over(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        for message in (b"0", b"1", BAD, b"3"):
            ch.tx().send(message)
    with Channel(path, codecs.json(int), segment_bytes=1) as ch:
        rx = ch.rx("worker")
        assert rx.recv_many(100) == [0, 1]
        bad(rx.try_recv)
        rx.seek(AT[3])
        assert rx.recv_many(100) == [3]


class Fails:
    """A codec whose decoder raises what it is told to, a number of times."""

    name = "fails"

    def __init__(self, error: BaseException, at: bytes) -> None:
        self.error: BaseException | None = error
        self._at = at

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: Any) -> bytes:
        if bytes(data) == self._at and self.error is not None:
            raise self.error
        return bytes(data)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("mine"), SystemExit()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("way", ["recv", "recv_many", "ack", "ack many"])
def test_whatever_a_decoder_raises_loses_no_message(path: Path, way: str, error: BaseException) -> None:
    codec = Fails(error, b"2")
    sent = [b"0", b"1", b"2", b"3"]
    with Channel(path, codec) as ch:
        rx = ch.rx("worker", ack="ack" in way)
        ch.tx().send_many(sent)
        got: list[bytes] = []
        raised = 0
        for _ in range(6):
            try:
                got += rx.recv_many(3) if "many" in way else [rx.recv()]
            except type(error):
                raised += 1
                if "ack" in way:
                    assert rx.unacked == len(got)
                else:
                    assert rx.offset == offsets_of(sent)[len(got)]
                codec.error = None
            if len(got) == 4:
                break
        assert raised == 1, "it was swallowed"
        assert got == sent
