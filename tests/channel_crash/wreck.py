"""What the crash tests of the channel share: a small channel, its background done by hand, and a disk whose power can be cut.

Images of directories and the two boots are those of `tests.queue.crash`. A `Platter` knows more: it watches which files and
which directories were synced, and gives what a power cut may leave of them at any moment: of each file a mixture of pages,
some as they were last synced and some as they are now, and of each directory the names of some moment since its last sync.
"""

from __future__ import annotations

import os
import random
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
from tests.queue.crash import NATIVE, Image

HEADER = fmt.HEADER_BYTES
OVERHEAD = fmt.SPEC.overhead
SEGMENT_BYTES = 300
MESSAGE_BYTES = 2048
INTERVAL = 3
EVERY = bool(os.environ.get("PENSTOCK_EVERY"))  # every single bit and byte; else a sample, where each costs an opening


def one_in(n: int) -> int:
    """The step of a sample; ten times as long where the kernel is slow."""
    return 1 if EVERY else n if NATIVE else 10 * n


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

State = dict[str, int]  # names in a directory, and which file (by inode) each is


class Platter:
    """What is on the disk, of the files below `top`: what was synced, and what the system wrote of its own accord."""

    def __init__(self, patch: pytest.MonkeyPatch, top: Path) -> None:
        self._top = top
        self._kept: dict[int, bytes] = {}  # by inode
        self._fds: dict[int, int] = {}  # of every file seen: what is removed may come back
        self._names: dict[Path, list[State]] = {top: [{}]}  # since the last sync of each; the first one is on the disk
        self.before: Callable[[str], None] = lambda call: None  # called before anything is changed
        for name in ("write", "truncate", "allocate", "punch"):
            patch.setattr(files, name, self._watched(name))
        for name in ("create", "rename", "remove"):
            patch.setattr(files, name, self._naming(name))
        self._sync, self._sync_directory = files.sync, files.sync_directory
        patch.setattr(files, "sync", self._sync_file)
        patch.setattr(files, "sync_directory", self._sync_names)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _watched(self, name: str) -> Callable[..., Any]:
        real = getattr(files, name)

        def call(*args: Any, **options: Any) -> Any:
            self.before(name)
            return real(*args, **options)

        return call

    def _naming(self, name: str) -> Callable[..., Any]:
        real = getattr(files, name)

        def call(path: Path, *args: Any, **options: Any) -> Any:
            self.before(name)
            out = real(path, *args, **options)
            self._look(path.parent)
            return out

        return call

    def _look(self, directory: Path) -> None:
        if directory != self._top and self._top not in directory.parents:
            return
        state: State = {}
        for entry in os.scandir(directory):
            if entry.is_dir():
                state[entry.name] = 0
                continue
            state[entry.name] = entry.inode()
            if entry.inode() not in self._fds:
                self._fds[entry.inode()] = os.open(entry.path, os.O_RDONLY)
        self._names.setdefault(directory, [{}]).append(state)

    def _sync_file(self, fd: int) -> None:
        self.before("sync")
        inode, content = os.fstat(fd).st_ino, _content(fd)
        self._sync(fd)
        if inode in self._fds:  # else it is another directory's
            self._kept[inode] = content

    def _sync_names(self, path: Path) -> None:
        self.before("sync_directory")
        self._sync_directory(path)
        self._look(path)
        if path in self._names:
            self._names[path] = self._names[path][-1:]

    def adopt(self, top: Path) -> None:
        """What lies there now is on the disk."""
        for directory in (top, *(p for p in top.iterdir() if p.is_dir())):
            self._look(directory)
            self._names[directory] = self._names[directory][-1:]
        self._kept = {inode: _content(fd) for inode, fd in self._fds.items()}

    def leak(self, rng: random.Random, page: int) -> None:
        """The system writes back some pages, and some of the names, because it likes to."""
        for inode in self._fds:
            if rng.random() < 0.3:
                self._kept[inode] = self._mixed(inode, rng, page)
        for states in self._names.values():
            if rng.random() < 0.3:
                del states[: rng.randrange(len(states))]

    def _mixed(self, inode: int, rng: random.Random, page: int) -> bytes:
        """Some pages as they are on the disk, some as they are now; never synced ones of a longer file read as zeros."""
        old, new = self._kept.get(inode, b""), _content(self._fds[inode])
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        size = rng.choice([len(old), len(new)])
        parts = []
        for at in range(0, size, page):
            source = new if rng.random() < share else old
            parts.append(source[at : at + page].ljust(page, b"\0"))
        return b"".join(parts)[:size]

    def image(self, rng: random.Random | None = None, page: int = 4096) -> Image:
        """What a power cut now would leave: at the least, or with whatever else had reached the disk by chance."""
        out = Image()
        for directory, states in self._names.items():
            if directory != self._top and directory.name not in self._names[self._top][0] and rng is None:
                continue
            state = rng.choice(states) if rng else states[0]
            for name, inode in state.items():
                if inode:
                    path = (directory / name).relative_to(self._top).as_posix()
                    out[path] = self._mixed(inode, rng, page) if rng else self._kept.get(inode, b"")
        return out


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0) if size else b""


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
