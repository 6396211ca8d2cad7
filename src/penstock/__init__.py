"""Penstock: an embedded, crash-safe, append-only log. No server, nothing lost."""

from penstock import codecs
from penstock.channel import Channel, ChannelStats, Receiver, ReceiverStats, Sender
from penstock.errors import (
    CorruptRecord,
    CorruptSegment,
    DecodeError,
    DiskFull,
    EncodeError,
    InvalidAck,
    InvalidOffset,
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
    "Channel",
    "ChannelStats",
    "CorruptRecord",
    "CorruptSegment",
    "DecodeError",
    "DiskFull",
    "EncodeError",
    "Flush",
    "InvalidAck",
    "InvalidOffset",
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
    "Receiver",
    "ReceiverStats",
    "RecordGone",
    "Recovery",
    "Retention",
    "Roll",
    "Sender",
    "SettingsMismatch",
    "SyncFailed",
    "Tailer",
    "UnknownVersion",
    "UnsupportedFileSystem",
    "codecs",
]
