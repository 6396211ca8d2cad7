"""What is printed at the end: the proof, a table of bars, rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.demo.check import Proof
from penstock.demo.run import Result
from penstock.demo.watch import QUERIES

_BARS: Final = 12


def told(result: Result) -> Iterator[str]:
    """The lines."""
    yield from _proof(result.proof)
    yield ""
    yield from _bars(result.proof)
    yield ""
    yield from _rates(result)


def _proof(proof: Proof) -> Iterator[str]:
    yield ""
    yield f"{'proof':<22}{'expected':>10}{'found':>10}{'lost':>8}{'duplicates':>12}{'wrong':>8}"
    for t in proof.tallies:
        yield f"{t.what:<22}{t.expected:>10,}{t.found:>10,}{t.lost:>8,}{t.duplicates:>12,}{t.wrong:>8,}"
    yield f"{proof.figures:,} figures of bars compared; {proof.expected.late:,} orders were late, and all count"
    for difference in proof.differences:
        yield f"  {difference}"
    yield "the proof holds: every record exactly once" if proof.holds else "THE PROOF DOES NOT HOLD"


def _bars(proof: Proof) -> Iterator[str]:
    bars = proof.expected.bars
    yield f"the last {min(_BARS, len(bars))} of {len(bars)} bars of one minute"
    yield f"{'':<8}{'symbol':<8}{'open':>9}{'high':>9}{'low':>9}{'close':>9}{'volume':>10}{'orders':>8}{'vwap':>11}"
    for (minute, symbol), b in list(bars.items())[-_BARS:]:
        prices = f"{b.open:>9}{b.high:>9}{b.low:>9}{b.close:>9}"
        yield f"{minute:%H:%M}   {symbol:<8}{prices}{b.volume:>10,}{b.orders:>8,}{b.vwap:>11.4f}"


def _rates(result: Result) -> Iterator[str]:
    watch = result.watch
    yield f"append, two processes       {watch.append_rate():>12,.0f} records/s"
    for query in QUERIES:
        best = f"{watch.best_rate(query):,.0f} in its fastest micro-batch"
        yield f"query {query:<22}{watch.query_rate(query):>12,.0f} records/s beside the others; {best}"
    if watch.killed_s is not None and watch.back_s is not None:
        yield f"driver back after the kill  {watch.back_s - watch.killed_s:>12,.1f} s"
    if watch.restarts:
        yield f"drivers that ended unasked, and were started again {watch.restarts:>3}"
    yield f"end to end, with the kill   {watch.overall_rate():>12,.0f} records/s; {watch.ended_s:,.1f} s in all"
