"""The kernel in plain Python: what lies in files and in the shared page, and in which order it gets there.

This is the specification of the native kernel, its oracle in the tests, and the fallback where there is no
compiler. Same names, same results; only the lock differs: having no robust mutex, it needs a `file_lock`.
"""

from typing import Final

from penstock.kernel.reference.buffered import Batch, Buffered
from penstock.kernel.reference.buffers import crc32, crc64, crc_path, fnv1a, release, store_big, touch
from penstock.kernel.reference.frames import encode, encode_arrow, encode_many, entries, resync, scan
from penstock.kernel.reference.page import ControlPage, wait_any
from penstock.kernel.reference.reader import Reader
from penstock.kernel.reference.records import Message, Record, records
from penstock.kernel.reference.taker import Taker
from penstock.kernel.reference.writer import Writer

NAME: Final = "reference"
ROBUST: Final = False

__all__ = [
    "NAME",
    "ROBUST",
    "Batch",
    "Buffered",
    "ControlPage",
    "Message",
    "Reader",
    "Record",
    "Taker",
    "Writer",
    "crc32",
    "crc64",
    "crc_path",
    "encode",
    "encode_arrow",
    "encode_many",
    "entries",
    "fnv1a",
    "records",
    "release",
    "resync",
    "scan",
    "store_big",
    "touch",
    "wait_any",
]
