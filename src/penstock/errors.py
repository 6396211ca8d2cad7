"""Every error Penstock raises on purpose. Each message says where, what, and what to do next.

PenstockError
├── InvalidPayload (ValueError)       empty, or longer than the log can hold
│   ├── PayloadTypeError (TypeError)  not bytes-like
│   └── EncodeError                   a codec was given something it cannot encode, or of another type than its own
├── DecodeError                       a payload is not what its codec reads
├── InvalidTopic (ValueError)         no name for a topic
├── InvalidOption (ValueError)        Spark was given an option that is not known, or a value that cannot be
├── InvalidOffset (ValueError)        no record begins at that offset
├── InvalidAck (ValueError)           more than was received and not acknowledged
├── InvalidCheck (ValueError)         no checkpoint is left to retire
├── LogClosed                         the object was closed, or its process forked away
├── ReadOnly                          opened with read_only=True, or its directory cannot be written
├── JavaNotFound                      Spark needs Java, and there is none
├── LogNotFound                       no log at that path
├── NotALog                           the path, or a file in it, is something else
│   └── CorruptSettings               the settings of a log, in metadata.json, are damaged
├── UnknownVersion                    written by a newer Penstock
├── SettingsMismatch                  opened with other fixed settings than it was made with
├── UnsupportedFileSystem             it cannot hold the durability contract
├── LogBusy                           another process holds the log in a way that excludes this
├── BufferFull (TimeoutError)         too much waits to be written; append again later
├── RecordsLost                       records of a group could not be written, so it cannot be complete
├── FilesMissing                      the numbers of a journal's files have a gap, or one comes twice
├── DataLost                          what a Spark query is to read next was removed from the log
├── StagingLost                       what tasks of Spark put aside for a commit is gone, or not what it was
├── RecordGone                        the sequence was removed, by retention or a finished walk, or does not exist yet
├── CorruptRecord                     a record before the end of the log is damaged
├── CorruptSegment                    the compressed stream of a segment is damaged
├── DiskFull (OSError)                no room; nothing was changed
├── StorageFailed (OSError)           the system refused a file otherwise: too many are open, the disk does not work
│   └── StorageDenied (PermissionError)  its owner or permissions forbid it
├── NotSynced (OSError)               what was appended is in the log, and could not be synced now; not to be appended again
└── SyncFailed (OSError)              the disk refused a sync; the log takes no more appends until reopened

RecoveryUnfinished (UserWarning)      a journal was closed before its recovery walk was finished
"""

from __future__ import annotations

import errno
import os
from typing import Final


class PenstockError(Exception):
    """The root of all errors raised by Penstock."""


class InvalidPayload(PenstockError, ValueError):
    """A payload that cannot be stored: empty, or larger than a file of this log."""


class PayloadTypeError(InvalidPayload, TypeError):
    """A payload that is not bytes-like."""


class EncodeError(InvalidPayload):
    """A codec cannot encode the object, or it is of another type than the codec's."""


class DecodeError(PenstockError):
    """A payload is not what its codec reads.

    `offset` is the record's place in its log, and `next_offset` that of the one after it, when they are known.
    """

    def __init__(self, codec: str, reason: str, offset: int | None = None, next_offset: int | None = None) -> None:
        self.codec = codec
        self.reason = reason
        self.offset = offset
        self.next_offset = next_offset
        where = "a payload" if offset is None else f"offset {offset}: a payload"
        step = "" if next_offset is None else f"seek({next_offset}) to step over it, "
        super().__init__(
            f"{where} that {codec} cannot read: {reason}; "
            f"{step}use the codec that it was written with, or codecs.bytes_() to look at it"
        )

    def at(self, offset: int, next_offset: int) -> DecodeError:
        """The same error, saying which record it is about: a codec sees the payload alone."""
        return type(self)(self.codec, self.reason, offset, next_offset)

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None, int | None]]:
        return type(self), (self.codec, self.reason, self.offset, self.next_offset)


class InvalidTopic(PenstockError, ValueError):
    """A name that no topic can have."""


class InvalidOption(PenstockError, ValueError):
    """An option of the Spark source or sink that is not known, or a value that it cannot have."""


