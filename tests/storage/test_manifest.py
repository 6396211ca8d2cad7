"""The manifest: what it says of segments that are gone outlives the segments, and its own rewriting."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest

from penstock import Queue
from penstock.errors import FilesMissing
from penstock.storage import files
from penstock.storage.manifest import Manifest, SegmentInfo
from tests.support import data_files


def info(number: int, *, sealed: bool = False) -> SegmentInfo:
    return SegmentInfo(number, number * 10, 10, 164, 5, 6, sealed, begin=number * 100)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    made = Manifest(tmp_path / "manifest")
    made.rewrite(1)
    return made


def again(manifest: Manifest) -> Manifest:
    found = Manifest(manifest._path)
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
