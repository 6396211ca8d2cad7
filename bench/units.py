"""Figures as people read them."""

from __future__ import annotations


def rate(per_second: float) -> str:
    """Messages per second.

    >>> rate(12_345_678.0), rate(12_345.6), rate(12.3)
    ('12.3 M/s', '12.3 k/s', '12.3 /s')
    """
    for scale, unit in ((1e6, "M/s"), (1e3, "k/s")):
        if per_second >= scale:
            return f"{digits(per_second / scale)} {unit}"
    return f"{digits(per_second)} /s"


def digits(value: float) -> str:
    """Three digits that count, and no exponent.

    >>> digits(1234.5), digits(123.45), digits(12.345), digits(1.2345), digits(0.012345)
    ('1234', '123', '12.3', '1.23', '0.0123')
    """
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """A ratio, with an x."""
    return "" if ratio is None else f"{digits(ratio)}x"


def size(count: int) -> str:
    """A message size.

    >>> size(100), size(1000), size(1500)
    ('100 B', '1 KB', '1500 B')
    """
    return f"{count // 1000} KB" if count >= 1000 and count % 1000 == 0 else f"{count} B"


def duration(seconds: float) -> str:
    """A time to wait, roughly.

    >>> duration(8.4), duration(99.0), duration(1000.0)
    ('8 s', '99 s', '17 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def thousands(count: float) -> str:
    """A count with thin separators."""
    return f"{count:,.0f}".replace(",", " ")
