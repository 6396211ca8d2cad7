"""Taking records off a reader, each with the offset that is stored for it: the same from both kernels."""

from __future__ import annotations

import struct
import threading
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel import reference
from penstock.kernel.reference import taker
from penstock.kernel.spec import FrameSpec

from .conftest import CHANNEL, Rig
from .test_equal import Both, more, outcome, specs, streams

SHIFT = -64  # as of a channel's first segment: its header is not counted
NEVER = 2**64 - 1


class Kit:
    """A log in memory with some records, a reader of it, and a taker that stores three copies in `room`."""

    def __init__(self, kernel: ModuleType, count: int = 0, *, stored: bool = True) -> None:
        self.rig = Rig(kernel, CHANNEL)
        self.sent: list[bytes] = []
        self.room = bytearray(3 * 64)
        self.reader = self.rig.reader()
        self.taker = kernel.Taker(self.reader, (self.room, 8, 64, 3) if stored else None, 0)
        self.send(count)

    def send(self, count: int) -> None:
        new = [b"%d" % i * (i % 7) for i in range(len(self.sent), len(self.sent) + count)]
        if new:
            self.rig.writer.append_batch(new)
        self.sent += new

    def offset(self, i: int) -> int:
        return sum(8 + len(data) for data in self.sent[:i])

    @property
    def stored(self) -> list[int]:
        return [int.from_bytes(self.room[at : at + 8], "big") for at in (8, 72, 136)]


def test_what_is_taken_is_stored_with_it(kernel: ModuleType) -> None:
    kit = Kit(kernel, 20)
    kit.taker.allow(SHIFT)
    for i, data in enumerate(kit.sent):
        assert (kit.taker.taken, kit.taker.count) == (kit.offset(i), i)
        assert kit.taker.take() == data
        assert kit.stored == [kit.offset(i + 1)] * 3
        assert (kit.reader.sequence, kit.reader.position) == (101 + i, 64 + kit.offset(i + 1))
    assert kit.taker.take() is None
    assert (kit.taker.taken, kit.taker.count) == (kit.offset(20), 20)
    assert kit.room.count(0) > len(kit.room) - 3 * 8, "nothing else was stored"
    kit.send(2)
    assert [kit.taker.take() for _ in range(3)] == [*kit.sent[20:], None]


def test_without_a_place_it_is_only_known_here(kernel: ModuleType) -> None:
    kit = Kit(kernel, 2, stored=False)
    kit.taker.allow(SHIFT)
    assert kit.taker.take() == kit.sent[0]
    assert kit.taker.taken == kit.offset(1)
    assert not any(kit.room)


def test_it_gives_only_while_it_is_allowed_to(kernel: ModuleType) -> None:
    kit = Kit(kernel, 3)
    assert kit.taker.take() is None
    kit.taker.allow(SHIFT)
    assert kit.taker.take() == kit.sent[0]
    assert kit.taker.hold() == kit.offset(1)
    assert kit.taker.take() is None
    assert (kit.taker.taken, kit.reader.sequence) == (kit.offset(1), 101)
    kit.taker.mark(7)
    assert kit.stored == [7] * 3
    assert kit.taker.taken == 7
    kit.taker.allow(SHIFT + 1000)
    assert kit.taker.take() == kit.sent[1]
    assert kit.stored == [kit.offset(2) + 1000] * 3
    kit.reader.detach()
    assert kit.taker.take() is None
    kit.taker.allow(SHIFT)
    assert kit.taker.take() is None


def test_it_gives_nothing_that_reaches_a_limit(kernel: ModuleType) -> None:
    kit = Kit(kernel, 4)
    kit.taker.allow(SHIFT)
    assert kit.taker.until == NEVER
    kit.taker.until = kit.offset(2)
    assert [kit.taker.take(), kit.taker.take()] == [kit.sent[0], None]
    kit.taker.until = kit.offset(2) + 1
    assert [kit.taker.take(), kit.taker.take()] == [kit.sent[1], None]
    kit.taker.until = NEVER
    assert kit.taker.take() == kit.sent[2]


def test_a_limit_is_of_no_matter_once_it_was_reached(kernel: ModuleType) -> None:
    kit = Kit(kernel, 4)
    kit.taker.allow(SHIFT)
    kit.taker.take()
    kit.taker.watch(kit.offset(1))
    assert kit.taker.until == NEVER
    kit.taker.watch(kit.offset(2))
    assert (kit.taker.until, kit.taker.take()) == (kit.offset(2), None)


