"""Operations on the native kernel, one instruction at a time: what lies in the files after each is what a kill there leaves.

A child does the operation, and stops at each call of the kernel; this process traces it through those, and looks at the mapped files after
every instruction. Whatever they were is judged by what was promised just then, as everywhere in the kit. It is a program, since who is
traced must be a child of who traces, and who forks should have no threads.

    python -m tests.kit.stepping queue append,batch
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from penstock import kernel
from penstock.storage import files
from penstock.testing.state import State
from tests.kit.uses import USES
from tests.kit.uses.base import Use
from tests.kit.uses.scale import small
from tests.queue.crash import Yard, open_yard
from tests.support import until

_NATIVE: Final = "penstock.kernel._native"
NOT_ALLOWED: Final = 77  # how it ends where no process may trace another
_TRACEME, _CONT, _SINGLESTEP, _SEIZE, _INTERRUPT = 0, 7, 9, 0x4206, 0x4207
_WALL: Final = 0x40000000  # wait for threads too
_MOST: Final = 1 << 20  # bytes of a file


class NotAllowed(Exception):
    """No process may trace another here."""


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, pid: int = 0) -> None:
    if _libc.ptrace(request, pid, None, None):
        raise OSError(ctypes.get_errno(), f"ptrace({request}): {os.strerror(ctypes.get_errno())}")


# ---- in the child ----


def _at_calls(act: Callable[[], None]) -> None:
    """Stop before and after each call of something of the native kernel."""
    within = 0

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal within
        if event.startswith("c_") and _may_store(called):
            within += 1 if event == "c_call" else -1
            if within == (event == "c_call"):
                signal.raise_signal(signal.SIGSTOP)

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)


def _may_store(called: Any) -> bool:
    """Whether it belongs to the native kernel and does more than look."""
    homes = (type(getattr(called, "__self__", None)).__module__, getattr(called, "__module__", None))
    return _NATIVE in homes and called.__name__ not in ("load", "active")


def _begun(kind: type[Use], ops: Sequence[str], path: Path) -> Use:
    """Open, with all but the last operation done."""
    made = kind(path)
    made.open()
    for op in ops[:-1]:
        made.do(op)
    return made


def _child(kind: type[Use], ops: Sequence[str], path: Path) -> None:
    made = _begun(kind, ops, path)
    try:
        _ptrace(_TRACEME)
    except OSError:
        os._exit(NOT_ALLOWED)
    signal.raise_signal(signal.SIGSTOP)
    _at_calls(lambda: made.do(ops[-1]))
    os._exit(0)  # nothing is closed


def _started(kind: type[Use], ops: Sequence[str], path: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _child(kind, ops, path)
        finally:
            os._exit(1)
    stopped_by = _stopped_by(pid)
    if stopped_by is None:
        raise NotAllowed
    assert stopped_by == signal.SIGSTOP, stopped_by
    for other in Path(f"/proc/{pid}/task").iterdir():
        if int(other.name) != pid:
            _halt(other)
    return pid


def _halt(thread: Path) -> None:
    """A thread that waits for work gets none: who waits for what it would do does it, and nothing else is done meanwhile."""
    until(lambda: (thread / "stat").read_text().rsplit(") ")[1][0] == "S", "the thread sleeps")
    _ptrace(_SEIZE, int(thread.name))
    _ptrace(_INTERRUPT, int(thread.name))
    os.waitpid(int(thread.name), _WALL)


def _stopped_by(pid: int) -> int | None:
    """The signal at which it stands; None, if it has ended, or was not allowed to begin."""
    who, status = os.waitpid(-1, _WALL)
    while who != pid:  # a thread has ended with it
        who, status = os.waitpid(-1, _WALL)
    if os.WIFSTOPPED(status):
        return os.WSTOPSIG(status)
    assert os.WIFEXITED(status), f"it died: {status}"
    assert os.WEXITSTATUS(status) in (0, NOT_ALLOWED), f"it ended with {status >> 8}"
    return None


# ---- in the one that traces ----


@dataclass
class Stepped:
    """What became of the files while an operation was done."""

    steps: int = 0
    states: list[State] = field(default_factory=list)


def _stops(pid: int) -> Iterator[int]:
    """Each time it stands: after an instruction of the kernel, or having come to a call of it or from one."""
    stepping = False
    while True:
        _ptrace(_SINGLESTEP if stepping else _CONT, pid)
        stopped_by = _stopped_by(pid)
        if stopped_by is None:
            return
        if stopped_by == signal.SIGSTOP:
            stepping = not stepping
        else:
            assert stopped_by == signal.SIGTRAP, stopped_by
        yield stopped_by


class Looking:
    """The files below a directory, as they are now."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._fds: dict[str, int] = {}
        self._state = State()

    def names(self) -> None:
        """Which there are; between two of these none may come or go."""
        self.close()
        self._fds = {name: files.open_read(self._top / name) for name in files.walk(self._top)}
        directories = frozenset(str(p.relative_to(self._top)) for p in self._top.rglob("*") if p.is_dir())
        self._state = State({name: os.pread(fd, _MOST, 0) for name, fd in self._fds.items()})
        self._state.directories = directories

    def state(self) -> State:
        """The same object as before, if nothing was changed."""
        before = self._state
        changed = {name: data for name, fd in self._fds.items() if (data := os.pread(fd, _MOST, 0)) != before[name]}
        if changed:
            self._state = State({**before, **changed})
            self._state.directories = before.directories
        return self._state

    def close(self) -> None:
        for fd in self._fds.values():
            files.close(fd)
        self._fds = {}


