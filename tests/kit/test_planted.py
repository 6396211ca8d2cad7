"""Bugs planted in the engine, one at a time: the kit finds each. What it would not find, nobody would."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import channel, journal
from penstock.kernel.reference import buffered as buffered_kernel
from penstock.kernel.reference import writer
from penstock.storage import (
    buffered,
    companion,
    files,
    growing,
    log,
    opening,
    packing,
    recovery,
    sealing,
    shrink,
    span,
    syncing,
)
from penstock.storage.control import Control, Mark
from penstock.storage.cursor import Cursors
from penstock.storage.directory import Directory
from penstock.storage.ledger import Ledger
from penstock.storage.manifest import Manifest
from penstock.storage.offsets import Offsets
from penstock.storage.segment import Format, SegmentPaths
from tests.kit import campaign
from tests.kit.driver import Tried, try_workload
from tests.kit.faults import faults, try_fault
from tests.kit.uses import USES
from tests.kit.uses.queues import QueueUse
from tests.queue.crash import Yard

SEED = 1
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def publish_first(patch: Patch) -> None:
    """The end is published before the word that commits: the order of the last stores, where there are no fences to keep it. They are
    the kernel's own lines, and each is looked at as ever."""
    commit, publish = "    data[start : start + 4] = commit\n", "    words[slot_word(turn, layout.END)] = at\n"
    lines = inspect.getsource(writer.Writer._write)
    source = textwrap.dedent(lines).replace(commit, "").replace(publish, publish + commit)
    assert source.index(publish) < source.index(commit)
    made: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + source, str(writer.__file__), "exec"), vars(writer), made)
    patch.setattr(writer.Writer, "_write", made["_write"])


def keep_torn_tail(patch: Patch) -> None:
    """What lies beyond the end of a torn log stays there."""
    patch.setattr(recovery.Opening, "_cut_tail", lambda self, seg, end: None)


def sync_no_names(patch: Patch) -> None:
    """A directory is not synced when a file in it is."""
    patch.setattr(files, "sync_directory", lambda path: None)


def sync_last_name(patch: Patch) -> None:
    """Of several directories that are made one in the other, only the name of the last is synced, and then those of the files in it."""
    real = files.make_directories

    def make_directories(path: Path, top: Path) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(files, "sync_directory", lambda directory: None)
            real(path, top)
        files.sync_directory(path.parent)

    patch.setattr(files, "make_directories", make_directories)
    patch.setattr(SegmentPaths, "sync_names", lambda self: files.sync_directory(self.data.parent))


def sync_no_new_manifest(patch: Patch) -> None:
    """A manifest is written anew, and goes on by a name that is not synced."""
    real = Manifest.rewrite

    def rewrite(self: Manifest, generation: int) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(files, "sync_directory", lambda directory: None)
            real(self, generation)

    patch.setattr(Manifest, "rewrite", rewrite)


def list_unsynced(patch: Patch) -> None:
    """A segment is listed as sealed, and its files were not synced before."""
    real = log.Log.seal_finished

    def seal_finished(self: log.Log, least: int = 1) -> int:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(self, "sync", lambda: 0)
            meanwhile.setattr(sealing, "seal_files", lambda log, control, done: None)
            return real(self, least)

    patch.setattr(log.Log, "seal_finished", seal_finished)


def never_poison(patch: Patch) -> None:
    """A failed sync is told once, and forgotten."""
    patch.setattr(Control, "set_poison", lambda self, code: None)


def swallow_failed_syncs(patch: Patch) -> None:
    """A sync that failed is taken for one that did not."""

    def guard_sync(directory: Directory, control: Control, sync: Callable[[], None]) -> None:
        with suppress(OSError):
            sync()

    for module in (span, log, syncing, sealing, buffered, channel):
        patch.setattr(module, "guard_sync", guard_sync)


def cut_entries_first(patch: Patch) -> None:
    """Of a batch that is taken back the companion's entries go before the records do."""

    def cut(top: Path, fmt: Format, segment: int, end: int, count: int) -> None:
        paths = SegmentPaths(top, fmt, segment)
        growing._end_at(paths.times, companion.length(fmt.SPEC, count))
        growing._end_at(paths.data, end)

    patch.setattr(growing, "cut", cut)


def trust_the_killed(patch: Patch) -> None:
    """What a process that was killed had appended is taken for durable by the next one, which does not sync it."""
    real = Control.initialise

    def initialise(self: Control, segment: int, base: int, end: int, next_: int, last_us: int, durable: Mark) -> None:
        real(self, segment, base, end, next_, last_us, Mark(segment, end, next_))

    patch.setattr(Control, "initialise", initialise)
    patch.setattr(recovery.Opening, "sync", lambda self, fd: None)
    patch.setattr(sealing, "seal_files", lambda log, control, done: None)


