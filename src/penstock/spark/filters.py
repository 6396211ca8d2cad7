"""Filters that Spark hands down, as bounds on what is read. What is not understood here bounds nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.plan import EVERYTHING, Wanted

_ONE = (EqualTo, EqualNullSafe)


def wanted(filters: Iterable[Filter]) -> Wanted:
    """What may pass all of these."""
    out = EVERYTHING
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(column) == 1 and value is not None:
            out = _narrowed(out, column[0], one, value)
    return out


def _narrowed(old: Wanted, column: str, one: Filter, value: Any) -> Wanted:
    if column in ("topic", "partition") and isinstance(one, (*_ONE, In)):
        values: frozenset[Any] = frozenset(value if isinstance(one, In) else [value])
        if column == "topic":
            return replace(old, topics=values if old.topics is None else old.topics & values)
        return replace(old, partitions=values if old.partitions is None else old.partitions & values)
    if column == "offset":
        lo, hi = _range(one, value, 1)
        return replace(old, lo=max(old.lo, lo), hi=min(old.hi, hi + 1))
    if column == "timestamp":
        lo, hi = _range(one, value, 1)
        return replace(old, lo_us=max(old.lo_us, lo), hi_us=min(old.hi_us, hi))
    return old


def _range(one: Filter, value: Any, step: int) -> tuple[int, int]:
    """(least, most) that can pass."""
    least, most = 0, EVERYTHING.hi_us - 1
    if isinstance(one, In):
        numbers = [_number(v) for v in value if v is not None]
        return (min(numbers), max(numbers)) if numbers else (1, 0)
    number = _number(value)
    if isinstance(one, _ONE):
        return number, number
    if isinstance(one, GreaterThan):
        return number + step, most
    if isinstance(one, GreaterThanOrEqual):
        return number, most
    if isinstance(one, LessThan):
        return least, number - step
    if isinstance(one, LessThanOrEqual):
        return least, number
    return least, most


def _number(value: Any) -> int:
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
    return int(value)
