"""Runs a workload of a use on failing storage, and judges what it comes to.

An operation may fail, with an error of ours; then readers go on, and after a failed sync nothing more is reported
as done. Opened again on storage that works, everything that was acknowledged is there, even if the power failed meanwhile.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock import DiskFull, NotSynced, PenstockError, SyncFailed
from penstock.testing.crashes import Crash
from penstock.testing.failing import KINDS, Fault, failing
from penstock.testing.moment import Moment
from penstock.testing.recording import recorded
from penstock.testing.state import State
from tests.kit.driver import Tried, is_new, judge
from tests.kit.limit import case
from tests.kit.uses import USES
from tests.kit.uses.base import Broken, Use, must
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
        count = calls(yard, use, kind)
        for nth in range(1 + start % max(1, min(every, count)), count + 1, every):  # one of each kind at least
            yield Fault(kind, nth)
            yield Fault(kind, nth, for_good=True)


def replay(use: str, fault: Fault) -> str:
    good = " --for-good" if fault.for_good else ""
    return f"python -m tests.kit.campaign --use {use} --fault '{fault.kind}' --nth {fault.nth}{good}"


def try_fault(yard: Yard, use: str, fault: Fault) -> Tried:
    """A use's long workload, with one fault. What it comes to is judged as it lies there, and as a power cut may leave it after each
    operation since the fault, with what was synced and nothing else, with more by chance, and with the names of one directory or another:
    what a sync should have put on the disk lies in memory all the same."""
    kind, again = USES[use], replay(use, fault)
    made = kind(yard.new() / "log")
    try:
        with case(again):
            told, moments = _run(made, fault)
            tried = Tried(1, kind.judge(made.path, told, "same"))
    except Exception as error:
        return Tried(1, failures=[f"{use}: {fault}: {type(error).__name__}: {error}\nagain with: {again}"])
    rng, seen = random.Random(str(fault)), set[bytes]()
    for moment in moments:
        for state in _states(moment, rng):
            crash = Crash(moment, state, "new")
            if is_new(crash, kind, seen):
                tried.add(judge(yard, kind, crash, moment.note, again, f"{fault}: "))
    return tried


def _states(moment: Moment, rng: random.Random) -> Iterator[State]:
    """Of many names that a failed sync has left in memory chance seldom keeps one directory's, and loses those of another."""
    yield moment.least()
    yield from moment.of_one_directory()
    for group in moment._groups():
        yield replace(moment, changes=tuple(group)).now()
    yield moment.some(rng)


def _run(made: Use, fault: Fault) -> tuple[Any, list[Moment]]:
    """What was promised at the end, and the moments after each operation since the fault. One that fails once is tried again, and then
    succeeds; but after a failed sync nothing does until the log is opened anew."""
    told, moments = None, []
    with recorded(made.path.parent, made.now) as recording, failing(fault) as failed:

        def after(op: str) -> None:
            if failed.failed:
                recording.moment(op)
                moments.append(recording.moments[-1])

        is_open = poisoned = knows = False  # that a sync failed, and that somebody was told
        try:
            for op in ("open", *made.long):
                before = made.now(), knows
                try:
                    made.do(op)
                    is_open = True
                except PenstockError as error:  # a bare one of the system's says no next step
                    must(failed.failed, "nothing fails by itself", op, error)
                    _says_what_and_where(op, error)
                    must(fault.kind != "short write", "what was half written is written on", op, error)
                    poisoned |= isinstance(error, SyncFailed)
                    knows |= isinstance(error, SyncFailed) and op not in made.background
                    is_open &= op != "reopen"  # closing lets go, whatever it has to say
                    if is_open and fault.kind != "EMFILE":  # a reader needs to open a file
                        made.read()
                    tried_again = not fault.for_good and not (is_open and poisoned)
                    if tried_again:
                        after(f"{op}, which failed")
                        _do_again(made, op if is_open else "open", error)
                        poisoned, knows = (poisoned, knows) if is_open else (False, False)
                        is_open = True
                    elif not is_open or not made.goes_on:
                        told = _told(made, *before)
                        if is_open and poisoned:
                            _succeeds_no_more(made)
                        break
                else:
                    must(not (poisoned and op in made.durable), "a failed sync is not followed by a success", op)
                    poisoned, knows = (poisoned, knows) if op != "reopen" else (False, False)
                after(op)
        finally:
            before = made.now(), knows
            if is_open:
                with suppress(PenstockError):
                    made.close()
        told = _told(made, *before) if told is None else told
        recording.moment("close")
    return told, [*moments, replace(recording.moments[-1], note=told)]


def _do_again(made: Use, op: str, failed: PenstockError) -> None:
    try:
        made.do(op)
    except PenstockError as error:
        raise Broken(f"what has failed once can be done again: {op}: {error!r}, after {failed!r}") from error


def _told(made: Use, before: Any, knows: bool) -> Any:
    """What is promised when it was closed: to one who was told before of a failed sync, nothing more."""
    return before if knows else made.now()


def _says_what_and_where(op: str, error: PenstockError) -> None:
    """An error of ours has all of that in its message; one that is the system's, too, for whoever asks for it."""
    if isinstance(error, OSError):
        must(error.errno and error.filename, "an error names the file, and says what happened to it", op, error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        must(
            not full or isinstance(error, DiskFull | NotSynced),
            "a full disk is told as one, and is no failed sync",
            op,
            error,
        )
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
