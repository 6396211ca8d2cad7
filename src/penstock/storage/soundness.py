"""What is wrong with the small files of a log: settings, control page, manifest, cursors, offsets, ledger, loss list.

Nothing is changed, and a live writer is not disturbed: what may be half written at the moment of a look is looked at again
before anything is said of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from penstock.errors import NotALog, UnknownVersion
from penstock.kernel import layout
from penstock.storage import files, index, metadata, offsets
from penstock.storage.control import Control
from penstock.storage.cursor import Cursors
from penstock.storage.ledger import check as check_ledger
from penstock.storage.listing import companion_base, list_segments
from penstock.storage.losses import FILE, LossList
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.segment import Format, SegmentPaths

Small = Literal["metadata", "control", "manifest", "cursor", "offset", "ledger", "losses"]
T = TypeVar("T")
_LOOKS: Final = 100
_MADE_FIRST: Final = (metadata.FILE, ".writer")
_MADE_LAST: Final = ("manifest", "losses", "ledger", "cursors/", "recovery/")  # when there is a data file
_SETTINGS: Final = {
    "queue": {"file_size", "index_interval"},
    "channel": {"index_interval"},
    "journal": set[str](),
    "topic": {"index_interval", "partitions"},
}


class Flaw(NamedTuple):
    """What is wrong with a file, from which byte on. `known` is False where a later version may have written it."""

    kind: Small
    file: Path
    position: int
    what: str
    name: str = ""  # whose cursor it is
    known: bool = True


def is_ours(top: Path, own: Path) -> bool:
    """Whether Penstock has written here: another implementation's directory has none of these files."""
    return any(files.exists(path) for path in (top / metadata.FILE, own / ".lock", own / "manifest"))


def _settled(look: Callable[[], T | None]) -> T | None:
    """What is found at every look."""
    for _ in range(_LOOKS):
        found = look()
        if found is None:
            return None
    return found


def settings(top: Path, fmt: Format) -> Iterator[Flaw]:
    """Of metadata.json, which is written once, and always in the same way."""
    path = top / metadata.FILE
    try:
        found = metadata.load(top)
    except NotALog:
        yield Flaw("metadata", path, 0, "it is not a log's settings")
        return
    if found is None:
        yield Flaw("metadata", path, 0, "it is missing")
        return
    version = found.get("version")
    if found["format"] == fmt.NAME and isinstance(version, int) and version > fmt.VERSION:
        what = f"it says version {version}, this Penstock knows {fmt.VERSION}"
        yield Flaw("metadata", path, 0, what, known=False)
        return
    with files.opened(path) as fd:
        raw = files.read(fd, 0, metadata.MOST_BYTES)
    if (
        found["format"] != fmt.NAME
        or set(found) != {"format", "version", *_SETTINGS[fmt.NAME]}
        or version != fmt.VERSION
    ):
        yield Flaw("metadata", path, 0, "its settings are not those that a log of this format has")
    elif raw != json.dumps(found, indent=2).encode() + b"\n":
        yield Flaw("metadata", path, 0, "it is not as Penstock writes it")
    elif strange := _strange_settings(top, fmt, found):
        yield Flaw("metadata", path, 0, strange)


def _strange_settings(top: Path, fmt: Format, found: dict[str, object]) -> str:
    """What in the settings the files contradict; most of them, since one may be damaged itself."""
    if any(not isinstance(found[name], int) for name in _SETTINGS[fmt.NAME]):
        return "a setting is not a number"
    intervals, sizes = Counter[int](), Counter[int]()
    for segment in list_segments(top, fmt) if fmt.INDEXED else ():
        paths = SegmentPaths(top, fmt, segment)
        with suppress(FileNotFoundError), files.opened(paths.index) as fd:
            intervals[index.Index(files.read(fd, 0, index.HEADER_BYTES), 0).interval] += 1
        with suppress(FileNotFoundError), files.opened(paths.data) as fd:
            sizes[files.size(fd)] += 1
    if "file_size" in found and sizes and found["file_size"] not in sizes:
        return f"file_size is {found['file_size']}, the files have {sizes.most_common(1)[0][0]}"
    if intervals.total() > 1 and found["index_interval"] not in intervals:
        return f"index_interval is {found['index_interval']}, the indexes have {intervals.most_common(1)[0][0]}"
    return ""


def is_blank(own: Path) -> bool:
    """Whether nothing is in the control page, which is written last when a log is made. If the log holds no records, its process died over
    that, and nothing is wrong: opening it goes on from there."""
    try:
        return _begins_with_zeros(own / ".lock")
    except FileNotFoundError:
        return False


def was_opened(top: Path, fmt: Format, own: Path) -> bool:
    """Whether a partition of a topic has been, or is being. Its directory may be there before, for the place of a reader that found no
    message in it."""
    return any(files.exists(own / name) for name in (".lock", "manifest")) or bool(list_segments(top, fmt))


def _begins_with_zeros(path: Path) -> bool:
    with files.opened(path) as fd:
        return not any(files.read(fd, 0, layout.PAGE_BYTES))


