"""The proof: every figure that the pipeline has written, against a recomputation from the queue in plain Python.

Nothing here knows Spark, but for the list that Spark's file sink keeps of the files that count. Late orders are within the
watermark, so no figure may differ.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlparse

from penstock.demo.flow import BLOCK, MINUTES, PRODUCERS, Flow, Order, marker, parse
from penstock.demo.places import ALERTS, DEAD_LETTERS, Places
from penstock.queue import Queue
from penstock.topic.topics import Topics

_NAMED: Final = 10  # how many differences a proof names
_READ: Final = 10_000

Key = tuple[datetime, str]  # of a bar: its minute and symbol


class Bar(NamedTuple):
    """One minute of one symbol."""

    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    volume: int
    orders: int
    notional: Decimal
    vwap: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What the records of the queue come to."""

    orders: int
    late: int  # orders that came when a later minute had begun
    bars: dict[Key, Bar]
    alerts: dict[int, dict[str, Any]]  # by the offset of the order
    dead_letters: dict[int, dict[str, Any]]  # by the offset of the record


@dataclass(frozen=True, slots=True)
class Found:
    """What the pipeline has written, with everything that is there twice."""

    bars: list[tuple[Key, Bar]]
    alerts: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tally:
    """A comparison: how many there should be and are, and what is not as it should be."""

    what: str
    expected: int
    found: int
    lost: int = 0
    duplicates: int = 0
    wrong: int = 0

    @property
    def holds(self) -> bool:
        return self.expected == self.found and not (self.lost or self.duplicates or self.wrong)


@dataclass(frozen=True, slots=True)
class Proof:
    """All comparisons of a run, and the first few differences in words."""

    expected: Expected
    tallies: tuple[Tally, ...]
    figures: int  # how many of the bars were compared
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return all(tally.holds for tally in self.tallies)


@dataclass(slots=True)
class _Sums:
    """A bar while orders are added to it."""

    orders: list[Order] = field(default_factory=list)

    def bar(self) -> Bar:
        in_time = sorted(self.orders, key=lambda order: (order.time, order.id))
        prices = [order.price for order in in_time]
        volume = sum(order.size for order in in_time)
        notional = sum((order.notional for order in in_time), Decimal(0))
        vwap = float(notional) / float(volume)
        return Bar(prices[0], max(prices), min(prices), prices[-1], volume, len(prices), notional, vwap)


def recompute(payloads: Iterable[bytes]) -> Expected:
    """What a queue with these records, from offset 0 on, must come to."""
    bars: dict[Key, _Sums] = {}
    alerts, dead_letters = {}, {}
    orders = late = 0
    newest: datetime | None = None
    for offset, payload in enumerate(payloads):
        order = parse(payload)
        if isinstance(order, str):
            told = base64.b64encode(payload).decode()
            dead_letters[offset] = {"offset": offset, "wrong": order, "payload": told}
        elif not order.is_marker:
            orders += 1
            newest = max(newest or order.minute, order.minute)
            late += order.minute < newest
            bars.setdefault((order.minute, order.symbol), _Sums()).orders.append(order)
            if order.notional >= BLOCK:
                alerts[offset] = _alert(offset, order)
    made = {key: bars[key].bar() for key in sorted(bars)}
    return Expected(orders, late, made, alerts, dead_letters)


def _alert(offset: int, order: Order) -> dict[str, Any]:
    kept = {"id": order.id, "symbol": order.symbol, "price": order.price, "size": order.size}
    return {"offset": offset, **kept, "notional": order.notional}


def prove(flow: Flow, payloads: Sequence[bytes], found: Found) -> Proof:
    """Compare what was sent with the queue, and what the queue comes to with what was written."""
    expected = recompute(payloads)
    differences: list[str] = []
    sent = Counter(
        p for minute in range(MINUTES) for producer in range(PRODUCERS) for p in flow.chunk(producer, minute)
    )
    sent[marker()] += 1
    tallies = (
        _records(sent, Counter(payloads), differences),
        _orders_in_bars(expected, found),
        _compared("bars", expected.bars, found.bars, differences),
        _compared("alerts", expected.alerts, [(a["offset"], a) for a in found.alerts], differences),
        _compared("dead letters", expected.dead_letters, [(d["offset"], d) for d in found.dead_letters], differences),
    )
    figures = len(expected.bars) * len(Bar._fields)
    return Proof(expected, tallies, figures, tuple(differences[:_NAMED]))


