"""`mode("overwrite")`: a new log is made beside the old one, then they change places in one step."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.errors import InvalidOption, LogBusy, StorageFailed
from penstock.inspect import detect
from penstock.spark import staging
from penstock.spark.options import WriteOptions
from penstock.spark.target import Layout, Target, publish
from penstock.storage import files, metadata
from penstock.topic.topics import Topics

_STALE_S: Final = 24 * 3600


def replace_log(
    options: WriteOptions, layout: Layout, job: str, staged: Mapping[staging.Key, Sequence[staging.Put]]
) -> None:
    """Put what was staged in place of what is there. A reader sees the old log or the new one; of several topics each is
    replaced by itself. Nobody else may have the old one open."""
    top = Path(options.path).resolve()  # the log that a link leads to changes places, not the link
    fresh = top.parent / f".{top.name}.{job}"
    moved: set[Path] = set()  # directories in which names may have changed places
    try:
        if layout.format == "topic":
            names = {topic for topic, _ in staged} | ({options.topic} if options.topic else set())
            with Topics(fresh) as topics:
                for name in names:
                    topics.topic(name, layout.count(name))
            places = {name: (top / name, fresh / name) for name in names}
        else:
            _same_settings(top, fresh)
            places = {"": (top, fresh)}
            staged = staged or {("", 0): []}  # an empty log is a log
        for key, puts in staged.items():
            publish(Target(replace(options, path=str(fresh)), layout, *key), job, 0, puts, comes_again=False)
        files.make_directories(top.parent if layout.format != "topic" else top, top.parent)
        for old, new in places.values():
            if old.is_dir() and detect(old) not in (None, layout.format):
                raise InvalidOption(
                    f"{old}: a {detect(old)}, not a {layout.format}; overwrite it as what it is, or remove it"
                )
            moved.add(old.parent)
            _change_places(old, new)
    finally:
        for directory in moved:
            _sync(directory, fresh)
        files.remove_tree(fresh)
    _remove_left(top)


def check_place(options: WriteOptions, layout: Layout) -> None:
    """Refuse what cannot be overwritten, before anything is done for it."""
    top = Path(options.path).resolve()
    if layout.format != "topic" and Path.cwd().is_relative_to(top):
        raise InvalidOption(
            f"{top}: the working directory is in it, and would be removed; start Spark elsewhere to overwrite it"
        )


def _remove_left(top: Path) -> None:
    """What overwrites left that were killed: a whole log each, the new one or the old one. None that may be at work: a day must have passed
    since anything in it changed."""
    left = re.compile(re.escape(f".{top.name}.") + "batch-[0-9a-f]{32}")
    with suppress(OSError):  # of another user, say: the overwrite is done
        for path in files.children(top.parent):
            if left.fullmatch(path.name) and not path.is_symlink() and time.time() - _changed_s(path) > _STALE_S:
                files.remove_tree(path)


def _changed_s(path: Path) -> float:
    return max(one.lstat().st_mtime for one in (path, *path.rglob("*")))


def _same_settings(old: Path, new: Path) -> None:
    """The new log has the settings that the old one was made with."""
    settings = metadata.load(old) if old.is_dir() else None
    files.make_directories(new, new.parent)
    if settings is not None:
        metadata.change(new, settings)


def _change_places(old: Path, new: Path) -> None:
    if not old.exists():
        files.rename(new, old)
    else:
        with ExitStack() as stack:
            for lock in [*old.glob(".lock"), *old.glob(".partition_*/.lock")]:
                fd = stack.enter_context(files.opened_to_lock(lock))
                if not files.lock(fd, shared=False, wait=False):
                    raise LogBusy(f"{old}: another process has it open; close it there, then overwrite it")
            # Whoever adds partitions holds this one: the new log has all that the old one had.
            files.lock(stack.enter_context(files.opened_to_lock(old)), shared=False)
            _as_many_partitions(old, new)
            files.exchange(old, new)


def _as_many_partitions(old: Path, new: Path) -> None:
    """Some may have been added to a topic since the new one was made."""
    had, has = (metadata.usable(metadata.load(place) or {}).get("partitions", 0) for place in (old, new))
    if had > has:
        metadata.change(new, {**(metadata.load(new) or {}), "partitions": had})


def _sync(directory: Path, fresh: Path) -> None:
    """Only then may the old one go: until then a power cut may bring it back."""
    try:
        files.sync_directory(directory)
    except OSError as error:
        step = (
            "so a power cut may leave the old log here or the new one; check the disk, overwrite it again, and then remove "
            f"{fresh}, where the other is"
        )
        raise StorageFailed(directory, error.errno or errno.EIO, "a sync failed", step) from error
