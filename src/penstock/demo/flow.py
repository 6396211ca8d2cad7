"""The synthetic order flow: which records there are, and the rules that make an order of a record.

A flow is a pure function of its seed: every producer's records of every minute can be made again, by anybody. Orders are JSON with
a price in cents, a size, a symbol and an event time. A few come late, a few are malformed. Late ones are late by less than the
watermark allows as long as no producer is more than one minute of event time ahead of another; whoever runs producers sees to that.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

START: Final = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
MINUTES: Final = 30
PRODUCERS: Final = 2
WATERMARK_S: Final = 180
LATE_AT_MOST_S: Final = 90  # with a minute that a producer may be ahead, and the minute itself, less than the watermark
BLOCK: Final = Decimal(500_000)  # an order of so much money is worth an alert
UNREADABLE: Final = "unreadable"  # not JSON, or a field is missing or of another type
OUT_OF_RANGE: Final = "out of range"  # a price or size that is not above zero

_OPENING: Final = {"BRINE": 41.0, "COAL": 118.0, "FLAX": 23.5, "RYE": 64.0, "TEA": 152.0, "ZINC": 305.0}
_MARKER: Final = "-"  # the symbol of the record that ends the flow
_LATE: Final = 0.03
_MALFORMED: Final = 0.01
_BLOCKS: Final = 0.002


class Order(NamedTuple):
    """A record that is an order."""

    id: str
    time: datetime
    symbol: str
    price: Decimal
    size: int

    @property
    def minute(self) -> datetime:
        """The start of the minute that it belongs to."""
        return self.time.replace(second=0, microsecond=0)

    @property
    def notional(self) -> Decimal:
        """Price times size."""
        return self.price * self.size

    @property
    def is_marker(self) -> bool:
        """Whether it is the record that ends the flow, and no order."""
        return self.symbol == _MARKER


@dataclass(frozen=True, slots=True)
class Flow:
    """So many records, shared out evenly among producers and minutes."""

    records: int
    seed: int

    def chunk(self, producer: int, minute: int) -> list[bytes]:
        """What a producer sends in a minute, in the order of sending."""
        cell, cells = minute * PRODUCERS + producer, MINUTES * PRODUCERS
        count = self.records * (cell + 1) // cells - self.records * cell // cells
        chance = random.Random(f"{self.seed}/{producer}/{minute}")
        levels = {symbol: self._level(symbol, minute) for symbol in _OPENING}
        symbols = tuple(_OPENING)
        out = []
        for i in range(count):
            at_s = minute * 60 + 60 * (i + chance.random()) / count
            if chance.random() < _LATE:
                at_s = max(0.0, minute * 60 - chance.random() * LATE_AT_MOST_S)
            symbol = symbols[int(chance.random() * len(symbols))]
            cents = round(100 * levels[symbol] * (1 + chance.gauss(0, 0.0006)))
            size = 10 * (1 + int(chance.expovariate(0.1)))
            if chance.random() < _BLOCKS:
                size = round(float(BLOCK) / levels[symbol] * (0.5 + chance.random()))
            order = _written(f"{producer}-{minute:02}-{i:06}", at_s, symbol, cents, size)
            out.append(_spoilt(order, chance) if chance.random() < _MALFORMED else order)
        return out

    def _level(self, symbol: str, minute: int) -> float:
        """About what a symbol costs in a minute: the same for all producers."""
        chance = random.Random(f"{self.seed}/{symbol}")
        level, swing, turn = _OPENING[symbol], 0.004 + 0.01 * chance.random(), 6.3 * chance.random()
        for _ in range(minute + 1):
            level *= 1 + chance.gauss(0, 0.0015)
        return level * (1 + swing * math.sin(turn + minute / 5))


def marker() -> bytes:
    """The last record: later than all windows by more than the watermark, so that it closes them."""
    return _written("end", MINUTES * 60 + WATERMARK_S + 3600, _MARKER, 1, 1)


def _written(id: str, at_s: float, symbol: str, cents: int, size: int) -> bytes:
    time = (START + timedelta(milliseconds=int(at_s * 1000))).isoformat(timespec="milliseconds")
    price = f"{cents // 100}.{cents % 100:02}"
    return f'{{"id":"{id}","time":"{time}","symbol":"{symbol}","price":{price},"size":{size}}}'.encode()


def _spoilt(order: bytes, chance: random.Random) -> bytes:
    """The same order as a faulty sender would send it."""
    kind = chance.randrange(6)
    if kind == 0:
        return order[: order.index(b',"price"') + chance.randrange(8)]  # cut off
    if kind == 1:
        return order.replace(b'"size":', b'"volume":')
    if kind == 2:
        return order.replace(b'"price":', b'"price":-')
    if kind == 3:
        return order[: order.index(b'"size":')] + b'"size":"many"}'
    if kind == 4:
        return b"\xff\xfe" + order[2:40]
    return b"ERROR order service: no answer for " + order[7:18]


def parse(payload: bytes) -> Order | str:
    """The order that a record is, or why it is none: the rules of the pipeline, in plain Python."""
    try:
        found = json.loads(payload, parse_float=Decimal)
        order = Order(
            found["id"], datetime.fromisoformat(found["time"]), found["symbol"], Decimal(found["price"]), found["size"]
        )
    except (ValueError, KeyError, TypeError, InvalidOperation):
        return UNREADABLE
    if type(order.size) is not int:
        return UNREADABLE
    return order if order.price > 0 and order.size > 0 else OUT_OF_RANGE
