"""`Channel`: typed messages from any number of senders to named receivers, each with its own persisted place.

Policy over `storage.log`: one process writes, receivers' offsets lie in the `offset` file, segments that all have passed are
removed and those still needed compressed, in the background. Everything else is the engine's.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

from penstock import codecs
from penstock.codecs import Codec
from penstock.errors import InvalidOffset, LogBusy, LogClosed, ReadOnly, RecordGone
from penstock.formats import channel as fmt
from penstock.formats.channel import Method
from penstock.kernel import Buffer
from penstock.options import (
    CHANNEL_MESSAGE_BYTES,
    CHANNEL_SEGMENT_BYTES,
    INDEX_INTERVAL,
    MAX_FILE_SIZE_BYTES,
    MAX_INDEX_INTERVAL,
    Flush,
    Roll,
    whole_number,
)
from penstock.storage import files
from penstock.storage.aside import aside
from penstock.storage.closable import AsyncClosable, Closable, Closing
from penstock.storage.cursor import check_name
from penstock.storage.dropping import close_dropped
from penstock.storage.group import NEVER, NOTHING, Decode, Group, Member, Nothing
from penstock.storage.holder import Holder
from penstock.storage.janitor import Janitor
from penstock.storage.kept import Kept, Told
from penstock.storage.listed import listed
from penstock.storage.log import Log
from penstock.storage.manifest import SegmentInfo
from penstock.storage.offsets import DURABLE, WRITTEN, Offsets
from penstock.storage.places import Places
from penstock.storage.ranges import Ranges
from penstock.storage.report import Recovery
from penstock.storage.retention import retire
from penstock.storage.settings import Settings, directory_at, settle
from penstock.storage.shrink import clear_leftovers, clear_orphans, compress_sealed
from penstock.storage.span import guard_sync
from penstock.storage.syncing import telling_appended
from penstock.storage.weakly import taken_out, weakly

T = TypeVar("T")
A = TypeVar("A")
Compression = Literal["snappy", "gzip", "zstd"]

_METHODS: Final = {"snappy": Method.SNAPPY, "gzip": Method.GZIP, "zstd": Method.ZSTD}
_PAGE: Final = 4096
_NAP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ReceiverStats:
    """How far a named receiver is, and how many bytes it is behind."""

    offset: int
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """What a channel holds. Offsets count the bytes of all messages ever sent, with their frames."""

    first_offset: int
    write_offset: int
    durable_offset: int
    receivers: dict[str, ReceiverStats]
    segments: int
    disk_bytes: int


class Sender(Generic[T]):
    """Sends to a channel. Threads may share it, and there may be any number."""

    def __init__(self, channel: Channel[T]) -> None:
        self._channel = channel
        self._append, self._encode = channel._sending()
        self._durable = channel.crash_consistent

    def send(self, obj: T, timeout_s: float | None = None) -> None:
        """Send one message. On return every receiver can have it, and it survives the death of this process.

        With `crash_consistent` it survives a power cut too; only then does it wait, for the disk, at most `timeout_s`.
        TimeoutError then says that it was sent and may not be on the disk yet, and so do NotSynced and a SyncFailed that has
        `appended`: it is not to be sent again. The channel's `sync` puts it on the disk, and so does a later send.
        """
        sequence = self._append(self._encode(obj))
        if self._durable:
            self._make_durable(range(sequence, sequence + 1), timeout_s)

    def send_many(self, objects: Sequence[T], timeout_s: float | None = None) -> None:
        """Send many messages as one: all of them or none, after any crash and to every receiver."""
        many = listed("send_many", objects)
        if not many:
            return
        log = self._channel._open_log()
        encode = self._encode
        first = log.append_batch([encode(obj) for obj in many])
        if self._durable:
            self._make_durable(range(first, first + len(many)), timeout_s)

    def _make_durable(self, sent: range, timeout_s: float | None) -> None:
        with telling_appended(sent):
            self._channel._make_durable(sent.stop, timeout_s)


class Receiver(Closable, Generic[T]):
    """Receives from a channel, in order. Threads may share it.

    With `ack=True` what was received is done when `ack` says so, and comes again after a restart until then.
    """

    _closed = True  # of the class: __del__ looks at it also when __init__ was never entered

    def __init__(self, channel: Channel[T], group: Group, name: str | None) -> None:
        self.id = name
        self._channel = channel
        self._group = group
        self._member: Member = group.join()
        self._decode = channel._decode
        self._durable = channel.crash_consistent and name is not None
        self._closed = False
        self._taker = group.taker
        self._at_once: Callable[[Decode[T] | None], T | None] = group.taker.take

    # ---- receiving ----

    def recv(self, timeout_s: float | None = None) -> T:
        """The next message. At the end it waits: None for ever, else that many seconds, and then raises TimeoutError."""
        before = self._taker.count  # as `_next`, without the call
        try:
            found = self._at_once(self._decode)
        except BaseException:
            self._group.undo(before)
            raise
        return found if found is not None else self._waited(self._take, timeout_s)

    def try_recv(self) -> T | None:
        """The next message, or None when there is none just now."""
        found = self._next()
        return None if found is NOTHING else found

    def recv_many(self, n: int, timeout_s: float | None = None) -> list[T]:
        """Up to `n` messages, waiting for the first one only. Fewer before one that does not decode."""
        self._check_open()
        if n < 1:
            return []
        return self._waited(lambda: self._take_many(n) or NOTHING, timeout_s)

    def _next(self) -> T | Nothing:
        """What the taker has at once, or else the slow way. A signal's exception may come right after it has taken something,
        which is then not returned any more: so it is given back."""
        before = self._taker.count
        try:
            found = self._at_once(self._decode)
        except BaseException:
            self._group.undo(before)
            raise
        return found if found is not None else self._take()

    def _take(self) -> T | Nothing:
        """What cannot be had at once: the first one of a segment, one that does not decode, none at all."""
        if self._closed:
            self._check_open()
        if self._group.acks:
            return self._group.take(self._member, self._decode)
        return self._group.receive(self._decode)

    def _take_many(self, n: int) -> list[T]:
        if self._closed:
            self._check_open()
        if self._group.acks:
            return self._group.take_many(self._member, n, self._decode)
        return self._group.receive_many(n, self._decode)

    def _waited(self, take: Callable[[], A | Nothing], timeout_s: float | None) -> A:
        """What `take` gives once there is something."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (found := take()) is NOTHING:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self._channel.path}: nothing was sent for {timeout_s} s")
            self._group.wait(_NAP_S if left is None else min(left, _NAP_S))
        return found

    def __iter__(self) -> Iterator[T]:
        """The messages, waiting for more until the channel or this receiver is closed."""
        while True:
            try:
                obj = self.recv()
            except LogClosed:
                return
            yield obj

    async def __aiter__(self) -> AsyncIterator[T]:
        """The same without blocking the event loop."""
        while True:
            try:
                found = await self._synced() if self._durable and not self._group.acks else self._next()
                if found is NOTHING:
                    await aside(self._group.wait, _NAP_S)
                    continue
            except LogClosed:
                return
            yield found

    async def _synced(self) -> T | Nothing:
        """The next message, when it is on the disk that it was received. If that is not waited for it comes again."""
        self._check_open()
        got = self._group.receive_taken(self._decode)
        if got is None:
            return NOTHING
        try:
            await aside(self._channel._sync_offsets)
            self._group.settle([got[0]])
        except GeneratorExit:  # nothing can be waited for any more
            self._group.unreceive([got[0]])
            raise
        except BaseException:  # also a task's cancelling waits for the disk, and the event loop does not
            if self._group.put_back([got[0]]):
                await aside(self._group.sync_back)
            raise
        return got[1]

    # ---- acknowledging ----

    def peek(self, n: int) -> list[T]:
        """Up to `n` messages that come next, which stay so. Fewer before one that does not decode."""
        self._check_open()
        return self._group.peek(n, self._decode)

    @property
    def unacked(self) -> int:
        """How many were received here and not acknowledged."""
        return len(self._member.unacked)

    def ack(self, n: int = 1) -> None:
        """The first `n` that were received here and not acknowledged are done: they do not come again."""
        self._check_open()
        if not self._group.acks:
            raise ValueError("this receiver acknowledges by receiving; make it with ack=True")
        self._group.ack(self._member, n)
        if self._durable:
            self._channel._sync_offsets()

    # ---- place ----

    @property
    def offset(self) -> int:
        """The read offset: everything before it is done."""
        return self._group.low

    def seek(self, offset: int) -> None:
        """Go on from this offset, which must be a message's first byte, or the end. What was not acknowledged is dropped."""
        self._check_open()
        self._group.seek(whole_number("offset", offset))
        if self._durable:
            self._channel._sync_offsets()

    def close(self) -> None:
        """Stop receiving. What was not acknowledged goes to the others of the same name, or to the next one."""
        if not self._closed:
            self._closed = True
            self._at_once = _none  # the others of the same name go on
            self._channel._leave(self.id, self._group, self._member)

    def __del__(self) -> None:
        if not self._closed and self.id is not None:
            self._channel._drop(self.id, self._group, self._member)

    def _check_open(self) -> None:
        self._channel._open_log()
        if self._closed:
            raise LogClosed(f"{self._channel.path}: this receiver was closed; make a new one with rx()")


