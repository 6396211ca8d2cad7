"""Sizes and ages as people write them."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidOption

_SIZES: Final = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4} | {
    unit: 1024**i
    for i, units in enumerate((("k", "kib"), ("m", "mib"), ("g", "gib"), ("t", "tib")), 1)
    for unit in units
}
_AGES: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def bytes_of(text: str) -> int:
    """How many bytes a size is.

    >>> bytes_of("10GiB"), bytes_of("1.5 MB"), bytes_of("4096")
    (10737418240, 1500000, 4096)
    """
    return round(_number(text, _SIZES, "a size: give a number and a unit, such as 10GiB, 500MB or 4096"))


def seconds_of(text: str) -> float:
    """How many seconds an age is.

    >>> seconds_of("7d"), seconds_of("1.5h"), seconds_of("30s")
    (604800.0, 5400.0, 30.0)
    """
    return _number(text, _AGES, "an age: give a number and one of s, m, h, d, w, such as 7d or 12h")


def _number(text: str, units: dict[str, int], what: str) -> float:
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]*)", text.strip())
    if found is None or found[2].lower() not in units:
        raise InvalidOption(f"{text!r} is not {what}")
    return float(found[1]) * units[found[2].lower()]
