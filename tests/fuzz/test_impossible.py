"""Places in a log that cannot be: what a manifest or a control page says of them is not believed, though its checksum is right."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from penstock import Channel, NotALog, PenstockError, Queue, Topics
from penstock.formats import channel, journal, queue
from penstock.formats.topic import Partition
from penstock.inspect.facts import look
from penstock.kernel import encode, layout
from penstock.repair import apply
from penstock.storage import companion, index, segment
from penstock.storage.companion import Times
from penstock.storage.control import Active, Control, Dirty, Mark
from penstock.storage.damage import Place
from penstock.storage.directory import Directory
from penstock.storage.manifest import Manifest, SegmentInfo
from penstock.storage.opening import _can_be_under_way
from penstock.storage.report import Recovery
from penstock.storage.segment import Format
from penstock.storage.span import finish_appends
from penstock.storage.walking import walk
from penstock.verify import _leads, verify
from tests.fuzz import corpus
from tests.fuzz.campaign import WORK
from tests.fuzz.corpus import laid
from tests.repair import logs
from tests.topic_crash import wreck

FORMATS = {
    "queue": cast(Format, queue),
    "channel": cast(Format, channel),
    "journal": cast(Format, journal),
    "topic": Partition(0),
}
END = 5000  # of a segment: within any file
_EDIT = struct.Struct("<IIQQQQqqQ")


# ---- the manifest ----


def told(path: Path, fmt: Format, info: SegmentInfo) -> list[SegmentInfo]:
    """What is read of a manifest that says so."""
    manifest = Manifest(path, fmt)
    manifest.rewrite(1)
    manifest.rolled(info)
    found = Manifest(path, fmt)
    found.load(0, believe_rolled=True)
    return found.ordered()


@pytest.mark.parametrize("name", FORMATS)
def test_a_segment_has_a_number_and_so_has_the_one_behind_it(path: Path, name: str) -> None:
    fmt = FORMATS[name]
    info = SegmentInfo(fmt.LAST_ID - 1, 0, 1, END, 0, 0)
    assert told(path, fmt, info) == [info]
    for number in {fmt.LAST_ID, (1 << 64) - 1}:
        assert told(path, fmt, SegmentInfo(number, 0, 1, END, 0, 0)) == []


@pytest.mark.parametrize(
    "changed",
    [{"end": 63}, {"count": 0, "end": 0}, {"begin": 1 << 62}, {"base": (1 << 62) - 1}, {"end": (1 << 40) + 1}],
    ids=str,
)
def test_a_segment_lies_within_what_a_log_can_be(path: Path, changed: dict[str, int]) -> None:
    """A channel's ends behind its header: where the next one begins follows from that."""
    whole = {"id": 3, "base": 10, "count": 1, "end": 100, "first_us": 0, "last_us": 0, "begin": 36}
    assert told(path, FORMATS["channel"], SegmentInfo(**whole)) == [SegmentInfo(**whole)]  # type: ignore[arg-type]
    assert told(path, FORMATS["channel"], SegmentInfo(**{**whole, **changed})) == []  # type: ignore[arg-type]


def test_an_edit_is_of_a_kind_that_there_is(path: Path) -> None:
    data = bytearray(corpus.image("channel")["manifest"])
    data[68:72] = (4).to_bytes(4, "little")
    laid("channel", path, manifest=bytes(data))
    manifest = Manifest(path / "manifest", FORMATS["channel"], read_only=True)
    assert not manifest.load(0, believe_rolled=True)
    assert manifest.believed_to == 64


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("segment", [1 << 32, (1 << 64) - 1, 0], ids=["u32", "u64", "zeros"])
def test_no_segment_follows_one_that_cannot_be(tmp_path: Path, segment: int, which: str) -> None:
    """Also where the last file is gone: then a new one follows what is listed."""
    data = bytearray(corpus.image("channel")["manifest"])
    at = 64 if which == "first" else len(data) - 64
    fields = list(_EDIT.unpack_from(data, at))
    fields[2:] = [segment, *fields[3:]] if segment else [0] * 7
    _EDIT.pack_into(data, at, *fields)
    for gone in ((), ("segment.3", "segment.3.time", "segment.3.index")):
        for work in WORK:
            path = laid("channel", tmp_path / f"{len(gone)} {work}", manifest=bytes(data))
            for name in gone:
                (path / name).unlink()
            with suppress(PenstockError, TimeoutError):
                WORK[work]("channel", path)


@pytest.mark.parametrize("name", FORMATS)
def test_behind_the_highest_number_there_is_none(path: Path, name: str) -> None:
    """A file may be called so."""
    with pytest.raises(NotALog, match="no higher number can follow"):
        segment.next_id(path, FORMATS[name], FORMATS[name].LAST_ID, 0)


