"""The way into pyarrow for peers that hand out Python objects: lists first, then arrays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

ROWS = 8192
"""Rows per array, for everybody: enough to hide the calls, and small enough for the memory to be reused."""


def scan_values(values: Iterator[Any], kind: str = "binary") -> Any:
    """Turn all values into arrays of `ROWS`, keeping one at a time, and return the last value."""
    import pyarrow as pa

    last = None
    while chunk := list(islice(values, ROWS)):
        last = pa.array(chunk, kind)
    return None if last is None else last[-1].as_py()
