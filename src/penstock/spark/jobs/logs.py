"""Segments as jobs take them: how much work each is."""

from __future__ import annotations

from penstock.inspect import Segment


def size_of(segment: Segment) -> int:
    """How much work a segment is."""
    return segment.end
