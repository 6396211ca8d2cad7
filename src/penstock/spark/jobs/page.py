"""The page of `stats`: one HTML file, readable in light and dark, with nothing to load and nothing to run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

from penstock.spark.jobs.charts import Bar, bars, short
from penstock.spark.jobs.stats import LogStats, StatsReport

STYLE: Final = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1c1c1a; --soft: #5f5e59; --line: #e3e2dd; --bar: #2a78d6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1a1a19; --ink: #f2f1ed; --soft: #b3b1a8; --line: #3a3936; --bar: #4b94ec; }
}
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 780px;
  padding: 32px 20px 64px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 18px; margin: 48px 0 4px; }
h3 { font-size: 13px; margin: 24px 0 4px; color: var(--soft); font-weight: 600; }
p { margin: 2px 0; color: var(--soft); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px 20px; margin: 16px 0; }
dt { font-size: 12px; color: var(--soft); } dd { margin: 0; font-size: 17px; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: 1; } .bar { fill: var(--bar); } .bar:hover { opacity: 0.75; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 20px 3px 0; border-bottom: 1px solid var(--line); } th { color: var(--soft); }
"""
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def page(report: StatsReport) -> str:
    """The whole page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.path)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(report.path)}</h1>",
        f"<p>{report.records:,} records, {short(report.bytes)}B of payload, in {len(report.logs)} logs and partitions</p>",
        *(f"<p>{escape(reason)}</p>" for reason in report.failed),
        *(_log(log) for log in report.logs),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _log(log: LogStats) -> str:
    partition = f", partition {log.partition}" if log.format == "topic" else ""
    facts = {
        "records": f"{log.records:,}",
        "payload": f"{short(log.bytes)}B",
        "per minute": short(log.per_minute),
        "busiest minute": f"{log.peak_per_minute:,}",
        "offsets": f"{log.first_offset:,} to {log.next_offset - 1:,}" if log.next_offset > log.first_offset else "none",
        "segments": f"{log.segments:,}",
        "size, median": f"{log.size_p50:,} B",
        "size, 99 of 100": f"{log.size_p99:,} B",
    }
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    out = [
        f"<h2>{escape(log.topic)}{partition}</h2><p>{log.format}, {escape(log.path)}</p>",
        f"<p>{_time(log.first_us)} to {_time(log.last_us)} UTC</p>" if log.last_us else "<p>no times are known</p>",
        f"<dl>{tiles}</dl>",
    ]
    if log.timeline:
        out.append(f"<h3>records in each {span(log.timeline_s)}</h3>" + bars("records over time", _over_time(log)))
    if log.sizes:
        out.append("<h3>records by payload size</h3>" + bars("records by payload size", _by_size(log)))
    if log.gaps:
        out.append("<h3>longest times without a record</h3>" + _gaps(log))
    return "\n".join(out)


def _over_time(log: LogStats) -> list[Bar]:
    whole_days = log.timeline_s >= 86400
    return [
        Bar(_time(us)[:10] if whole_days else _time(us)[5:16], count, f"{_time(us)[:16]}: {count:,} records")
        for us, count in log.timeline
    ]


def _by_size(log: LogStats) -> list[Bar]:
    known = dict(log.sizes)
    sizes, size = [0] if 0 in known else [], max(1, min((s for s in known if s), default=1))
    while size <= max(known):
        sizes.append(size)
        size *= 2
    return [
        Bar(f"{short(s)}", known.get(s, 0), f"{s:,} to {max(0, 2 * s - 1):,} bytes: {known.get(s, 0):,} records")
        for s in sizes
    ]


def _gaps(log: LogStats) -> str:
    rows = "".join(
        f"<tr><td>{span(gap.seconds)}</td><td>{_time(gap.start_us)}</td><td>{_time(gap.end_us)}</td><td>{gap.offset:,}</td></tr>"
        for gap in log.gaps
    )
    return f"<table><tr><th>how long</th><th>from</th><th>to</th><th>ended by offset</th></tr>{rows}</table>"


def _time(us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A time in its largest two units.

    >>> span(93784), span(60), span(0.25)
    ('1 d 2 h', '1 min', '250 ms')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    left, parts = round(seconds), []
    for length, unit in _UNITS:
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])
