"""Power cuts: whatever was not synced may be lost, page by page, or have reached the disk all the same, names and contents.

Random stories of a channel (see story.py), cut at any moment; and the cases that these have taught, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock import Channel, Receiver, SyncFailed
from penstock.storage import files
from penstock.storage.offsets import Offsets
from tests.channel_crash.story import Story, told
from tests.channel_crash.wreck import (
    Platter,
    by_hand,
    drain,
    everything,
    frames,
    log_of,
    messages,
    offsets,
    open_channel,
    packed,
    plain,
    watched,
    work,
)
from tests.queue.crash import NATIVE, Disk, Image, Yard, payload
from tests.support import until

SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
STORIES = int(os.environ.get("PENSTOCK_STORIES", "2"))


# ---- stories ----


@pytest.mark.parametrize("page", [512, 4096])
@pytest.mark.parametrize("durable", [True, False], ids=["crash consistent", "not"])
def test_a_crash_at_any_moment_leaves_what_was_promised(yard: Yard, durable: bool, page: int) -> None:
    """A kill leaves everything; a power cut what was promised, or an exact prefix. PENSTOCK_STORIES=500 tells more of them."""
    retired = gaps = images = 0
    for seed in range(SEED, SEED + STORIES):
        rng = random.Random(f"{seed} {durable} {page}")
        path = yard.keep()
        options = {
            "compression": rng.choice([None, "snappy", "gzip", "zstd"]),
            "segment_bytes": 300 if seed % 3 else 9000,
        }
        story = Story(path, seed, crash_consistent=durable, **options)
        with watched(path) as platter, cut_now_and_then(story, platter, rng, yard, page) as counted:
            with told(story):
                story.go(100)
            images += counted[0]
        retired += story.retired
        gaps += story.gaps
    assert images > 40 * STORIES / 4
    assert retired, "no story in which segments were removed: it proves nothing of that"
    assert gaps, "no story with a gap"


@contextmanager
def cut_now_and_then(story: Story, platter: Platter, rng: random.Random, yard: Yard, page: int) -> Iterator[list[int]]:
    """Before some of the changes to files: what if all ended here?"""
    counted, busy = [0], False

    def before(call: str) -> None:
        nonlocal busy
        if busy or rng.random() > 0.04:
            return
        busy = True
        strict = bool(story.options["crash_consistent"])
        for image, boot, all_of_it in (
            (everything(story.path), "same", True),
            (platter.image(), "new", strict),
            (platter.image(rng, page), "new", strict),
        ):
            story.judge(image.lay(yard.new(), boot), strict=all_of_it)
            counted[0] += 1
        busy = False

    platter.before = before
    yield counted


# ---- pages of the data ----


@pytest.mark.parametrize("page", [512, 4096])
@pytest.mark.parametrize("size", [56, 0, 120, 500], ids=lambda n: f"messages of {n}")
def test_lost_pages_leave_an_exact_prefix(yard: Yard, size: int, page: int) -> None:
    """Also where frames end with pages, so that a lost one would read as many empty messages; and whatever the offsets say,
    which had reached the disk."""
    path = yard.keep()
    sent = [payload(i, size) for i in range(20000 // (size + 8))]
    with open_channel(path, segment_bytes=1 << 16) as ch:
        for p in sent:
            ch.tx().send(p)
        drain(ch.rx("ahead"))
        image = Image.take(path)
    name, end = plain(image)[0], frames(sent)[-1][1]
    rng = random.Random(size + page)
    for _ in range(12 if NATIVE else 4):
        lost = sorted(rng.sample(range(1, -(-end // page)), rng.randint(1, 3)))
        data = bytearray(image[name])
        for n in lost:
            data[n * page : (n + 1) * page] = bytes(page)
        keep = min(i for i, (_, e) in enumerate(frames(sent)) if e > lost[0] * page) if size else 0
        with open_channel(image.changed(name, bytes(data)).lay(yard.new(), "new"), segment_bytes=1 << 16) as ch:
            assert messages(ch) == sent[:keep], lost
            assert ch.stats().write_offset == offsets(sent)[keep]
            assert ch.recovery.cursors_set_back == {"ahead": offsets(sent)[-1]}
            ch.tx().send(b"next")
            assert drain(ch.rx("ahead")) == [b"next"]


@pytest.mark.parametrize("page", [512, 4096])
def test_pages_lost_above_the_promise_cost_nothing_of_what_is_below(yard: Yard, page: int) -> None:
    path = yard.keep()
    sent = [payload(i, n) for i, n in enumerate([56, 0, 0, 120, 56, 0] * 40)]
    with open_channel(path, segment_bytes=1 << 16, crash_consistent=True) as ch:
        for p in sent:
            ch.tx().send(p)
        image = Image.take(path)
        later = [payload(i, 56) for i in range(100)]
        for p in later:
            log_of(ch).appender().append(p)  # as a send that has not returned
        after = Image.take(path)
    name, end = plain(image)[0], frames(sent)[-1][1]
    data = after[name]
    for first in range(end // page + 1, len(data) // page):
        lost = after.changed(name, data[: first * page].ljust(len(data), b"\0"))
        whole = sum(e <= first * page for _, e in frames(later, end))
        for offsets_ in (image["offset"], after["offset"]):
            with open_channel(lost.changed("offset", offsets_).lay(yard.new(), "new"), segment_bytes=1 << 16) as ch:
                assert messages(ch) == [*sent, *later[:whole]], first


def test_an_unsealed_segment_that_was_left_has_no_messages_behind_its_last_one(yard: Yard) -> None:
    """It is as long as it was made, and what was promised reaches far beyond it."""
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_channel(path, crash_consistent=True) as ch:
            sent = [payload(i, 70) for i in range(20)]
            for p in sent:
                ch.tx().send(p)
            image = Image.take(path)
    assert len(plain(image)) > 3
    assert len({len(image[name]) for name in plain(image)}) == 1
    with open_channel(image.lay(yard.new(), "new")) as ch:
        assert messages(ch) == sent
        assert ch.recovery.how == "new boot"


def test_a_batch_larger_than_a_file_is_whole_after_a_power_cut_once_it_was_acknowledged(yard: Yard) -> None:
    """Nothing but the promise tells that it is: the companions were not synced."""
    path = yard.keep()
    with watched(path) as platter:
        with open_channel(path, crash_consistent=True) as ch:
            ch.tx().send(b"first")
            batch = [payload(i, 900) for i in range(12)]
            ch.tx().send_many(batch)
            image = platter.image()
            assert len(plain(image)) > 2
        with open_channel(image.lay(yard.new(), "new")) as ch:
            assert messages(ch) == [b"first", *batch]


def test_a_segment_whose_companion_is_lost_is_not_taken_for_a_removed_one(yard: Yard) -> None:
    """Its companion is synced when it is sealed, and alone says which message is its first. Others were removed before."""
    path = yard.keep()
    with watched(path) as platter, open_channel(path) as ch:
        rx = ch.rx("reader")
        for i in range(30):
            ch.tx().send(payload(i, 60))
        work(ch)
        rx.recv_many(20)
        work(ch)
        first = ch.stats().first_offset
        assert first > 0
        log_of(ch).sync()
        left = messages(ch)
        image = platter.image()
    active = plain(image)[-1]
    assert not any(image[active + ".time"])
    for _ in range(2):
        path = image.lay(yard.new(), "new")
        for _ in range(2):
            with open_channel(path) as ch:
                assert ch.stats().first_offset == first
                assert messages(ch) == left


# ---- the first moments ----


def test_a_power_cut_while_a_channel_is_made_leaves_one_that_can_be_opened(yard: Yard) -> None:
    path = yard.keep()
    images: list[Image] = []
    with watched(path) as platter:
        rng = random.Random(1)
        platter.before = lambda call: images.extend([platter.image(), *(platter.image(rng, 512) for _ in range(6))])
        with open_channel(path) as ch:
            platter.before = lambda call: None
            assert messages(ch) == []
    assert len(images) > 100
    for image in images[:: 1 if NATIVE else 5]:
        path = yard.new()
        path.mkdir()
        with open_channel(image.lay(path, "new")) as ch:
            ch.tx().send(b"x")
            assert messages(ch) == [b"x"]
            assert not ch.recovery.damage


# ---- receivers ----


def test_a_receiver_that_was_made_is_there_after_a_power_cut(yard: Yard) -> None:
    path = yard.keep()
    with watched(path) as platter, open_channel(path, crash_consistent=True) as ch:
        for i in range(3):
            ch.tx().send(b"%d" % i)
        ch.rx("reader").recv()
        with open_channel(platter.image().lay(yard.new(), "new")) as other:
            assert drain(other.rx("reader")) == [b"1", b"2"]


def test_one_that_was_forgotten_does_not_come_back_to_share_the_place_of_another(yard: Yard) -> None:
    path = yard.keep()
    with watched(path) as platter, open_channel(path) as ch:
        for i in range(5):
            ch.tx().send(b"%d" % i)
        with ch.rx("old") as old:
            old.recv()
        ch.forget("old")
        new = ch.rx("new")
        new.recv_many(4)
        for rng in map(random.Random, range(20)):
            with open_channel(platter.image(rng, 512).lay(yard.new(), "new")) as other:
                assert "old" not in other.stats().receivers


def test_places_that_were_set_back_stay_so(yard: Yard) -> None:
    """A second power cut, before the offsets were written again, must not bring the old ones back: they would lie in the
    middle of what was sent since."""
    path, again = yard.keep(), yard.keep()
    with open_channel(path, segment_bytes=1 << 16) as ch:
        for i in range(40):
            ch.tx().send(payload(i, 100))
        drain(ch.rx("reader"))
        one, two = (ch.rx("team", ack=True, shared=True) for _ in range(2))
        for rx in [one, *[two] * 20]:
            rx.recv()
        two.ack(20)
        image = Image.take(path)
    name = plain(image)[0]
    lost = image.put(name, frames([payload(i, 100) for i in range(40)])[3][0], bytes(40 * 108))
    with watched(again) as platter:
        lost.lay(again, "new")
        platter.adopt()
        with open_channel(again, segment_bytes=1 << 16) as ch:
            assert set(ch.recovery.cursors_set_back) == {"reader", "team"}
            sent = [payload(50 + i, 31) for i in range(60)]
            for p in sent:
                ch.tx().send(p)
            log_of(ch).sync()  # the messages are on the disk; nobody promised anything of the receivers
            image = platter.image()
    with open_channel(image.lay(yard.new(), "new"), segment_bytes=1 << 16) as ch:
        assert drain(ch.rx("reader")) == sent
        team = drain(ch.rx("team", ack=True))
        assert team[-60:] == sent


def test_ranges_that_reach_the_disk_by_their_name_only_take_no_receiver_with_them(yard: Yard) -> None:
    path = yard.keep()
    with watched(path) as platter, open_channel(path) as ch:
        for i in range(6):
            ch.tx().send(b"%d" % i)
        one, two = (ch.rx("team", ack=True, shared=True) for _ in range(2))
        for rx in (one, two, one, two):
            rx.recv()
        two.ack(2)
        for rng in map(random.Random, range(30)):
            with open_channel(platter.image(rng, 512).lay(yard.new(), "new")) as other:
                left = drain(other.rx("team", ack=True))
                assert left == messages(other) or left == [m for m in messages(other) if m not in (b"1", b"3")]


class Interrupted(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("way", ["recv", "recv_many", "cancelled"])
def test_what_a_call_that_raised_gave_back_is_not_taken_after_a_power_cut(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also if the call had already put on the disk that it was received."""
    path, real = yard.keep(), Offsets.sync
    then: list[Callable[[], object]] = []

    def sync(self: Offsets) -> None:
        real(self)
        if then:
            then.pop()()

    def interrupt() -> None:
        raise Interrupted

    async def cancelled(rx: Receiver[bytes]) -> None:
        task = asyncio.ensure_future(anext(aiter(rx)))
        loop = asyncio.get_running_loop()
        then.append(lambda: loop.call_soon_threadsafe(task.cancel))  # before the loop is told that it is synced
        await task

    with watched(path) as platter, open_channel(path, crash_consistent=True) as ch:
        ch.tx().send_many([b"0", b"1"])
        rx = ch.rx("reader")
        monkeypatch.setattr(Offsets, "sync", sync)
        if way == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(cancelled(rx))
        else:
            then.append(interrupt)
            with pytest.raises(Interrupted):
                rx.recv() if way == "recv" else rx.recv_many(2)
        assert not then
        with open_channel(platter.image().lay(yard.new(), "new")) as other:
            assert drain(other.rx("reader")) == [b"0", b"1"]
        assert drain(rx) == [b"0", b"1"]


