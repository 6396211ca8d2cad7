"""`metadata.json`: which format a directory holds, and the settings fixed when it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.errors import CorruptSettings, NotALog, SettingsMismatch, UnknownVersion
from penstock.options import MAX_FILE_SIZE_BYTES, MAX_INDEX_INTERVAL, MAX_PARTITIONS
from penstock.storage import files

FILE = "metadata.json"
STEP = "restore it from a copy, or have `penstock repair` make it anew from the files beside it"
MOST_BYTES = 1 << 16  # that are looked at
_MOST = {"file_size": MAX_FILE_SIZE_BYTES, "index_interval": MAX_INDEX_INTERVAL, "partitions": MAX_PARTITIONS}


def load(top: Path) -> dict[str, Any] | None:
    """What it says, or None when there is none."""
    path = top / FILE
    try:
        with files.opened(path) as fd:
            raw = files.read(fd, 0, MOST_BYTES)
    except FileNotFoundError:
        return None
    return parse(raw, str(path))


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """What these bytes say, which are those of the file `where`."""
    try:
        found = json.loads(raw)
    except (RecursionError, ValueError) as error:
        raise CorruptSettings(f"{where}: not JSON ({error}); {STEP}") from error
    if not isinstance(found, dict) or not isinstance(found.get("format"), str):
        raise CorruptSettings(f"{where}: not a log's metadata; {STEP}")
    return found


def usable(found: dict[str, Any]) -> dict[str, Any]:
    """The settings among these that can be: for those who only look, and go on with what there is."""
    whole = {name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}
    return {name: value for name, value in whole.items() if 1 <= value <= _MOST.get(name, 0)}


def settle(top: Path, fmt: str, version: int, given: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The fixed settings of a log: those it was made with, or, for a new one, those given. Others are refused."""
    found = load(top)
    if found is None:
        made = {"format": fmt, "version": version, **default, **given}
        if files.create_once(top / FILE, json.dumps(made, indent=2).encode() + b"\n"):
            return made
        found = load(top) or made
    check(top, found, fmt, version, given)
    return found


def change(top: Path, settings: dict[str, Any]) -> None:
    """Put other settings in place of those that a log has."""
    files.replace(top / FILE, json.dumps(settings, indent=2).encode() + b"\n")
    files.sync_directory(top)


def check(top: Path, found: dict[str, Any], fmt: str, version: int, given: dict[str, Any]) -> None:
    """Refuse another format, a later version, or other settings than the log was made with."""
    if found["format"] != fmt:
        raise NotALog(f"{top}: a {found['format']}, not a {fmt}; open it as what it is")
    if found.get("version") != version:
        raise UnknownVersion(
            f"{top}: version {found.get('version')} of the {fmt} format, this Penstock knows {version}"
        )
    for name, value in given.items():
        if name in found and found[name] != value:
            raise SettingsMismatch(
                f"{top}: made with {name}={found[name]!r}, which is fixed, but opened with {name}={value!r}; "
                f"leave {name} out, or make a new log"
            )