class Channel(AsyncClosable, Generic[T]):
    """A durable channel in a directory: one process, any number of senders and receivers in it.

    >>> import tempfile
    >>> from penstock import codecs
    >>> with Channel(tempfile.mkdtemp(), codecs.json(dict)) as ch:
    ...     worker = ch.rx("worker")
    ...     ch.tx().send({"job": 1})
    ...     worker.recv()
    {'job': 1}
    """

    _janitor: Janitor | None = None  # of the class: __del__ looks at them also when __init__ was never entered
    _log: Log | None = None
    _holder: Holder | None = None
    _offsets: Offsets | None = None

    @overload
    def __init__(
        self: Channel[bytes],
        path: str | os.PathLike[str],
        codec: None = None,
        *,
        segment_bytes: int = ...,
        crash_consistent: bool = ...,
        compression: Compression | None = ...,
        read_only: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        path: str | os.PathLike[str],
        codec: Codec[T] | None = None,
        *,
        segment_bytes: int = ...,
        crash_consistent: bool = ...,
        compression: Compression | None = ...,
        read_only: bool = ...,
    ) -> None: ...
    def __init__(
        self,
        path: str | os.PathLike[str],
        codec: Codec[T] | None = None,
        *,
        segment_bytes: int = CHANNEL_SEGMENT_BYTES,
        crash_consistent: bool = False,
        compression: Compression | None = None,
        read_only: bool = False,
    ) -> None:
        """Open the channel at `path`, creating it (unless `read_only`) if it is not there.

        `codec` says what a message is; without one it is bytes. A segment is left once it holds `segment_bytes`. With
        `crash_consistent` every send, recv and ack is on the disk before it returns. Sealed segments that are still needed
        are compressed by `compression`, if it is given.
        """
        self.path = directory_at(path)
        if codec is not None and not all(callable(getattr(codec, does, None)) for does in ("encode", "decode")):
            raise TypeError(f"codec must be a codec, such as codecs.json(dict), not {codec!r}")
        self.codec: Codec[T] = codec if codec is not None else cast("Codec[T]", codecs.bytes_())
        self.crash_consistent = crash_consistent
        if not isinstance(segment_bytes, int) or not 1 <= segment_bytes <= MAX_FILE_SIZE_BYTES:
            raise ValueError(f"segment_bytes must be 1 to {MAX_FILE_SIZE_BYTES}, not {segment_bytes!r}")
        if compression is not None and compression not in _METHODS:
            raise ValueError(f"compression must be one of {', '.join(_METHODS)} or None, not {compression!r}")
        self._method = _METHODS[compression] if compression else None
        self._plain = isinstance(self.codec, type(codecs.bytes_()))
        # None: what a reader gives is bytes already.
        self._decode: Decode[T] | None = None if self._plain else self.codec.decode
        self._groups: dict[str, Group] = {}
        self._dropped: deque[tuple[str, Group, Member]] = deque()  # by receivers that nobody has any more
        self._unnamed: weakref.WeakSet[Group] = weakref.WeakSet()
        self._senders: weakref.WeakSet[Sender[T]] = weakref.WeakSet()
        self._lock = threading.Lock()  # who has which name; before a group's
        self._turns = Closing()
        self._look_at = NEVER  # a receiver that passes this may leave a segment behind that nobody needs
        self._read_only = read_only
        try:
            self._open(segment_bytes)
        except OSError as error:
            self._let_go()
            if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise ReadOnly(
                f"{self.path} cannot be written ({os.strerror(error.errno)}: {error.filename}); check its owner and permissions, or "
                "open it with read_only=True"
            ) from error
        except BaseException:
            self._let_go()
            raise

    def _open(self, segment_bytes: int) -> None:
        settings = settle(self.path, fmt, {}, {"index_interval": INDEX_INTERVAL}, _checked, read_only=self._read_only)
        janitor = Janitor(Flush.none(), weakly(self._tidy))
        mirror: memoryview | None = None
        if not self._read_only:
            self._holder = Holder(self.path, fmt.NAME)
        if not self._read_only or (self.path / "offset").exists():
            self._offsets = Offsets(self.path / "offset", read_only=self._read_only)
        # Not the write offset: that may have reached the disk before what it speaks of, where zeros lie, which are taken
        # for empty messages.
        written = self._offsets.load(DURABLE) if self._offsets else 0
        if self._offsets and not self._read_only:
            mirror = self._offsets.mirror()
        size = -(-(fmt.HEADER_BYTES + segment_bytes + CHANNEL_MESSAGE_BYTES) // _PAGE) * _PAGE
        self._log = log = Log(
            self.path,
            fmt,
            file_size=size,
            interval=settings["index_interval"],
            roll=Roll.size(segment_bytes),
            read_only=self._read_only,
            written=written,
            mirror=mirror,
            sole=True,
            on_opening=clear_leftovers,
            on_work=janitor.wake,
        )
        self._places = Places(log)
        if not self._read_only:
            clear_orphans(log)
            self._set_back()
            self._janitor = janitor
            janitor.serve(log)

    def _set_back(self) -> None:
        """What recovery cut is neither written nor read."""
        assert self._offsets is not None
        end, cursors = self._places.end, self._open_log().cursors
        self._offsets.store(WRITTEN, end)
        self._offsets.store(DURABLE, min(end, self._offsets.load(DURABLE)))
        for name, slot in self._slots().items():
            if slot == WRITTEN:
                continue  # its file cannot be read
            done = Ranges(self._offsets.load(slot), cursors.ranges(name))
            reached = done.beyond[-1][1] if done.beyond else done.low
            if reached > end:
                self.recovery.cursors_set_back[name] = reached
                done.cut(end)
                self._offsets.store(slot, done.low)
                cursors.store(name, slot, done.beyond)
        self._sync_offsets()  # or after a power cut the old places would speak of what is sent from now on
        self._sync_names()

    # ---- the ends ----

    def tx(self) -> Sender[T]:
        """A sender."""
        self._open_log().appender()
        sender = Sender(self)
        self._senders.add(sender)
        return sender

    def rx(self, name: str | None = None, *, ack: bool = False, shared: bool = False) -> Receiver[T]:
        """A receiver. A new one starts at the earliest message.

        With a `name` its place is kept, and nothing that it has not received is removed. Without, it is not kept. With `ack`
        what it receives is done when it says so. With `shared` others of the same name share its messages: each goes to
        exactly one of them.
        """
        log = self._open_log()
        if name is None:
            if shared:
                raise ValueError("receivers share the messages of a name; give them one")
            with self._lock:
                self._open_log()
                group = self._make_unnamed(log, ack)
                self._unnamed.add(group)
                return Receiver(self, group, None)
        check_name(name)
        log.appender()
        self._leave_dropped()
        with self._lock:
            self._open_log()  # not closed meanwhile, or nobody would close what is made here
            found = self._groups.get(name)
            if found is None or not found.members:  # nobody came to be in it: that call was interrupted
                found = self._groups[name] = self._make_group(log, name, ack)
                found.shared = shared
            elif not (shared and found.shared):
                raise LogBusy(
                    f"{self.path}: a receiver named {name!r} is open already; close it, or use shared=True on both"
                )
            elif found.acks != ack:
                raise ValueError(f"the other receivers named {name!r} were made with ack={found.acks}")
            return Receiver(self, found, name)

    def _make_unnamed(self, log: Log, ack: bool) -> Group:
        """Nothing holds the first message while this is made, so it may have to be tried again."""
        while True:
            first = self._places.first
            try:
                return Group(log, self._places, Ranges(first), Told(), acks=ack)
            except (InvalidOffset, RecordGone):
                if self._places.first == first:
                    raise

    def _make_group(self, log: Log, name: str, ack: bool) -> Group:
        offsets = self._offsets
        assert offsets is not None
        slot = log.cursors.load(name)
        if slot is not None:
            offsets.reach(slot, log.cursors.path(name))
        else:
            slot = self._new_slot(offsets)
            with log.locked():  # segments are removed under the lock
                offsets.store(slot, self._places.first)
                self._sync_offsets()
                log.cursors.store(name, slot)
                self._sync_names()
        done = Ranges(max(offsets.load(slot), self._places.first), log.cursors.ranges(name))
        kept = Kept(
            name,
            slot,
            offsets,
            log.cursors,
            sync_offset=weakly(self._sync_offsets) if self.crash_consistent else None,
            sync_names=weakly(self._sync_names) if self.crash_consistent else None,
        )
        group = Group(log, self._places, done, kept, acks=ack, on_reached=weakly(self._look_again))
        group.watch(self._look_at)
        return group

    def _new_slot(self, offsets: Offsets) -> int:
        taken = set(self._slots().values()) | {WRITTEN, DURABLE}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        if slot >= offsets.slots:
            offsets.grow()
        return slot

    def sync(self, timeout_s: float | None = None) -> None:
        """Put everything sent so far on the disk. Waits for a sync under way at most `timeout_s`."""
        log = self._open_log()
        log.writable()
        self._make_durable(log.next_sequence, timeout_s)

    def forget(self, name: str) -> None:
        """Remove a named receiver: what it held back may go."""
        log = self._open_log()
        check_name(name)
        log.appender()
        self._leave_dropped()
        with self._lock:
            if name in self._groups and self._groups[name].members:
                raise LogBusy(f"{self.path}: the receiver {name!r} is open; close it first")
            self._groups.pop(name, None)
            log.cursors.forget(name)
            self._sync_names()  # before its slot is another's
        self._look_again()

    # ---- facts ----

    @property
    def recovery(self) -> Recovery:
        """What opening found and did."""
        return self._open_log().recovery

    @property
    def closed(self) -> bool:
        """Whether the channel was closed."""
        return self._log is None or self._log.closed

    def stats(self) -> ChannelStats:
        """What it holds, and how far everybody is."""
        log = self._open_log()
        read = {name: self._read_to(slot) for name, slot in self._slots().items()} if self._offsets else {}
        end = self._places.end  # after those: nobody is beyond it
        return ChannelStats(
            first_offset=self._places.first,
            write_offset=end,
            durable_offset=self._places.durable,
            receivers={name: ReceiverStats(offset, end - offset) for name, offset in read.items()},
            segments=len(log.directory.segments()),
            disk_bytes=log.directory.used_bytes(),
        )

    def _slots(self) -> dict[str, int]:
        """The named receivers, and where in the `offset` file theirs lies."""
        return self._open_log().cursors.all()

    def _read_to(self, slot: int) -> int:
        """A receiver's offset. One whose file cannot be read is shown with no slot of its own: it has read nothing."""
        assert self._offsets is not None
        return self._offsets.load(slot) if slot != WRITTEN else 0

    # ---- what senders and receivers ask ----

    def _sending(self) -> tuple[Callable[[Buffer], int], Callable[[T], Buffer]]:
        log = self._open_log()
        encode = cast("Callable[[T], Buffer]", _as_it_is) if self._plain else self.codec.encode
        return log.appender().append, encode

    def _refuse(self, payload: Buffer) -> int:
        raise LogClosed(f"{self._open_log().path}: this channel was closed; open it again")

    def _make_durable(self, next_: int, timeout_s: float | None) -> None:
        log, offsets = self._log, self._offsets
        assert log is not None
        assert offsets is not None
        log.sync_to(next_, timeout_s)
        with suppress(LogClosed):  # meanwhile, which puts all of this on the disk
            with log.locked():  # it never goes back
                offsets.store(DURABLE, self._places.durable)
            self._sync_offsets()

    def _sync_offsets(self) -> None:
        log, offsets = self._log, self._offsets
        assert log is not None
        assert log.control is not None
        assert offsets is not None
        if log.control.poison:
            raise log.failed(log.control.poison)
        guard_sync(log.directory, log.control, offsets.sync)

    def _sync_names(self) -> None:
        """Which receivers there are, and what they have done beyond a gap, is on the disk."""
        log, names = self._log, self.path / "cursors"
        if log is not None and log.control is not None and names.is_dir():
            guard_sync(log.directory, log.control, lambda: files.sync_directory(names))

    def _leave(self, name: str | None, group: Group, member: Member) -> None:
        if self._log is None or self._log.inherited:
            return
        with self._lock:
            if group.leave(member) and name is not None and self._groups.get(name) is group:
                del self._groups[name]

    def _drop(self, name: str, group: Group, member: Member) -> None:
        """A receiver is gone that was not closed. That may be found anywhere, also with a lock in hand: who has none sees to it."""
        if self._janitor is not None:  # else it is closed, and nobody is in it
            self._dropped.append((name, group, member))
            self._look_again()

    def _leave_dropped(self) -> None:
        with suppress(IndexError):
            while True:
                self._leave(*self._dropped.popleft())

    def _open_log(self) -> Log:
        assert self._log is not None
        self._log.check_open()
        return self._log

    # ---- the background ----

    def _tidy(self, log: Log) -> None:
        """Remove what all named receivers have passed, and compress what is left of the finished segments."""
        self._leave_dropped()
        for info in sorted((s for s in log.finished().values() if s.sealed), key=lambda s: s.id):
            # Before looking at who has passed it: whoever does so from now on asks for another look.
            self._watch(self._places.end_of(info))
            if not self._passed_by_all(info) or not retire(log, info, lambda s: not self._passed_by_all(s)):
                break
        else:
            self._watch(NEVER)
        janitor = self._janitor
        if self._method is not None and janitor is not None:
            compress_sealed(log, self._method, lambda: janitor.is_wanted)
            if janitor.is_wanted:  # by rolls, removals or the close, none of which waits for all to be compressed
                janitor.look_again()

    def _watch(self, offset: int) -> None:
        """Have receivers tell when they reach an offset that they have not passed yet."""
        with self._lock:
            self._look_at = offset
            for group in self._groups.values():
                group.watch(offset)

    def _look_again(self) -> None:
        janitor = self._janitor
        if janitor is not None:
            janitor.look_again()

    def _passed_by_all(self, info: SegmentInfo) -> bool:
        """While nobody is registered nothing is removed, nor what a receiver that is open may give back yet."""
        slots, end = self._slots().values(), self._places.end_of(info)
        passed = bool(slots) and all(self._read_to(slot) >= end for slot in slots)
        return passed and not any(group.needs(end) for group in list(self._groups.values()))

    # ---- closing ----

    def close(self) -> None:
        """Sync, give back unused disk, and close. Receivers that wait are woken, and end."""
        if self._log is not None and self._log.inherited:
            if self._offsets is not None:
                self._offsets.forked()
            self._let_go()
            return
        if self._log is not None:
            self._log.syncing.check_interrupts_none()
        janitor = self._janitor
        if janitor is not None:
            janitor.stop()
        self._turns.once(self._close)

    def _close(self) -> None:
        with self._lock:
            self._janitor = None
            for group in [*self._groups.values(), *self._unnamed]:
                group.close()
            self._groups.clear()
            self._dropped.clear()
            try:
                log = self._log
                if log is not None and log.control and not (self._read_only or log.closed or log.control.poison):
                    self._make_durable(log.next_sequence, None)
            finally:
                self._let_go()

    def _let_go(self) -> None:
        try:
            if self._log is not None:
                self._log.close()
        finally:
            for held in (self._offsets, self._holder):
                if held is not None:
                    held.close()
            for sender in taken_out(self._senders):
                sender._append = self._refuse  # what it had is the kernel's, which holds the page

    def __del__(self) -> None:
        if self._janitor is not None and self._log is not None and not self._log.inherited:
            warnings.warn(f"unclosed channel {str(self.path)!r}", ResourceWarning, stacklevel=2)
            close_dropped(self.path, self.close, self._janitor)

    def __repr__(self) -> str:
        return f"Channel({str(self.path)!r}{', closed' if self.closed else ''})"


def _as_it_is(data: Any) -> Any:
    return data


def _none(_: object) -> None:
    """What a closed receiver has at once."""


def _checked(settings: Settings) -> Settings:
    interval = settings.get("index_interval")
    if interval is not None and (not isinstance(interval, int) or not 1 <= interval <= MAX_INDEX_INTERVAL):
        raise ValueError(f"index_interval must be 1 to {MAX_INDEX_INTERVAL}, not {interval}")
    return {"index_interval": interval} if interval is not None else {}
