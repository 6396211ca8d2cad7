"""Who may write where only one process may: an exclusive flock on `.writer`, which also says which process that is.

The system lets the lock go when its holder dies, at whatever instruction; a child that it forked does not keep it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.errors import LogBusy
from penstock.storage import files

_NAME: Final = ".writer"
_MOST_BYTES: Final = 64


class Holder:
    """The right to write in a directory, from its making until `close`."""

    def __init__(self, top: Path, what: str, *, readable: bool = True) -> None:
        """`readable`: others may open it with read_only=True meanwhile."""
        self._fd = files.open_to_lock(top / _NAME)
        try:
            if not files.lock(self._fd, shared=False, wait=False):
                other = files.read(self._fd, 0, _MOST_BYTES).decode("ascii", "replace").strip()
                who = "this process" if other == str(os.getpid()) else f"process {other or 'unknown'}"
                instead = ", or open it here with read_only=True" if readable else ""
                raise LogBusy(
                    f"{top}: {who} has this {what} open, and one at a time may; close it there first{instead}"
                )
            files.write(
                self._fd, f"{os.getpid()}\n".ljust(_MOST_BYTES).encode(), 0
            )  # in one piece: it is read unlocked
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            files.close(fd)


def is_held(top: Path) -> bool:
    """Whether a process has the right to write in a directory, as far as the system tells. Takes no lock: that could keep one from it."""
    try:
        with files.opened(top / _NAME) as fd:
            return bool(files.lock_holders(fd))
    except FileNotFoundError:
        return False
