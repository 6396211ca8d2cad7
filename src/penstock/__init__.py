"""Penstock: an embedded, crash-safe, append-only log. No server, nothing lost."""

from penstock.errors import (
    CorruptRecord,
    DiskFull,
    InvalidPayload,
    LogBusy,
    LogClosed,
    LogNotFound,
    NotALog,
    PayloadTypeError,
    PenstockError,
    ReadOnly,
    RecordGone,
    SettingsMismatch,
    SyncFailed,
    UnknownVersion,
    UnsupportedFileSystem,
)
from penstock.kernel import Message
from penstock.options import Flush, Retention, Roll
from penstock.queue import Appender, Queue
from penstock.storage.damage import Loss
from penstock.storage.recovery import Recovery
from penstock.storage.tailer import Tailer

__version__ = "0.1.0"

__all__ = [
    "Appender",
    "CorruptRecord",
    "DiskFull",
    "Flush",
    "InvalidPayload",
    "LogBusy",
    "LogClosed",
    "LogNotFound",
    "Loss",
    "Message",
    "NotALog",
    "PayloadTypeError",
    "PenstockError",
    "Queue",
    "ReadOnly",
    "RecordGone",
    "Recovery",
    "Retention",
    "Roll",
    "SettingsMismatch",
    "SyncFailed",
    "Tailer",
    "UnknownVersion",
    "UnsupportedFileSystem",
]
