"""What the tests of the channel share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Channel, Receiver, kernel
from penstock.kernel import layout
from penstock.storage import files

SLOW = kernel.NAME == "reference" or files.PORTABLE
AT_ONCE_S = 0.3  # what waits looks by itself after half a second: faster than that, it was woken


def payload(i: int) -> bytes:
    """A message that no other is like; they are of different lengths, and some are empty."""
    return b"%d." % i * (1 + i * 7 % 11) if i % 13 else b""


def offsets_of(payloads: list[bytes]) -> list[int]:
    """Where each message begins, and where the last one ends."""
    out = [0]
    for data in payloads:
        out.append(out[-1] + 8 + len(data))
    return out


def name_of(fd: int) -> str:
    """The name of an open file."""
    return Path(f"/proc/self/fd/{fd}").readlink().name


def drain(rx: Receiver[Any]) -> list[Any]:
    """All that is there now, of messages that are not None."""
    out = []
    while (obj := rx.try_recv()) is not None:
        out.append(obj)
    return out


def asleep(channel: Channel[Any]) -> bool:
    """Whether some receiver sleeps. Where sleepers only look now and then this cannot be told, and need not."""
    log = channel._log
    assert log is not None
    assert log.control is not None
    return SLOW or bool(log.control.page.load(layout.WAITERS) & 0xFFFFFFFF)


class Ran(threading.Thread):
    """A function in a thread of its own; what it returned or raised is had by `result`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._out: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._out = self._function()
        except BaseException as error:
            self._error = error

    def result(self, seconds: float = 60.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error
        return self._out
