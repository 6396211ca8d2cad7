"""Small files of JSON that say their own checksum: one line of each, replaced atomically. `ledger` and `losses` are such."""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import NotALog, StorageFailed
from penstock.storage import files

_MOST_BYTES = 16 << 20
A = TypeVar("A")


def load(path: Path, step: str, shape: Callable[[Any], A]) -> A | None:
    """What a file says; None when it is not there. `shape` makes of it what the caller knows, and raises if it cannot be that: a
    checksum proves no sense. `step` is what can be done about a file that is refused."""
    try:
        with files.opened(path) as fd:
            text, _, checksum = files.read(fd, 0, _MOST_BYTES).strip().rpartition(b"\n")
    except FileNotFoundError:
        return None
    if checksum != b"%08x" % zlib.crc32(text):
        raise NotALog(f"{path}: fails its checksum; {step}")
    try:
        return shape(json.loads(text))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise NotALog(f"{path}: does not say what it should ({error}); {step}") from error


def number(value: Any) -> int:
    """A count, a place or a time, if it is one that a file can mean."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no such number")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def store(path: Path, value: Any) -> None:
    """Put a value in place of what is there, on the disk; what `load` would not read back is refused, and nothing changed."""
    text = json.dumps(value, sort_keys=True).encode()
    data = text + b"\n%08x\n" % zlib.crc32(text)
    if len(data) > _MOST_BYTES:
        what = f"it would have {len(data)} bytes, and no more than {_MOST_BYTES} are read back"
        raise StorageFailed(path, errno.EFBIG, what, "it lists too many: remove it, if none of these comes again")
    files.replace(path, data)
    files.sync_directory(path.parent)
