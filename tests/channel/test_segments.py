"""Segments: when they are left, removed and compressed, and every byte of the directory against what was made by hand."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import cramjam
import pytest

from penstock import Channel, InvalidOffset, LogNotFound, NotALog, Queue, RecordGone, codecs
from penstock.formats.channel import Method
from penstock.storage import files, packing
from penstock.storage.janitor import Janitor
from tests.channel.by_hand import OURS, frame, frames, header, names, numbers, packed, payloads_of, plain, read, write
from tests.channel.conftest import Ran, name_of, offsets_of, payload
from tests.support import AWhile, until

COMPRESSIONS: list[Any] = ["snappy", "gzip", "zstd"]
SENT = [payload(i) for i in range(200)]
AT = offsets_of(SENT)


def send(ch: Channel[bytes], messages: list[bytes]) -> None:
    tx = ch.tx()
    for message in messages:
        tx.send(message)


def settled(ch: Channel[Any]) -> None:
    """Wait until the background has nothing left to do but compress."""
    log = ch._log
    assert log is not None
    until(lambda: all(s.sealed for s in log.finished().values()), "all finished segments are sealed")


# ---- leaving a segment ----


@pytest.mark.parametrize("threshold", [1, 8, 9, 32, 1000])
def test_a_segment_is_left_before_a_message_once_it_holds_so_many_bytes(path: Path, threshold: int) -> None:
    with Channel(path, segment_bytes=threshold) as ch:
        send(ch, SENT[:60])
    wanted: list[list[bytes]] = [[]]
    for message in SENT[:60]:
        if sum(8 + len(m) for m in wanted[-1]) >= threshold:
            wanted.append([])
        wanted[-1].append(message)
    assert numbers(path) == set(range(len(wanted)))
    begin = 0
    for i, messages in enumerate(wanted):
        assert (path / f"segment.{i}").read_bytes() == header(i, begin) + frames(messages)
        begin += sum(8 + len(m) for m in messages)


def test_a_batch_stays_in_the_segment_that_it_begins_in(path: Path) -> None:
    with Channel(path, segment_bytes=50) as ch:
        ch.tx().send(b"a")
        ch.tx().send_many([b"b" * 100] * 10)
        ch.tx().send_many([b"c", b"d"])
    assert (path / "segment.0").read_bytes()[64:] == frames([b"a", *[b"b" * 100] * 10])
    assert (path / "segment.1").read_bytes()[64:] == frames([b"c", b"d"])


def test_the_threshold_may_be_another_each_time(path: Path) -> None:
    """Also one that a file which is being written has passed already."""
    sent: list[bytes] = []
    for threshold in (100_000, 10, 1 << 20, 3, 1 << 30):
        with Channel(path, segment_bytes=threshold) as ch:
            more = [b"%d" % threshold * 50 for _ in range(20)]
            send(ch, more)
            sent += more
            assert ch.rx().recv_many(1000) == sent
    assert read(path) == sent


def test_a_directory_says_of_itself_what_it_is(path: Path) -> None:
    with Channel(path) as ch:
        ch.tx().send(b"a")
    with pytest.raises(NotALog, match="a channel, not a queue"):
        Queue(path)
    queue = path.with_name("queue")
    Queue(queue).close()
    with pytest.raises(NotALog, match="a queue, not a channel"):
        Channel(queue)
    for read_only in (False, True):
        file = path.with_name("file")
        file.write_bytes(b"")
        with pytest.raises(NotALog):
            Channel(file, read_only=read_only)
    with pytest.raises(LogNotFound):
        Channel(path.with_name("nowhere"), read_only=True)


def test_a_segment_that_is_cut_while_it_is_opened_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sealed in the background, between the look at its size and its being mapped."""
    with Channel(path) as ch:
        send(ch, SENT[:10])
    real, asked = files.size, 0

    def size(fd: int) -> int:
        nonlocal asked
        if name_of(fd) == "segment.0":
            asked += 1
            return real(fd) + 4096 * (asked == 1)
        return real(fd)

    with Channel(path) as ch:
        monkeypatch.setattr(files, "size", size)
        assert ch.rx().recv_many(20) == SENT[:10]
        assert asked > 1


