"""The messages everybody writes: random, so that little compresses, and ASCII, for peers that take str."""

from __future__ import annotations

import base64
import random

STAMP_DIGITS = 16


def payloads(size: int, count: int) -> list[bytes]:
    """`count` different messages of `size` bytes, the same in every run."""
    generator = random.Random(size)
    return [base64.b64encode(generator.randbytes(size))[:size] for _ in range(count)]


def marker(size: int) -> bytes:
    """The last message of every log to be read: who has not seen it has not read to the end."""
    return b"." * size


def stamped(nanoseconds: int, size: int) -> bytes:
    """A message that says when it was sent."""
    return (b"%0*x" % (STAMP_DIGITS, nanoseconds)).ljust(size, b".")


def stamp(payload: bytes | str) -> int:
    """When a message made by `stamped` was sent."""
    return int(payload[:STAMP_DIGITS], 16)