def is_unmade(top: Path, fmt: Format) -> bool:
    """Whether the process that was to make a log here died before that had a data file: it is empty, and opening it goes on from there.
    Where records were, and were lost, other files are left."""
    if files.exists(top / ".lock") and not is_blank(top):
        return False
    names = [name for name in files.walk(top) if not name.startswith(_MADE_FIRST)]
    if ".lock" in names:
        return not any(name.startswith(_MADE_LAST) for name in names) and not list_segments(top, fmt)
    return files.exists(top / metadata.FILE) and all(
        name == "offset" and _begins_with_zeros(top / name) for name in names
    )


def page(own: Path, fmt: Format) -> Iterator[Flaw]:
    """Of the control page."""
    path = own / ".lock"
    try:
        control = Control(path, fmt, read_only=True)
    except FileNotFoundError:
        yield Flaw("control", path, 0, "it is missing")
        return
    except NotALog:
        yield Flaw("control", path, 0, "it is shorter than a control page")
        return
    try:
        control.same_boot  # noqa: B018  # asks for its version
        found = _settled(control.flaw)
    except UnknownVersion as error:
        yield Flaw("control", path, 8, str(error), known=False)
        return
    finally:
        control.close()
    if found is not None:
        yield Flaw("control", path, *found)


def manifest(own: Path, fmt: Format) -> Iterator[Flaw]:
    """Of the manifest."""
    path = own / "manifest"

    def look() -> Flaw | None:
        found = Manifest(path, fmt, read_only=True)
        try:
            if not found.exists:
                return Flaw("manifest", path, 0, "it is missing")
            whole = found.load(0, believe_rolled=True)
            if not whole or found.torn_bytes:
                return Flaw("manifest", path, found.believed_to, "an edit, or its header, fails its checksum")
            return None
        except UnknownVersion as error:
            return Flaw("manifest", path, 8, str(error), known=False)
        finally:
            found.close()

    found = _settled(look)
    if found is not None:
        yield found


def missing_last(top: Path, fmt: Format, own: Path) -> SegmentInfo | None:
    """The last segment of a log that nobody writes, if its file is gone: its marks say which that was and where it ended."""
    try:
        control = Control(own / ".lock", fmt, read_only=True)
    except (FileNotFoundError, NotALog):
        return None
    found = Manifest(own / "manifest", fmt, read_only=True)
    try:
        mark = control.clean or control.durable
        found.load(0, believe_rolled=True)
        before = [info for info in found.ordered() if mark is not None and info.id < mark.segment]
        last = before[-1] if before else found.gone
    finally:
        control.close()
        found.close()
    if mark is None or any(segment >= mark.segment for segment in list_segments(top, fmt)):
        return None
    known = companion_base(SegmentPaths(top, fmt, mark.segment))
    base = known if known is not None else last.next if last else 0
    begin = last.begin + last.end - fmt.HEADER_BYTES if last and fmt.SAYS_BEGIN else 0
    return SegmentInfo(mark.segment, base, mark.next - base, mark.end, 0, 0, begin=begin) if mark.next > base else None


def cursors(own: Path, end: Callable[[], int] | None) -> Iterator[Flaw]:
    """Of named readers' places. `end` says where the log ends, if places are sequences."""
    found = Cursors(own)
    for name in found.names():
        try:
            position = found.load(name)
        except NotALog as error:
            at = 64 if found.position(name) is not None else 0
            yield Flaw("cursor", found.path(name), at, str(error).partition(": ")[2].partition(";")[0], name)
            continue
        if end is not None and position is not None and position > end():
            yield Flaw("cursor", found.path(name), 16, f"it stands at {position}, and the log ends at {end()}", name)


def channel_offsets(own: Path, end: Callable[[], int], *, clean: bool) -> Iterator[Flaw]:
    """Of a channel's `offset` file. Where nobody writes the write offset is where the channel ends."""
    path = own / "offset"
    if not path.exists():
        yield Flaw("offset", path, 0, "it is missing")
        return
    length = path.stat().st_size
    if not length or length % offsets.GROUP_BYTES:
        yield Flaw("offset", path, 0, f"it has {length} bytes, not a multiple of {offsets.GROUP_BYTES}")
        return
    found = offsets.Offsets(path, read_only=True)
    try:
        differ = _settled(lambda: found.disagree() or None)
        for slot in differ or ():
            yield Flaw("offset", path, slot * 8, f"the copies of slot {slot} differ")
        if clean and found.written != end():
            yield Flaw("offset", path, 0, f"it says {found.written} bytes are written, and the channel ends at {end()}")
        names = Cursors(own)
        taken = {offsets.DURABLE, *(names.position(name) for name in names.names())}
        for slot in sorted(slot for slot in taken if slot is not None):
            if slot >= found.slots or found.load(slot) > end():
                yield Flaw("offset", path, slot * 8, f"slot {slot} is not there, or lies behind the channel's end")
    finally:
        found.close()


def ledger(own: Path) -> Iterator[Flaw]:
    """Of the ledger, if there is one."""
    path = own / "ledger"
    try:
        check_ledger(path)
    except NotALog as error:
        yield Flaw("ledger", path, 0, _why(error), known=False)


def loss_list(own: Path) -> Iterator[Flaw]:
    """Of the loss list, if there is one."""
    found = LossList(own)
    try:
        found.all()
    except NotALog as error:
        yield Flaw("losses", own / FILE, 0, _why(error))


def _why(error: NotALog) -> str:
    """What a message says between the path and what to do next."""
    return str(error).partition(": ")[2].partition(";")[0]
