"""Names that whoever made them did not live to sync are on the disk before anything in them is said to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Journal, Queue
from penstock.formats.topic import Partition
from penstock.storage import files
from penstock.storage.cursor import Cursors
from penstock.storage.manifest import Manifest, SegmentInfo
from tests.channel_crash.wreck import Platter, by_hand, open_channel, small_files
from tests.queue.crash import Image
from tests.topic_crash.wreck import open_topics

SENT = b"all that there is"


class Died(BaseException):
    pass


def put_queue(path: Path) -> None:
    with Queue(path, file_size=8192) as q:
        q.append(SENT)


def put_channel(path: Path) -> None:
    with open_channel(path) as ch:
        ch.tx().send(SENT)


def put_journal(path: Path) -> None:
    with Journal(path) as j:
        j.append(SENT)


def put_topic(path: Path) -> None:
    with open_topics(path.parent) as logs:
        logs.topic(path.name, partitions=1).publish(SENT)


PUTS = {"queue": put_queue, "channel": put_channel, "journal": put_journal, "topic": put_topic}


@pytest.fixture
def platter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    by_hand(monkeypatch)
    small_files(monkeypatch)
    platter = Platter(monkeypatch, tmp_path / "disk")
    yield platter
    platter.close()


def die_over(call: Callable[[], object], directory: Path, *there: str) -> None:
    """Do something, and die before the names in a directory are synced, or these of them."""
    real = files.sync_directory

    def sync_directory(path: Path) -> None:
        if path == directory and all((path / name).exists() for name in there):
            raise Died
        real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "sync_directory", sync_directory)
        with pytest.raises(Died):
            call()


def held(image: Image) -> bool:
    return any(SENT in content for content in image.values())


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("use", PUTS)
def test_a_log_whose_directory_somebody_else_made(tmp_path: Path, platter: Platter, use: str, depth: int) -> None:
    """Also one above it: none of them is made before the name of the one above is synced."""
    path = tmp_path / "disk" / "above" / "logs" / "orders"
    die_over(lambda: PUTS[use](path), path.parents[depth])
    assert not held(platter.image())
    PUTS[use](path)
    assert held(platter.image())


def test_a_first_segment_that_was_made_by_one_who_died(tmp_path: Path, platter: Platter) -> None:
    """Where files grow nothing else would sync its name before the next segment is made, or the log closed."""
    path = tmp_path / "disk" / "orders"
    die_over(lambda: put_topic(path), path, "partition_0_segment_0.log")
    platter.image()
    with open_topics(path.parent, linger_s=0) as logs:
        logs.topic(path.name, partitions=1).publish(SENT).wait()
        assert "orders/partition_0_segment_0.log" in platter.image()


def test_an_earlier_session_whose_place_was_made_by_one_who_died(tmp_path: Path, platter: Platter) -> None:
    path = tmp_path / "disk" / "journal"
    put_journal(path)
    die_over(lambda: put_journal(path), path / "recovery")
    platter.image()  # what was made is seen before the rest
    with pytest.warns(match="were not walked"):
        put_journal(path)
    assert any(SENT in content for name, content in platter.image().items() if "recovery/0/" in name)


def test_a_cursor_in_a_directory_that_somebody_else_made(tmp_path: Path, platter: Platter) -> None:
    mine, others = (Cursors(tmp_path / "disk") for _ in range(2))
    die_over(lambda: others.store("reader", 1), tmp_path / "disk")
    platter.image()
    mine.store("reader", 2)
    mine.sync()
    assert "cursors/reader" in platter.image()


def test_a_manifest_that_was_replaced_by_one_who_died_over_that(tmp_path: Path, platter: Platter) -> None:
    """The old one must not come back: it does not know what was removed since."""
    mine, others = (Manifest(tmp_path / "disk" / "manifest", Partition(0)) for _ in range(2))
    mine.rewrite(1)
    others.load(1, believe_rolled=True)
    first, second = (SegmentInfo(i, i * 10, 10, 164, 5, 6) for i in range(2))
    mine.rolled(first, second)
    mine.sync()
    others.refresh(1)
    die_over(lambda: others.rewrite(2), tmp_path / "disk")
    mine.refresh(1)
    mine.retired(first)
    mine.sync()
    (tmp_path / "left").write_bytes(platter.image()["manifest"])
    left = Manifest(tmp_path / "left", Partition(0))
    assert left.load(0, believe_rolled=True)
    assert (left.gone, left.ordered()) == (first, [second])
    for manifest in (mine, others, left):
        manifest.close()
