"""What a use is to the crash kit: operations, what they promise, and a judge of what a crash leaves.

An operation notes what it is about to do and what is done. `now()` gives that frozen, so that a state of any moment can be judged
by what had been promised then. Judging opens what is left, compares, appends, closes and opens again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from penstock.testing.state import Boot

AFTER = [b"after", b"that"]


class Broken(AssertionError):
    """A promise was not kept."""


def must(kept: object, promise: str, *facts: object) -> None:
    if not kept:
        raise Broken(": ".join([promise, *map(repr, facts)]))


class Use(ABC):
    """One use, open."""

    name: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]
    appends: ClassVar[tuple[str, ...]] = ()  # operations that add records
    long: ClassVar[
        tuple[str, ...]
    ]  # a workload that does everything there is: tests/kit/test_states.py says what that is
    at_end: ClassVar[tuple[str, ...]] = ()  # operations that come last in a short workload, or among many
    rarely: ClassVar[
        tuple[str, ...]
    ] = ()  # operations of which a random workload has fewer than of others, or it would come to little
    durable: ClassVar[tuple[str, ...]] = ()  # operations that say that something is on the disk
    background: ClassVar[tuple[str, ...]] = ("work",)  # operations of a thread that tells nobody what has failed
    goes_on: ClassVar[bool] = False  # after an operation that failed others may follow, even if it is not tried again

    def __init__(self, path: Path) -> None:
        self.path = path

    def do(self, op: str) -> None:
        getattr(self, op)()

    def reopen(self) -> None:
        self.close()
        self.open()

    @abstractmethod
    def now(self) -> Any:
        """What is promised just now, and what is under way."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def read(self) -> None:  # noqa: B027
        """Readers go on, whatever has failed; where there is none that could, judging reads everything."""

    @classmethod
    def recover(cls, path: Path) -> None:
        """What the next process does first."""
        made = cls(path)
        made.open()
        try:
            made.go_on()
        finally:
            made.close()

    def go_on(self) -> None:  # noqa: B027
        """What it does right after opening that adds nothing: whatever of two things it has found, the promise is the same."""

    @classmethod
    def going_on(cls, told: Any, boot: Boot) -> Any:
        """What is promised while it does that."""
        return told

    @classmethod
    def settled(cls, told: Any) -> Any:
        """What is promised when that process has closed it."""
        return told

    @classmethod
    @abstractmethod
    def judge(cls, path: Path, told: Any, boot: Boot) -> int:
        """Raises Broken; how many records were checked."""

    @classmethod
    def promised(cls, told: Any) -> object:
        """What was, with a `repr` that is the same for what is the same."""
        return told
