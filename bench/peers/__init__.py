"""The rows of the tables, in the order in which they take their turns."""

from __future__ import annotations

from bench.peers.base import Peer
from bench.peers.channel import PenstockChannel
from bench.peers.diskcache import DiskCache
from bench.peers.limits import Fifo, GrowSync, Memcpy, Noop, WriteSync
from bench.peers.litequeue import LiteQueue
from bench.peers.lmdb import Lmdb, LmdbTxn
from bench.peers.memory import TaskQueue, ThreadQueue
from bench.peers.penstock import Penstock, PenstockArrow, PenstockEach, PenstockReference
from bench.peers.persist_queue import PersistQueue
from bench.peers.plyvel import Plyvel
from bench.peers.rocksdict import RocksDict
from bench.peers.sqlite import Sqlite
from bench.peers.topic import PenstockJournal, PenstockTopic

_ALL: tuple[type[Peer], ...] = (
    Noop,
    Memcpy,
    WriteSync,
    GrowSync,
    Fifo,
    ThreadQueue,
    TaskQueue,
    Penstock,
    PenstockArrow,
    PenstockEach,
    PenstockReference,
    PenstockChannel,
    PenstockTopic,
    PenstockJournal,
    Lmdb,
    LmdbTxn,
    RocksDict,
    Plyvel,
    Sqlite,
    PersistQueue,
    DiskCache,
    LiteQueue,
)

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in _ALL}