def test_a_channel_does_not_go_on_behind_the_highest_number(path: Path) -> None:
    path.mkdir()
    (path / "segment.4294967295").write_bytes(channel.pack_header(0xFFFFFFFF, 0, 0, 0) + encode(channel.SPEC, b"first"))
    with Channel[bytes](path, segment_bytes=1000) as c:
        c.tx().send(b"m" * 2000)  # the last one that it takes
        with pytest.raises(NotALog, match=r"segment\.4294967295: no higher"):
            c.tx().send(b"m")


# ---- the control page ----


@pytest.mark.parametrize(
    "mark", [Mark(0xFFFFFFFF, 100, 5), Mark(3, 1 << 63, 5), Mark(3, 63, 5), Mark(3, 100, 1 << 62)], ids=str
)
def test_a_mark_says_what_can_be(path: Path, mark: Mark) -> None:
    control = Control(path, FORMATS["channel"])
    whole = Mark(3, 100, 5)
    for store, load in ((control.mark_clean, lambda: control.clean), (control.mark_durable, lambda: control.durable)):
        store(whole)
        assert load() == whole
        store(mark)
        assert load() is None
    control.announce_span(mark, 4)
    assert control.span is None
    control.close()


@pytest.mark.parametrize("mark", [Mark(1 << 32, 100, 120), Mark(3, 1 << 63, 120)], ids=["segment", "end"])
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_page_with_a_mark_that_cannot_be_is_made_anew(tmp_path: Path, mark: Mark, gone: bool) -> None:
    page = bytearray(corpus.image("channel")[".lock"])
    for at in (512, 576):
        struct.pack_into("<QQQ", page, at, *mark)
    for work in WORK:
        path = laid("channel", tmp_path / work, **{".lock": bytes(page)})
        if gone:
            (path / "segment.3").unlink()
        with suppress(PenstockError, TimeoutError):
            WORK[work]("channel", path)
    path = laid("channel", tmp_path / "log", **{".lock": bytes(page)})
    told = [(finding.kind, finding.position) for finding in verify(path).findings]
    assert ("control", 512) in told
    apply(path)
    assert verify(path).findings == ()
    assert logs.read("channel", path).records == logs.payloads("channel")


@pytest.mark.parametrize(
    ("next_", "durable"),
    [(97, 97), (119, 120), (1 << 40, 120)],
    ids=["before the first", "not all that is durable", "too many"],
)
def test_a_page_says_where_a_log_can_end(path: Path, next_: int, durable: int) -> None:
    control = Control(path, FORMATS["channel"])
    control.initialise(3, 98, 500, 120, 0, Mark(3, 500, 120))
    assert control.is_possible
    control.settle(500, next_)
    control.mark_durable(Mark(3, 500, durable))
    assert not control.is_possible
    control.close()


@pytest.mark.parametrize("name", ["channel", "topic"])
def test_what_is_announced_goes_on_from_the_end_and_fits(tmp_path: Path, name: str) -> None:
    """A file that grows takes it all."""
    directory, grows = Directory(tmp_path, FORMATS[name], 65536, 4), name == "topic"
    now, most = Active(0, 3, 98, 500, 120), 98 + (65536 - 64) // 8

    def can_be(end: int, next_: int) -> bool:
        return _can_be_under_way(directory, now, Dirty(end, next_))

    assert can_be(500, 121) and can_be(65536, most)
    assert not can_be(499, 121) and not can_be(600, 119)
    assert can_be(65537, 121) == can_be(600, most + 1) == grows
    (tmp_path / "segment.3").write_bytes(bytes(65537))
    assert can_be(65537, 121), "it may have been made larger"


# Of the slot that is active, or of its segment: what cannot be in a page that was not closed.
PAGES: dict[str, dict[int, int]] = {
    "another segment": {layout.SEGMENT: (1 << 64) - 1},
    "an end beyond all": {layout.END: 1 << 63, layout.DIRTY_END: 1 << 63},
    "a next before the first": {layout.NEXT: 0, layout.DIRTY_NEXT: 0},
    "more than there is room for": {layout.NEXT: 1 << 40, layout.DIRTY_NEXT: 1 << 40},
    "announced before the end": {layout.DIRTY_END: 0},
    "announced before the next": {layout.DIRTY_NEXT: 0},
    "announced beyond the file": {layout.DIRTY_END: 1 << 40},
    "announced more than there is room for": {layout.DIRTY_NEXT: 1 << 40},
}


def open_topic(path: Path) -> None:
    with Topics(path) as topics:
        topics.topic("t")._part(1)


