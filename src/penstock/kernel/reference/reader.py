"""Reading: one segment at a time, in order, each frame verified."""

from __future__ import annotations

import struct
from itertools import compress, repeat
from typing import TYPE_CHECKING, Final

from penstock.kernel import spec as why
from penstock.kernel.reference.buffers import release, view_of
from penstock.kernel.reference.frames import COMPANION_HEADER, SUMMED_ENTRY, Sums, codec_of, scan
from penstock.kernel.reference.records import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from penstock.kernel.reference.page import ControlPage
    from penstock.kernel.spec import FrameSpec

_MAX: Final = 2**64 - 1
_DROP_BEHIND: Final = 32 << 20
_TIME: Final = struct.Struct("<q")


class Reader:
    """Reads one segment at a time, in order, up to the published end. One per tailer; not thread-safe.

    `on_end()` is called when the segment is read up: True when there is more (it moved the reader on).
    `on_bad(reason)` is called at a frame that does not verify: it raises, or moves the reader past it.
    """

    def __init__(
        self,
        page: ControlPage | None,
        spec: FrameSpec,
        on_end: Callable[[], bool],
        on_bad: Callable[[int], None],
        verify: bool = True,
    ) -> None:
        self.page = page  # None while nothing is being written
        self._codec = codec_of(spec)
        self._on_end = on_end
        self._on_bad = on_bad
        self._verify = verify
        self.base = self.sequence = 0
        self._empty()

    def _empty(self) -> None:
        self.segment = _MAX
        self.position = self.end = self._dropped = 0
        self._owner: Buffer = b""
        self._data = self._times = memoryview(b"")
        self._sums = Sums()

    def detach(self) -> None:
        """Let the segment's files go; nothing is readable until the next `attach`."""
        try:
            self._data.release()
            self._times.release()
        finally:
            self._empty()

    def attach(
        self,
        data: Buffer,
        times: Buffer,
        spec: FrameSpec,
        segment: int,
        base: int,
        position: int,
        sequence: int,
        end: int,
    ) -> None:
        """Stand in `segment` at `position`, where record `sequence` begins; bytes below `end` may be read."""
        self.detach()
        self._codec = codec_of(spec)
        views = view_of(data), view_of(times)
        if not position <= end <= len(views[0]) or sequence < base:
            raise ValueError("the segment ends beyond its map")
        self._owner, (self._data, self._times) = data, views
        if self._verify and not spec.sum_bytes:
            self._sums = Sums(self._times[COMPANION_HEADER:])
        self.segment, self.base, self.end, self.sequence = segment, base, end, sequence
        self.position = self._dropped = position

    def seek(self, position: int, sequence: int) -> None:
        """Move within the segment."""
        if not 0 <= position <= self.end or sequence < self.base:
            raise ValueError("not within the segment")
        self.position, self.sequence = position, sequence
        self._dropped = min(self._dropped, position)

    def _more(self) -> bool:
        """Has the segment grown?"""
        if self.page is None:
            return False
        _, segment, _, end, _ = self.page.active()
        if segment != self.segment or not self.position < end <= len(self._data):
            return False
        self.end = end
        return True

    def _frame(self) -> int:
        """Size of the verified frame at the position, having moved on as needed; 0 at the end."""
        while True:
            if self.position >= self.end and not self._more():
                if not self._on_end():
                    return 0
                continue
            size, reason = self._check(self.position, self.sequence)
            if size:
                return size
            self._on_bad(reason)

    def _check(self, at: int, sequence: int) -> tuple[int, int]:
        """(size, LIMIT) of the verified frame at `at`, which is that of a record; or (0, why there is none)."""
        size, reason = self._codec.check(self._data, at, self.end, self._verify)
        if size and self._sums.differ(sequence - self.base, self._data[at : at + size]):
            return 0, why.CHECKSUM
        return size, reason

    @property
    def attached(self) -> bool:
        return self.segment != _MAX

    def here(self) -> tuple[bytes, int] | None:
        """The payload of the record at the position, and its frame's size, if it is whole and in this segment."""
        if self.position >= self.end and not self._more():
            return None
        size, _ = self._check(self.position, self.sequence)
        return (bytes(self._codec.payload(self._data, self.position, size)), size) if size else None

    def _time(self, sequence: int) -> int:
        """When the record was appended, whether or not its batch goes on; 0 when that is not known."""
        entry = 8 if self._codec.spec.sum_bytes else SUMMED_ENTRY.size
        at = COMPANION_HEADER + entry * (sequence - self.base)
        us: int = _TIME.unpack_from(self._times, at)[0] if at + entry <= len(self._times) else 0
        return abs(us) if us != -(2**63) else 0  # nonsense, which has no absolute value

    def _step(self, size: int, records: int = 1) -> None:
        self.position += size
        self.sequence += records
        if self.position - self._dropped > _DROP_BEHIND:
            release(self._owner, self._dropped, self.position)
            self._dropped = self.position

    def read(self) -> Message | None:
        """The next message, or None at the end."""
        size = self._frame()
        if not size:
            return None
        payload = bytes(self._codec.payload(self._data, self.position, size))
        message = Message(self.sequence, self._time(self.sequence), payload)
        self._step(size)
        return message

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Message:
        message = self.read()
        if message is None:
            raise StopIteration
        return message

    def over(self, owner: object) -> Iterator[Message]:
        """The messages, as iterating gives them, for as long as somebody goes over them: `owner` is kept alive meanwhile."""
        return compress(self, repeat((owner,)))

    def read_batch(self, n: int) -> list[Message]:
        """Up to `n` messages."""
        out: list[Message] = []
        while len(out) < n and (message := self.read()) is not None:
            out.append(message)
        return out

    def read_run(self, n: int) -> tuple[int, list[bytes]]:
        """(kind, payloads) of up to `n` records that follow each other and are of one kind: (0, []) only at the end.

        With some in hand it stops before whatever `on_end` or `on_bad` would be asked about: `sequence` less their number
        is the first one's.
        """
        out: list[bytes] = []
        size = self._frame() if n > 0 else 0
        kind = self._codec.kind(self._data, self.position) if size else 0
        while size and self._codec.kind(self._data, self.position) == kind:
            out.append(bytes(self._codec.payload(self._data, self.position, size)))
            self._step(size)
            if len(out) == n or (self.position >= self.end and not self._more()):
                break
            size, _ = self._check(self.position, self.sequence)
        return kind, out

    def read_span(self) -> tuple[int, int] | None:
        """(start, end) of the next payload in the segment's data, stepping over it; None at the end."""
        size = self._frame()
        if not size:
            return None
        start = self.position + self._codec.lead
        self._step(size)
        return start, start + size - self._codec.overhead

    def measure(self, limit: int, most_bytes: int) -> tuple[int, int]:
        """(records, payload bytes) that the next `fill` can take from here: (0, 0) only at the end."""
        if not self._frame():
            return 0, 0
        spec, end = self._codec.spec, min(self.end, self.position + most_bytes)
        found = scan(spec, self._data, self.position, end, limit, False)
        if not found.count:
            found = scan(spec, self._data, self.position, self.end, 1, False)
        return found.count, found.position - self.position - found.count * spec.overhead

    def fill(self, count: int, offsets: Buffer, values: Buffer, sequences: Buffer, times: Buffer, valid: Buffer) -> int:
        """Read `count` records into Arrow buffers, verified; how many were (fewer before a bad frame)."""
        rooms = [view_of(buffer, True) for buffer in (offsets, values, sequences, times, valid)]
        wanted = [4 * (count + 1), 0, 8 * count, 8 * count, (count + 7) // 8]
        short = any(len(room) < size for room, size in zip(rooms, wanted, strict=True))
        if short or len(rooms[1]) > 0x7FFFFFFF:
            raise ValueError("the buffers do not fit the records")
        ends, out = rooms[0][: wanted[0]].cast("i"), rooms[1]
        numbers, stamps = rooms[2][: wanted[2]].cast("q"), rooms[3][: wanted[3]].cast("q")
        known = 0  # the validity bits as one number: bit i says that the time of record i is known
        done = ends[0] = 0
        at, filled = self.position, 0
        while done < count:
            size, _ = self._check(at, self.sequence + done)
            payload = self._codec.payload(self._data, at, size)
            if not size or filled + len(payload) > len(out):
                break
            out[filled : filled + len(payload)] = payload
            filled += len(payload)
            numbers[done] = self.sequence + done
            stamps[done] = self._time(self.sequence + done)
            known |= (stamps[done] != 0) << done
            done += 1
            ends[done] = filled
            at += size
        rooms[4][: (done + 7) // 8] = known.to_bytes((done + 7) // 8, "little")
        self._step(at - self.position, done)
        return done
