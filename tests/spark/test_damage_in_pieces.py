"""A damaged segment that is read in pieces, as tasks and triggers do: each row comes once, from the piece it is of, and so does each loss."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import CorruptRecord, Journal, Queue, Topics
from penstock.inspect import Segment, find
from penstock.spark.options import OnCorrupt
from penstock.spark.plan import Piece
from penstock.spark.scan import read_piece

COUNT, BAD = 100, 45
SCHEMA = pa.schema(
    [("offset", pa.int64()), ("value", pa.binary()), ("position", pa.int64()), ("_corrupt", pa.string())]
)
OFFSETS = pa.schema([("offset", pa.int64()), ("_corrupt", pa.string())])
SENT = [b"%05d" % i + bytes(20) for i in range(COUNT)]
CUTS = [range(0, COUNT + 1, 10), [0, 3, 44, 45, 46, 47, 99, COUNT], [0, 50, COUNT]]


@pytest.fixture(params=["queue", "topic", "journal"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Segment:
    """100 records in one file. A journal's first is a checkpoint, so its numbers are one more than those of the others."""
    path = tmp_path / "log"
    if request.param == "queue":
        with Queue(path, file_size=65536) as q:
            q.append_batch(SENT)
    elif request.param == "topic":
        with Topics(path) as logs:
            logs.topic("orders").publish_many(SENT, partition=0).wait()
    else:
        with Journal(path) as j:
            j.append_many(SENT[:-1])
    (part,) = find(path)
    with part.open() as view:
        (found,) = view.segments()
    return found


def damage(segment: Segment, what: str) -> None:
    seg = segment.read()
    at = seg.scan(seg.start, segment.end, BAD, False).position
    file = segment.paths().data
    data = bytearray(file.read_bytes())
    if what == "payload":
        data[at + 8] ^= 1
    else:
        data[at : at + 4] = b"\x7f\xff\xff\x7f"
    file.write_bytes(data)


@pytest.fixture(params=["payload", "length"])
def damaged(request: pytest.FixtureRequest, segment: Segment) -> Segment:
    damage(segment, request.param)
    return segment


def rows(segment: Segment, lo: int, hi: int, on_corrupt: OnCorrupt, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    return [row for batch in read_piece(Piece(segment, lo, hi), schema, on_corrupt) for row in batch.to_pylist()]


def every(segment: Segment, on_corrupt: OnCorrupt, cuts: Any = (0, COUNT), schema: pa.Schema = SCHEMA) -> list[Any]:
    return [row for lo, hi in pairwise(cuts) for row in rows(segment, lo, hi, on_corrupt, schema)]


@pytest.mark.parametrize("what", ["payload", "length"])
@pytest.mark.parametrize("cuts", CUTS)
def test_pieces_have_what_the_whole_has(segment: Segment, cuts: Any, what: str) -> None:
    sound = {row["offset"]: row for row in every(segment, "fail")}
    damage(segment, what)
    whole = every(segment, "skip")
    assert [row["offset"] for row in whole] == [n for n in sound if n != BAD]
    assert all(row == sound[row["offset"]] for row in whole)
    assert every(segment, "skip", cuts) == whole
    assert [row["offset"] for row in every(segment, "skip", cuts, OFFSETS)] == [row["offset"] for row in whole]


@pytest.mark.parametrize("cuts", CUTS)
def test_a_loss_has_its_row_once(damaged: Segment, cuts: Any) -> None:
    told = [row for row in every(damaged, "permissive", cuts) if row["_corrupt"]]
    assert [row["offset"] for row in told] == [BAD]
    assert told[0]["_corrupt"].startswith(f"offsets {BAD} to {BAD} are lost")


def test_damage_is_an_error_for_those_who_ask_for_it(damaged: Segment) -> None:
    assert len(rows(damaged, 1, BAD, "fail")) == BAD - 1
    with pytest.raises(CorruptRecord, match=f"sequence {BAD}"):
        rows(damaged, BAD, BAD + 1, "fail")
    if damaged.part.format == "journal":  # which group a record is of is told by what lies before it
        with pytest.raises(CorruptRecord, match=f"sequence {BAD}"):
            rows(damaged, BAD + 1, COUNT, "fail")
    else:
        assert [row["offset"] for row in rows(damaged, BAD + 1, COUNT, "fail")] == list(range(BAD + 1, COUNT))


def test_a_file_that_is_cut_short_costs_each_piece_its_own(segment: Segment) -> None:
    seg = segment.read()
    file = segment.paths().data
    file.write_bytes(file.read_bytes()[: seg.scan(seg.start, segment.end, BAD, False).position])
    told = [row["_corrupt"] for row in every(segment, "permissive", (0, 50, 80, COUNT)) if row["_corrupt"]]
    assert [text.split(" are lost")[0] for text in told] == [
        f"offsets {BAD} to 49",
        "offsets 50 to 79",
        f"offsets 80 to {COUNT - 1}",
    ]
