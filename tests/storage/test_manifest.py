"""The manifest: what it says of segments that are gone outlives the segments, and its own rewriting."""

from __future__ import annotations

import errno
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from penstock import Queue
from penstock.errors import FilesMissing
from penstock.formats.topic import Partition
from penstock.storage import files
from penstock.storage.manifest import Manifest, SegmentInfo
from tests.support import AWhile, data_files


def info(number: int, *, sealed: bool = False) -> SegmentInfo:
    return SegmentInfo(number, number * 10, 10, 164, 5, 6, sealed, begin=number * 100)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    made = Manifest(tmp_path / "manifest", Partition(0))
    made.rewrite(1)
    return made


def again(manifest: Manifest) -> Manifest:
    found = Manifest(manifest._path, Partition(0))
    assert found.load(0, believe_rolled=True)
    return found


def test_where_the_segments_ended_that_are_gone_is_known(manifest: Manifest) -> None:
    assert (manifest.gone, manifest.retired_next) == (None, 0)
    for number in range(4):
        manifest.rolled(info(number))
        manifest.sealed(info(number))
    for number in range(3):
        manifest.retired(info(number))
        for found in (manifest, again(manifest)):
            assert found.gone == info(number)
            assert found.retired_next == 10 * (number + 1)
    assert again(manifest).ordered() == [info(3, sealed=True)]


def test_it_is_known_after_rewriting_too_and_when_nothing_else_is_left(manifest: Manifest) -> None:
    for number in range(3):
        manifest.rolled(info(number))
        manifest.retired(info(number))
    for generation in (2, 3):
        manifest.rewrite(generation)
        for found in (manifest, again(manifest)):
            assert (found.gone, found.ordered()) == (info(2), [])


def test_one_that_is_listed_twice_as_gone_changes_nothing(manifest: Manifest) -> None:
    manifest.retired(info(2))
    manifest.retired(info(1))
    assert again(manifest).gone == info(2)


