"""The time of a log's last record, however many times before its end are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.formats import journal, queue
from penstock.storage import companion
from penstock.storage.companion import Times
from penstock.storage.last_time import last_us
from penstock.storage.manifest import Manifest
from penstock.storage.segment import Format

COUNT = 20_000
NOW_US = 1_700_000_000_000_000


@pytest.mark.parametrize("fmt", [queue, journal], ids=lambda fmt: str(fmt.NAME))
@pytest.mark.parametrize("unknown", [0, 1, 63, 64, 65, 64 + (1 << 14) - 1, 64 + (1 << 14), COUNT - 1, COUNT])
def test_the_last_one_that_is_known(tmp_path: Path, fmt: Format, unknown: int) -> None:
    """Records that end no batch have their times negated, and behind the last record lies what is none of its."""
    known = COUNT - unknown
    words = [-(NOW_US + i) if i < known else 0 for i in range(COUNT)] + [NOW_US * 2]
    size = companion.entry_bytes(fmt.SPEC)
    data = bytes(companion.HEADER_BYTES) + b"".join(
        us.to_bytes(8, "little", signed=True).ljust(size, b"\xff") for us in words
    )
    manifest = Manifest(tmp_path, fmt)
    found = last_us(tmp_path, fmt, manifest, 0, Times(data, size), COUNT)
    assert found == (NOW_US + known - 1 if known else 0)