def remove_unlisted(patch: Patch) -> None:
    """The files of a segment go when the log is opened, though that it is retired is not known to be on the disk: who said so was killed."""
    real = opening._drop_leftovers

    def drop_leftovers(*args: Any) -> bool:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Manifest, "sync", lambda self: None)
            meanwhile.setattr(Manifest, "rewrite", lambda self, generation: None)
            return real(*args)

    patch.setattr(opening, "_drop_leftovers", drop_leftovers)


def forget_ledger(patch: Patch) -> None:
    """Whether a batch is there already is not asked."""
    patch.setattr(Ledger, "_settled", lambda self: type(self._load())())


def settle_unsynced(patch: Patch) -> None:
    """That the batch of a process that died is there is noted, and not that it may not be on the disk."""
    real = Ledger._settled

    def settled(self: Ledger) -> Any:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(self._log, "sync", lambda: 0)
            return real(self)

    patch.setattr(Ledger, "_settled", settled)


def end_walks_at_once(patch: Patch) -> None:
    """What was walked over goes before what was appended again meanwhile is on the disk."""
    patch.setattr(journal.Checkpoint, "result", lambda self, timeout_s=None: None)
    patch.setattr(buffered_kernel.Buffered, "flush", lambda self: None)


def sync_no_cursors(patch: Patch) -> None:
    """A cursor is synced, and the directory of all cursors not, which is there: whoever made it has failed to."""
    patch.setattr(Cursors, "sync", lambda self: files.sync_directory(self._directory))


def sync_no_slot(patch: Patch) -> None:
    """A new receiver has a name on the disk before its slot is there, which was another's."""
    real = channel.Channel._make_group

    def make_group(self: channel.Channel[Any], log: Any, name: str, ack: bool) -> Any:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Offsets, "sync", lambda self: None)
            return real(self, log, name, ack)

    patch.setattr(channel.Channel, "_make_group", make_group)


def forget_unsynced(patch: Patch) -> None:
    """A receiver is forgotten, and the disk is not told, though its slot is soon another's."""
    real = channel.Channel.forget

    def forget(self: channel.Channel[Any], name: str) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(self, "_sync_names", lambda: None)
            real(self, name)

    patch.setattr(channel.Channel, "forget", forget)


def sync_no_other_manifest(patch: Patch) -> None:
    """What is added to a manifest is synced, and the name of one that stands in place of another not: whoever wrote it has failed to."""
    real = Manifest.sync

    def sync(self: Manifest) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(files, "sync_directory", lambda directory: None)
            real(self)

    patch.setattr(Manifest, "sync", sync)


class _NeverSyncing:
    """The functions of `files`, of which none puts anything on the disk."""

    def __getattr__(self, name: str) -> Any:
        return (lambda what: None) if name in ("sync", "sync_directory") else getattr(files, name)


def compress_unsynced(patch: Patch) -> None:
    """The plain file of a compressed segment goes before that is on the disk."""
    for module in (packing, shrink):
        patch.setattr(module, "files", _NeverSyncing())


def crashes(yard: Yard, use: str, *workloads: Sequence[str]) -> Tried:
    """Until something is found."""
    found = Tried()
    for ops in workloads:
        found.add(try_workload(yard, use, ops, SEED, 400, done=0, to_first=True))
        if found.failures:
            break
    return found


def late_crashes(yard: Yard, use: str, *ops: str) -> Tried:
    """Of the last two operations, most of them power cuts."""
    return try_workload(yard, use, ops, SEED, 60, done=len(ops) - 2, most_kills=1, to_first=True)


def second_crashes(yard: Yard, use: str, ops: Sequence[str]) -> Tried:
    """Of every crash of the last operation the recovery is cut."""
    return try_workload(yard, use, ops, SEED, 1, done=len(ops) - 1, during_recovery=1 << 20, to_first=True)


def cut_before_syncs(yard: Yard, use: str, *ops: str) -> Tried:
    """Of a kill right before each sync of the last operation the recovery is cut."""
    return try_workload(
        yard, use, ops, SEED, 1, done=len(ops) - 1, most_kills=1, during_recovery=1 << 20, to_first=True
    )


def failed_syncs(yard: Yard, use: str, last: int = 0) -> Tried:
    """Or only so many of the last ones."""
    found = Tried()
    for fault in list(faults(yard, use, 1, 0, "EIO on sync"))[-last:]:
        found.add(try_fault(yard, use, fault))
        if found.failures:
            break
    return found


