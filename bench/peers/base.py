"""What a scenario may ask of a peer.

A peer owns its inner loops (`append`, `read`, ...). That way every peer gets the tightest loop its own API
allows, and none of them pays for an adapter between the loop and the call that is being measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

POLL_SECONDS = 0.001
"""How long a polling reader sleeps when it found nothing. Short for a poll; every row that polls says so."""

THROUGHPUT = frozenset({"append", "append-batch", "durable-batch", "read", "read-batch", "scan-arrow"})


class Unavailable(Exception):
    """The peer cannot run here; the message is what the row shows."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a peer is opened for."""

    directory: Path
    size: int
    durable: bool = False


class Peer:
    """One system under test. Subclasses override what they support and list it in `supports`."""

    name: ClassVar[str]
    label: ClassVar[str] = ""
    """What the table calls it, if not by `name`."""
    group: ClassVar[str] = "peer"
    """"penstock", "peer" or "limit": who is compared with whom."""
    settings: ClassVar[str]
    """How it is used, for the reader of the table: nobody should have to read code to judge a row."""
    modules: ClassVar[tuple[str, ...]] = ()
    """What the worker imports before any clock starts. Peers import inside their methods only, so that the
    table can speak about a peer whose package is not there."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions belong into the results, and what to `pip install` if a module is missing."""
    supports: ClassVar[frozenset[str]] = frozenset()
    notes: ClassVar[dict[str, str]] = {}
    """Scenario to remark, shown in that row."""
    env: ClassVar[dict[str, str]] = {}
    """Environment of its worker processes."""
    consumes: ClassVar[frozenset[str]] = frozenset()
    """Scenarios in which reading uses up what was read, so that a log can be read once only."""
    max_fill: ClassVar[int] = 0
    """The most messages that a log for reading should hold; 0 for no limit of its own."""

    def __init__(self, job: Job) -> None:
        self.job = job

    # --- life ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the store in `job.directory`, ready for writing and reading."""
        raise NotImplementedError

    def open_reader(self) -> None:
        """Open what another process writes to, for reading only."""
        self.open()

    def close(self) -> None:
        """Close it cleanly."""
        raise NotImplementedError

    # --- writing -------------------------------------------------------------------------------------------

    def encode(self, payload: bytes) -> Any:
        """The payload in the type the peer takes; done before the clock starts."""
        return payload

    def encode_batch(self, payloads: list[bytes]) -> Any:
        """A batch in the type the peer takes; done before the clock starts."""
        return [self.encode(payload) for payload in payloads]

    def append(self, payload: Any, count: int) -> None:
        """Append `count` messages, one call each, in whatever transaction is fastest."""
        raise NotImplementedError

    def append_visible(self, payload: Any, count: int) -> None:
        """Append `count` messages, one call each, each visible to other processes when its call returns."""
        self.append(payload, count)

    def appender(self) -> Callable[[Any], object]:
        """The bare callable behind `append`, for a clock around every single call."""
        raise NotImplementedError

    def append_batch(self, batch: Any) -> None:
        """Append one batch; on disk on return if the job is durable."""
        raise NotImplementedError

    def settle(self) -> None:
        """End what `append` left open (a transaction, say). The clock runs."""

    # --- reading -------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Get ready for one more pass from the start. The clock does not run."""

    def read(self) -> Any:
        """Read everything one by one and return the last payload."""
        raise NotImplementedError

    def read_batch(self, count: int) -> Any:
        """Read everything in lists of `count` and return the last payload."""
        raise NotImplementedError

    def scan_arrow(self) -> Any:
        """Turn everything into pyarrow arrays of payloads and return the last payload."""
        raise NotImplementedError

    def first(self) -> Any:
        """The first payload of the log."""
        raise NotImplementedError

    # --- following -----------------------------------------------------------------------------------------

    def poll(self) -> Sequence[bytes]:
        """The payloads that came since the last call, without waiting."""
        raise NotImplementedError

    def follow(self) -> Iterator[bytes]:
        """Payloads as they come, for ever. By polling, unless the peer can be woken."""
        poll, sleep = self.poll, time.sleep
        while True:
            found = poll()
            if found:
                yield from found
            else:
                sleep(POLL_SECONDS)


POLLS = f"polls every {POLL_SECONDS * 1000:g} ms"
