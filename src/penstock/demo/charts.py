"""Charts as SVG, drawn by hand: no script, no file from elsewhere. Colours are the page's variables, so that light and dark both do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from penstock.demo.check import Bar
from penstock.demo.watch import QUERIES, Watch


@dataclass(frozen=True, slots=True)
class _Frame:
    """The part of a drawing where values are, and how they get there."""

    left: float
    top: float
    width: float
    height: float
    x_max: float
    y_min: float
    y_max: float

    def x(self, value: float) -> float:
        return round(self.left + self.width * value / self.x_max, 2)

    def y(self, value: float) -> float:
        share = (value - self.y_min) / (self.y_max - self.y_min)
        return round(self.top + self.height * (1 - share), 2)


def _ticks(least: float, most: float, about: int) -> list[float]:
    """Round numbers within these bounds, about so many."""
    rough = (most - least) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first = math.ceil(least / step)
    return [round(i * step, 10) for i in range(first, math.floor(most / step + 1e-9) + 1)]


def _svg(width: float, height: float, label: str, parts: Iterator[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">\n{inside}\n</svg>'
    )


def _grid(frame: _Frame, values: Sequence[float], form: str) -> Iterator[str]:
    for value in values:
        y = frame.y(value)
        yield f'<line class="grid" x1="{frame.left}" x2="{frame.left + frame.width}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{frame.left - 6}" y="{y + 4}" text-anchor="end">{value:{form}}</text>'


# ---- how far everybody was, over time ----


def timeline(watch: Watch) -> str:
    """Records sent, and processed by each query, by the second; with the time that no driver lived."""
    frame = _Frame(70, 34, 760, 250, max(watch.ended_s, 1.0), 0.0, float(max(watch.appended, 1)))
    return _svg(900, 330, "Records sent and processed over time", _timeline(watch, frame))


def _timeline(watch: Watch, frame: _Frame) -> Iterator[str]:
    bottom = frame.top + frame.height
    if watch.killed_s is not None:
        back_s = watch.back_s if watch.back_s is not None else watch.ended_s
        x, wide = frame.x(watch.killed_s), frame.x(back_s) - frame.x(watch.killed_s)
        yield f'<rect class="down" x="{x}" y="{frame.top}" width="{wide:.2f}" height="{frame.height}"/>'
        yield f'<text class="note" x="{x + 6}" y="{frame.top + 16}">SIGKILL at {watch.killed_s:.1f} s</text>'
        yield f'<text class="note" x="{x + 6}" y="{frame.top + 32}">back {back_s - watch.killed_s:.1f} s later</text>'
    yield from _grid(frame, _ticks(0, frame.y_max, 5), ",.0f")
    for value in _ticks(0, frame.x_max, 8):
        yield f'<text class="tick" x="{frame.x(value)}" y="{bottom + 18}" text-anchor="middle">{value:g} s</text>'
    yield _steps(frame, watch.appends, "sent", f"sent: {watch.appended:,}", watch.ended_s)
    for i, query in enumerate(QUERIES):
        points = [(0.0, 0), *((b.at_s, b.offset) for b in watch.batches if b.query == query)]
        yield _steps(frame, points, f"s{i}", f"{query}: {points[-1][1]:,}", watch.ended_s)
    for i, name in enumerate(("sent", *QUERIES)):
        x = frame.left + 150 * i
        kind = "sent" if i == 0 else f"s{i - 1}"
        yield f'<line class="line {kind}" x1="{x}" x2="{x + 22}" y1="14" y2="14"/>'
        yield f'<text class="key" x="{x + 28}" y="18">{escape(name)}</text>'


def _steps(frame: _Frame, points: Sequence[tuple[float, int]], kind: str, title: str, end_s: float) -> str:
    path = f"M{frame.x(points[0][0])} {frame.y(points[0][1])}"
    for at_s, value in points[1:]:
        path += f"H{frame.x(at_s)}V{frame.y(value)}"
    return f'<path class="line {kind}" d="{path}H{frame.x(end_s)}"><title>{escape(title)}</title></path>'


# ---- bars ----

_WIDTH: Final = 440
_HEIGHT: Final = 230


def candles(symbol: str, bars: Sequence[tuple[datetime, Bar]]) -> str:
    """A symbol's bars: full where the price rose, hollow where it fell; VWAP as a line; volume below."""
    lows, highs = [float(b.low) for _, b in bars], [float(b.high) for _, b in bars]
    margin = (max(highs) - min(lows)) * 0.05 or 0.01
    prices = _Frame(56, 14, _WIDTH - 66, 140, len(bars), min(lows) - margin, max(highs) + margin)
    volumes = _Frame(56, 166, _WIDTH - 66, 36, len(bars), 0.0, float(max(b.volume for _, b in bars)))
    return _svg(_WIDTH, _HEIGHT, f"{symbol}: price and volume by minute", _candles(bars, prices, volumes))


def _candles(bars: Sequence[tuple[datetime, Bar]], prices: _Frame, volumes: _Frame) -> Iterator[str]:
    yield from _grid(prices, _ticks(prices.y_min, prices.y_max, 4), ",.2f")
    wide = round(prices.width / len(bars) * 0.62, 2)
    line = []
    for i, (minute, bar) in enumerate(bars):
        x = prices.x(i + 0.5)
        kind = "up" if bar.close >= bar.open else "fell"
        top, bottom = prices.y(float(max(bar.open, bar.close))), prices.y(float(min(bar.open, bar.close)))
        base = volumes.top + volumes.height
        yield (
            f'<g class="{kind}"><title>{_told(minute, bar)}</title>'
            f'<line x1="{x}" x2="{x}" y1="{prices.y(float(bar.high))}" y2="{top}"/>'
            f'<line x1="{x}" x2="{x}" y1="{bottom}" y2="{prices.y(float(bar.low))}"/>'
            f'<rect x="{x - wide / 2:.2f}" y="{top}" width="{wide}" height="{max(bottom - top, 1):.2f}"/>'
            f'<rect class="volume" x="{x - wide / 2:.2f}" y="{volumes.y(bar.volume)}" width="{wide}" '
            f'height="{base - volumes.y(bar.volume):.2f}"/></g>'
        )
        line.append(f"{x} {prices.y(bar.vwap)}")
        if minute.minute % 5 == 0:
            yield f'<text class="tick" x="{x}" y="{base + 18}" text-anchor="middle">{minute:%H:%M}</text>'
    yield f'<path class="line vwap" d="M{"L".join(line)}"/>'


def _told(minute: datetime, bar: Bar) -> str:
    return (
        f"{minute:%H:%M}: open {bar.open}, high {bar.high}, low {bar.low}, close {bar.close}, "
        f"VWAP {bar.vwap:.4f}, volume {bar.volume:,} in {bar.orders:,} orders"
    )