def _records(sent: Counter[bytes], there: Counter[bytes], differences: list[str]) -> Tally:
    """The queue against what producers have sent."""
    missing, more = sent - there, there - sent
    differences += [f"queue: {payload!r} was sent and is not there" for payload in missing]
    differences += [f"queue: {payload!r} is there {there[payload]} times, sent {sent[payload]}" for payload in more]
    again = sum(count for payload, count in more.items() if payload in sent)
    wrong = more.total() - again
    return Tally("records in the queue", sent.total(), there.total(), missing.total(), again, wrong)


def _orders_in_bars(expected: Expected, found: Found) -> Tally:
    """Orders by what bars have counted."""
    counted: Counter[Key] = Counter()
    for key, bar in found.bars:
        counted[key] += bar.orders
    wanted = Counter({key: bar.orders for key, bar in expected.bars.items()})
    return Tally(
        "orders in bars",
        expected.orders,
        counted.total(),
        lost=(wanted - counted).total(),
        duplicates=(counted - wanted).total(),
    )


def _compared(
    what: str, wanted: Mapping[Any, Any], found: Sequence[tuple[Hashable, Any]], differences: list[str]
) -> Tally:
    """Things that have a key each, which must be there once and as they should be."""
    times = Counter(key for key, _ in found)
    lost = [key for key in wanted if key not in times]
    wrong = [(key, it) for key, it in found if key not in wanted or it != wanted[key]]
    differences += [f"{what}: {_named(key)} is not there; expected {wanted[key]}" for key in lost]
    differences += [f"{what}: {_named(key)} is there {n} times" for key, n in times.items() if n > 1]
    differences += [f"{what}: {_named(key)} is {it}, expected {wanted.get(key, 'none')}" for key, it in wrong]
    return Tally(what, len(wanted), len(found), len(lost), times.total() - len(times), len(wrong))


def _named(key: object) -> str:
    return f"{key[1]} {key[0]:%H:%M}" if isinstance(key, tuple) else f"offset {key}"


# ---- reading ----


def read_queue(places: Places) -> list[bytes]:
    """All records of the queue, in order."""
    with Queue(places.orders, read_only=True) as queue:
        return [message.payload for message in queue.tailer()]


def read_found(places: Places) -> Found:
    """What the pipeline has written."""
    return Found(read_bars(places.bars), _read_topic(places, ALERTS), _read_topic(places, DEAD_LETTERS))


def _read_topic(places: Places, name: str) -> list[dict[str, Any]]:
    out = []
    with Topics(places.topics, read_only=True) as topics:
        topic = topics.topic(name)
        for partition in range(topic.partitions):
            offset = 0
            while some := topic.read(partition, offset, _READ):
                out += [json.loads(message.payload, parse_float=Decimal) for message in some]
                offset = some[-1].offset + 1
    return out


def read_bars(path: Path) -> list[tuple[Key, Bar]]:
    """The bars in the files that Spark's file sink has committed; what a killed attempt left beside them does not count."""
    import pyarrow.parquet as pq

    out = []
    for file in _committed(path / "_spark_metadata"):
        for row in pq.read_table(file, partitioning=None).to_pylist():
            bar = Bar(*(row[name] for name in Bar._fields))
            out.append(((row["minute"], row["symbol"]), bar))
    return out


def _committed(log: Path) -> list[Path]:
    """Spark's list: a file for each batch, and now and then one that ends in .compact and stands for all before it."""
    batches = {
        int(path.stem): path for path in log.iterdir() if path.stem.isdecimal() and not path.name.startswith(".")
    }
    compact = max((number for number, path in batches.items() if path.suffix == ".compact"), default=0)
    out: list[Path] = []
    for number in sorted(batches):
        if number >= compact:
            for line in batches[number].read_text().splitlines()[1:]:
                out.append(Path(unquote(urlparse(json.loads(line)["path"]).path)))
    return out
