"""What a perfect run would have left, for tests that then spoil it."""

from __future__ import annotations

from pathlib import Path

from penstock.demo.check import Found, prove, recompute
from penstock.demo.flow import MINUTES, PRODUCERS, Flow, marker
from penstock.demo.places import Places
from penstock.demo.run import Result
from penstock.demo.watch import QUERIES, Watch

FLOW = Flow(6000, 7)


def payloads() -> list[bytes]:
    """A queue that producers have written to in turn."""
    sent = [
        payload
        for minute in range(MINUTES)
        for producer in range(PRODUCERS)
        for payload in FLOW.chunk(producer, minute)
    ]
    return [*sent, marker()]


def found(records: list[bytes]) -> Found:
    """What must be written for these records."""
    expected = recompute(records)
    return Found(list(expected.bars.items()), list(expected.alerts.values()), list(expected.dead_letters.values()))


def result(top: Path) -> Result:
    """The whole of it, with something to draw."""
    records = payloads()
    watch = Watch()
    for i in range(10):
        watch.appends.append((1.0 + i, (i + 1) * FLOW.records // 10))
        for query in QUERIES:
            watch.saw_batch({"query": query, "rows": 600, "took_s": 0.5, "offset": (i + 1) * 600})
    watch.saw_kill()
    watch.killed_s, watch.back_s, watch.ended_s, watch.append_s = 5.0, 8.0, 12.0, 0.1
    return Result(FLOW, Places(top), watch, prove(FLOW, records, found(records)))