class LogClosed(PenstockError):
    """The log object was closed."""


class ReadOnly(PenstockError):
    """The log was opened with read_only=True, or its directory cannot be written."""


class JavaNotFound(PenstockError):
    """Spark needs Java, and there is none on this machine."""


class LogNotFound(PenstockError):
    """There is no log at that path."""


class NotALog(PenstockError):
    """The path, or a file in it, is not what a log is made of."""


class CorruptSettings(NotALog):
    """The `metadata.json` of a log does not say what it should."""


class UnknownVersion(PenstockError):
    """A file says it was written by a later version of the format."""


class SettingsMismatch(PenstockError):
    """A fixed setting differs from the one the log was created with."""


class UnsupportedFileSystem(PenstockError):
    """The file system cannot hold the durability contract (a network file system)."""


class LogBusy(PenstockError):
    """Another process holds the log in a way that excludes this one."""


class InvalidOffset(PenstockError, ValueError):
    """An offset at which no record begins."""


class InvalidAck(PenstockError, ValueError):
    """More was acknowledged than was received."""


class InvalidCheck(PenstockError, ValueError):
    """Every checkpoint is retired already."""


class RecordsLost(PenstockError):
    """Records that were appended could not be written; whoever waited for them was told why."""


class RecoveryUnfinished(UserWarning):
    """A journal was closed, and what earlier sessions left was not walked to its end. It comes again."""


class FilesMissing(PenstockError):
    """A file was removed while the log is open, or the numbers of a journal's files have a gap, or one comes twice, or a copy of a log has
    a gap. Nothing was changed."""


class BufferFull(PenstockError, TimeoutError):
    """More is waiting to be written than may. It works again when a batch is done.

    Nothing was appended, but of a list the first `taken`.
    """

    def __init__(self, message: str, taken: int = 0) -> None:
        super().__init__(message)
        self.taken = taken

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.taken)


class DataLost(PenstockError):
    """What a Spark query is to read next is no longer in the log."""


class StagingLost(PenstockError):
    """What tasks of Spark put aside for a commit is gone, or not what it was. Nothing of the batch was appended to that log."""


class RecordGone(PenstockError):
    """The record is not in the log: retired, or not written yet."""


class CorruptRecord(PenstockError):
    """A frame before the end of the log failed its checks."""

    def __init__(self, path: str | os.PathLike[str], position: int, sequence: int, reason: str) -> None:
        self.path = os.fspath(path)
        self.position = position
        self.sequence = sequence
        self.reason = reason
        super().__init__(
            f"{self.path}: byte {position} (sequence {sequence}): {reason}; "
            'read on with on_corrupt="skip", which names the lost range, restore the file from a copy, or run `penstock repair`'
        )

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str]]:
        return type(self), (self.path, self.position, self.sequence, self.reason)


class CorruptSegment(PenstockError):
    """The stream of a compressed segment is damaged, cut short, or does not hold what its header says.

    The stream is understood up to byte `position` of the file; the `whole_bytes` it held up to there are good.
    """

    def __init__(self, path: str | os.PathLike[str], position: int, whole_bytes: int, reason: str) -> None:
        self.path = os.fspath(path)
        self.position = position
        self.whole_bytes = whole_bytes
        self.reason = reason
        super().__init__(
            f"{self.path}: byte {position}: {reason}; the {whole_bytes} bytes before that are good, "
            "for the rest restore the file from a copy"
        )

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str]]:
        return type(self), (self.path, self.position, self.whole_bytes, self.reason)


class DiskFull(PenstockError, OSError):
    """No room; nothing was changed, and it works again once there is room. `wanted_bytes` is 0 where that is not known."""

    def __init__(self, path: str | os.PathLike[str], wanted_bytes: int) -> None:
        room = f"no room for {wanted_bytes} bytes more" if wanted_bytes else "no room"
        step = "free some space and try again, nothing was changed"
        OSError.__init__(self, errno.ENOSPC, f"{room}; {step}", os.fspath(path))
        self.wanted_bytes = wanted_bytes

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self.filename), self.wanted_bytes)


