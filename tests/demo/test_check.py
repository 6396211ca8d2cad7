"""The proof holds for a perfect run, and for nothing else: whatever is lost, there twice or changed is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.demo.check import Bar, Found, Proof, prove, read_bars, recompute
from penstock.demo.flow import START
from tests.demo.results import FLOW, found, payloads

RECORDS = payloads()


def proof(spoil: Callable[[list[bytes], Found], object] | None = None) -> Proof:
    records, written = list(RECORDS), found(RECORDS)
    if spoil is not None:
        spoil(records, written)
    return prove(FLOW, records, written)


def test_a_perfect_run_is_proved() -> None:
    told = proof()
    assert told.holds
    assert told.differences == ()
    by_what = {t.what: t for t in told.tallies}
    assert by_what["records in the queue"].expected == FLOW.records + 1
    assert by_what["orders in bars"].found + by_what["dead letters"].found == FLOW.records
    assert by_what["alerts"].found > 0
    assert told.expected.late > 50
    assert told.figures == 8 * by_what["bars"].found


def bar(change: dict[str, Any]) -> Callable[[list[bytes], Found], None]:
    def spoil(_: list[bytes], written: Found) -> None:
        key, one = written.bars[7]
        written.bars[7] = (key, one._replace(**change))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "what", "kind"),
    [
        (lambda r, w: r.pop(5), "records in the queue", "lost"),
        (lambda r, w: r.append(r[5]), "records in the queue", "duplicates"),
        (lambda r, w: r.append(b"from nowhere"), "records in the queue", "wrong"),
        (lambda r, w: w.bars.pop(3), "bars", "lost"),
        (lambda r, w: w.bars.pop(3), "orders in bars", "lost"),
        (lambda r, w: w.bars.append(w.bars[3]), "bars", "duplicates"),
        (lambda r, w: w.bars.append(w.bars[3]), "orders in bars", "duplicates"),
        (lambda r, w: w.bars.append(((START, "GOLD"), w.bars[3][1])), "bars", "wrong"),
        (bar({"orders": 1}), "orders in bars", "lost"),
        (bar({"orders": 999}), "orders in bars", "duplicates"),
        (lambda r, w: w.alerts.pop(0), "alerts", "lost"),
        (lambda r, w: w.alerts.append(w.alerts[0]), "alerts", "duplicates"),
        (lambda r, w: w.alerts[0].update(price=Decimal("0.01")), "alerts", "wrong"),
        (lambda r, w: w.dead_letters.pop(0), "dead letters", "lost"),
        (lambda r, w: w.dead_letters.append(w.dead_letters[0]), "dead letters", "duplicates"),
        (lambda r, w: w.dead_letters[0].update(payload=""), "dead letters", "wrong"),
    ],
)
def test_what_is_lost_twice_or_changed_is_found(spoil: Any, what: str, kind: str) -> None:
    told = proof(spoil)
    assert not told.holds
    assert told.differences
    (tally,) = (t for t in told.tallies if t.what == what)
    assert getattr(tally, kind) > 0


@pytest.mark.parametrize("figure", Bar._fields)
def test_every_figure_of_a_bar_counts(figure: str) -> None:
    def spoil(_: list[bytes], written: Found) -> None:
        key, one = written.bars[7]
        value = getattr(one, figure)
        near = value * (1 + 2**-52) if isinstance(value, float) else value + 1
        written.bars[7] = (key, one._replace(**{figure: near}))

    told = proof(spoil)
    assert not told.holds
    assert "expected Bar(" in told.differences[0]


def test_a_bar_goes_by_event_time_not_by_arrival() -> None:
    def order(id: str, at: str, price: str, size: int) -> bytes:
        when = f"2026-01-05T14:30:{at}+00:00"
        return f'{{"id":"{id}","time":"{when}","symbol":"TEA","price":{price},"size":{size}}}'.encode()

    late = order("c", "59.000", "8.00", 10)
    made = recompute([order("b", "30.000", "9.00", 10), late, order("a", "01.000", "7.50", 20)])
    assert made.bars == {
        (START, "TEA"): Bar(Decimal("7.50"), Decimal(9), Decimal("7.50"), Decimal(8), 40, 3, Decimal(320), 8.0)
    }


def test_files_that_spark_has_not_committed_do_not_count(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    (key, one), log = found(RECORDS).bars[0], tmp_path / "a b" / "_spark_metadata"
    log.mkdir(parents=True)
    listed = []
    for number in range(5):
        path = log.parent / f"part-{number}.parquet"
        row = {"minute": key[0], "symbol": f"S{number}", **one._asdict()}
        pq.write_table(pa.Table.from_pylist([row]), path)
        listed.append(json.dumps({"path": path.as_uri(), "action": "add"}))
    (log / "0").write_text(f"v1\n{listed[0]}")
    (log / "1.compact").write_text(f"v1\n{listed[0]}\n{listed[1]}")
    (log / "2").write_text("v1")
    (log / "3").write_text(f"v1\n{listed[3]}")
    (log / ".4.crc").write_bytes(b"crc\0")
    assert read_bars(log.parent) == [((key[0], f"S{number}"), one) for number in (0, 1, 3)]