def test_one_that_cannot_be_opened_now_is_read_when_it_can(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, when it was replaced: what is known stays known, and the next look takes in what is new."""
    manifest.rolled(info(0))

    def none_left(path: Path) -> int:
        raise OSError(errno.EMFILE, "too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_write", none_left)
        with pytest.raises(OSError, match="too many"):
            manifest.refresh(2)
    assert manifest.segments == {0: info(0)}
    manifest.refresh(2)
    assert manifest.segments == {0: info(0)}


def test_one_that_is_removed_while_the_log_is_open_is_missed_and_made_anew_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    path, sent = tmp_path / "queue", 0
    q = Queue(path, file_size=8192)
    while len(data_files(path)) < 3:
        sent = q.append(bytes(100)) + 1
    (path / "manifest").unlink()
    removed = partial(pytest.raises, FilesMissing, match="manifest: it was removed")
    for _ in range(2):  # every time
        with removed():
            q.append_batch([bytes(100)] * 60)  # which leaves the file
    with removed():
        q.tailer(at=0)
    with removed():
        q.close()
    with Queue(path) as q:
        assert len(q.tailer(at=0).read_batch(sent + 10)) == sent


def flip(manifest: Manifest, *edits: int) -> Manifest:
    """The same with a bit of these edits flipped, read anew. The header is the first."""
    raw = bytearray(manifest._path.read_bytes())
    for edit in edits:
        raw[64 * edit + 9] ^= 4
    manifest._path.write_bytes(raw)
    found = Manifest(manifest._path, Partition(0))
    assert not found.load(0, believe_rolled=True) or edits[-1] == len(raw) // 64 - 1
    assert found.believed_to == 64 * edits[0]
    return found


def test_a_damaged_edit_is_stepped_over_and_those_behind_it_count(manifest: Manifest) -> None:
    for number in range(4):
        manifest.rolled(info(number))
    found = flip(manifest, 2, 3)
    assert (found.ordered(), found.unknown_edits) == ([info(0), info(3)], 2)
    assert found.leads_to(1, 10)
    assert not found.leads_to(4, 40)
    found.rolled(info(4))  # behind all of them
    assert again_damaged(found).ordered() == [info(0), info(3), info(4)]
    found.rewrite(2)
    assert again(found).ordered() == [info(0), info(3), info(4)]


def again_damaged(manifest: Manifest) -> Manifest:
    found = Manifest(manifest._path, Partition(0))
    assert not found.load(0, believe_rolled=True)
    return found


def test_what_lies_before_a_sealed_one_is_sealed_though_its_edit_is_damaged(manifest: Manifest) -> None:
    for number in range(3):
        manifest.rolled(info(number))
    for number in range(2):
        manifest.sealed(info(number))
    found = flip(manifest, 4)
    assert found.ordered() == [info(0, sealed=True), info(1, sealed=True), info(2)]


def test_a_damaged_header_costs_no_edit(manifest: Manifest) -> None:
    manifest.rolled(info(0))
    found = flip(manifest, 0)
    assert (found.ordered(), found.unknown_edits) == ([info(0)], 0)


def test_what_a_damaged_edit_may_have_said_is_gone_if_it_has_no_file(manifest: Manifest) -> None:
    for number in range(4):
        manifest.rolled(info(number))
    for number in range(3):
        manifest.retired(info(number))
    for edit in range(5, 8):
        found = flip(manifest, edit)
        found.forget_removed({3})
        assert (found.ordered(), found.gone) == ([info(3)], info(2)), edit
        raw = bytearray(manifest._path.read_bytes())
        raw[64 * edit + 9] ^= 4  # and back
        manifest._path.write_bytes(raw)
    found = flip(manifest, 7)
    found.forget_removed({2, 3})  # its process may have died before it removed the file
    assert (found.ordered(), found.gone) == ([info(2), info(3)], info(1))


def test_no_more_is_taken_for_gone_than_edits_are_damaged(manifest: Manifest) -> None:
    for number in range(4):
        manifest.rolled(info(number))
    manifest.retired(info(0))
    found = flip(manifest, 5)
    found.forget_removed({3})
    assert found.ordered() == [info(1), info(2), info(3)], "the files of the first two are missing"


def test_of_several_edits_none_is_written_before_there_is_room_for_all(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may look meanwhile: what they believe must not be taken back."""
    others, before = again(manifest), manifest._path.read_bytes()
    real = files.write

    def write(fd: int, data: bytes, offset: int) -> None:
        real(fd, data, offset)
        others.refresh(1)

    def full(fd: int, offset: int, length: int) -> None:
        assert (offset, length) == (len(before), 2 * 64)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "write", write)
    with monkeypatch.context() as patch:
        patch.setattr(files, "reserve_beyond", full)
        with pytest.raises(OSError, match="no space"):
            manifest.rolled(info(0), info(1))
    assert (manifest._path.read_bytes(), others.segments) == (before, {})
    manifest.rolled(info(0), info(1))
    assert (manifest._path.stat().st_size, others.segments) == (len(before) + 2 * 64, {0: info(0), 1: info(1)})


def test_room_behind_the_end_of_a_file_changes_nothing_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some")
    with files.opened(path, write=True) as fd:
        files.reserve_beyond(fd, 4, 1 << 16)
        assert path.read_bytes() == b"some"
        with pytest.raises(OSError, match=r"space|large"):
            files.reserve_beyond(fd, 4, 1 << 60)
    assert path.read_bytes() == b"some"


def test_it_is_written_anew_while_other_threads_read_it(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read all of it when another process has written it anew, and also when this one just has, which they may hear of late."""
    listed = [info(number, sealed=number % 2 == 0) for number in range(10)]
    for one in listed:
        (manifest.sealed if one.sealed else manifest.rolled)(one)
    stop, looks, found = threading.Event(), 0, list[object]()

    def look() -> None:
        nonlocal looks
        while not stop.is_set():
            try:
                if manifest.snapshot(-looks % 7) != {one.id: one for one in listed}:
                    found.append(manifest.segments)
            except BaseException as error:
                found.append(error)
            looks += 1

    monkeypatch.setattr(files, "sync", lambda fd: None)
    monkeypatch.setattr(files, "sync_directory", lambda path: None)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=look)
    thread.start()
    generation, some = 1, AWhile(0.3)
    try:
        while some.goes_on(enough=generation > 200 and looks > 200):
            generation += 1
            manifest.rewrite(generation)
            assert again(manifest).ordered() == listed
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)
    assert found == []