@pytest.mark.parametrize("of_all", [False, True], ids=["the offset", "all"])
def test_what_calls_of_several_gave_back_after_a_failed_sync_comes_again(
    yard: Yard, of_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one gives back what lies before what the second one has, and the log is poisoned: so that cannot be synced, but stored."""
    path, real, real_offsets = yard.keep(), files.sync, Channel._sync_offsets
    turns, both, tasks = itertools.count(), threading.Barrier(2), list[asyncio.Future[bytes]]()

    async def receive(*receivers: Receiver[bytes]) -> list[bytes | BaseException]:
        tasks.extend(asyncio.ensure_future(anext(aiter(rx))) for rx in receivers)
        return await asyncio.gather(*tasks, return_exceptions=True)

    def sync_offsets(self: Channel[bytes]) -> None:
        turn = next(turns)
        both.wait(60)  # each has received its own
        if turn:
            until(tasks[0].done, "the first one has given back its own")
        real_offsets(self)

    with open_channel(path, crash_consistent=True) as ch:
        ch.tx().send_many([b"0", b"1", b"2"])
        receivers = [ch.rx("team", shared=True) for _ in range(2)]
        assert ch._offsets is not None

        def sync(fd: int, of: int = ch._offsets._fd) -> None:
            if of_all or fd == of:
                raise OSError(errno.EIO, "planted")
            real(fd)

        with monkeypatch.context() as failing:
            failing.setattr(Channel, "_sync_offsets", sync_offsets)
            failing.setattr(files, "sync", sync)
            assert [type(error) for error in asyncio.run(receive(*receivers))] == [SyncFailed, SyncFailed]
        with contextlib.suppress(SyncFailed):
            ch.close()
    with open_channel(path) as ch:
        assert drain(ch.rx("team")) == [b"0", b"1", b"2"]


def test_an_ack_beyond_a_gap_takes_back_none_that_closed_one_before(yard: Yard) -> None:
    """One had returned that the offset says since, in memory: on the disk it was the file of what is beyond gaps that said it."""
    path = yard.keep()
    images: list[Image] = []
    with watched(path) as platter, open_channel(path, crash_consistent=True) as ch:
        ch.tx().send_many([b"0", b"1", b"2", b"3"])
        a, b, c, d = (ch.rx("team", ack=True, shared=True) for _ in range(4))
        assert [rx.recv() for rx in (a, b, c, d)] == [b"0", b"1", b"2", b"3"]
        b.ack()
        a._group.ack(a._member, 1)  # as one that waits for the disk, or was interrupted before it
        platter.before = lambda call: images.append(platter.image())
        d.ack()
        platter.before = lambda call: None
        images.append(platter.image())
    assert len(images) > 3
    for image in images:
        with open_channel(image.lay(yard.new(), "new")) as other:
            assert b"1" not in drain(other.rx("team", ack=True))


# ---- many at once ----


def test_what_is_acknowledged_while_others_are_at_it_survives(yard: Yard) -> None:
    """Three threads send and one receives, each waiting for the disk. Messages of the same eight bytes as an empty frame has,
    and empty ones: a promise that ran ahead of what it speaks of would read zeros as messages."""
    path = yard.keep()
    kept: list[tuple[list[int], int, Image]] = []
    acked = [0, 0, 0]
    consumed = [0]
    lock = threading.Lock()

    with watched(path) as platter:
        rng = random.Random(5)

        def before(call: str) -> None:
            with lock:
                if call == "sync" and rng.random() < 0.15 and len(kept) < 60:
                    promised, eaten = list(acked), consumed[0]  # before the image: it has these, if not more
                    kept.append((promised, eaten, platter.image(rng if rng.random() < 0.5 else None, 512)))

        with open_channel(path, segment_bytes=1 << 15, crash_consistent=True) as ch:
            ch.rx("reader").close()
            platter.before = before

            def send(me: int) -> None:
                tx = ch.tx()
                for i in range(80 if NATIVE else 20):
                    tx.send_many([b"%d.%06d" % (me, i), b""])
                    acked[me] = i + 1

            def receive() -> None:
                rx = ch.rx("reader")
                while consumed[0] < 100:
                    rx.recv(5.0)
                    consumed[0] += 1

            threads = [threading.Thread(target=send, args=(me,)) for me in range(3)]
            threads += [threading.Thread(target=receive)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            platter.before = lambda call: None
            order = messages(ch)
    assert len(kept) > 10
    for promised, eaten, image in kept:
        with open_channel(image.lay(yard.new(), "new"), segment_bytes=1 << 15) as ch:
            got = messages(ch)
            assert got == order[: len(got)]
            assert len(got) % 2 == 0
            for me in range(3):
                assert sum(m.startswith(b"%d." % me) for m in got) >= promised[me]
            left = drain(ch.rx("reader"))
            assert left == got[len(got) - len(left) :]
            assert len(got) - len(left) >= min(eaten, len(got))


# ---- syncs that fail ----


@pytest.mark.parametrize("act", ["send", "recv", "ack"])
def test_a_sync_of_the_offsets_that_fails_is_told_and_no_later_success_is(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    path = yard.new()
    disk = Disk(monkeypatch, path)
    ch = open_channel(path, crash_consistent=True)
    try:
        tx, reader, acker = ch.tx(), ch.rx("reader"), ch.rx("acker", ack=True)
        for i in range(4):
            tx.send(b"%d" % i)
        acker.recv_many(2)
        disk.fail = lambda name: name == "offset"
        acts = {"send": lambda: tx.send(b"x"), "recv": reader.recv, "ack": acker.ack}
        with pytest.raises(SyncFailed):
            acts[act]()
        disk.fail = lambda name: False
        for later in (lambda: tx.send(b"y"), reader.recv, acker.ack):
            with pytest.raises(SyncFailed):
                later()
    finally:
        ch.close()
    with open_channel(path, crash_consistent=True) as ch:
        assert messages(ch)[:4] == [b"0", b"1", b"2", b"3"]
        ch.tx().send(b"again")
        assert messages(ch)[-1] == b"again"


# ---- lost files ----


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("state", ["closed", "crashed"])
@pytest.mark.parametrize("suffix", ["manifest", ".index", ".time", ".lock"])
def test_a_lost_helper_file_costs_and_invents_no_message(yard: Yard, suffix: str, state: str, boot: str) -> None:
    sent = [payload(i, n) for i, n in enumerate([70, 0, 56, 0, 0, 120] * 4)]
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_channel(path, crash_consistent=True) as ch:
            for p in sent:
                ch.tx().send(p)
            ch.rx("slow").close()
            ch.rx("half").recv_many(12)
            work(ch)
            crashed = Image.take(path)
    image = crashed if state == "crashed" else Image.take(path)
    lost = [name for name in image if name.endswith(suffix)]
    assert lost
    path = image.without(*lost).lay(yard.new(), boot)
    for _ in range(2):
        with open_channel(path) as ch:
            assert messages(ch) == sent
            assert not ch.recovery.damage
            assert not ch.recovery.torn
            assert drain(ch.rx("half", ack=True)) == sent[12:]
            assert ch.stats().write_offset == offsets(sent)[-1]
    assert not any(name.endswith(".next") for name in files.walk(path))


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("alone", [False, True], ids=["all but metadata.json", "segments alone"])
def test_lost_metadata_costs_and_invents_no_message(yard: Yard, alone: bool, compression: str | None) -> None:
    """As another implementation leaves it, too: segments, none longer than its frames, and nothing else."""
    sent = [payload(i, n) for i, n in enumerate([70, 0, 56, 0, 0, 120] * 4)] + [b""] * 3
    path = yard.keep()
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        with open_channel(path, compression=compression) as ch:
            for p in sent:
                ch.tx().send(p)
            work(ch)
    image = Image.take(path)
    image = image.without(*(name for name in image if name not in [*plain(image), *packed(image)])) if alone else image
    path = image.without("metadata.json").lay(yard.new(), "new")
    for _ in range(2):
        with open_channel(path) as ch:
            assert messages(ch) == sent
            assert ch.stats().write_offset == offsets(sent)[-1]
            assert not ch.recovery.damage


def test_a_lost_control_page_costs_no_message_of_a_closed_channel(yard: Yard) -> None:
    """Empty ones at its end are told from zeros by the offset file, which is synced when it is closed."""
    path = yard.keep()
    with open_channel(path) as ch:
        for p in (b"x", b"", b""):
            ch.tx().send(p)
    with open_channel(Image.take(path).without(".lock").lay(yard.new(), "new")) as ch:
        assert messages(ch) == [b"x", b"", b""]


def test_offsets_that_are_there_once_are_read_and_then_kept_three_times(yard: Yard) -> None:
    """As another implementation keeps them."""
    path = yard.keep()
    with open_channel(path) as ch:
        for i in range(5):
            ch.tx().send(b"%d" % i)
        ch.rx("reader").recv_many(2)
    image = Image.take(path)
    once = image.changed("offset", image["offset"][:24])
    with watched(path := yard.keep()) as platter:
        once.lay(path, "same")
        platter.adopt()
        images: list[Image] = []
        platter.before = lambda call: images.extend([everything(path), platter.image(random.Random(len(images)), 512)])
        with open_channel(path) as ch:
            platter.before = lambda call: None
            assert drain(ch.rx("reader")) == [b"2", b"3", b"4"]
        for left in images:
            with open_channel(left.lay(yard.new(), "same")) as ch:
                assert drain(ch.rx("reader")) == [b"2", b"3", b"4"]