class StorageFailed(PenstockError, OSError):
    """The system refused something of a file. What was not reported as done was not done, and may be tried again; what was is there."""

    def __init__(self, path: str | os.PathLike[str], code: int, what: str = "", step: str = "") -> None:
        self._what = what or os.strerror(code)
        self._step = step or _STEPS.get(code, _CHECK_DISK)
        OSError.__init__(self, code, f"{self._what}; {self._step}", os.fspath(path))

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str]]:
        return type(self), (str(self.filename), self.errno or errno.EIO, self._what, self._step)


class StorageDenied(StorageFailed, PermissionError):
    """The owner or the permissions of a file, or of the directory that it is in, forbid it."""


def storage_failed(path: str | os.PathLike[str], error: OSError) -> DiskFull | StorageFailed:
    """What the system says of a file, as an error of ours."""
    code = error.errno or errno.EIO
    if code in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path, 0)
    kind = StorageDenied if code in (errno.EACCES, errno.EPERM) else StorageFailed
    return kind(path, code, error.strerror or str(error))


_FEWER_FILES: Final = "close logs that are not used, or raise the limit (`ulimit -n`)"
_LOOK: Final = "look at the system's log and check the disk"
_CHECK_DISK: Final = f"{_LOOK}, then try again, or close the log and open it again"
_CLOSE_SOME: Final = f"{_FEWER_FILES}, and try again"
_CHECK_OWNER: Final = "check its owner and permissions and those of its directory, or open the log with read_only=True"
_STEPS: Final = {
    errno.EMFILE: _CLOSE_SOME,
    errno.ENFILE: _CLOSE_SOME,
    errno.EACCES: _CHECK_OWNER,
    errno.EPERM: _CHECK_OWNER,
    errno.EROFS: _CHECK_OWNER,
    errno.EINTR: "try again",
    errno.EISDIR: "move the directory away: a log has a file of that name",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EFBIG: "raise the limit on the size of a file (`ulimit -f`), and try again",
    errno.ENOMEM: "close logs that are not used, or free some memory, and try again",
}


class NotSynced(PenstockError, OSError):
    """What was `appended`, which are its sequences, is in the log, and survives the death of the process; but the sync that was to follow
    could not be tried. To append it again would put it there twice: `sync()` puts it on the disk, and so does any later sync.
    """

    def __init__(self, path: str | os.PathLike[str], code: int, appended: range) -> None:
        self.appended = appended
        step = _BEFORE_SYNC.get(code, _LOOK)
        OSError.__init__(
            self,
            code,
            f"{os.strerror(code)}, so {_named(appended)} in the log and not on the disk yet; {step}, then call sync(), and do not "
            "append it again",
            os.fspath(path),
        )

    def __reduce__(self) -> tuple[type, tuple[str, int, range]]:
        return type(self), (str(self.filename), self.errno or errno.EIO, self.appended)


_BEFORE_SYNC: Final = {
    errno.EMFILE: _FEWER_FILES,
    errno.ENFILE: _FEWER_FILES,
    errno.ENOSPC: "free some space",
}


class SyncFailed(PenstockError, OSError):
    """The disk refused a sync. What was reported durable is; no later success is reported on top of the failure.

    If it was the sync that was to follow an append, `appended` are the sequences of that: it is in the log all the same, and to append it
    again, once the log was opened anew, would put it there twice. Else it is empty, and nothing was appended.
    """

    def __init__(self, path: str | os.PathLike[str], code: int, appended: range = range(0)) -> None:
        self.appended = appended
        there = f"{_named(appended)} in the log, do not append it again; " if appended else ""
        OSError.__init__(
            self,
            code,
            f"a sync failed, so the log takes no more appends; {there}check the disk, close the log in every process and open "
            "it again: what is not yet durable is then copied to a new file and synced",
            os.fspath(path),
        )

    def __reduce__(self) -> tuple[type, tuple[str, int, range]]:
        return type(self), (str(self.filename), self.errno or errno.EIO, self.appended)


def _named(appended: range) -> str:
    if len(appended) == 1:
        return f"what was appended (sequence {appended[0]}) is"
    return f"what was appended (sequences {appended[0]} to {appended[-1]}) is"