OPEN: dict[str, Callable[[Path], object]] = {
    "queue": lambda path: Queue(path).close(),
    "channel": lambda path: Channel[bytes](path).close(),
    "topic": open_topic,
}


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize("change", PAGES.values(), ids=PAGES)
def test_a_page_of_this_boot_that_cannot_be_is_not_believed(path: Path, kind: str, change: dict[int, int]) -> None:
    name = "t/.partition_1/.lock" if kind == "topic" else ".lock"
    page = bytearray(logs.unclosed(kind)[name])
    slot = layout.SLOTS[page[layout.TURN] & 1]
    for at, value in change.items():
        page[slot + at : slot + at + 8] = value.to_bytes(8, "little")
    wreck.lay(logs.unclosed(kind).changed(name, bytes(page)), path, "same")
    look(path, processes=False)
    assert logs.read(kind, path).records == logs.payloads(kind)
    OPEN[kind](path)
    assert logs.read(kind, path).records == logs.payloads(kind)


def test_a_mark_with_more_records_than_bytes_is_not_believed(path: Path) -> None:
    """Its segment begins with record 98: of what may follow the mark room would be made for each."""
    page = bytearray(corpus.image("channel")[".lock"])
    for at in (512, 576):
        page[at + 16 : at + 24] = (1 << 50).to_bytes(8, "little")
    laid("channel", path, **{".lock": bytes(page)})
    assert logs.read("channel", path).records == logs.payloads("channel")
    with Channel[bytes](path) as c:
        assert c._open_log().next_sequence == logs.COUNT


@pytest.mark.parametrize("next_", [98, 120])
def test_a_mark_in_a_segment_that_is_not_there(tmp_path: Path, next_: int) -> None:
    """It tells of no record that others do not have, or of some."""
    page = bytearray(corpus.image("channel")[".lock"])
    for at in (512, 576):
        struct.pack_into("<QQQ", page, at, 77, 100, next_)
    for work in WORK:
        path = laid("channel", tmp_path / work, **{".lock": bytes(page)})
        with suppress(PenstockError, TimeoutError):
            WORK[work]("channel", path)
    assert (tmp_path / "repair" / "segment.3").exists()


def test_a_page_that_says_where_no_log_ends_is_a_finding(path: Path) -> None:
    page = bytearray(corpus.image("channel")[".lock"])
    slot = layout.SLOTS[page[layout.TURN] & 1]
    page[slot + layout.END : slot + layout.END + 8] = bytes(8)
    laid("channel", path, **{".lock": bytes(page)})
    assert [(f.kind, f.position) for f in verify(path).findings] == [("control", slot)]


@pytest.mark.parametrize("beyond", [100, -1], ids=["behind its end", "before the record"])
def test_a_batch_over_several_files_of_which_the_page_lies_is_not_committed(path: Path, beyond: int) -> None:
    """Where the last of its files begins stands in the page without a checksum."""
    with Queue(path) as q:
        q.append(b"kept")
        log = q._open_log()
        control = log.control
        assert control is not None
        kept = control.active()
        q.append(b"batch")
        now = control.active()
        control.settle(kept.end, kept.next)  # as if it had not been published yet
        control.announce(now.end, now.next)
        control.announce_span(Mark(now.segment + 1, END, 5), 5 + beyond if beyond > 0 else 0)
        finish_appends(log.directory, control, log.manifest)
        assert control.active().segment == now.segment
        assert control.span is None
        assert [m.payload for m in q.tailer()] == [b"kept"]


# ---- what lies beside the records ----


class Counting(Times):
    """Looks at entries a hundred times at most."""

    looked = 0

    def us(self, place: int) -> int:
        self.looked += 1
        assert self.looked < 100
        return super().us(place)


def test_of_records_that_are_only_claimed_no_times_are_looked_for() -> None:
    data = companion.pack_header(0) + companion.entries(2, 10, False) + companion.entries(1, 20, False)
    count = 1 << 60
    assert [Counting(data).first_at(us, count) for us in (5, 10, 15, 20)] == [0, 0, 2, 2]
    assert Counting(data).first_at(25, count) == count, "the rest is not known"
    assert Counting(b"").first_at(1, count) == count
    assert Times(data).first_at(15, 2) == 2


def test_an_index_is_not_looked_at_beyond_its_records(path: Path) -> None:
    """The manifest may say that there are fewer than the file has."""
    laid("channel", path)
    whole = logs.segments(path)[1]
    walked = walk(whole.read(), Place(whole.end, whole.next), logs.INTERVAL, Recovery())
    some = replace(whole, next=whole.base + 23)
    (path / "segment.1.index").write_bytes(index.pack(logs.INTERVAL, whole.base, 23, walked.points))
    assert _leads(some.read(), some, walked)
    (path / "segment.1.index").write_bytes(index.pack(logs.INTERVAL, whole.base, 23, walked.points[1:]))
    assert not _leads(some.read(), some, walked)
