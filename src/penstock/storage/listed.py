"""What a call that takes many records was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.errors import PayloadTypeError

T = TypeVar("T")


def listed(call: str, payloads: Sequence[T]) -> list[T] | tuple[T, ...]:
    """A list of them. One payload is none, though it has a length; nor is what has no length, of which nobody knows if it ends."""
    if isinstance(payloads, list | tuple):
        return payloads
    if isinstance(payloads, str | bytes | bytearray | memoryview) or not hasattr(payloads, "__len__"):
        raise PayloadTypeError(f"{call} takes a list of payloads, not one {type(payloads).__name__}")
    return list(payloads)
