"""Putting what a log holds on the disk, while its writer compresses and removes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Channel, Queue, Topics
from penstock.formats.channel import Method
from penstock.inspect import View, find
from penstock.storage import files
from penstock.storage.log import Log
from penstock.storage.shrink import compress_sealed

MESSAGE = b"m" * 90


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Something to be done when the view has found what to sync, and is about to open the first of it."""

    def before_the_first(do: Callable[[], object]) -> None:
        @contextmanager
        def late(path: Path, *, write: bool = False) -> Iterator[int]:
            monkeypatch.setattr(files, "opened", real)
            do()
            with real(path, write=write) as fd:
                yield fd

        real = files.opened
        monkeypatch.setattr(files, "opened", late)

    return before_the_first


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Log]:
    """What is finished of it is not sealed."""
    with Channel[bytes](tmp_path / "log", segment_bytes=1000) as ch:
        assert ch._log is not None
        assert ch._janitor is not None
        ch._janitor.stop()
        for _ in range(50):
            ch.tx().send(MESSAGE)
        yield ch._log


def view_of(log: Log) -> View:
    (part,) = find(log.path)
    return part.open()


def test_a_segment_that_is_compressed_meanwhile_was_on_the_disk(
    channel: Log, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    def compress() -> None:
        assert channel.seal_finished() > 3
        assert compress_sealed(channel, Method.ZSTD) > 3

    with view_of(channel) as view:
        meanwhile(compress)
        assert view.durable_end() == 50
    assert not channel.directory.paths(0).data.exists()


def test_a_segment_that_is_removed_meanwhile_was_on_the_disk(
    channel: Log, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    def remove() -> None:
        assert channel.seal_finished() > 3
        assert channel.retire(channel.finished()[0])

    with view_of(channel) as view:
        meanwhile(remove)
        assert view.durable_end() == 50


def test_a_segment_that_is_missing_is_not_taken_for_durable(
    channel: Log, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    data = channel.directory.paths(0).data
    aside = data.with_name("aside")
    with view_of(channel) as view:
        meanwhile(lambda: data.rename(aside))
        with pytest.raises(FileNotFoundError, match=r"segment\.0"):
            view.durable_end()
    aside.rename(data)


def test_a_topic_with_a_hidden_name_is_found_and_other_hidden_directories_are_not(tmp_path: Path) -> None:
    """What is being converted, or written anew, has such a name too."""
    with Topics(tmp_path) as topics:
        for name in (".orders", "orders"):
            topics.topic(name).publish(b"x").wait()
    Queue(tmp_path / ".other.converting").close()
    with Topics(tmp_path / ".topics.converting") as topics:
        topics.topic("orders")
    (tmp_path / ".foreign").mkdir()
    (tmp_path / ".foreign" / "metadata.json").write_text("no settings of ours")
    assert [part.topic for part in find(tmp_path)] == [".orders", "orders"]
