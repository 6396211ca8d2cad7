"""Penstock: an embedded, crash-safe, append-only log. No server, nothing lost."""

from penstock import codecs
from penstock.channel import Channel, ChannelStats, Receiver, ReceiverStats, Sender
from penstock.errors import (
    BufferFull,
    CorruptRecord,
    CorruptSegment,
    CorruptSettings,
    DataLost,
    DecodeError,
    DiskFull,
    EncodeError,
    FilesMissing,
    InvalidAck,
    InvalidCheck,
    InvalidOffset,
    InvalidOption,
    InvalidPayload,
    InvalidTopic,
    JavaNotFound,
    LogBusy,
    LogClosed,
    LogNotFound,
    NotALog,
    NotSynced,
    PayloadTypeError,
    PenstockError,
    ReadOnly,
    RecordGone,
    RecordsLost,
    RecoveryUnfinished,
    SettingsMismatch,
    StagingLost,
    StorageDenied,
    StorageFailed,
    SyncFailed,
    UnknownVersion,
    UnsupportedFileSystem,
)
from penstock.journal import Appended, Checkpoint, Journal
from penstock.kernel import Message, Record
from penstock.options import Flush, Retention, Roll
from penstock.queue import Appender, Queue
from penstock.storage.damage import Loss
from penstock.storage.report import Recovery
from penstock.storage.tailer import Tailer
from penstock.topic.group import GroupMember
from penstock.topic.message import TopicMessage
from penstock.topic.partition import PartitionStats
from penstock.topic.publishing import Publication, Publications
from penstock.topic.tailer import TopicTailer
from penstock.topic.topics import Topic, Topics

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "Appender",
    "BufferFull",
    "Channel",
    "ChannelStats",
    "Checkpoint",
    "CorruptRecord",
    "CorruptSegment",
    "CorruptSettings",
    "DataLost",
    "DecodeError",
    "DiskFull",
    "EncodeError",
    "FilesMissing",
    "Flush",
    "GroupMember",
    "InvalidAck",
    "InvalidCheck",
    "InvalidOffset",
    "InvalidOption",
    "InvalidPayload",
    "InvalidTopic",
    "JavaNotFound",
    "Journal",
    "LogBusy",
    "LogClosed",
    "LogNotFound",
    "Loss",
    "Message",
    "NotALog",
    "NotSynced",
    "PartitionStats",
    "PayloadTypeError",
    "PenstockError",
    "Publication",
    "Publications",
    "Queue",
    "ReadOnly",
    "Receiver",
    "ReceiverStats",
    "Record",
    "RecordGone",
    "RecordsLost",
    "Recovery",
    "RecoveryUnfinished",
    "Retention",
    "Roll",
    "Sender",
    "SettingsMismatch",
    "StagingLost",
    "StorageDenied",
    "StorageFailed",
    "SyncFailed",
    "Tailer",
    "Topic",
    "TopicMessage",
    "TopicTailer",
    "Topics",
    "UnknownVersion",
    "UnsupportedFileSystem",
    "codecs",
]
