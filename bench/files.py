"""Files that are whole or not there: whoever reads results while a run goes on never sees half of them."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write under another name beside it, then rename: `path` holds the old content or the new."""
    if path.exists() and not path.is_file():  # /dev/null, a pipe: not ours to replace
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
