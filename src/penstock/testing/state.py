"""Files as a crash leaves them, to be written down and opened."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal

from penstock.storage.directory import TEMPORARY

PAGE: Final = ".lock"  # a control page: its first sector counts in its own boot, the others after that, too
_BOOT_AT, _PLACE_AT = 16, 32  # in it: boot id; device and inode

Boot = Literal["same", "new"]


def temporaries(paths: Iterable[str]) -> set[str]:
    """Those of files that were being made in a log, or stood ready to become its next: whoever opens it removes them unread. A log is
    where a control page is. Named readers are left out: a name may end so."""
    every = list(paths)
    logs = tuple(path.removesuffix(PAGE) for path in every if path.rpartition("/")[2] == PAGE)
    made = (path for path in every if TEMPORARY.search(path) and path.startswith(logs))
    return {path for path in made if "cursors" not in path.split("/")[:-1]}


class State(dict[str, bytes]):
    """Files by their path within a directory, as a crash leaves them; `directories` are those without any file too."""

    directories: frozenset[str] = frozenset()

    def lay(self, top: Path, boot: Boot) -> Path:
        """Write them down: as this boot's, where control pages are exact (a kill), or as an earlier one's (a power cut)."""
        top.mkdir(parents=True, exist_ok=True)
        made = {top}
        for name in self.directories:
            (top / name).mkdir(parents=True, exist_ok=True)
        for name, data in self.items():
            path = top / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(data)
            if _is_page(name, data):
                settle_page(path, boot)
        return top

    def digest(self, boot: Boot) -> bytes:
        """Equal for states that are the same when written down."""
        digest = blake2b(repr(sorted(self.directories)).encode(), digest_size=16)
        for name, data in sorted(self.items()):
            if _is_page(name, data):
                data = data[:_PLACE_AT] + bytes(16) + data[_PLACE_AT + 16 :]
                data = data[:_BOOT_AT] + bytes(16) + data[_BOOT_AT + 16 :] if boot == "new" else data
            digest.update(f"{boot} {name} {len(data)} ".encode())
            digest.update(data)
        return digest.digest()


def _is_page(name: str, data: bytes) -> bool:
    return name.rpartition("/")[2] == PAGE and len(data) >= _PLACE_AT + 16


def settle_page(path: Path, boot: Boot) -> None:
    """A copied control page is nobody's: make it this boot's, or an earlier one's."""
    with path.open("r+b") as page:
        st = os.fstat(page.fileno())
        page.seek(_PLACE_AT)
        page.write(struct.pack("<QQ", st.st_dev, st.st_ino))
        if boot == "new":
            page.seek(_BOOT_AT)
            page.write(bytes(16))