PLANTED: dict[str, tuple[Plant, Callable[[Yard], Tried]]] = {
    "publish first": (publish_first, lambda yard: crashes(yard, "queue", ["append", "append"])),
    "keep torn tail": (keep_torn_tail, lambda yard: crashes(yard, "queue", ["batch", "append"], ["append", "batch"])),
    "sync no names": (sync_no_names, lambda yard: crashes(yard, "topic", ["publish", "many"])),
    "sync last name": (sync_last_name, lambda yard: crashes(yard, "queue", ["append", "sync"])),
    "sync no new manifest": (
        sync_no_new_manifest,
        lambda yard: late_crashes(yard, "queue", "span", "span", "work", "append", "sync"),
    ),
    "list unsynced": (list_unsynced, lambda yard: crashes(yard, "queue", ["commit", "batch", "span", "work"])),
    "never poison": (never_poison, lambda yard: failed_syncs(yard, "queue")),
    "never poison a channel": (never_poison, lambda yard: failed_syncs(yard, "channel")),
    "never poison a journal": (never_poison, lambda yard: failed_syncs(yard, "journal")),
    "never poison a sink": (never_poison, lambda yard: failed_syncs(yard, "sink")),
    "never poison a topic": (never_poison, lambda yard: failed_syncs(yard, "topic")),
    "never poison a sink to a topic": (never_poison, lambda yard: failed_syncs(yard, "topic-sink")),
    "swallow failed syncs": (swallow_failed_syncs, lambda yard: failed_syncs(yard, "queue")),
    "swallow failed syncs of a channel": (swallow_failed_syncs, lambda yard: failed_syncs(yard, "channel")),
    "swallow failed syncs of a topic": (swallow_failed_syncs, lambda yard: failed_syncs(yard, "topic")),
    "cut entries first": (cut_entries_first, lambda yard: failed_syncs(yard, "topic-sink")),
    "trust the killed": (trust_the_killed, lambda yard: second_crashes(yard, "queue", ["append", "append"])),
    "remove unlisted": (remove_unlisted, lambda yard: cut_before_syncs(yard, "queue-batch", "span", "work")),
    "end walks at once": (end_walks_at_once, lambda yard: crashes(yard, "journal", ["append", "again"])),
    "forget ledger": (forget_ledger, lambda yard: crashes(yard, "sink", ["batch", "batch"])),
    "sync no cursors": (sync_no_cursors, lambda yard: failed_syncs(yard, "topic")),
    "sync no slot": (sync_no_slot, lambda yard: crashes(yard, "channel", ["send", "receive", "anew"])),
    "forget unsynced": (forget_unsynced, lambda yard: crashes(yard, "channel", ["send", "receive", "anew"])),
    "sync no other manifest": (sync_no_other_manifest, lambda yard: failed_syncs(yard, "queue", 30)),
    "compress unsynced": (compress_unsynced, lambda yard: crashes(yard, "channel", USES["channel"].long)),
    "settle unsynced": (settle_unsynced, lambda yard: second_crashes(yard, "sink", ["batch"])),
}


def is_found_again(told: str, capsys: pytest.CaptureFixture[str], patch: Patch) -> bool:
    """Whether the command that a failure comes with finds that one: the use, the crash or fault, and the error."""
    command = shlex.split(told.rpartition("again with: ")[2])
    assert command[:3] == ["python", "-m", "tests.kit.campaign"]
    patch.setattr("sys.argv", command[2:])
    assert campaign.main() == 1, command
    return ": ".join(told.split(": ")[:3]) in capsys.readouterr().out


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_found_and_found_again(yard: Yard, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plant, look = PLANTED[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = look(yard)
        assert found.failures, f"not found in {found.cases} cases"
        assert is_found_again(found.failures[0], capsys, patch)


def test_so_is_one_of_many_states_and_one_that_a_second_crash_leaves(
    yard: Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a long workload, whose states are chosen by chance, and where the next open is cut."""
    kinds = set()
    with pytest.MonkeyPatch.context() as patch:
        keep_torn_tail(patch)
        ops = [*QueueUse.long[:5], "append"]
        found = try_workload(yard, "queue", ops, SEED, 60, most_kills=20, during_recovery=10)
        for told in found.failures:
            kind = "and while that was opened" in told
            if kind not in kinds:
                assert is_found_again(told, capsys, patch)
                kinds.add(kind)
    assert kinds == {True, False}, len(found.failures)
