"""Small files of JSON that say their own checksum: one line of each, replaced atomically. `ledger` and `losses` are such."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from penstock.errors import NotALog
from penstock.storage import files

_MOST_BYTES = 16 << 20


def load(path: Path, step: str) -> Any:
    """What a file says; None when it is not there. `step` is what can be done about one that fails its checksum."""
    try:
        with files.opened(path) as fd:
            text, _, checksum = files.read(fd, 0, _MOST_BYTES).strip().rpartition(b"\n")
    except FileNotFoundError:
        return None
    if checksum != b"%08x" % zlib.crc32(text):
        raise NotALog(f"{path}: fails its checksum; {step}")
    return json.loads(text)


def store(path: Path, value: Any) -> None:
    """Put a value in place of what is there, on the disk."""
    text = json.dumps(value, sort_keys=True).encode()
    files.replace(path, text + b"\n%08x\n" % zlib.crc32(text))
    files.sync_directory(path.parent)