@contextmanager
def killing(pid: int) -> Iterator[None]:
    """It does not stay behind if something goes wrong."""
    try:
        yield
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def stepped(kind: type[Use], ops: Sequence[str], path: Path) -> Stepped:
    """The last operation."""
    pid = _started(kind, ops, path)
    out, looking = Stepped(), Looking(path)
    with closing(looking), killing(pid):
        looking.names()
        for stopped_by in _stops(pid):
            if stopped_by == signal.SIGTRAP:
                out.steps += 1
            else:
                looking.names()
            state = looking.state()
            if not out.states or (out.states[-1] is not state and out.states[-1] != state):
                out.states.append(state)
    return out


def promised(kind: type[Use], ops: Sequence[str], path: Path) -> Any:
    """What is, while the last operation is under way: it is done in this process, to be asked meanwhile."""
    made = _begun(kind, ops, path)
    before, seen = repr(kind.promised(made.now())), []

    def look(*_: object) -> None:
        if not seen and repr(kind.promised(made.now())) != before:
            seen.append(made.now())

    sys.setprofile(look)
    try:
        made.do(ops[-1])
    finally:
        sys.setprofile(None)
    made.close()
    return seen[0]


def try_steps(yard: Yard, use: str, ops: Sequence[str]) -> Stepped:
    kind = USES[use]
    told = promised(kind, ops, yard.keep() / "log")
    found = stepped(kind, ops, yard.keep() / "log")
    for number, state in enumerate(found.states):
        try:
            kind.judge(state.lay(yard.new(), "same"), told, "same")
        except Exception as error:
            error.add_note(f"in state {number} of {len(found.states)} of {use}, {','.join(ops)}")
            raise
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.stepping", description=__doc__.split("\n")[0])
    parser.add_argument("use", choices=["queue", "channel", "journal", "topic"])
    parser.add_argument("ops", help="operations with commas between; the last one is stepped through")
    a = parser.parse_args()
    assert kernel.NAME == "native", "of the reference kernel every line is looked at: see tests.kit.campaign"
    with open_yard() as yard, small():
        try:
            found = try_steps(yard, a.use, a.ops.split(","))
        except NotAllowed:
            print("no process may trace another here")
            return NOT_ALLOWED
    print(f"{found.steps} instructions, {len(found.states)} states of the files, all of them right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
