"""The durability contract, point by point: where each is proved, and the points that no other file covers.

point                                           tests
1  what `append` returned survives the processes  here; test_recovery: a killed process leaves this boot...
2  what was synced survives a power cut           test_sync: the durable mark moves only..., flush_each returns after...;
                                                  test_torn: synced records are kept though neither their times...
3  an exact prefix, batches whole or absent       test_torn: torn_tail is cut..., a batch of which a page is lost...,
                                                  pages lost above the durable mark...; test_recovery: half a frame is
                                                  zeroed and synced...; here: nothing is invented or reordered
4  a torn tail and damage are told apart          test_torn: what was reported durable or published...; test_flips: all
5  a full disk is DiskFull, nothing changed       test_sync: a full disk at a roll...; here: reading and commits go on
   what was appended and not synced is told so     test_not_synced
6  a failed sync poisons the log                  test_sync: after a failed sync..., reopening after a failed sync...
7  a writer that dies with the lock, or stands    here; test_stopped
8  a file system that can do this                 here
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from threading import Thread

import pytest

from penstock import DiskFull, Queue, Roll, UnsupportedFileSystem, kernel
from penstock.formats import queue as fmt
from penstock.storage import files
from tests.queue.crash import (
    NATIVE,
    Child,
    Image,
    Yard,
    beyond,
    fill_disk,
    half_append,
    never_seal,
    numbered,
    payload,
    records,
)
from tests.support import until


def test_what_append_returned_is_read_by_every_process_and_survives_them_all(yard: Yard) -> None:
    """Point 1: once `append` is back, anyone on the machine sees the record, and no `kill -9` takes it away."""
    path = yard.new()
    with Child(path, "dict(file_size=8192)") as one, Child(path) as two:
        assert one.ask("q.append(b'one')") == "0"
        assert two.ask("[m.payload for m in q.tailer()]") == "[b'one']"
        assert two.ask("q.append_batch([b'two', b'three'])") == "range(1, 3)"
        assert one.ask("[m.payload for m in q.tailer()]") == "[b'one', b'two', b'three']"
        one.kill()
        two.kill()
    with Queue(path) as q:
        assert records(q) == numbered([b"one", b"two", b"three"])
        assert q.recovery.clean


def test_what_was_synced_survives_any_loss_of_what_was_not(yard: Yard) -> None:
    """Point 2: behind `durable_sequence` the power may fail, and take every byte that was not synced."""
    path = yard.keep()
    payloads = [payload(i, 40 + i) for i in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        with Queue(path, file_size=8192, roll=Roll.count(7)) as q:
            for i, p in enumerate(payloads):
                q.append(p)
                if i == 17:
                    q.sync()
                    synced = Image.take(path)
                    assert q.durable_sequence == 18
            after = Image.take(path)
    # What a sync leaves on the disk for certain: the data files of then. Of all else, take nothing, or what there was later.
    data = {name: synced[name] for name in synced.names(".data")}
    kept = {name: after[name] for name in (".lock", "metadata.json")}
    for image in (Image({**data, **kept}), Image({**synced, **kept}), Image({**after, **data})):
        with Queue(image.lay(yard.new(), "new")) as q:
            assert records(q) == numbered(payloads[:18])
            assert not q.recovery.damage


def test_nothing_is_invented_reordered_or_duplicated_whatever_pages_a_power_cut_takes(yard: Yard) -> None:
    """Point 3: any subset of the pages that were not synced may be lost; what comes back is a prefix, and a batch is whole."""
    path = yard.keep()
    rng = random.Random(5)
    batches: list[range] = []
    payloads: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        never_seal(patch)
        with Queue(path, file_size=1 << 14) as q:
            while len(payloads) < 60:
                new = [payload(len(payloads) + i, rng.randint(1, 900)) for i in range(rng.choice([1, 1, 2, 5, 9, 25]))]
                batches.append(q.append_batch(new) if len(new) > 1 else range(q.append(new[0]), len(payloads) + 1))
                payloads += new
                if len(payloads) > 20 and q.durable_sequence == 0:
                    q.sync()
            durable = q.durable_sequence
            image = Image.take(path)
    bounds = {0, *(batch.stop for batch in batches)}
    mark = files_synced(image, durable)
    for _ in range(150 if NATIVE else 15):
        torn = image
        for name in image:
            if name.endswith((".data", ".time", ".index")):
                for page in range(len(image[name]) // 4096 + 1):
                    if (name, page) not in mark and rng.random() < 0.1:
                        torn = torn.put(name, 4096 * page, bytes(len(image[name][4096 * page : 4096 * (page + 1)])))
        with Queue(torn.lay(yard.new(), "new")) as q:
            found = records(q)
            assert found == numbered(payloads[: len(found)])
            assert len(found) >= durable
            assert len(found) in bounds
            assert not q.recovery.damage
            assert q.append(b"next") == len(found)


def files_synced(image: Image, durable: int) -> set[tuple[str, int]]:
    """The pages of data that a sync up to `durable` has put on the disk."""
    out: set[tuple[str, int]] = set()
    count = 0
    for name in image.names(".data"):
        out.add((name, 0))
        at, data = 4096, image[name]
        while count < durable and at + 4 <= len(data) and (length := int.from_bytes(data[at : at + 4], "little")):
            out |= {(name, page) for page in range(at // 4096, (at + length + 11) // 4096 + 1)}
            at += length + 12
            count += 1
    return out


def test_cursors_beyond_the_end_are_set_back_and_this_is_reported(yard: Yard) -> None:
    """Point 3: a reader that had read what the power cut took goes on at the end, and the log says so."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"0")
        q.sync()
        q.append(b"1")
        q.tailer("reader", at=2)
        image = Image.take(path)
    with Queue(image.put(image.data, 4096 + 13, bytes(13)).lay(yard.new(), "new")) as q:
        assert q.recovery.cursors_set_back == {"reader": 2}
        assert q.tailer("reader").position == 1
        assert q.append(b"another 1") == 1
        message = q.tailer("reader").read()
        assert message is not None
        assert message.payload == b"another 1"


