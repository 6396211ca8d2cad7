"""A message as topics give it to those who read."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from penstock.kernel import Message
from penstock.times import utc


class TopicMessage(NamedTuple):
    """A message as it was read: the `offset` counts its partition's messages from 0."""

    partition: int
    offset: int
    payload: bytes
    timestamp_us: int | None

    @property
    def timestamp(self) -> datetime | None:
        """When it was published; None when not known."""
        return utc(self.timestamp_us)


def delivered(partition: int, messages: list[Message]) -> list[TopicMessage]:
    return [TopicMessage(partition, m.sequence, m.payload, m.timestamp_us) for m in messages]
