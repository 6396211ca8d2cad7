"""The directory of a log and the settings fixed in it, settled before anything else is opened there.

What cannot be a log is refused here, with nothing changed: a file in the way, a network file system, another format, other
fixed settings than it was made with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.errors import CorruptSettings, LogNotFound, NotALog, UnsupportedFileSystem
from penstock.storage import dropping, files, index, metadata
from penstock.storage.listing import list_segments
from penstock.storage.segment import Format, SegmentPaths, map_data

Settings = dict[str, Any]


def directory_at(path: str | os.PathLike[str]) -> Path:
    """The directory that a user names, absolute: the process may change its own. An empty path would stand for that one, and is more
    likely a setting that nobody has set."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise TypeError(f"path must be a str, or a pathlib.Path or the like, not {path!r}")
    if not text:
        raise ValueError('path is empty; give a directory, or "." for the working directory')
    if "\0" in text:
        raise ValueError(f"path {text!r} has a NUL in it, which no file's name can have; choose another path")
    return Path(text).absolute()


def refuse_files(path: Path, what: str) -> None:
    """Refuse a path at which there is, or above which there is, something else than a directory."""
    if files.is_no_directory(path):
        raise NotALog(f"{path}: a file, not a directory; {what}")
    above = next(p for p in (*path.absolute().parents, Path("/")) if p.exists())
    if not files.is_directory(above):
        raise NotALog(f"{above}: a file, so {path} cannot be a directory; choose another path")


def settle(
    path: Path,
    fmt: Format,
    given: Settings,
    default: Settings,
    check: Callable[[Settings], Settings],
    *,
    read_only: bool,
) -> Settings:
    """The fixed settings of the log at `path`, making its directory and metadata if they are not there.

    `check` gives those that are not None, and raises ValueError for one that cannot be.
    """
    dropping.wait_for(path)
    refuse_files(path, f"a {fmt.NAME} is a directory of its own")
    if read_only:
        if not files.is_directory(path):
            raise LogNotFound(f"{path}: no such directory; open the {fmt.NAME} without read_only to create it")
        found = metadata.load(path)
        if found is not None:
            metadata.check(path, found, fmt.NAME, fmt.VERSION, given)
        return _sane(path, check, {**default, **given, **(found or {})}, default)
    _refuse_network(path)
    if files.is_directory(path) and metadata.load(path) is None:
        with contextlib.suppress(ValueError):
            default = {**default, **check(of_files(path, fmt))}
    files.make_path(path)
    return _sane(path, check, metadata.settle(path, fmt.NAME, fmt.VERSION, given, default), default)


def current(path: Path, settings: Settings, check: Callable[[Settings], Settings]) -> Settings:
    """The settings of a log that is open, as they are by now: those it was opened with, if metadata.json is gone."""
    return _sane(path, check, metadata.load(path) or settings, settings)


def of_files(top: Path, fmt: Format) -> Settings:
    """The fixed settings of a log whose metadata is lost, as its files show them; None for a new one.

    Another implementation's files are refused: nothing is to be written among them.
    """
    file_size = interval = strange = None
    for segment in list_segments(top, fmt):
        paths = SegmentPaths(top, fmt, segment)
        try:
            data = map_data(paths)
            header = fmt.read_header(memoryview(data), str(paths.data))
        except NotALog as error:
            strange = strange or error
            continue
        if header.foreign:
            raise NotALog(f"{paths.data}: written by another implementation; open the log with read_only=True")
        file_size = len(data)
        if paths.index.exists():
            with files.opened(paths.index) as fd:
                interval = index.Index(files.read(fd, 0, index.HEADER_BYTES), 0).interval or interval
    if strange is not None and file_size is None:
        raise strange
    return {"file_size": file_size, "index_interval": interval}


def _sane(path: Path, check: Callable[[Settings], Settings], settings: Settings, wanted: Iterable[str]) -> Settings:
    """The settings, if metadata.json has all that are wanted, and what it says of them can be."""
    try:
        if missing := [name for name in wanted if settings.get(name) is None]:
            raise ValueError(f"{missing[0]} is missing")
        check(settings)
    except ValueError as error:
        raise CorruptSettings(f"{path / metadata.FILE}: {error}; {metadata.STEP}") from error
    return settings


def _refuse_network(path: Path) -> None:
    """A log is not written on a network file system. Works also before the directory is made."""
    kind = files.filesystem(path)
    if files.is_network(kind):
        raise UnsupportedFileSystem(
            f"{path} lies on {kind}, where maps and locks are not shared between machines; "
            "keep the log on a local disk (sealed files may be copied anywhere)"
        )