def test_a_limit_that_is_set_while_a_payload_is_decoded_counts(kernel: ModuleType) -> None:
    """Whoever sets it then looks how far it is stored, and is not told of what is taken after that."""
    kit = Kit(kernel, 2)
    kit.taker.allow(SHIFT)

    def decode(data: bytes) -> bytes:
        kit.taker.watch(kit.offset(1))
        return data

    assert kit.taker.take(decode) is None
    assert (kit.taker.taken, kit.stored) == (0, [0] * 3)


def test_what_is_said_to_be_taken_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the native kernel the two are one step."""
    kit = Kit(reference, 1)
    kit.taker.allow(SHIFT)
    stored = taker.store_big

    def store(*arguments: Any) -> None:
        assert kit.taker.taken == 0
        stored(*arguments)

    monkeypatch.setattr(taker, "store_big", store)
    assert kit.taker.take() == kit.sent[0]
    assert (kit.taker.taken, kit.stored) == (kit.offset(1), [kit.offset(1)] * 3)


def test_a_bad_record_is_left_to_others(kernel: ModuleType) -> None:
    kit = Kit(kernel, 5)
    kit.rig.data[64 + kit.offset(2) + 8] ^= 1
    kit.taker.allow(SHIFT)
    assert [kit.taker.take() for _ in range(4)] == [*kit.sent[:2], None, None]
    assert (kit.taker.taken, kit.reader.sequence) == (kit.offset(2), 102)


def test_a_payload_is_decoded_before_it_is_taken(kernel: ModuleType) -> None:
    kit = Kit(kernel, 4)
    kit.taker.allow(SHIFT)

    def decode(data: bytes) -> Any:
        assert kit.stored == [kit.offset(1)] * 3
        return [data]

    assert kit.taker.take() == kit.sent[0]
    assert kit.taker.take(decode) == [kit.sent[1]]
    assert kit.stored == [kit.offset(2)] * 3


@pytest.mark.parametrize("wrong", [None, ValueError("wrong"), KeyboardInterrupt()], ids=["None", "error", "interrupt"])
def test_what_does_not_decode_is_not_taken(kernel: ModuleType, wrong: BaseException | None) -> None:
    kit = Kit(kernel, 2)
    kit.taker.allow(SHIFT)

    def decode(data: bytes) -> Any:
        if wrong is not None:
            raise wrong

    if isinstance(wrong, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            kit.taker.take(decode)
    else:
        assert kit.taker.take(decode) is None
    assert (kit.taker.taken, kit.taker.count, kit.reader.sequence, kit.stored) == (0, 0, 100, [0] * 3)
    assert kit.taker.take() == kit.sent[0]


@pytest.mark.parametrize("what", ["take", "hold", "hold and allow", "hold, seek and allow"])
def test_what_another_took_while_it_was_decoded_is_not_taken_twice(kernel: ModuleType, what: str) -> None:
    kit = Kit(kernel, 3)
    kit.taker.allow(SHIFT)
    got: list[Any] = []

    def decode(data: bytes) -> bytes:
        if what == "take":
            got.append(kit.taker.take())
        else:
            kit.taker.hold()
            if "seek" in what:
                kit.reader.seek(64, 100)
            if "allow" in what:
                kit.taker.allow(SHIFT)
        return data

    assert kit.taker.take(decode) is None
    assert got == kit.sent[: len(got)]
    assert (kit.taker.taken, kit.taker.count) == (kit.offset(len(got)), len(got))


def test_it_tells_a_thread_what_it_took_since(kernel: ModuleType) -> None:
    kit = Kit(kernel, 60)
    taker = kit.taker
    taker.allow(SHIFT)
    assert taker.mine(0) is None
    taker.take()
    taker.take()
    last = 101, kit.offset(1), kit.offset(2)
    assert taker.mine(0) == taker.mine(1) == last
    assert taker.mine(2) is taker.mine(NEVER) is None

    def others(n: int) -> None:
        def work() -> None:
            since = taker.count
            assert taker.mine(since) is None
            for _ in range(n):
                taker.take()
            assert taker.mine(since) == (100 + taker.count - 1, kit.offset(taker.count - 1), kit.offset(taker.count))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    others(30)
    assert taker.mine(1) == last
    assert taker.mine(2) is None
    others(1)
    assert taker.mine(1) == last
    others(1)
    assert taker.mine(1) is None, "so long ago is forgotten"


def test_no_record_goes_to_two_threads(kernel: ModuleType) -> None:
    kit = Kit(kernel, 3000)
    kit.taker.allow(SHIFT)
    got: list[list[bytes]] = [[], [], []]

    def work(i: int) -> None:
        def decode(data: bytes) -> bytes:
            return data[:]

        while kit.taker.taken < kit.offset(3000):
            data = kit.taker.take(decode if i else None)  # None also when another one was faster
            if data is not None:
                got[i].append(data)

    kit.offset = {3000: kit.offset(3000)}.__getitem__  # type: ignore[method-assign]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(data for part in got for data in part) == sorted(kit.sent)
    assert kit.stored == [kit.taker.taken] * 3


@pytest.mark.parametrize(
    "place", [(4, 64, 3), (8, 4, 3), (8, 64, 0), (8, 96, 3), (192, 0, 1), (8, 64, 65)], ids=lambda p: f"{p}"
)
def test_places_that_cannot_be_stored_to_are_refused(kernel: ModuleType, place: tuple[int, int, int]) -> None:
    kit = Kit(kernel)
    with pytest.raises(ValueError, match="no aligned places"):
        kernel.Taker(kit.reader, (bytearray(3 * 64), *place), 0)
    with pytest.raises(BufferError):
        kernel.Taker(kit.reader, (bytes(3 * 64), 8, 64, 3), 0)


# ---- both the same, whatever they are given ----

steps = st.lists(
    st.one_of(
        st.tuples(st.just("take")),
        st.tuples(st.just("take")),
        st.tuples(st.just("decode"), st.sampled_from(["same", "none", "wrong"])),
        st.tuples(st.just("hold")),
        st.tuples(st.just("allow"), st.sampled_from([-64, 0, 2**40])),
        st.tuples(st.just("mark"), st.integers(0, 500)),
        st.tuples(st.just("until"), st.sampled_from([0, 30, 100, 2**40 + 100, NEVER])),
        st.tuples(st.just("watch"), st.sampled_from([0, 5, 30, 100, 2**40 + 100])),
        st.tuples(st.just("mine"), st.integers(0, 5)),
        st.tuples(st.just("seek"), st.integers(0, 200), st.integers(0, 20)),
        st.tuples(st.just("read")),
    ),
    max_size=25,
)


def decoders(name: str) -> Any:
    def wrong(data: bytes) -> Any:
        raise ValueError("wrong")

    return {"same": lambda data: data, "none": lambda data: None, "wrong": wrong}[name]


class Session:
    """A taker of one kernel over bytes, and what it said."""

    def __init__(self, kernel: ModuleType, spec: FrameSpec, data: bytes) -> None:
        self.said: list[Any] = []
        self.room = bytearray(64)
        self.reader = kernel.Reader(None, spec, lambda: False, self.on_bad)
        self.reader.attach(data, bytes(64), spec, 3, 10, 0, 10, len(data))
        self.taker = kernel.Taker(self.reader, (self.room, 0, 24, 3), 5)
        self.taker.allow(0)

    def on_bad(self, reason: int) -> None:
        raise ValueError(f"bad frame: {reason}")

    def step(self, name: str, *arguments: Any) -> None:
        result: Any
        if name == "until":
            result = self.taker.until = arguments[0]
        elif name == "decode":
            result = outcome(self.taker.take, decoders(arguments[0]))
        elif name == "seek":
            result = outcome(self.reader.seek, arguments[0], 10 + arguments[1])
        elif name == "read":
            result = outcome(self.reader.read)
            result = result if result is None or isinstance(result, tuple) else result.payload
        else:
            result = outcome(getattr(self.taker, name), *arguments)
        where = self.reader.position, self.reader.sequence, self.taker.taken, self.taker.count, self.taker.until
        self.said.append((name, result, where, bytes(self.room)))


@more
@given(data=st.data(), spec=specs, steps=steps)
def test_both_kernels_take_the_same(both: Both, data: st.DataObject, spec: FrameSpec, steps: list[Any]) -> None:
    stream = data.draw(streams(spec))
    sessions = [Session(kernel, spec, stream) for kernel in both]
    for name, *arguments in [*steps, ("allow", 0), ("until", NEVER), *[("take",)] * 8]:
        for session in sessions:
            session.step(name, *arguments)
        assert sessions[0].said == sessions[1].said
    assert struct.unpack(">Q", sessions[0].room[:8])[0] in (0, sessions[0].taker.taken)
