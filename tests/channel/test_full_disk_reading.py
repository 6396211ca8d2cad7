"""A compressed channel on a full disk: it is inflated elsewhere to be read, and if that is full, too, that is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import Channel, DiskFull
from penstock.compressing import compress
from penstock.storage import files

SENT = [b"%04d" % i * 20 for i in range(60)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Channel[bytes](tmp_path / "channel", segment_bytes=1000) as ch:
        for message in SENT:
            ch.tx().send(message)
    assert compress(tmp_path / "channel").segments > 3
    return tmp_path / "channel"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("everywhere", [False, True])
def test_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, everywhere: bool) -> None:
    real = files.create_unnamed
    places: set[Path] = set()

    def create(directory: Path) -> int:
        places.add(directory)
        return os.open("/dev/full", os.O_RDWR) if everywhere or directory == path else real(directory)

    monkeypatch.setattr(files, "create_unnamed", create)
    with Channel[bytes](path, read_only=True) as ch:
        if everywhere:
            with pytest.raises(DiskFull, match=r"segment\.0\.z"):
                ch.rx().recv_many(100)
        else:
            assert ch.rx().recv_many(100) == SENT
    assert places == {path, files.temporary_directory()}
