"""What `run`, `check` and `prepare` are given when users' own code is tried."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock import Journal, Queue, Topic, Topics
from penstock.testing import trying
from penstock.testing.crashes import Crash, power_cuts
from penstock.testing.recording import recorded
from penstock.testing.standing_in import standing_in
from penstock.testing.trying import Act, Found, Plan, _prepare, try_crashes, try_faults
from tests.kit.test_plugin import example
from tests.support import until


def append(top: Path) -> None:
    with Queue(top / "q", file_size=8192) as q:
        q.append(b"x")


@pytest.mark.parametrize("how", [try_crashes, try_faults])
def test_all_are_given_a_directory_that_is_there(how: Callable[..., int]) -> None:
    """`prepare`, too: it may put a file of its own there."""
    given = []

    def there(top: Path) -> None:
        (top / "own").write_bytes(b"x")

    def is_there(top: Path) -> None:
        given.append((top / "own").read_bytes())

    assert how(append, is_there, there, Plan(1, 3), "pytest") == 3
    assert given == [b"x"] * 3


def test_so_many_are_tried_as_are_asked_for_if_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the page's own example, of which there are some hundreds of states, and many draws give one that was there before. By a seed they
    are the same."""
    made: dict[str, Any] = {}
    exec(example(), made)
    left: list[bytes] = []
    tried: list[tuple[int, str]] = []
    lay, told = Crash.lay, trying._told

    def laid(crash: Crash, top: Path) -> Path:
        left.append(crash.digest())
        return lay(crash, top)

    def noted(what: str, plan: Plan, number: int, again: str) -> AbstractContextManager[None]:
        tried.append((number, what))
        return told(what, plan, number, again)

    monkeypatch.setattr(Crash, "lay", laid)
    monkeypatch.setattr(trying, "_told", noted)
    acts = made["consume"], made["check"], made["prepare"]
    assert try_crashes(*acts, Plan(1, 300), "pytest") == 300
    assert len(set(left)) == 300
    assert try_crashes(*acts, Plan(1, 300, only=tried[7][0]), "pytest") == 1
    assert tried[-1] == tried[7]


def test_there_may_be_fewer(tmp_path: Path) -> None:
    """What is drawn comes to an end where there is nothing new."""
    with recorded(tmp_path) as recording:
        append(tmp_path)
    whole = {crash.digest() for crash in power_cuts(recording.moments, random.Random(1), 1 << 20).all}
    found = power_cuts(recording.moments, random.Random(1), len(whole))
    assert not found.complete, "that many could be counted, so nothing was drawn"
    drawn = [crash.digest() for crash in found.all]
    assert 0.9 * len(whole) < len(set(drawn)) <= len(drawn)


def journals(top: Path) -> None:
    """Nobody waits for each record."""
    with Journal(top / "j") as j:
        for record in j.recovered():
            j.append(record.payload)
        j.append(b"new")
        j.checkpoint().result()


def groups(top: Path) -> None:
    with Topics(top / "logs", segment_bytes=64, linger_s=0) as logs:
        members = [logs.topic("t", partitions=2).group("g") for _ in range(2)]
        for member in members:
            while member.poll() is not None:
                member.commit()


def prepared(top: Path) -> None:
    with Journal(top / "j") as j:
        for i in range(3):
            j.append(b"%d" % i)
    with Topics(top / "logs", segment_bytes=64, linger_s=0) as logs:
        for i in range(4):
            logs.topic("t", partitions=2).publish(b"%d" % i, partition=i % 2)


def shape(run: Act, top: Path) -> list[object]:
    """What crashes are chosen of: the moments, and how many ways each file may be in. Names have numbers that are others each time."""
    _prepare(prepared, top)
    with recorded(top) as recording:
        run(top)
    number = re.compile(r"[0-9a-f]*-[0-9a-f]+")
    return [
        (moment.call, [(number.sub("N", path), v.count, len(v.now)) for path, v in moment.contents()])
        for moment in recording.moments
    ]


def awaiting(top: Path) -> None:
    """Some go on together, and one as soon as another has come to its end."""

    async def records(j: Journal, me: int, count: int) -> None:
        for i in range(count):
            await j.append(b"%d.%d" % (me, i))

    async def main() -> None:
        async with Journal(top / "own") as j:
            tasks = [asyncio.create_task(records(j, me, me + 2)) for me in range(3)]
            for i, ended in enumerate(asyncio.as_completed(tasks)):
                await ended
                await j.append(b"%d ended" % i)

    asyncio.run(main())


@pytest.mark.parametrize("run", [journals, groups, awaiting])
def test_a_run_is_the_same_each_time(run: Act, tmp_path: Path) -> None:
    """Else a seed would choose other cases. Which thread is quicker, and in which order a set is gone through, differ now and then."""
    shapes = [shape(run, tmp_path / str(i)) for i in range(8)]
    assert all(other == shapes[0] for other in shapes[1:])


def test_each_that_awaits_is_one_that_waits(tmp_path: Path) -> None:
    """Not only the first of those who do at once."""

    async def records(j: Journal, linger: Topic) -> None:
        for _ in range(4):
            await j.append(b"x")
            await linger.publish(b"x")

    async def main() -> None:
        async with Journal(tmp_path / "j") as j:
            with Topics(tmp_path / "logs", batch=2, linger_s=60) as logs:
                t = logs.topic("t")
                await asyncio.gather(*(records(j, t) for _ in range(2)))

    with standing_in((), lambda name, real: real):
        began_s = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began_s < 0.9  # less than one that is late


def test_a_full_batch_is_late_and_no_later(tmp_path: Path) -> None:
    with standing_in((), lambda name, real: real), Topics(tmp_path, batch=2, linger_s=60) as logs:
        t = logs.topic("t")
        full, began_s = [t.publish(b"x"), t.publish(b"x")], time.monotonic()
        until(lambda: all(p.done() for p in full), "the batch is on the disk", 20)
        assert time.monotonic() - began_s > 0.5


def test_who_forgets_to_wait_is_found(tmp_path: Path) -> None:
    """What nobody waits for is on the disk as late as may be: here the queue says of a record that it is in the journal, and it is not yet."""

    def run(top: Path) -> None:
        with Journal(top / "j") as j, Queue(top / "q", file_size=8192) as q:
            j.append(b"x")
            q.append(b"it is there")
            q.sync()

    def check(top: Path) -> None:
        return None

    def run_once(top: Path) -> None:
        with Queue(top / "q", file_size=8192) as q, Journal(top / "j") as j:
            if q.next_sequence:
                assert [r.payload for r in j.recovered()], "said, and not there"

    calls = iter([run])
    with pytest.raises(Found, match="said, and not there"):
        try_crashes(lambda top: next(calls, run_once)(top), check, lambda top: None, Plan(1, 100), "pytest")
