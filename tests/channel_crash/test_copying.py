"""A process that dies in the midst of copying a message into the map, in the kernel's own code, under the lock."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from penstock import Channel
from tests.channel_crash.wreck import drain, messages
from tests.queue.dying import BEFORE, run
from tests.queue.test_kill_copying import unreadable

AFTER = [b"", b"after", b""]


def die_sending(path: str, how: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tx = Channel(path).tx()
    if how == "send":
        tx.send(unreadable())
    else:
        tx.send_many([b"one" * 100, b"", unreadable(), b"four"])


@pytest.mark.parametrize("how", ["send", "send_many"])
@pytest.mark.parametrize("before", [BEFORE, []])
def test_sender_that_dies_copying_is_cut_by_the_next_opening(path: Path, how: str, before: list[bytes]) -> None:
    """Where zeros are a message, too, nothing of it is taken for one."""
    with Channel(path) as ch:
        ch.rx("ada", ack=True).close()
        ch.tx().send_many(before)
    assert run(die_sending, path, how) == -signal.SIGSEGV
    with Channel(path) as ch:
        assert ch.recovery.how == "same boot"
        assert ch.recovery.damage == []
        assert messages(ch) == before
        ch.tx().send_many(AFTER)
        with ch.rx("ada") as rx:
            assert drain(rx) == [*before, *AFTER]
    with Channel(path) as ch:
        assert ch.recovery.clean
        assert messages(ch) == [*before, *AFTER]
