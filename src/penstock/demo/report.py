"""The report: one HTML page that needs nothing but itself, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Final

from penstock.demo import charts
from penstock.demo.check import Bar, Proof
from penstock.demo.run import Result
from penstock.demo.watch import QUERIES, Watch

_STYLE: Final = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #fff; --ink: #1d1d1b; --soft: #5c5b57; --rule: #e3e2dd;
  --sent: #8a8983; --a: #2a78d6; --b: #c2541f; --c: #178a60; --gone: #f6e3da; --good: #12734d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161615; --card: #1f1f1d; --ink: #efeeea; --soft: #b3b1aa; --rule: #383734;
    --sent: #93918a; --a: #5b9ff0; --b: #f08a55; --c: #3cc391; --gone: #40281c; --good: #4fd09c; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 960px; padding: 24px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 34px 0 8px; } h3 { font-size: 14px; margin: 0; }
p { margin: 4px 0 10px; color: var(--soft); }
.verdict { display: inline-block; padding: 6px 14px; margin: 10px 0; border: 2px solid; border-radius: 6px; font-weight: 600; }
.holds { color: var(--good); } .fails { color: var(--bad); }
.wide { overflow-x: auto; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 14px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
summary { cursor: pointer; padding: 6px 0; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 11px; } .key, .note { fill: var(--ink); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.sent { stroke: var(--sent); stroke-dasharray: 5 3; }
.s0 { stroke: var(--a); } .s1 { stroke: var(--b); } .s2 { stroke: var(--c); } .down { fill: var(--gone); }
.up { stroke: var(--a); fill: var(--a); } .fell { stroke: var(--b); fill: var(--card); }
.volume { stroke: none; fill: var(--sent); opacity: .55; } .vwap { stroke: var(--ink); stroke-width: 1.2; opacity: .7; }
"""


def page(result: Result) -> str:
    """The whole page."""
    return "\n".join(_page(result)) + "\n"


def _page(result: Result) -> Iterator[str]:
    flow, proof = result.flow, result.proof
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Penstock demo: {flow.records:,} records</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield "<h1>Penstock demo</h1>"
    yield (
        f"<p>{flow.records:,} records, seed {flow.seed}: two producers, one queue, three streaming queries on Spark, "
        "and one SIGKILL of their driver.</p>"
    )
    verdict = "The proof holds: every record exactly once" if proof.holds else "The proof does not hold"
    yield f'<div class="verdict {"holds" if proof.holds else "fails"}">{verdict}</div>'
    yield from _proof(proof)
    yield "<h2>Records over time</h2>"
    yield "<p>Producers go on while no driver lives (shaded); the one that is started again catches up.</p>"
    yield f'<div class="card">{charts.timeline(result.watch)}</div>'
    yield from _rates(result.watch)
    yield from _bars(proof)
    yield "</body>\n</html>"


def _proof(proof: Proof) -> Iterator[str]:
    yield "<h2>Proof</h2>"
    yield (
        f"<p>Expected: recomputed from the queue in plain Python. Found: what Spark has written. {proof.figures:,} figures of "
        f"bars were compared. {proof.expected.late:,} orders were late in event time, within the watermark, so all count.</p>"
    )
    rows = [
        (t.what, f"{t.expected:,}", f"{t.found:,}", f"{t.lost:,}", f"{t.duplicates:,}", f"{t.wrong:,}")
        for t in proof.tallies
    ]
    yield _table(("", "expected", "found", "lost", "duplicates", "wrong"), rows)
    if proof.differences:
        yield "<ul>" + "".join(f"<li>{escape(difference)}</li>" for difference in proof.differences) + "</ul>"


def _rates(watch: Watch) -> Iterator[str]:
    yield "<h2>Rates</h2>"
    rows = [("append, two processes", f"{watch.append_rate():,.0f}", "", "")]
    for query in QUERIES:
        batches = [b for b in watch.batches if b.query == query]
        rates = f"{watch.query_rate(query):,.0f}", f"{watch.best_rate(query):,.0f}"
        rows.append((f"query {query}", *rates, f"{len(batches)}"))
    rows.append(("end to end, with the kill", f"{watch.overall_rate():,.0f}", "", ""))
    yield _table(("", "records/s", "fastest micro-batch", "micro-batches"), rows)


def _bars(proof: Proof) -> Iterator[str]:
    by_symbol: dict[str, list[tuple[datetime, Bar]]] = {}
    for (minute, symbol), bar in proof.expected.bars.items():
        by_symbol.setdefault(symbol, []).append((minute, bar))
    yield "<h2>Bars of one minute</h2>"
    yield "<p>Full: the price rose; hollow: it fell. The line is the VWAP, and volume stands below. Times are UTC.</p>"
    yield '<div class="pair">'
    for symbol, bars in sorted(by_symbol.items()):
        yield f'<div class="card"><h3>{escape(symbol)}</h3>{charts.candles(symbol, bars)}</div>'
    yield "</div>"
    rows = [
        (
            f"{minute:%H:%M} {symbol}",
            *(f"{price}" for price in b[:4]),
            f"{b.volume:,}",
            f"{b.orders:,}",
            f"{b.vwap:.4f}",
        )
        for (minute, symbol), b in proof.expected.bars.items()
    ]
    table = _table(("", "open", "high", "low", "close", "volume", "orders", "VWAP"), rows)
    yield f"<details><summary>All {len(rows)} bars as a table</summary>{table}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'
