"""What the crash tests of the channel share: a small channel, its background done by hand, and a disk whose power can be cut.

Images of directories and the two boots are those of `tests.queue.crash`. A `Platter` knows more: which files and directories were synced,
and so what a power cut may leave of them at any moment; `penstock.testing.moment` says what that is.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Receiver, channel
from penstock.formats import channel as fmt
from penstock.storage import files
from penstock.storage.janitor import Janitor
from penstock.storage.log import Log
from penstock.testing.disk import Disk
from penstock.testing.standing_in import CHANGING
from tests.queue.crash import NATIVE, Image

HEADER = fmt.HEADER_BYTES
OVERHEAD = fmt.SPEC.overhead
SEGMENT_BYTES = 300
MESSAGE_BYTES = 2048
INTERVAL = 3
EVERY = bool(os.environ.get("PENSTOCK_EVERY"))  # every single bit and byte; else a sample, where each costs an opening


def one_in(n: int) -> int:
    """The step of a sample, which is odd, so that all bits of bytes come; ten times as long where the kernel is slow."""
    return 1 if EVERY else 2 * n + 1 if NATIVE else 20 * n + 1


def small_files(patch: pytest.MonkeyPatch) -> None:
    """Files of a few KiB, and an index entry for every third message."""
    patch.setattr(channel, "CHANNEL_MESSAGE_BYTES", MESSAGE_BYTES)
    patch.setattr(channel, "INDEX_INTERVAL", INTERVAL)


def open_channel(path: Path, **options: Any) -> Channel[bytes]:
    return Channel(path, **{"segment_bytes": SEGMENT_BYTES, **options})


def log_of(ch: Channel[bytes]) -> Log:
    assert ch._log is not None
    return ch._log


# ---- the background ----


def by_hand(patch: pytest.MonkeyPatch) -> None:
    """No background thread: `work` does what it would, when a test says so."""
    patch.setattr(Janitor, "serve", lambda self, log: setattr(self, "_log", log))


def work(ch: Channel[bytes]) -> None:
    """All that the background has to do: prepare, seal, retire, compress."""
    assert ch._janitor is not None
    ch._janitor.look_again()
    ch._janitor._turn()


# ---- messages ----


def frames(payloads: list[bytes], start: int = HEADER) -> list[tuple[int, int]]:
    """Where each message's frame begins and ends."""
    out = []
    for p in payloads:
        out.append((start, start + OVERHEAD + len(p)))
        start = out[-1][1]
    return out


def offsets(payloads: list[bytes]) -> list[int]:
    """The offset of each message, and of the end."""
    return [0, *(end for _, end in frames(payloads, 0))]


def drain(rx: Receiver[bytes]) -> list[bytes]:
    """All that there is."""
    out = []
    while (message := rx.try_recv()) is not None:
        out.append(message)
    return out


def messages(ch: Channel[bytes]) -> list[bytes]:
    """Everything in the channel, from its earliest message on."""
    with ch.rx() as rx:
        return drain(rx)


def plain(image: Image) -> list[str]:
    """The plain segments, in order."""
    return sorted((n for n in image if fmt.parse(n) is not None), key=lambda n: int(n.split(".")[1]))


def packed(image: Image) -> list[str]:
    """The compressed ones."""
    return sorted((n for n in image if fmt.parse_compressed(n) is not None), key=lambda n: int(n.split(".")[1]))


def everything(top: Path) -> Image:
    """All files, also those that the background was just making: what a kill leaves."""
    return Image({name: (top / name).read_bytes() for name in files.walk(top)})


def strays(top: Path) -> list[str]:
    """Files that no channel that was closed clean has: of segments that are gone, temporary, prepared."""
    names = set(files.walk(top))
    segments = {s for n in names for s in (fmt.parse(n), fmt.parse_compressed(n)) if s is not None}
    known = {".lock", ".grow", ".append", ".writer", "manifest", "metadata.json", "offset"}
    for s in segments:
        known |= {fmt.name(s) + suffix for suffix in ("", ".time", ".index", ".z")}
    twice = [fmt.name(s) for s in segments if {fmt.name(s), fmt.compressed_name(s)} <= names]
    left = names - known - {n for n in names if n.startswith("cursors/") and not n.endswith(".tmp")}
    # The settings are written before anybody has a lock, so what a process that died over them left may be another's.
    return sorted(n for n in [*left, *twice] if ".torn" not in n and not n.startswith("metadata.json."))


# ---- a disk ----


class Platter:
    """What is on the disk of a directory, watched while a log in it works on any kernel. It looks after each call that changes a file
    or a name; what was stored into maps meanwhile counts as one change."""

    def __init__(self, patch: pytest.MonkeyPatch, top: Path) -> None:
        top.mkdir(parents=True, exist_ok=True)
        self._disk = Disk(top)
        self._lock = threading.RLock()
        self.before: Callable[[str], None] = lambda call: None  # called before anything is changed
        for name in CHANGING:
            patch.setattr(files, name, self._watched(name, getattr(files, name)))

    def close(self) -> None:
        self._disk.close()

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *args: Any, **options: Any) -> Any:
            self.before(name)
            with self._lock:
                self._disk.look()
                synced = self._disk.syncing(_inode(what)) if name.startswith("sync") else None
            out = real(what, *args, **options)
            with self._lock:
                self._disk.look()
                if synced:
                    synced()
            return out

        return call

    def adopt(self) -> None:
        """What lies there now is on the disk."""
        top = self._disk.path
        self._disk.close()
        self._disk = Disk(top)

    def image(self, rng: random.Random | None = None, page: int = 4096) -> Image:
        """What a power cut now would leave: at the least, or with whatever else had reached the disk by chance."""
        with self._lock:
            self._disk.look()
            moment = self._disk.moment(0, "", None)
        state = moment.some(rng, page) if rng else moment.least()
        image = Image(state)
        image.directories = state.directories
        return image


def _inode(what: int | Path) -> int:
    return (os.fstat(what) if isinstance(what, int) else what.stat()).st_ino


@contextmanager
def watched(top: Path) -> Iterator[Platter]:
    """A channel's directory on a disk whose power can be cut, with the background done by hand."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        platter = Platter(patch, top)
        try:
            yield platter
        finally:
            platter.close()
