"""A file system whose power can be cut: an image in a btrfs, mounted, of which a copy is taken at once while it is written.

A copy (FICLONE) holds what had reached the image at one moment: what a file system still had in memory is not in it, as
after a power cut. Mounting the copy lets the file system recover. The copy lies on another device, so control pages of the
running boot are not believed, as after a reboot. Needs root, loop devices, btrfs, and the file system's mkfs.

All that the disk was sent up to that moment is there. A disk may also lose, of what it was sent and not told to flush, any part;
that is left to the tests that lay files out by hand (tests/*_crash, tests/queue/test_torn.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FILE_SYSTEMS = ("ext4", "xfs")
IMAGE_BYTES = 512 << 20  # sparse; an xfs has at least 300 MiB
_STORE_BYTES = 8 << 30  # sparse
_FICLONE = 0x40049409
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"]}
_MOUNT = {"ext4": "loop,commit=1", "xfs": "loop"}
_MOUNT_COPY = {"ext4": "loop", "xfs": "loop,nouuid"}  # beside the one it was copied from


def missing(kind: str = "ext4") -> str | None:
    """What this machine lacks for it, or None."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for program in ("mkfs.btrfs", _MAKE[kind][0]):
        if shutil.which(program) is None:
            return f"there is no {program}"
    known = Path("/proc/filesystems").read_text().split()
    for name in ("btrfs", kind):
        if name not in known:
            return f"this kernel has no {name}"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return None


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def _make_image(path: Path, size: int, *make: str) -> None:
    with path.open("wb") as f:
        f.truncate(size)
    _run(*make, path)


@contextmanager
def mounted(image: Path, place: Path, options: str) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    _run("mount", "-o", options, image, place)
    try:
        yield place
    finally:
        _run("umount", place)


class Disk:
    """A mounted file system; `cut` gives a copy of what its disk holds now."""

    def __init__(self, store: Path, kind: str) -> None:
        self.kind = kind
        self.image = store / "image"
        self.place = store.parent / "disk"
        self._copies = 0

    def cut(self) -> Path:
        """Take what has reached the disk at this moment."""
        self._copies += 1
        copy = self.image.with_name(f"cut.{self._copies}")
        with self.image.open("rb") as source, copy.open("wb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        return copy

    @contextmanager
    def after(self, copy: Path) -> Iterator[Path]:
        """What is there when the power is back. The copy is removed at last."""
        place = self.place.with_name("after")
        try:
            with mounted(copy, place, _MOUNT_COPY[self.kind]):
                if place.stat().st_dev == self.place.stat().st_dev:
                    raise AssertionError("the copy has the device of the original: its control pages would be believed")
                yield place
        finally:
            copy.unlink()


@contextmanager
def new_disk(kind: str) -> Iterator[Disk]:
    """A new, empty file system, in memory if there is room for that: what is cut is not this machine's power."""
    ram = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(prefix="penstock-power-", dir=ram if os.access(ram, os.W_OK) else None))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, top)
        _make_image(top / "store.image", _STORE_BYTES, "mkfs.btrfs", "-q")
        store = stack.enter_context(mounted(top / "store.image", top / "store", "loop"))
        disk = Disk(store, kind)
        _make_image(disk.image, IMAGE_BYTES, *_MAKE[kind])
        stack.enter_context(mounted(disk.image, disk.place, _MOUNT[kind]))
        yield disk


class Writeback(threading.Thread):
    """Sends random parts of random files on their way to the disk, as the system does after some seconds."""

    def __init__(self, top: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self._top = top
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0.001, 0.02)):
            found = [Path(d) / name for d, _, names in os.walk(self._top) for name in names]
            if found:
                with contextlib.suppress(FileNotFoundError):
                    self._send(self._random.choice(found))

    def _send(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = max(4096, os.fstat(fd).st_size)
            start = self._random.randrange(0, size, 4096)
            length = 4096 * self._random.randint(1, 16)
            if self._libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(length), _START_WRITING):
                raise OSError(ctypes.get_errno(), "sync_file_range", str(path))
        finally:
            os.close(fd)

    def stop(self) -> None:
        self._over.set()
        self.join()