def test_readers_and_commits_go_on_when_the_disk_is_full(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 5: DiskFull comes from `append` alone, and goes away with its cause."""
    never_seal(monkeypatch)  # nor prepare a file while there is room
    with Queue(yard.new(), file_size=8192) as q:
        q.append(payload(0, 3000))

        with monkeypatch.context() as patch:
            fill_disk(patch)
            with pytest.raises(DiskFull, match="nothing was changed"):
                q.append(payload(1, 3000))
            tailer = q.tailer("reader")
            assert len(list(tailer)) == 1
            tailer.commit()
            assert q.cursors() == {"reader": 1}
            assert q.sync() == 1
        assert q.append(payload(1, 3000)) == 1


def test_a_writer_that_dies_with_the_lock_does_not_stop_the_next_one(yard: Yard) -> None:
    """Point 7: killed in the middle of an append, lock in hand: the next writer comes in at once and cuts the half frame."""
    path = yard.new()
    with Queue(path, file_size=8192) as q:
        q.append(b"0")
        with Child(path) as child:
            assert child.ask("q.append(b'1')") == "1"
            assert child.ask("q._log.control.page.lock()") == "None"
            assert child.ask("q._log.control.announce(q._log.active().end + 112, 3)") == "None"
            half = "q._log.mapped.segment.data.__setitem__(slice(q._log.active().end, q._log.active().end + 60), b'\\x64' * 60)"
            assert child.ask(half) == "None"
            child.kill()
        began = time.monotonic()
        assert q.append(b"2") == 2
        assert time.monotonic() - began < 10
        assert records(q) == numbered([b"0", b"1", b"2"])
        assert not any(beyond(q))


def test_an_append_that_only_was_not_published_is_finished(yard: Yard) -> None:
    """Point 7: when the frame was whole, it is kept, by the next writer or the next opening."""
    path = yard.keep()
    with Queue(path, file_size=8192) as q:
        q.append(b"0")
        image = half_append(q, 60)
    frame = kernel.encode(fmt.SPEC, payload(1, 60))
    whole = image.put(image.data, 4096 + 13, frame)
    with Queue(whole.lay(yard.new(), "same")) as q:
        assert records(q) == numbered([b"0", payload(1, 60)])
        assert q.append(b"2") == 2


def test_a_stalled_writer_is_not_overtaken(yard: Yard) -> None:
    """Point 7: no timeout: as long as a process with the lock lives, others wait."""
    path = yard.new()
    with Queue(path, file_size=8192) as q, Child(path) as child:
        q.append(b"0")
        assert child.ask("q._log.control.page.lock()") == "None"
        done: list[int] = []
        thread = Thread(target=lambda: done.append(q.append(b"1")))
        thread.start()
        thread.join(0.3)
        assert not done
        assert child.ask("q._log.control.page.unlock()") == "None"
        until(lambda: done == [1], "the append that waited is done")
        thread.join()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_for_writing_but_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Point 8: where maps and locks hold no promise the log is not opened to write, and says why; sealed files may lie there."""
    with Queue(path, file_size=8192) as q:
        q.append(b"0")
    monkeypatch.setattr(files, "filesystem", lambda where: kind)
    with pytest.raises(UnsupportedFileSystem, match=kind):
        Queue(path)
    with pytest.raises(UnsupportedFileSystem, match="local disk"):
        Queue(path.with_name("new"))
    with Queue(path, read_only=True) as q:
        assert records(q) == numbered([b"0"])
