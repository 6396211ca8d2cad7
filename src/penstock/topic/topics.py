"""`Topics`: messages in partitions, written in batches, each on the disk before its publishers are told.

Policy over `storage.log`: each partition is a log of its own, in files of the topic's directory. Several processes may publish
to a topic and read it at once. Locks: a publisher takes its buffer's, for as long as a copy takes; the thread that writes takes
the control page's, across the write and the sync, which no reader ever takes. Neither is taken with the other held.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, SupportsFloat

from penstock.errors import (
    BufferFull,
    FilesMissing,
    InvalidOffset,
    InvalidPayload,
    InvalidTopic,
    LogClosed,
    LogNotFound,
    NotALog,
    PayloadTypeError,
    ReadOnly,
    SettingsMismatch,
)
from penstock.formats import topic as fmt
from penstock.formats.topic import Partition, check_topic, partition_of
from penstock.kernel import Buffer
from penstock.options import (
    INDEX_INTERVAL,
    MAX_INDEX_INTERVAL,
    MAX_NUMBER,
    MAX_PARTITIONS,
    TOPIC_BATCH,
    TOPIC_BUFFER_BYTES,
    TOPIC_BUFFER_MESSAGES,
    TOPIC_LINGER_S,
    TOPIC_SEGMENT_BYTES,
    Retention,
    whole_number,
)
from penstock.storage import files, metadata
from penstock.storage.arrow import arrow_buffers
from penstock.storage.buffered import Buffering
from penstock.storage.closable import AsyncClosable, Closing
from penstock.storage.dropping import close_dropped
from penstock.storage.listed import listed
from penstock.storage.reader import OnCorrupt
from penstock.storage.report import Recovery
from penstock.storage.settings import Settings, current, directory_at, refuse_files, settle
from penstock.topic.group import GroupMember
from penstock.topic.message import TopicMessage
from penstock.topic.partition import OpenPartition, PartitionStats
from penstock.topic.publishing import Publication, Publications, arrow_pieces, pieces
from penstock.topic.tailer import TopicTailer

if TYPE_CHECKING:
    import pyarrow

_SEND_BYTES: Final = 1 << 18


class Topic:
    """A topic, from `Topics.topic`. Threads may share it."""

    def __init__(self, topics: Topics, name: str, settings: Settings) -> None:
        self.name = name
        self.path = topics.path / name
        files.refuse_links(self.path, topics.path)
        self._topics = topics
        self._settings = settings
        self._parts: list[OpenPartition | None] = [None] * settings["partitions"]
        self._lock = threading.Lock()  # of opening partitions
        self._turns = count()
        self._members = weakref.WeakKeyDictionary[GroupMember, None]()  # as they joined: so they leave

    # ---- partitions ----

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._parts)

    def add_partitions(self, partitions: int) -> None:
        """Have so many partitions from now on. Messages with a key go elsewhere then: `partition_of` depends on how many
        there are. Other processes see them when they open the topic anew, or, where they have a member of a group, at its next look
        around."""
        self._topics._writable()
        with self._lock, self._opened_directory() as fd:
            self._topics._writable()
            files.lock(fd, shared=False)  # another process may be at it too
            self._settings = current(self.path, self._settings, _checked)
            have = max(self._settings["partitions"], len(self._parts))
            if not _is_count(partitions) or not max(have, len(self._parts) + 1) <= partitions <= MAX_PARTITIONS:
                raise ValueError(
                    f"{self.path}: {partitions!r} cannot be its number of partitions, which is {have} and can only grow, up to "
                    f"{MAX_PARTITIONS}"
                )
            if partitions != have:
                self._settings = {**self._settings, "partitions": partitions}
                metadata.change(self.path, self._settings)
            self._grow(partitions)

    @contextlib.contextmanager
    def _opened_directory(self) -> Iterator[int]:
        try:
            fd = files.open_to_lock(self.path, make=False)
        except FileNotFoundError as error:
            raise FilesMissing(
                f"{self.path}: the topic was removed while it is open; close it in every process, then open it again"
            ) from error
        try:
            yield fd
        finally:
            files.close(fd)

    def _partitions_now(self) -> int:
        """How many there are, whoever has added some."""
        found = current(self.path, self._settings, _checked)
        with self._lock:
            self._grow(found["partitions"])
            return len(self._parts)

    def _grow(self, partitions: int) -> None:
        self._parts += [None] * (partitions - len(self._parts))

    def _part(self, partition: int) -> OpenPartition:
        """An open partition. Says nothing of a fork: who appends to it is told by the kernel."""
        try:
            part = self._parts[partition] if partition >= 0 else None
        except (IndexError, TypeError):
            part = None
        if part is None:
            part = self._opened(partition)
        return part

    def _here(self, partition: int) -> OpenPartition:
        """The same for whatever else is done with it."""
        self._topics._check_open()
        return self._part(partition)

    def _opened(self, partition: int) -> OpenPartition:
        self._topics._check_open()  # before the lock is taken: in a forked child a thread may hold it that is not there
        with self._lock:
            self._topics._check_open()
            if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < len(self._parts):
                raise ValueError(f"{self.path}: partition {partition!r}; there are 0 to {len(self._parts) - 1}")
            part = self._parts[partition]
            if part is None:
                part = OpenPartition(self._topics, self.path, partition, self._settings["index_interval"])
                self._parts[partition] = part
            return part

    def _to(self, key: Buffer | None, partition: int | None) -> OpenPartition:
        """The partition that a message goes to."""
        if partition is None:
            n = len(self._parts)
            try:
                partition = partition_of(key, n) if key is not None else next(self._turns) % n
            except TypeError:
                raise TypeError(f"{self.path}: a key must be bytes-like, not {type(key).__name__}") from None
        elif key is not None:
            raise ValueError(
                f"{self.path}: a key and a partition; give one of them, as the key says which partition it is"
            )
        part = self._part(partition)
        if self._topics.read_only:
            self._topics._writable()
        return part

    # ---- publishing ----

    def publish(
        self,
        payload: Buffer,
        key: Buffer | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> Publication:
        """Publish a message; returns at once. `wait()` for the publication, or `await` it: then the message is on the disk,
        has its offset, and readers see it.

        Messages with the same `key` go to the same partition, those without one to each in turn. The key is not stored. When
        the buffer is full this waits, at most `timeout_s`, and then raises BufferFull.
        """
        part = self._to(key, partition)
        try:
            batch, place = part.append(payload, 0, timeout_s)
        except (OSError, ValueError) as error:
            raise self._told(part, error) from None
        return Publication(part, batch, place)

    def publish_many(
        self,
        payloads: Sequence[Buffer] | pyarrow.Array,
        key: Buffer | None = None,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> Publications:
        """Publish a list of messages, or a pyarrow binary or string array without nulls, to one partition, in their order.

        They are written together as far as they fit one segment; `timeout_s` is for each time that the buffer is full.
        If one cannot be published, none is; after BufferFull the first `taken` of them are.
        """
        arrow = arrow_buffers(payloads)
        many = listed("publish_many", payloads) if arrow is None else ()
        part = self._to(key, partition)
        capacity, appends = part.log.directory.capacity, part.path.appends
        parts: list[tuple[Publication, int]] = []
        try:
            if arrow is not None:
                offsets, wide, values, start, size = arrow
                for first, end in list(arrow_pieces(offsets, wide, start, size, capacity)):
                    made = appends.append_arrow(offsets, wide, values, first, end - first, timeout_s)
                    parts.append((Publication(part, *made), end - first))
            else:
                try:
                    made = appends.append_many(many, 0, timeout_s)
                    parts.append((Publication(part, *made), len(many)))
                except InvalidPayload:  # more than a segment holds, or one that cannot be published: look closer
                    for piece in list(pieces(many, capacity)):  # all of them first: a list is refused as a whole
                        made = appends.append_many(piece, 0, timeout_s)
                        parts.append((Publication(part, *made), len(piece)))
        except (OSError, ValueError) as error:
            raise self._told(part, error, sum(size for _, size in parts)) from None
        return Publications(part.number, parts)

    def _told(self, part: OpenPartition, error: BaseException, taken: int = 0) -> BaseException:
        if isinstance(error, BufferFull):
            said = f"{taken} messages of the list were taken, and then " if taken else ""
            return BufferFull(f"{self.path}: partition {part.number}: {said}{error}", taken)
        if isinstance(error, InvalidPayload) and not isinstance(error, PayloadTypeError):
            most = part.log.directory.capacity - fmt.SPEC.overhead
            return InvalidPayload(
                f"{self.path}: {error}; a message has at most {most} bytes here, for longer ones open it with larger "
                "segment_bytes"
            )
        return part.path.explained(error)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything that this process has published is on the disk."""
        self._topics._writable()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for part in self._open_parts():
            with part.path.told():
                part.path.appends.flush()  # all of them at once; then wait for each
        for part in self._open_parts():
            part.log.sync(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _open_parts(self) -> list[OpenPartition]:
        return [part for part in self._parts if part is not None]

    # ---- reading ----

    def read(self, partition: int, offset: int, max_messages: int) -> list[TopicMessage]:
        """Up to `max_messages` of a partition from `offset` on; none at its end."""
        if not isinstance(max_messages, int) or max_messages < 0:
            raise ValueError(f"max_messages must not be negative, and is {max_messages!r}")
        return self._here(partition).read(whole_number("offset", offset), max_messages)

    def ends(self) -> dict[int, int]:
        """By partition, the offset that its next message will have."""
        return {p: self._here(p).log.next_sequence for p in range(self.partitions)}

    def tailer(
        self,
        name: str | None = None,
        partitions: Sequence[int] | None = None,
        at: Literal["start", "end"] = "start",
        on_corrupt: OnCorrupt = "raise",
    ) -> TopicTailer:
        """A reader of some partitions, or all, with places of its own.

        With a `name` the places are kept by `commit()`, and the next tailer of that name goes on there. `at` is where it starts
        in a partition that it has none for.
        """
        chosen = range(self.partitions) if partitions is None else partitions
        parts = [self._here(p) for p in dict.fromkeys(chosen)]
        return TopicTailer(self.path, name, parts, at, on_corrupt, owner=self._topics)

    def group(self, name: str, at: Literal["start", "end"] = "start", on_corrupt: OnCorrupt = "raise") -> GroupMember:
        """Join the consumer group of this name: its live members, in any processes, share the partitions, and each message
        goes to one of them. `at` is where a group starts in a partition that it has no place for. With `on_corrupt="skip"`
        damaged messages are stepped over, and named in the member's `losses`."""
        self._topics._writable()
        member = GroupMember(self.path, name, self._partitions_now, at, on_corrupt, self._here)
        try:
            with self._lock:
                self._topics._check_open()  # not closed meanwhile, or nobody would close it
                self._members[member] = None
        except BaseException:
            member.close()
            raise
        return member

    def committed(self, name: str) -> dict[int, int]:
        """By partition, the place that a named tailer or group has committed; those without one are left out."""
        found = {p: self._here(p).log.cursors.load(name) for p in range(self.partitions)}
        return {p: place for p, place in found.items() if place is not None}

    def forget(self, name: str) -> None:
        """Remove the places of a named tailer or group."""
        self._topics._writable()
        for p in range(self.partitions):
            self._here(p).log.cursors.forget(name)

    def stats(self) -> dict[int, PartitionStats]:
        """By partition, what it holds and does."""
        return {p: self._here(p).stats() for p in range(self.partitions)}

    def recovery(self, partition: int) -> Recovery:
        """What opening a partition found and did."""
        return self._here(partition).log.recovery

    def segments(self, partition: int) -> list[int]:
        """The numbers of a partition's segments, oldest first; the last one is being written."""
        return self._here(partition).log.directory.segments()

    def send_segment(self, socket: sockets.socket, partition: int, segment: int) -> int:
        """Send a segment's messages, as they lie in its file (a length of four bytes before each), without copying them
        through this process where the system can; how many bytes. Of the segment being written, what is there now."""
        log = self._here(partition).log
        now = log.active()
        info = log.finished().get(segment)
        if segment != now.segment and info is None:
            raise InvalidOffset(
                f"{self.path}: partition {partition} has no segment {segment}; it has {self.segments(partition)}"
            )
        end = now.end if info is None or segment == now.segment else info.end
        path = log.directory.paths(segment).data
        try:
            if type(socket).send is not sockets.socket.send:  # it encrypts, say: the system would go past that
                return _send_by(socket, path, fmt.HEADER_BYTES, end)
            return files.send(socket.fileno(), path, fmt.HEADER_BYTES, end, socket.gettimeout() or None)
        except FileNotFoundError:
            raise InvalidOffset(
                f"{self.path}: segment {segment} of partition {partition} was just removed; "
                f"it has {self.segments(partition)}"
            ) from None

    # ---- closing ----

    def _close(self) -> None:
        """What is left when a signal interrupts this is closed by the next one."""
        with self._lock:
            members, parts = list(self._members), list(enumerate(self._parts))
        failed: Exception | None = None
        for member in members:
            try:
                member.close()
            except Exception as error:
                failed = failed or error
        for number, part in parts:
            if part is not None:
                try:
                    part.close()
                except Exception as error:
                    failed = failed or error
                self._parts[number] = None
        if failed is not None:
            raise failed

    def __repr__(self) -> str:
        return f"Topic({str(self.path)!r}, partitions={self.partitions})"


class Topics(AsyncClosable):
    """A directory of topics. Any number of processes may have it open.

    >>> import tempfile
    >>> with Topics(tempfile.mkdtemp(), linger_s=0) as logs:
    ...     t = logs.topic("orders", partitions=4)
    ...     p = t.publish(b"two teapots", key=b"customer-7")
    ...     p.partition, p.wait()
    ...     t.read(1, 0, 10)[0].payload
    (1, 0)
    b'two teapots'
    """

    _open: dict[str, Topic] | None = None  # of the class: __del__ looks at it also when __init__ was never entered

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        *,
        segment_bytes: int = TOPIC_SEGMENT_BYTES,
        batch: int = TOPIC_BATCH,
        linger_s: float = TOPIC_LINGER_S,
        buffer_messages: int = TOPIC_BUFFER_MESSAGES,
        buffer_bytes: int = TOPIC_BUFFER_BYTES,
        flush: Literal["fsync", "none"] = "fsync",
        retention: Retention | None = None,
        read_only: bool = False,
    ) -> None:
        """Open the topics in `log_dir`; the directory is made when the first topic is.

        A batch of a partition is written when it has `batch` messages, or `linger_s` after its first one. `buffer_messages`
        and `buffer_bytes` of a partition may wait to be written. With `flush="none"` the system decides when batches get to
        the disk: what was waited for survives the death of every process, not a power cut.
        """
        for name, value in (
            ("segment_bytes", segment_bytes),
            ("batch", batch),
            ("buffer_messages", buffer_messages),
            ("buffer_bytes", buffer_bytes),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NUMBER:
                raise ValueError(f"{name} must be a whole number from 1 to {MAX_NUMBER}, not {value!r}")
        if segment_bytes < fmt.SPEC.overhead:
            raise ValueError(f"segment_bytes must be at least {fmt.SPEC.overhead}, and is {segment_bytes}")
        if not isinstance(linger_s, SupportsFloat) or not float(linger_s) >= 0:
            raise ValueError(f"linger_s must be a number from 0 on, not {linger_s!r}")
        if flush not in ("fsync", "none"):
            raise ValueError(f'flush must be "fsync" or "none", not {flush!r}')
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention must be a Retention, not {retention!r}")
        self.path = directory_at(log_dir)
        refuse_files(self.path, "topics lie in a directory, each in one of its own")
        self.segment_bytes = segment_bytes
        self.buffering = Buffering(batch, linger_s, buffer_bytes, buffer_messages, flush == "fsync")
        self.retention = retention or Retention()
        self.read_only = read_only
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._turns = Closing()
        self._open = {}
        self._closed = False

    def topic(self, name: str, partitions: int | None = None) -> Topic:
        """The topic of this name, created with so many partitions (1) if it is not there.

        The count is fixed from then on; `Topic.add_partitions` can make it more.
        """
        check_topic(name)
        if partitions is not None and not _is_count(partitions):
            raise ValueError(f"partitions must be 1 to {MAX_PARTITIONS}, not {partitions!r}")
        self._check_open()  # before the lock is taken: in a forked child a thread may hold it that is not there
        with self._lock:
            self._check_open()
            assert self._open is not None
            found = self._open.get(name)
            if found is not None and (partitions is None or partitions == found.partitions):
                return found
            path = self.path / name
            if self.read_only and not files.is_directory(path):
                raise LogNotFound(f"{path}: no such topic; there are {', '.join(self.topics()) or 'none'}")
            given = {} if partitions is None else {"partitions": partitions}
            default = {"partitions": _count_partitions(path), "index_interval": INDEX_INTERVAL}
            try:
                settings = settle(path, Partition(0), given, default, _checked, read_only=self.read_only)
            except SettingsMismatch as error:
                raise SettingsMismatch(f"{error}; Topic.add_partitions can make them more") from None
            if found is None:
                found = self._open[name] = Topic(self, name, settings)
            with found._lock:
                found._grow(settings["partitions"])  # another process may have added some
            return found

    def topics(self) -> list[str]:
        """The names of the topics that are there."""
        found: list[str] = []
        for path in sorted(files.children(self.path)) if files.is_directory(self.path) else []:
            with contextlib.suppress(InvalidTopic):  # some other directory
                if _is_topic(path):
                    found.append(check_topic(path.name))
        return found

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything that this process has published is on the disk."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._check_open()
        for topic in list((self._open or {}).values()):
            topic.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _check_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            how = "was closed" if self._closed else "was opened before a fork"
            raise LogClosed(f"{self.path}: this Topics object {how}; open it again")

    def _writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnly(f"{self.path}: opened with read_only=True; open it without to publish")

    def close(self) -> None:
        """Write what waits, and close. Nothing published is dropped."""
        if self._pid != os.getpid():
            self._closed = True  # what is open is the parent's
            return
        self._turns.once(self._close)

    def _close(self) -> None:
        failed: Exception | None = None
        with self._lock:
            self._closed, topics = True, dict(self._open or {})
        for name, topic in topics.items():
            try:
                topic._close()
            except Exception as error:
                failed = failed or error
            (self._open or {}).pop(name, None)
        if failed is not None:
            raise failed

    def __del__(self) -> None:
        if self._open and self._pid == os.getpid() and not self.read_only:  # also of a close that was interrupted
            warnings.warn(f"unclosed topics {str(self.path)!r}", ResourceWarning, stacklevel=2)
            close_dropped(self.path, self.close)

    def __repr__(self) -> str:
        return f"Topics({str(self.path)!r}{', closed' if self._closed else ''})"


def _send_by(socket: sockets.socket, path: Path, start: int, end: int) -> int:
    with files.opened(path) as fd:
        for at in range(start, end, _SEND_BYTES):
            socket.sendall(files.read(fd, at, min(end - at, _SEND_BYTES)))
    return end - start


def _is_count(partitions: object) -> bool:
    """Whether a topic may have so many partitions."""
    return isinstance(partitions, int) and not isinstance(partitions, bool) and 1 <= partitions <= MAX_PARTITIONS


def _is_topic(path: Path) -> bool:
    """Whether a topic lies there, ours or another implementation's."""
    try:
        found = metadata.load(path)
        if found is not None:
            return bool(found["format"] == fmt.NAME)
        return any(fmt.parse(file.name) for file in files.children(path))
    except (NotALog, OSError):
        return False  # no directory, or nothing of ours


def _count_partitions(path: Path) -> int:
    """How many partitions the files of a topic without settings show; 1 for a new one."""
    found = (
        {place: file for file in files.children(path) if (place := fmt.parse(file.name))}
        if files.is_directory(path)
        else {}
    )
    count = max((place.partition for place in found), default=0) + 1
    if count > MAX_PARTITIONS and metadata.load(path) is None:
        raise NotALog(f"{found[max(found)]}: a topic has at most {MAX_PARTITIONS} partitions; move this file away")
    return count


def _checked(settings: Settings) -> Settings:
    """The fixed settings among these that are given, if they make sense."""
    partitions, interval = settings.get("partitions"), settings.get("index_interval")
    if partitions is not None and not _is_count(partitions):
        raise ValueError(f"partitions must be 1 to {MAX_PARTITIONS}, not {partitions!r}")
    if interval is not None and (not isinstance(interval, int) or not 1 <= interval <= MAX_INDEX_INTERVAL):
        raise ValueError(f"index_interval must be 1 to {MAX_INDEX_INTERVAL}, not {interval}")
    return {name: value for name, value in settings.items() if value is not None and name != "file_size"}
