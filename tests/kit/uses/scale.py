"""How little is done at a time, which decides how many states a crash may leave: so little that all of three operations can be looked at.

What an option can make small is so in each use: it takes the size from here when it opens, so a test may change one for all. The rest is made
small by `small()`, and whoever drives a use does so within it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import journal
from penstock.storage.janitor import Janitor
from penstock.storage.manifest import Manifest
from penstock.topic import topics
from tests.channel_crash.wreck import small_files
from tests.queue.crash import payload

INTERVAL = 2
FEWER = 3  # where there are more records, as a channel has it, too
FILE_SIZE = 8192
SEGMENT_BYTES = 160
JOURNAL_BYTES = 150
MOST_EDITS = 2  # beside one for each segment: with more a manifest is written anew


@contextmanager
def small() -> Iterator[None]:
    """Small files everywhere, manifests soon too long, and no background: what it would do is an operation."""
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        patch.setattr(topics, "INDEX_INTERVAL", INTERVAL)
        patch.setattr(journal, "MAX_FILE_BYTES", JOURNAL_BYTES)
        # Not yet when it was written anew: what was retired last, and one for each segment.
        patch.setattr(Manifest, "is_long", property(lambda self: self._edits > MOST_EDITS + len(self.segments)))
        patch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))
        yield


def hollow(sequence: int, size: int) -> bytes:
    """Mostly zeros: a sector of nothing else is the same before and after, so a record of many has fewer states."""
    return payload(sequence, min(size, 40)).ljust(size, b"\0")
