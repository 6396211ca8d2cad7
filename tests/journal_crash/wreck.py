"""What the crash tests of the journal share: its files as a crash leaves them, and what the next open makes of them.

Images of directories are those of `tests.queue.crash`; here every control page in one, also of sessions set aside, is made
that of this boot or of an earlier one.
"""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import CorruptRecord, Journal, Loss, PenstockError, Record, RecoveryUnfinished
from penstock.storage import files
from penstock.testing.state import Boot, settle_page
from tests.queue.crash import NATIVE, Image

EVERY = bool(os.environ.get("PENSTOCK_EVERY"))  # every single bit and byte; else a sample, where each costs an opening


def one_in(n: int) -> int:
    """The step of a sample; ten times as long where the kernel is slow."""
    return 1 if EVERY else n if NATIVE else 10 * n


def everything(top: Path) -> Image:
    """All files as they are: what a kill leaves."""
    return Image({name: (top / name).read_bytes() for name in files.walk(top)})


def settle_pages(top: Path, boot: Boot) -> None:
    """Make every control page this boot's, or an earlier one's."""
    for name in files.walk(top):
        if Path(name).name == ".lock":
            settle_page(top / name, boot)


def lay(image: Image, top: Path, boot: Boot) -> Path:
    return image.lay(top, boot)


def copy(source: Path, target: Path, boot: Boot) -> Path:
    """A journal's directory as a crash right now would leave it. Files are deleted in the background, after they were listed as
    gone: a copy during which one went is none of a single moment, and is made again."""
    while True:
        names = set(files.walk(source))
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("recovery.done"))  # which is being deleted
        except shutil.Error:
            if names == set(files.walk(source)):
                raise
        else:
            if names == set(files.walk(source)):
                settle_pages(target, boot)
                return target
        shutil.rmtree(target)


@dataclass
class Found:
    """What an open and a walk gave."""

    records: list[Record]
    losses: list[Loss]
    error: PenstockError | None  # from opening, or from a walk that does not step over damage
    checked: int = 0
    current: int = 0

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.records]

    @property
    def lost(self) -> set[int]:
        """The sequences that are said to be lost."""
        return {n for loss in self.losses for n in range(loss.first, loss.last + 1)}


def recovered(path: Path) -> Found:
    """Open, and walk twice: once to the first damage, and once to the end. Nothing but errors of this package come."""
    error: PenstockError | None = None
    try:
        j = Journal(path)
    except PenstockError as refused:
        return Found([], [], refused)
    try:
        state: dict[str, Any] = {"checked": j.first_unchecked - 1, "current": j.current}
        got: list[Record] = []
        try:
            for records in j._walk("raise", []):
                got += records
        except CorruptRecord as found:
            error = found
        every = list(j.recovered(on_corrupt="skip"))
        assert every[: len(got)] == got
        if error is None:
            assert every == got
            assert not j.losses
        else:
            assert j.losses
        return Found(every, j.losses, error, **state)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryUnfinished)
            j.close()
