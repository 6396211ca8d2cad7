"""Runs a workload of a use on failing storage, and judges what it comes to.

An operation may fail, with an error of ours; then readers go on, and after a failed sync nothing more is reported
as done. Opened again on storage that works, everything that was acknowledged is there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock import DiskFull, PenstockError, SyncFailed
from penstock.testing.failing import KINDS, Fault, failing
from tests.kit.driver import Tried
from tests.kit.uses import USES, Broken, Use, must
from tests.queue.crash import Yard


def calls(yard: Yard, use: str, kind: str) -> int:
    """How many calls of a kind the long workload of a use makes."""
    made = USES[use](yard.new() / "log")
    with failing(Fault(kind, 0)) as counted:
        made.open()
        for op in made.long:
            made.do(op)
        made.close()
    return counted.calls


def faults(yard: Yard, use: str, every: int, start: int, *kinds: str) -> Iterator[Fault]:
    """Every n-th call of each kind, or of these, once and for good."""
    for kind in kinds or KINDS:
        for nth in range(1 + start % every, calls(yard, use, kind) + 1, every):
            yield Fault(kind, nth)
            yield Fault(kind, nth, for_good=True)


def replay(use: str, fault: Fault) -> str:
    good = " --for-good" if fault.for_good else ""
    return f"python -m tests.kit.campaign --use {use} --fault '{fault.kind}' --nth {fault.nth}{good}"


def try_fault(yard: Yard, use: str, fault: Fault) -> Tried:
    """A use's long workload, with one fault."""
    made = USES[use](yard.new() / "log")
    try:
        records = made.judge(made.path, _run(made, fault), "same")
    except Exception as error:
        told = f"{use}: {fault}: {type(error).__name__}: {error}\nagain with: {replay(use, fault)}"
        return Tried(1, failures=[told])
    return Tried(1, records)


def _run(made: Use, fault: Fault) -> Any:
    """What was promised."""
    told = None
    with failing(fault) as failed:
        is_open = poisoned = False
        try:
            for op in ("open", *made.long):
                try:
                    made.do(op)
                    is_open = True
                except PenstockError as error:  # a bare one of the system's says no next step
                    must(failed.failed, "nothing fails by itself", op, error)
                    _says_what_and_where(op, error)
                    must(fault.kind != "short write", "what was half written is written on", op, error)
                    poisoned |= isinstance(error, SyncFailed)
                    is_open &= op != "reopen"  # closing lets go, whatever it has to say
                    if not is_open or not made.goes_on:
                        told = made.now()
                        if is_open and poisoned:
                            _succeeds_no_more(made)
                        break
                    if fault.kind != "EMFILE":  # a reader needs to open a file
                        made.read()
                else:
                    must(not (poisoned and op in made.durable), "a failed sync is not followed by a success", op)
                    poisoned &= op != "reopen"
        finally:
            if is_open:
                with suppress(PenstockError):
                    made.close()
    return made.now() if told is None else told


def _says_what_and_where(op: str, error: PenstockError) -> None:
    """An error of ours has all of that in its message; one that is the system's, too, for whoever asks for it."""
    if isinstance(error, OSError):
        must(error.errno and error.filename, "an error names the file, and says what happened to it", op, error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        must(not full or isinstance(error, DiskFull), "a full disk is told as one, and is no failed sync", op, error)
        many = error.errno in (errno.EMFILE, errno.ENFILE)
        must(not (many and isinstance(error, SyncFailed)), "a sync that was not tried did not fail", op, error)


def _succeeds_no_more(made: Use) -> None:
    """After a failed sync, though the next one would not fail. It changes nothing: what was promised stays."""
    for op in made.durable:
        try:
            made.do(op)
        except PenstockError:
            continue
        raise Broken(f"a failed sync is not followed by a success: {op}")