# ---- removing ----


def test_what_all_named_receivers_have_passed_is_removed(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        one, two, unnamed = ch.rx("one"), ch.rx("two"), ch.rx()
        send(ch, SENT[:30])
        one.recv_many(20)
        unnamed.recv_many(30)
        settled(ch)
        assert ch._log is not None
        ch._tidy(ch._log)
        assert ch.stats().first_offset == 0
        two.recv_many(7)
        until(lambda: ch.stats().first_offset == AT[7], "what both have passed is removed")
        until(lambda: numbers(path) == set(range(7, 30)), "its files too")
        two.recv_many(23)
        until(lambda: ch.stats().first_offset == AT[20], "what both have passed is removed")
        one.recv_many(10)
        until(lambda: ch.stats().first_offset == AT[29], "all but the last is removed")
        until(lambda: not list(path.glob("segment.28*")), "its files too")
        assert numbers(path) == {29}
        assert ch.stats().segments == 1
    with Channel(path) as ch:
        assert (ch.stats().first_offset, ch.stats().write_offset) == (AT[29], AT[30])
        assert ch.rx().recv_many(100) == SENT[29:30]


def test_while_no_receiver_is_registered_nothing_is_removed(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        send(ch, SENT[:20])
        unnamed = ch.rx()
        unnamed.recv_many(20)
        settled(ch)
        assert ch._log is not None
        ch._tidy(ch._log)
        assert ch.stats().first_offset == 0
        with ch.rx("worker") as rx:
            assert rx.recv_many(5) == SENT[:5]
        until(lambda: ch.stats().first_offset == AT[5], "what it has passed is removed")
        ch.forget("worker")
        ch._tidy(ch._log)
        assert ch.stats().first_offset == AT[5]
        assert ch.rx("other").recv_many(100) == SENT[5:20]


def test_forgetting_a_receiver_releases_what_it_held_back(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        slow, fast = ch.rx("slow"), ch.rx("fast")
        send(ch, SENT[:20])
        assert slow.recv() == SENT[0]
        fast.recv_many(20)
        until(lambda: ch.stats().first_offset == AT[1], "what both have passed is removed")
        slow.close()
        ch.forget("slow")
        until(lambda: ch.stats().first_offset == AT[19], "what it held back is removed")
        assert "slow" not in ch.stats().receivers
        assert ch.rx("slow").recv() == SENT[19], "a new one starts at the earliest"
        ch.forget("never-there")


def test_what_a_receiver_passes_while_the_background_looks_is_removed_without_another_message(path: Path) -> None:
    """It looks who has passed what, and only then whom to listen to: somebody may have passed in between."""
    with Channel(path, segment_bytes=1) as ch:
        rx = ch.rx("worker")
        passed_by_all = ch._passed_by_all
        asked = 0

        def look(info: Any) -> bool:
            nonlocal asked
            asked += 1
            answer = passed_by_all(info)
            if info.id == 0 and asked == 1:
                assert rx.try_recv() is not None  # right after it looked
            return answer

        ch._passed_by_all = look  # type: ignore[method-assign]
        send(ch, SENT[:2])
        until(lambda: asked, "it looks")
        until(lambda: ch.stats().first_offset == AT[1], "the first one is removed")


def test_one_receiver_far_behind_does_not_keep_the_background_busy(path: Path) -> None:
    """It is asked to look again when somebody passes the first segment that is left, not with every message after it."""
    with Channel(path, segment_bytes=1) as ch:
        ch.rx("slow")
        fast = ch.rx("fast")
        send(ch, SENT[:100])
        settled(ch)
        asked = 0
        again = Janitor.look_again

        def counted(self: Janitor) -> None:
            nonlocal asked
            asked += 1
            again(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Janitor, "look_again", counted)
            assert [fast.recv() for _ in range(100)] == SENT[:100]
        assert asked <= 2


@pytest.mark.parametrize("name", ["late", None])
def test_a_receiver_that_is_made_while_segments_are_removed_starts_with_the_first_that_is_left(
    path: Path, name: str | None
) -> None:
    with Channel(path, codecs.msgpack(int), segment_bytes=1) as ch:
        first, stop, sent = ch.rx("first"), threading.Event(), 0

        def send_and_receive() -> int:
            nonlocal sent
            tx = ch.tx()
            while not stop.is_set():
                tx.send(sent)
                assert first.recv() == sent
                sent += 1
            return sent

        busy = Ran(send_and_receive)
        made = gone = 0
        a_while = AWhile(0.6)
        while a_while.goes_on(enough=sent > 20 and made + gone > 3):
            rx = ch.rx(name)
            try:
                one = rx.recv(timeout_s=10)
                assert [rx.recv(timeout_s=10) for _ in range(3)] == [one + 1, one + 2, one + 3]
                made += 1
            except RecordGone as error:
                assert name is None, "what a named one has not received was removed"
                gone += 1
                with contextlib.suppress(InvalidOffset):  # gone too by now
                    rx.seek(int(str(error).split("seek(")[1].split(")")[0])) if gone % 5 == 0 else None
            except InvalidOffset:
                assert name is None
            rx.close()
            if name is not None:
                ch.forget(name)
        stop.set()
        assert busy.result() > 20
        assert made + gone > 3


def test_a_receiver_without_a_name_is_told_what_was_removed_and_where_to_go_on(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        named, unnamed = ch.rx("worker"), ch.rx()
        send(ch, SENT[:20])
        assert unnamed.recv() == SENT[0]
        named.recv_many(10)
        until(lambda: ch.stats().first_offset == AT[10], "what it has passed is removed")
        for call in (unnamed.recv, unnamed.try_recv, lambda: unnamed.recv_many(3), lambda: unnamed.peek(1)):
            with pytest.raises(RecordGone, match=rf"seek\({AT[10]}\)"):
                call()
        unnamed.seek(AT[10])
        assert unnamed.recv_many(100) == SENT[10:20]
        with pytest.raises(InvalidOffset, match=f"which has {AT[10]} to {AT[20]}"):
            unnamed.seek(AT[9])


def test_a_receiver_that_waits_is_not_disturbed_when_its_segment_is_removed(path: Path) -> None:
    with Channel(path, segment_bytes=18) as ch:
        one, two = ch.rx("one"), ch.rx("two")
        ch.tx().send_many([b"a", b"b"])
        for rx in (one, two):
            assert rx.recv_many(5) == [b"a", b"b"]
        waiting = [Ran(lambda rx=rx: rx.recv(timeout_s=30)) for rx in (one, two)]  # type: ignore[misc]
        assert ch._log is not None
        ch._log.roll_now()
        until(lambda: ch.stats().first_offset == 18, "the first one is removed")
        assert all(thread.is_alive() for thread in waiting)
        assert (one.offset, two.offset) == (18, 18)
        ch.tx().send(b"c")
        assert [thread.result() for thread in waiting] == [b"c", b"c"]


@pytest.mark.parametrize("peek", [False, True])
def test_a_receiver_goes_on_behind_what_was_acknowledged_in_an_earlier_life_and_is_removed(
    path: Path, peek: bool
) -> None:
    """It comes to a gap, and what lies beyond that goes as soon as the gap is closed."""
    with Channel(path, segment_bytes=1000) as ch:
        one, other = (ch.rx("team", ack=True, shared=True) for _ in range(2))
        for i in range(60):
            ch.tx().send(b"%d" % i * 50)
        one.recv()
        other.ack(len(other.recv_many(59)))
    with Channel(path, segment_bytes=1000) as ch:
        rx = ch.rx("team", ack=True, shared=True)
        assert rx.recv() == b"0" * 50
        rx.ack()
        until(lambda: ch.stats().segments == 1, "what is done is removed")
        ch.tx().send(b"next")
        if peek:
            assert rx.peek(5) == [b"next"]
        assert rx.recv(5) == b"next"
        rx.ack()
        assert rx.offset == ch.stats().write_offset


def test_a_seek_back_holds_what_it_went_to(path: Path) -> None:
    with Channel(path, segment_bytes=1) as ch:
        rx, holds = ch.rx("worker"), ch.rx("holds")
        send(ch, SENT[:20])
        rx.recv_many(15)
        rx.seek(AT[3])
        holds.recv_many(20)
        until(lambda: ch.stats().first_offset == AT[3], "what both have passed is removed")
        assert rx.recv_many(100) == SENT[3:20]


# ---- compressing ----


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_is_still_needed_is_compressed_and_read_as_if_it_were_not(path: Path, compression: Any) -> None:
    with Channel(path, segment_bytes=200, compression=compression) as ch:
        fast, slow, tx = ch.rx("fast"), ch.rx("slow"), ch.tx()
        got: list[bytes] = []
        for i, message in enumerate(SENT):
            tx.send(message)
            if i % 3 == 0:
                got.append(fast.recv(timeout_s=5))
        count = max(numbers(path))
        until(lambda: packed(path) >= set(range(count)) and plain(path) == {count}, "all but the last are compressed")
        assert not list(path.glob("*.ing"))
        assert got + fast.recv_many(1000) == SENT
        assert slow.peek(1000) == SENT
        for i in range(0, len(SENT), 7):
            slow.seek(AT[i])
            assert slow.recv() == SENT[i]
        assert ch.stats().disk_bytes > 0
    with Channel(path, segment_bytes=200) as ch:
        rx = ch.rx("slow")
        first = None
        while first is None:  # segments that it has passed are removed meanwhile
            with contextlib.suppress(InvalidOffset):
                rx.seek(ch.stats().first_offset)
                first = rx.offset
        assert rx.recv_many(1000) == SENT[AT.index(first) :]
        until(lambda: ch.stats().segments == 1, "compressed ones are removed as others are")
        until(lambda: packed(path) == set(), "their files too")


def inflate(method: int, body: bytes) -> bytes:
    if method == Method.GZIP:
        return zlib.decompress(body, wbits=31)
    return bytes({0: cramjam.snappy, 2: cramjam.zstd}[method].decompress(body))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_segment_has_a_plain_header_and_one_stream(path: Path, compression: Any) -> None:
    with Channel(path, segment_bytes=1000, compression=compression) as ch:
        send(ch, SENT)
        last = max(numbers(path))
        until(lambda: plain(path) == {last}, "all but the last are compressed")
    begin, out = 0, list[bytes]()
    method = {"snappy": 0, "gzip": 1, "zstd": 2}[compression]
    for i in range(last):
        data = (path / f"segment.{i}.z").read_bytes()
        number, begins, ends, how = struct.unpack_from(">IQQB", data)
        assert (number, begins, how) == (i, begin, method)
        assert data[21:64] == bytes(43)
        body = inflate(method, data[64:])
        assert len(body) == ends - begins
        out += payloads_of(body)
        begin = ends
    data = (path / f"segment.{last}").read_bytes()
    assert data[:64] == header(last, begin)
    assert out + list(payloads_of(data[64:])) == SENT


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_reader_stays_undisturbed_while_its_segment_is_compressed_and_removed(path: Path, compression: Any) -> None:
    with Channel(path, segment_bytes=2000) as ch:
        send(ch, SENT)
    with Channel(path, segment_bytes=2000, compression=compression) as ch:
        # Stand in the middle of the first segment before the background has begun: it is compressed underneath.
        named, unnamed = ch.rx("worker"), ch.rx()
        got = [unnamed.recv() for _ in range(3)]
        assert named.recv() == SENT[0]
        until(lambda: 0 in packed(path) and 0 not in plain(path), "the first one is compressed")
        got += [unnamed.recv() for _ in range(5)]
        named.recv_many(1000)
        until(lambda: ch.stats().segments == 1, "all but the last are removed")
        inside = list(payloads_of_first(SENT, 2000))
        got += [unnamed.recv() for _ in range(len(inside) - len(got))]
        assert got == inside
        with pytest.raises(RecordGone):
            unnamed.recv()


def payloads_of_first(messages: list[bytes], threshold: int) -> list[bytes]:
    out: list[bytes] = []
    while sum(8 + len(m) for m in out) < threshold:
        out.append(messages[len(out)])
    return out


def test_a_segment_that_is_removed_while_it_is_compressed_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again before it gets its name."""
    real, entered, go_on = packing.pack, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        real(*arguments)
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            go_on.wait(30)

    monkeypatch.setattr(packing, "pack", slow)
    with Channel(path, segment_bytes=1, compression="gzip") as ch:
        rx = ch.rx("worker")
        send(ch, SENT[:3])
        assert entered.wait(30)
        assert (path / "segment.0.z.ing").exists()
        assert "segment.0.z" not in names(path)
        log = ch._log
        assert log is not None
        assert log.retire(log.finished()[0])  # as if everybody had passed it meanwhile
        rx.seek(AT[1])
        go_on.set()
        until(lambda: 1 in packed(path), "the background goes on")
        assert not {"segment.0", "segment.0.z", "segment.0.z.ing"} & names(path)
        assert rx.recv_many(5) == SENT[1:3]


def test_a_full_disk_while_compressing_leaves_everything_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    real = files.write

    def full(fd: int, data: Any, offset: int) -> None:
        nonlocal tried
        if ".z.ing" in name_of(fd) and offset >= 64:
            tried += 1
            raise OSError(28, "full")
        real(fd, data, offset)

    monkeypatch.setattr(files, "write", full)
    with Channel(path, segment_bytes=100, compression="zstd") as ch:
        rx = ch.rx("worker")
        send(ch, SENT[:50])
        until(lambda: tried > 2, "it tries")
        settled(ch)
        assert packed(path) == set()
        monkeypatch.undo()
        assert rx.recv_many(100) == SENT[:50]
        send(ch, SENT[50:100])
        until(lambda: packed(path), "with room again it goes on")
        assert rx.recv_many(100) == SENT[50:100]


class Slowly:
    """Compressing where each segment takes until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._go_on, pack = threading.Semaphore(0), threading.Semaphore(0), packing.pack

        def slowly(*args: Any) -> None:
            self.begun.release()
            assert self._go_on.acquire(timeout=60)
            pack(*args)

        monkeypatch.setattr(packing, "pack", slowly)

    def one_begins(self) -> None:
        assert self.begun.acquire(timeout=60)

    def it_ends(self) -> None:
        self._go_on.release()


def test_what_all_have_passed_is_removed_though_others_are_still_to_be_compressed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Channel(path, segment_bytes=100) as ch:
        ch.rx("reader")
        send(ch, SENT)
    slowly = Slowly(monkeypatch)
    with Channel[bytes](path, segment_bytes=100, compression="zstd") as ch:
        receiver = ch.rx("reader")
        slowly.one_begins()
        assert receiver.recv_many(len(SENT)) == SENT
        slowly.it_ends()
        until(lambda: ch.stats().segments == 1, "all but the last are removed")
        assert not slowly.begun.acquire(blocking=False), "what is removed is not compressed before"


def test_a_close_waits_for_one_to_be_compressed_and_the_next_opening_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Channel(path, segment_bytes=100) as ch:
        ch.rx("reader")
        send(ch, SENT)
    with monkeypatch.context() as meanwhile:
        slowly = Slowly(meanwhile)
        ch = Channel[bytes](path, segment_bytes=100, compression="zstd")
        slowly.one_begins()
        janitor, closing = ch._janitor, threading.Thread(target=ch.close)
        assert janitor is not None
        closing.start()
        until(lambda: janitor._stopping, "it is told to stop")
        slowly.it_ends()
        closing.join(60)
        assert not closing.is_alive()
    assert packed(path) == {0}
    with Channel[bytes](path, segment_bytes=100, compression="zstd") as ch:
        until(lambda: len(plain(path)) == 1, "all but the last are compressed")
        assert ch.rx("reader").recv_many(len(SENT)) == SENT


def test_a_damaged_segment_is_not_compressed_and_holds_up_nothing_else(path: Path) -> None:
    with Channel(path, segment_bytes=100) as ch:
        ch.rx("worker")
        send(ch, SENT[:50])
        settled(ch)
    shorter, strange = path / "segment.1", path / "segment.2"
    os.truncate(shorter, shorter.stat().st_size - 3)
    strange.write_bytes(b"\xff" * 64 + strange.read_bytes()[64:])
    with Channel(path, segment_bytes=100, compression="snappy") as ch:
        last = max(numbers(path))
        until(lambda: packed(path) == set(range(last)) - {1, 2}, "all others are compressed")
        assert not list(path.glob("*.ing"))
        send(ch, SENT[50:100])
        until(lambda: last + 1 in packed(path), "the background is still there")


def test_leftovers_of_a_crash_while_compressing_are_cleared(path: Path) -> None:
    with Channel(path, segment_bytes=500, compression="gzip") as ch:
        ch.rx("worker")
        send(ch, SENT)
        last = max(numbers(path))
        until(lambda: plain(path) == {last}, "all but the last are compressed")
    originals: dict[int, bytes] = {}
    for i in range(3):
        data = (path / f"segment.{i}.z").read_bytes()
        begin, body = struct.unpack_from(">Q", data, 4)[0], inflate(1, data[64:])
        originals[i] = header(i, begin) + body
        (path / f"segment.{i}").write_bytes(originals[i])  # there twice
    (path / "segment.4.z.ing").write_bytes(b"half")
    (path / "segment.99.z.ing").write_bytes(b"of one that is gone")
    cut = path / "segment.2.z"
    cut.write_bytes(cut.read_bytes()[:-9])  # not by us: ours have their name when they are whole
    with Channel(path, segment_bytes=500) as ch:
        assert plain(path) == {2, last}
        assert not list(path.glob("*.ing"))
        assert (path / "segment.2").read_bytes() == originals[2]
        assert ch.rx("worker").recv_many(1000) == SENT


def test_read_only_reads_compressed_segments_where_nothing_can_be_written(path: Path) -> None:
    with Channel(path, segment_bytes=500, compression="zstd") as ch:
        send(ch, SENT)
        last = max(numbers(path))
        until(lambda: plain(path) == {last}, "all but the last are compressed")
    before = {name: (path / name).read_bytes() for name in names(path)}
    with Channel(path, read_only=True) as ch:
        assert ch.rx().recv_many(1000) == SENT
        assert ch.stats().receivers == {}
    assert {name: (path / name).read_bytes() for name in names(path)} == before


# ---- the directory, byte by byte ----


def test_a_directory_that_was_closed_is_plain_segments_and_ours(path: Path) -> None:
    with Channel(path, segment_bytes=1000) as ch:
        one, two = ch.rx("one"), ch.rx("two")
        send(ch, SENT)
        one.recv_many(30)
        two.recv_many(50)
        settled(ch)
    assert read(path) == SENT[: len(SENT)]
    assert packed(path) == set()
    last = max(plain(path))
    wanted = {f"segment.{i}{suffix}" for i in range(last + 1) for suffix in ("", ".time", ".index")}
    found = names(path)
    assert found - OURS == wanted | {"cursors/one", "cursors/two"}
    assert not [name for name in found if name.endswith((".tmp", ".next", ".ing"))]


def test_the_offset_file_is_big_endian_numbers_the_write_offset_first(path: Path) -> None:
    def slot(i: int) -> int:
        return int(struct.unpack_from(">Q", (path / "offset").read_bytes(), 8 * i)[0])

    with Channel(path, segment_bytes=1000) as ch:
        tx, one, two = ch.tx(), ch.rx("one"), ch.rx("two", ack=True)
        slots = ch._slots()
        for i in range(20):
            tx.send(SENT[i])
            assert slot(0) == AT[i + 1], "before send returns"
            if i % 2:
                one.recv()
                assert slot(slots["one"]) == one.offset == AT[(i + 1) // 2], "before recv returns"
            two.recv()
            if i % 5 == 4:
                two.ack(5)
                assert slot(slots["two"]) == AT[i + 1], "before ack returns"
        tx.send_many(SENT[20:])
        assert slot(0) == AT[-1]
        one.seek(AT[3])
        assert slot(slots["one"]) == AT[3]
    assert (slot(0), slot(slots["one"]), slot(slots["two"])) == (AT[-1], AT[3], AT[20])


def test_the_write_offset_is_stored_for_a_batch_over_several_files_too(path: Path) -> None:
    with Channel(path, segment_bytes=10) as ch:
        batch = [bytes(1 << 20)] * 66
        ch.tx().send_many(batch)
        end = ch.stats().write_offset
        assert end == sum(8 + len(m) for m in batch)
        assert int.from_bytes((path / "offset").read_bytes()[:8], "big") == end


# ---- directories that others made ----


@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_that_another_made_is_read(path: Path, read_only: bool) -> None:
    one, two, three = SENT[:60], SENT[60:61], SENT[61:120]
    write(path, one, two, three)
    before = {name: (path / name).read_bytes() for name in names(path)}
    with Channel(path, read_only=read_only) as ch:
        rx = ch.rx() if read_only else ch.rx("worker", ack=True)
        assert rx.recv_many(500) == SENT[:120]
        assert (ch.stats().first_offset, ch.stats().write_offset) == (0, AT[120])
        rx.seek(AT[60])
        assert rx.recv() == SENT[60]
        assert ch.recovery.damage == ch.recovery.torn == []
    if read_only:
        assert {name: (path / name).read_bytes() for name in names(path)} == before


@pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
def test_a_directory_that_another_made_is_gone_on_with(path: Path, compression: Any) -> None:
    write(path, SENT[:60], SENT[60:100])
    with Channel(path, segment_bytes=1000, compression=compression) as ch:
        rx = ch.rx("worker", ack=True)
        send(ch, SENT[100:])
        assert rx.recv_many(500) == SENT
        assert ch.stats().write_offset == AT[-1]
        last = max(numbers(path))
        if compression:
            until(lambda: plain(path) == {last}, "all but the last are compressed")
    if compression is None:
        assert (path / "segment.0").read_bytes() == header(0, 0) + frames(SENT[:60])
        assert read(path) == SENT
    with Channel(path, segment_bytes=1000) as ch:
        assert ch.rx("worker").recv_many(500) == SENT


def test_a_directory_that_another_made_and_removed_from_is_gone_on_with(path: Path) -> None:
    write(path, SENT[50:60], SENT[60:70], first=7, begin=AT[50])
    with Channel(path, segment_bytes=50) as ch:
        assert ch.stats().first_offset == AT[50]
        rx = ch.rx("worker")
        assert rx.offset == AT[50]
        send(ch, SENT[70:80])
        assert rx.recv_many(500) == SENT[50:80]
        assert min(numbers(path)) >= 7
    with Channel(path) as ch:
        assert ch.stats().write_offset == AT[80]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_directory_that_another_made_is_gone_on_with(path: Path, compression: Any) -> None:
    path.mkdir()
    method = {"snappy": 0, "gzip": 1, "zstd": 2}[compression]
    for i in (0, 1):
        body = frames(SENT[50 * i : 50 * (i + 1)])
        (path / f"plain.{i}").write_bytes(header(i, AT[50 * i]) + body)
        packing.pack(path / f"plain.{i}", path / f"segment.{i}.z", 64 + len(body), Method(method))
        (path / f"plain.{i}").unlink()
    (path / "segment.2").write_bytes(header(2, AT[100]) + frames(SENT[100:150]))
    with Channel(path, read_only=True) as ch:
        assert ch.rx().recv_many(500) == SENT[:150]
    with Channel(path) as ch:
        rx = ch.rx("worker", ack=True)
        send(ch, SENT[150:])
        assert rx.recv_many(500) == SENT
    with Channel(path) as ch:
        assert ch.rx("worker").recv_many(500) == SENT


def test_a_directory_of_compressed_segments_alone_is_gone_on_with(path: Path) -> None:
    path.mkdir()
    body = frames(SENT[:50])
    (path / "plain").write_bytes(header(0, 0) + body)
    packing.pack(path / "plain", path / "segment.0.z", 64 + len(body), Method.GZIP)
    (path / "plain").unlink()
    with Channel(path) as ch:
        ch.tx().send(b"more")
        assert ch.rx("worker").recv_many(500) == [*SENT[:50], b"more"]
    assert (path / "segment.1").read_bytes() == header(1, AT[50]) + frame(b"more")


def test_an_empty_directory_and_an_empty_segment_are_gone_on_with(path: Path) -> None:
    path.mkdir()
    (path / "segment.0").write_bytes(header(0, 0))
    with Channel(path) as ch:
        assert ch.stats().write_offset == 0
        ch.tx().send(b"a")
    assert read(path) == [b"a"]
    other = path.with_name("empty")
    other.mkdir()
    with Channel(other) as ch:
        ch.tx().send(b"a")
    assert read(other) == [b"a"]


def test_what_else_lies_in_the_directory_is_left_alone(path: Path) -> None:
    write(path, SENT[:10])
    strange = {"segment.x": b"x", "segment.01": b"y", "README": b"z", "segment.0.z.bak": b"w", "notes.tmp": b"v"}
    for name, data in strange.items():
        (path / name).write_bytes(data)
    with Channel(path, segment_bytes=1, compression="gzip") as ch:
        rx = ch.rx("worker")
        send(ch, SENT[10:20])
        assert rx.recv_many(100) == SENT[:20]
        until(lambda: ch.stats().segments == 1, "all but the last are removed")
    assert {name: (path / name).read_bytes() for name in strange} == strange


def test_our_files_may_all_be_lost_but_the_segments(path: Path) -> None:
    """What another implementation hands on, or a backup of the segments alone."""
    with Channel(path, segment_bytes=1000, compression="snappy") as ch:
        ch.rx("worker")
        send(ch, SENT)
        last = max(numbers(path))
        until(lambda: plain(path) == {last}, "all but the last are compressed")
    for name in names(path):
        if not name.startswith("segment.") or name.endswith((".time", ".index")):
            (path / name).unlink()
    shutil.rmtree(path / "cursors")
    with Channel(path, segment_bytes=1000) as ch:
        assert ch.rx("worker").recv_many(1000) == SENT
        assert ch.recovery.damage == ch.recovery.torn == []
        ch.tx().send(b"more")
    with Channel(path) as ch:
        rx = ch.rx()
        rx.seek(AT[-1])
        assert rx.recv() == b"more"


def test_segments_that_were_being_removed_when_the_process_died_do_not_come_back(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed as gone first; whichever of their files are left are then removed, and nothing is damaged by that."""
    copies: list[Path] = []
    real = files.remove

    def copying(file: Path) -> None:
        if file.parent == path and file.name.startswith("segment."):
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(path, copies[-1], ignore=shutil.ignore_patterns("*.tmp", "*.next"))
        real(file)

    with Channel(path, segment_bytes=2500, compression="gzip") as ch:
        rx = ch.rx("worker")
        send(ch, SENT)
        last = max(numbers(path))
        until(lambda: plain(path) == {last}, "all but the last are compressed")
        assert ch._log is not None
        ch._log.sync()  # a copy is opened as after a power cut: what comes before it is to stay
        monkeypatch.setattr(files, "remove", copying)
        rx.recv_many(1000)
        until(lambda: not list(path.glob(f"segment.{last - 1}*")), "all but the last are removed")
        monkeypatch.undo()
    assert len(copies) > 4
    for copy in copies:
        for read_only in (True, False):
            with Channel(copy, read_only=read_only) as ch:
                assert ch.recovery.damage == ch.recovery.torn == [], copy.name
                first = AT.index(ch.stats().first_offset)
                if read_only:
                    assert ch.rx().recv_many(1000) == SENT[first:]
                    continue
                ch.tx().send(b"more")
                assert ch.rx("worker").recv() == b"more"
