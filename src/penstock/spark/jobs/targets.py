"""What a job writes to: topics with as many partitions as their source has, and the columns that a format takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import InvalidOption
from penstock.inspect import FormatName
from penstock.topic.topics import Topics


def columns_for(format: FormatName) -> tuple[str, ...]:
    return ("topic", "partition", "value") if format == "topic" else ("value",)


def make_topics(top: Path, partitions: Mapping[str, int]) -> None:
    """Have topics with at least so many partitions."""
    with Topics(top) as topics:
        there = set(topics.topics())
        for name, count in partitions.items():
            found = topics.topic(name, None if name in there else count)
            if found.partitions < count:
                raise InvalidOption(
                    f"{top / name}: the topic has fewer partitions ({found.partitions}) than are needed ({count}); add_partitions first"
                )
