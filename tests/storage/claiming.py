"""Members of a group in processes of their own, and how a test looks at them and tells them what to do."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from penstock.storage.claims import Claims

MOST = 32  # things
_UP, _GIVES, _STOP, _DOUBLE, _ASKED, _MINE = 0, 1, 2, 3, 4, 16


class Member:
    """A forked process with a member that settles whenever it is worth while, and says what it has in shared memory.

    For each thing it has, it holds a lock of another kind on a file of the test's. Should that be taken, the thing has two
    owners. (Those files are opened before the member's own: a process that dies closes its files in order.)
    """

    def __init__(self, top: Path, count: int, proofs: Path, *, gives: bool = True) -> None:
        self.count = count
        self.words = mmap.mmap(-1, 64)
        self.words[_GIVES] = gives
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._work(top, proofs)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def _work(self, top: Path, proofs: Path) -> None:
        words = self.words
        fds = [os.open(proofs / str(i), os.O_RDWR | os.O_CREAT, 0o666) for i in range(self.count)]

        def may_give(thing: int) -> bool:
            words[_ASKED] = 1
            if words[_GIVES]:
                words[_MINE + thing] = 0
                fcntl.lockf(fds[thing], fcntl.LOCK_UN)
            return bool(words[_GIVES])

        claims = Claims(top, self.count)
        words[_UP] = 1
        while not words[_STOP]:
            if claims.changed():
                new, lost = claims.settle(may_give)
                for thing in new:
                    try:
                        fcntl.lockf(fds[thing], fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        words[_DOUBLE] = 1
                    words[_MINE + thing] = 1
                if any(words[_MINE + thing] for thing in lost):
                    words[_DOUBLE] = 1
            time.sleep(0.0005)
        for fd in fds:
            fcntl.lockf(fd, fcntl.LOCK_UN)
        claims.close()
        words[_MINE : _MINE + MOST] = bytes(MOST)

    @property
    def is_up(self) -> bool:
        return bool(self.words[_UP])

    @property
    def mine(self) -> set[int]:
        return {i for i in range(self.count) if self.words[_MINE + i]}

    @property
    def asked(self) -> bool:
        """Whether it was asked to give something back."""
        return bool(self.words[_ASKED])

    def let_give(self) -> None:
        self.words[_GIVES] = 1

    def kill(self, with_signal: int = signal.SIGKILL) -> None:
        os.kill(self.pid, with_signal)

    def stop(self) -> None:
        """Have it close its member and end."""
        self.words[_STOP] = 1

    def gone(self) -> int:
        """Wait for its end; how that was."""
        pid, self.pid = self.pid, 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0
        assert not self.words[_DOUBLE], "a thing had two owners"
        return code

    def clean(self) -> None:
        if self.pid:
            self.kill()
            self.gone()


def forked(work: Callable[[], object]) -> int:
    """A process that does this, and then lives until it is killed; it has done it when this returns."""
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(say, b"y")
            signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(say)
    try:
        assert os.read(ready, 1) == b"y"
    finally:
        os.close(ready)
    return pid


def end(pid: int) -> int:
    """Kill it, if it lives yet; how it ended."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
