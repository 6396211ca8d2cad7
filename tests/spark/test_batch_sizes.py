"""How much a record batch holds, whatever it is read from; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.inspect import find
from penstock.spark import listing, scan
from penstock.spark.jobs.days import written_by_day
from penstock.spark.plan import AnyPiece, ArchivedPiece, Piece
from tests.spark.conftest import write

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
MOST = 10_000
SENT = [b"%03d" % i + bytes(900) for i in range(99)] + [bytes(MOST + 5000)] + [b"%03d" % i for i in range(100, 200)]


def live(path: Path) -> Iterator[Piece]:
    for part in find(path):
        with part.open() as view:
            yield from (Piece(segment, segment.base, segment.next) for segment in view.segments())


def archived(path: Path, archive: Path) -> Iterator[AnyPiece]:
    listing.staging(archive).mkdir(parents=True)
    for piece in live(path):
        for day in written_by_day(piece, archive):
            file = replace(day.file, file=str(Path(day.temporary).relative_to(archive)))
            yield ArchivedPiece(piece.segment.part, str(archive), file, file.first, file.next)


@pytest.mark.parametrize("source", ["log", "archive"])
@pytest.mark.parametrize("format", ["queue", "channel", "topic", "journal"])
def test_a_record_batch_holds_so_many_bytes_or_one_record(
    path: Path, monkeypatch: pytest.MonkeyPatch, format: str, source: str
) -> None:
    monkeypatch.setattr(scan, "_BYTES", MOST)
    write(path, format, SENT)
    found = list(live(path) if source == "log" else archived(path, path.with_name("archive")))
    batches = [batch for piece in found for batch in scan.read_piece(piece, SCHEMA)]
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == SENT
    assert all(sum(map(len, b.column("value").to_pylist())) <= MOST for b in batches if b.num_rows > 1)
    assert len(batches) < len(SENT) / 2
