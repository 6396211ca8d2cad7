"""A batch of which a power cut left a part: nothing of it may stay, also when the power fails again while it is taken away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import Queue, Topics
from penstock.storage import files
from penstock.storage.recovery import Opening, Tail
from tests.queue.crash import Image

FIRST, BATCH = b"first", [b"batch %d" % i for i in range(5)]


class PowerFailed(BaseException):
    """In the midst of opening."""


def _queue(path: Path, first: bytes | None = None, batch: list[bytes] | None = None) -> list[bytes]:
    with Queue(path, file_size=8192) as q:
        if first:
            q.append(first)
            q.sync()
        if batch:
            q.append_batch(batch)
        return [m.payload for m in q.tailer()]


def _topic(path: Path, first: bytes | None = None, batch: list[bytes] | None = None) -> list[bytes]:
    with Topics(path, linger_s=0) as topics:
        t = topics.topic("t", partitions=1)
        if first:
            t.publish(first).wait()
        page = Image.take(path) if batch else {}  # it says what is durable
        if batch:
            t.publish_many(batch, partition=0).wait()
        with t.tailer() as tailer:
            got = [m.payload for m in tailer]
    for name, data in page.items():
        if name.endswith(".lock"):
            (path / name).write_bytes(data)
    return got


@pytest.mark.parametrize("use", [_queue, _topic])
def test_it_does_not_come_back_in_part_when_the_power_fails_again(
    use: Callable[..., list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each sync that puts right what the walk found, with all that was written until then. What says that the batch is torn must go
    last."""
    assert use(tmp_path / "whole", FIRST, BATCH) == [FIRST, *BATCH]
    whole = Image.take(tmp_path / "whole")
    name = next(n for n in whole if n.endswith((".data", ".log")))
    cut = whole[name].index(BATCH[3])
    rest = len(whole[name]) - cut if use is _queue else 0
    torn = whole.without(*(n for n in whole if use is _queue and n.endswith(".lock")))
    torn = torn.changed(name, whole[name][:cut] + bytes(rest))
    real, settle = files.sync, Opening._settle
    for nth in count():
        calls = count()

        def sync(fd: int, nth: int = nth, calls: count[int] = calls) -> None:
            if next(calls) == nth:
                raise PowerFailed
            real(fd)

        def settled(self: Opening, *found: Any, sync: Callable[[int], None] = sync) -> Tail:
            with pytest.MonkeyPatch.context() as meanwhile:
                meanwhile.setattr(files, "sync", sync)
                return settle(self, *found)

        path = torn.lay(tmp_path / f"torn-{nth}", "new")
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Opening, "_settle", settled)
            try:
                use(path)
                break
            except PowerFailed:
                left = Image.take(path)
        assert use(left.lay(tmp_path / f"again-{nth}", "new")) == [FIRST]
    assert nth > 1, "it was cut in the midst"
