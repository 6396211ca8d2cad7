"""Records from a stream: lines, or a length before each. What was read when Ctrl-C comes counts; half a record does not."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import BinaryIO, Final

from penstock.errors import InvalidPayload

_READ_BYTES: Final = 256 << 10  # appended together
_MOST_BYTES: Final = 1 << 30  # no record is longer
_HEAD_BYTES: Final = 4


class Records:
    """The records of a stream, a list for each read, so that none waits for later ones."""

    def __init__(self, stream: BinaryIO, *, length_prefixed: bool) -> None:
        self._stream = stream
        self._prefixed = length_prefixed
        self._rest = bytearray()
        self._waiting = False
        self._waitable = _descriptor(stream)
        self.interrupted = False
        self.left_out_bytes = 0  # of a record that is not whole

    def __iter__(self) -> Iterator[list[bytes]]:
        with self._interruptible():
            while part := self._read():
                self._rest += part
                found = self._prefixed_records() if self._prefixed else self._lines()
                if found:
                    yield found
                if len(self._rest) > _MOST_BYTES:
                    raise InvalidPayload(f"a record of more than {_MOST_BYTES} bytes; is this what was to be appended?")
        if self._rest and not self._prefixed and not self.interrupted:
            yield [bytes(self._rest)]
            self._rest.clear()
        self.left_out_bytes = len(self._rest)

    def _read(self) -> bytes:
        """Some bytes; none at the end, and once it was interrupted. What was taken from the stream is given back in any case."""
        return self._stream.read1(_READ_BYTES) if self._has_come() else b""  # type: ignore[attr-defined]

    def _has_come(self) -> bool:
        """Wait until there is something to read, or the end; False if Ctrl-C comes first."""
        try:
            self._waiting = True
            if not self.interrupted and self._waitable is not None:
                select.select([self._waitable], [], [])
            return not self.interrupted
        except KeyboardInterrupt:
            return False
        finally:
            self._waiting = False

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends reading, and nothing else: what is being appended is."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            if self._waiting:  # nothing is in our hands that could get lost
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _lines(self) -> list[bytes]:
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        return [bytes(line) for line in lines]

    def _prefixed_records(self) -> list[bytes]:
        found, at, data = [], 0, self._rest
        while len(data) - at >= _HEAD_BYTES:
            end = at + _HEAD_BYTES + int.from_bytes(data[at : at + _HEAD_BYTES], "big")
            if end - at > _MOST_BYTES:
                raise InvalidPayload(
                    f"a length of {end - at - _HEAD_BYTES} bytes, at most {_MOST_BYTES} can be; is every length 4 bytes, big-endian?"
                )
            if end > len(data):
                break
            found.append(bytes(data[at + _HEAD_BYTES : end]))
            at = end
        del data[:at]
        return found


def _descriptor(stream: BinaryIO) -> int | None:
    """What can be waited for; None of a stream in memory, which need not be."""
    with suppress(OSError):
        return stream.fileno()
    return None
