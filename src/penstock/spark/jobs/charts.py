"""Bar charts as SVG, drawn by hand: no script, no font, no file but the page they are in. Colours are the page's (`page.STYLE`)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 720
_HEIGHT: Final = 190
_LEFT: Final = 56
_TOP: Final = 12
_BOTTOM: Final = 26
_LINES: Final = 3
_WIDEST: Final = 48
_FEW: Final = 12  # so many bars have a label each


class Bar(NamedTuple):
    """One bar: what stands below it, how high it is, and what is told about it when it is pointed at."""

    label: str
    value: int
    title: str


def bars(of: str, shown: Sequence[Bar]) -> str:
    """A bar chart; `of` tells those who cannot see it what it is of."""
    top = _round_up(max((bar.value for bar in shown), default=1))
    wide, high = _WIDTH - _LEFT, _HEIGHT - _TOP - _BOTTOM
    step = wide / max(1, len(shown))
    width = min(_WIDEST, step - (2 if step > 5 else 0.5))
    out = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(of)}">']
    for i in range(_LINES + 1):
        value, y = top * i // _LINES, _TOP + high - high * i / _LINES
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for i, bar in enumerate(shown):
        height = max(high * bar.value / top, 1.5 if bar.value else 0)
        x, y = _LEFT + i * step + (step - width) / 2, _TOP + high - height
        out.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{min(2, step / 4):.1f}">'
            f"<title>{escape(bar.title)}</title></rect>"
        )
    out += [_label(i, step, shown) for i in _labelled(len(shown))]
    return "".join([*out, "</svg>"])


def _labelled(count: int) -> list[int]:
    """Which bars have their label below: all if they are few, else the first, some between, and the last."""
    return list(range(count)) if count <= _FEW else [0, count // 4, count // 2, count * 3 // 4, count - 1]


def _label(i: int, step: float, shown: Sequence[Bar]) -> str:
    few, last = len(shown) <= _FEW, i == len(shown) - 1
    anchor = "middle" if few or (i > 0 and not last) else "start" if i == 0 else "end"
    x = _LEFT + (i + (0.5 if anchor == "middle" else float(anchor == "end"))) * step
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{escape(shown[i].label)}</text>'


def _round_up(value: int) -> int:
    """A number to end a scale with, not below the value, that can be divided by the lines.

    >>> [_round_up(n) for n in (0, 3, 7, 100, 1234)]
    [3, 3, 9, 120, 1500]
    """
    power = 1
    while True:
        for factor in (3, 6, 9, 12, 15, 21):
            if factor * power >= value:
                return factor * power
        power *= 10


def short(number: float) -> str:
    """A number in few characters.

    >>> short(950), short(12_000), short(1_500_000)
    ('950', '12k', '1.5M')
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000 or unit == "T":
            break
        number /= 1000
    return f"{number:.3g}{unit}"
