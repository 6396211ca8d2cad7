"""The synthetic flow: the same for the same seed, late within the watermark, and malformed in every way that parsing must tell."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from penstock.demo.flow import (
    LATE_AT_MOST_S,
    MINUTES,
    OUT_OF_RANGE,
    PRODUCERS,
    START,
    UNREADABLE,
    WATERMARK_S,
    Flow,
    Order,
    marker,
    parse,
)

GOOD = b'{"id":"0-00-000001","time":"2026-01-05T14:30:00.250+00:00","symbol":"TEA","price":152.67,"size":140}'


def chunks(flow: Flow) -> dict[tuple[int, int], list[bytes]]:
    return {(p, m): flow.chunk(p, m) for m in range(MINUTES) for p in range(PRODUCERS)}


def test_the_same_seed_makes_the_same_records_and_another_one_others() -> None:
    assert chunks(Flow(3000, 7)) == chunks(Flow(3000, 7))
    assert chunks(Flow(3000, 7)) != chunks(Flow(3000, 8))


@pytest.mark.parametrize("records", [1000, 1001, 4999])
def test_all_records_are_shared_out(records: int) -> None:
    sizes = [len(chunk) for chunk in chunks(Flow(records, 7)).values()]
    assert sum(sizes) == records
    assert max(sizes) - min(sizes) <= 1


def test_no_order_can_be_dropped_by_the_watermark() -> None:
    """A producer may have sent the whole of a minute when another one sends that minute's first order, late."""
    late = 0
    for (_, minute), chunk in chunks(Flow(60_000, 7)).items():
        newest = START + timedelta(minutes=minute + 1)  # what anybody may have sent by then
        for order in map(parse, chunk):
            if isinstance(order, Order):
                assert order.time < newest
                late += order.minute < START + timedelta(minutes=minute)
                assert order.minute + timedelta(minutes=1) > newest - timedelta(seconds=WATERMARK_S)
    assert late > 1000
    assert LATE_AT_MOST_S > 60  # more than the minute before


def test_the_marker_closes_every_window() -> None:
    last = parse(marker())
    assert isinstance(last, Order)
    assert last.is_marker
    assert last.time - timedelta(seconds=WATERMARK_S) > START + timedelta(minutes=MINUTES)


def test_every_kind_of_malformed_record_comes() -> None:
    found = [payload for chunk in chunks(Flow(60_000, 7)).values() for payload in chunk]
    wrong = {payload: parse(payload) for payload in found if isinstance(parse(payload), str)}
    assert 300 < len(wrong) < 900
    assert set(wrong.values()) == {UNREADABLE, OUT_OF_RANGE}
    for sign in (b'"volume":', b'"price":-', b'"size":"many"', b"\xff\xfe", b"ERROR order service"):
        assert any(sign in payload for payload in wrong), sign
    assert any(payload.startswith(b"{") and not payload.endswith(b"}") for payload in wrong)


def test_an_order_is_parsed_exactly() -> None:
    order = parse(GOOD)
    assert isinstance(order, Order)
    assert (order.price, order.size, order.notional) == (Decimal("152.67"), 140, Decimal("21373.80"))
    assert (order.minute, order.is_marker) == (START, False)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", UNREADABLE),
        (b"[1]", UNREADABLE),
        (b"null", UNREADABLE),
        (GOOD[:-1], UNREADABLE),
        (GOOD.replace(b"140", b"1.5"), UNREADABLE),
        (GOOD.replace(b"140", b"true"), UNREADABLE),
        (GOOD.replace(b"2026-01", b"soon"), UNREADABLE),
        (GOOD.replace(b"140", b"0"), OUT_OF_RANGE),
        (GOOD.replace(b"152.67", b"0.00"), OUT_OF_RANGE),
    ],
)
def test_what_is_no_order(payload: bytes, why: str) -> None:
    assert parse(payload) == why
