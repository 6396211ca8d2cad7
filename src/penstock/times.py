"""Times, as files keep them and as people take them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc(us: int | None) -> datetime | None:
    """Microseconds since 1970 as a time; None when they are 0, which is not known, or, being damaged, beyond what a time can be.

    >>> utc(1_700_000_000_000_000), utc(0), utc(1 << 62)
    (datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc), None, None)
    """
    try:
        return EPOCH + timedelta(microseconds=us) if us else None
    except OverflowError:
        return None
