"""Hostile names and paths are refused before anything is made, files get the caller's umask, and pickle is for who chose it."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import Channel, DecodeError, Journal, NotALog, PenstockError, Queue, RecoveryUnfinished, Topics, codecs
from penstock.compressing import compress
from penstock.cursors import move
from penstock.formats import queue as queue_format
from penstock.kernel import encode_many
from penstock.storage.bulk import Part
from penstock.storage.cursor import Cursors
from penstock.storage.ledger import Ledger
from penstock.storage.losses import Listed, LossList
from tests.fuzz import corpus
from tests.fuzz.campaign import WORK
from tests.queue.crash import Image
from tests.repair import logs
from tests.topic_crash import wreck

NAMES = [
    "..",
    ".",
    "",
    "../x",
    "a/b",
    "/tmp/x",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "a\\..\\b",
    "x" * 300,
    "..\u2215x",
    "x.tmp/",
]


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Path]:
    """A directory beside which nothing may appear."""
    (tmp_path / "inside").mkdir()
    yield tmp_path / "inside"
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_of_topics_readers_and_groups(inside: Path, name: str) -> None:
    with Topics(inside / "topics") as logs:
        with pytest.raises(ValueError, match=r"topic|name"):
            logs.topic(name)
        t = logs.topic("t")
        with pytest.raises(ValueError, match="name"):
            t.tailer(name)
        with pytest.raises(ValueError, match="name"):
            t.group(name)
        with pytest.raises(ValueError, match="name"):
            t.forget(name)
    with Channel[bytes](inside / "channel") as c, pytest.raises(ValueError, match="name"):
        c.rx(name)
    with Queue(inside / "queue") as q:
        q.append(b"x")
        with pytest.raises(ValueError, match="name"):
            q.tailer(name)
        with pytest.raises(ValueError, match="name"):
            q.forget(name)
    with pytest.raises(ValueError, match="name"):
        Cursors(inside).store(name, 1)


@pytest.mark.parametrize(
    "name", ["../20261115-0001.data", "2026/11/15/../20261115-0001.data", "/2026/11/15/20261115-0001.data"]
)
def test_no_path_that_leads_elsewhere_is_a_segment(name: str) -> None:
    assert queue_format.parse(name) is None


def test_a_cursor_that_is_a_link_is_replaced_and_not_written_through(inside: Path) -> None:
    elsewhere = inside / "elsewhere"
    elsewhere.write_bytes(b"somebody's")
    with Queue(inside / "queue") as q:
        q.append(b"x")
        q.tailer("reader").commit()
        (inside / "queue/cursors/reader").unlink()
        (inside / "queue/cursors/reader").symlink_to(elsewhere)
        with pytest.raises(NotALog, match="cursors/reader: a link"):
            q.tailer("reader")
        Cursors(inside / "queue").store("reader", 1)
        assert q.tailer("reader").position == 1
    assert elsewhere.read_bytes() == b"somebody's"
    assert not (inside / "queue/cursors/reader").is_symlink()


def _tree(top: Path) -> dict[str, bytes]:
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def _led_out(image: Image, name: str, top: Path) -> Path:
    """A log of which one file or directory lies elsewhere, with a link in its place."""
    path = wreck.lay(image, top / "log", "same")
    (top / "elsewhere").mkdir()
    (path / name).rename(top / "elsewhere" / "it")
    (path / name).symlink_to(top / "elsewhere" / "it")
    return path


def _one_of_each_sort(image: Image) -> list[str]:
    """A file of each sort, and every directory."""
    directories = {str(above) for name in image for above in Path(name).parents[:-1]}
    return [*{corpus.sort_of(name): name for name in sorted(image)}.values(), *sorted(directories)]


def _is_refused(work: Callable[[], object], words: str) -> bool:
    """Whether it is no log, for that reason. Another error of ours is as if there were none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecoveryUnfinished)
        try:
            work()
        except NotALog as error:
            return words in str(error)
        except PenstockError:
            pass
    return False


@pytest.mark.parametrize("kind", ["queue", "zstd", "journal", "topic"])
def test_what_a_link_leads_to_is_not_written(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file or directory of a log is one: it is refused, or done without."""
    logs.small(monkeypatch)
    image, refused = corpus.image(kind), set[str]()
    for number, name in enumerate(_one_of_each_sort(image)):
        for what, work in WORK.items():
            top = tmp_path / f"{number} {what}"
            path = _led_out(image, name, top)
            before = _tree(top / "elsewhere")
            if _is_refused(lambda work=work, path=path: work(kind, path), "a link, where a log has its own"):
                refused.add(Path(name).name)
            assert _tree(top / "elsewhere") == before, (what, name)
    assert {".lock", "manifest", "metadata.json"} <= refused
    assert kind == "journal" or {"cursors", "reader"} & refused


@pytest.mark.parametrize("kind", ["queue", "zstd", "journal", "topic"])
def test_nothing_is_made_where_a_link_leads(inside: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new log, with a link to nowhere in the place of each file that it makes."""
    logs.small(monkeypatch)
    names = [name for name in _one_of_each_sort(corpus.image(kind)) if corpus.sort_of(name) not in ("ledger", "losses")]
    for number, name in enumerate(names):
        link = inside / str(number) / name
        link.parent.mkdir(parents=True)
        link.symlink_to(inside / "nowhere")
        with suppress(PenstockError, FileExistsError):
            if kind == "topic":
                with Topics(inside / str(number)) as topics:
                    topics.topic("t", 2)
            WORK["write"](kind, inside / str(number))
        assert not (inside / "nowhere").exists(), name


def test_the_directory_that_is_asked_for_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    _make_all(tmp_path / "link")
    with Topics(tmp_path / "link" / "topics") as topics:
        topics.topic("t").add_partitions(2)
    with Queue(tmp_path / "disk" / "queue", read_only=True) as q:
        assert [m.payload for m in q.tailer()] == [b"x", b"batch"]


def test_a_group_behind_a_link_is_not_joined(inside: Path) -> None:
    (inside / "elsewhere").mkdir()
    with Topics(inside / "topics") as topics:
        t = topics.topic("t")
        (inside / "topics" / "t" / ".groups").symlink_to(inside / "elsewhere")
        with pytest.raises(NotALog, match=r"\.groups: a link"):
            t.group("g")
    assert not any((inside / "elsewhere").iterdir())


def _make_all(top: Path) -> None:
    with Queue(top / "queue", file_size=8192) as q:
        q.append(b"x")
        q.tailer("reader").commit()
        Ledger(q._open_log()).append("w", 1, [Part(encode_many(queue_format.SPEC, [b"batch"]), None)])
    LossList(top / "queue").add([Listed("x", 3, 4, 100, 200, "its checksum is wrong", 1)])
    with Channel[bytes](top / "packed", segment_bytes=1800, compression="zstd") as c:
        c.rx("holds")
        for _ in range(100):
            c.tx().send(b"x" * 50)
    compress(top / "packed")  # what the background has not
    with Channel[bytes](top / "channel") as c:
        c.rx("reader")
        c.tx().send(b"x")
    with Journal(top / "journal") as j:
        j.append(b"x").result()
    with Topics(top / "topics", linger_s=0) as logs:
        t = logs.topic("t")
        t.publish(b"x").wait()
        with t.group("group") as member:
            member.poll()
            member.commit()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027, 0o000])
def test_files_have_the_modes_that_the_caller_lets_them_have(tmp_path: Path, mask: int) -> None:
    """And none is one that everybody may write, or run."""
    before = os.umask(mask)
    try:
        _make_all(tmp_path / "all")
    finally:
        os.umask(before)
    found = [p for p in (tmp_path / "all").rglob("*") if not p.is_dir()]
    assert {"reader", ".lock", "offset", "manifest", "ledger", "losses", "turn"} <= {p.name for p in found}
    assert any(p.suffix == ".z" for p in found)
    for p in found:
        assert stat.S_IMODE(p.stat().st_mode) == 0o664 & ~mask, p
    for p in (tmp_path / "all").rglob("*"):
        if p.is_dir():
            assert stat.S_IMODE(p.stat().st_mode) == 0o777 & ~mask, p


class Trap:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_pickle_is_loaded_only_by_who_chose_it(tmp_path: Path) -> None:
    mark = tmp_path / "sprung"
    with Channel(tmp_path / "channel", codecs.bytes_()) as c:
        c.rx("reader")
        for _ in range(2):
            c.tx().send(pickle.dumps(Trap(mark)))
    for codec in (codecs.json(dict), codecs.msgpack(dict)):
        with Channel(tmp_path / "channel", codec) as other, pytest.raises(DecodeError):
            other.rx("reader").recv(0)
    with Channel(tmp_path / "channel") as plain:
        assert isinstance(plain.rx("reader").recv(0), bytes)
    assert not mark.exists()
    with Channel(tmp_path / "channel", codecs.pickle()) as chosen:
        chosen.rx("reader").recv(0)
    assert mark.exists()


def test_cursors_are_moved_by_names_only(inside: Path) -> None:
    with Queue(inside / "queue") as q:
        q.append(b"x")
    with pytest.raises(ValueError, match="name"):
        move(inside / "queue", "../x", 0)


@pytest.mark.parametrize("what", ["directory", "pipe"])
@pytest.mark.parametrize("kind", ["queue", "zstd", "journal", "topic"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of each sort of file: nobody waits for the other end of a pipe, and what is said of a directory is an error of ours."""
    logs.small(monkeypatch)
    image, refused = corpus.image(kind), set[str]()
    names = [name for name in _one_of_each_sort(image) if name in image]
    for number, name in enumerate(names):
        for how, work in WORK.items():
            path = wreck.lay(image, tmp_path / f"{number} {how}", "same")
            (path / name).unlink()
            (Path.mkdir if what == "directory" else os.mkfifo)(path / name)
            with _no_longer_than(20):
                if _is_refused(lambda work=work, path=path: work(kind, path), "no regular file"):
                    refused.add(Path(name).name)
    assert {".lock", "manifest", "metadata.json"} <= refused


@pytest.mark.parametrize("kind", ["queue", "zstd", "journal", "topic"])
def test_a_file_that_only_claims_to_be_long_takes_no_memory_or_time(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each small file in turn: behind what it has there is a hole, longer than any memory."""
    logs.small(monkeypatch)
    image = corpus.image(kind)
    small = [name for name in _one_of_each_sort(image) if name in image and "N" not in corpus.sort_of(name)]
    assert any(name.endswith("manifest") for name in small)
    for number, name in enumerate(small):
        for how, work in WORK.items():
            path = wreck.lay(image, tmp_path / f"{number} {how}", "same")
            os.truncate(path / name, 1 << 40)
            with warnings.catch_warnings(), _no_longer_than(20), suppress(PenstockError):
                warnings.simplefilter("ignore", RecoveryUnfinished)
                work(kind, path)


@contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def end(*_: object) -> None:
        pytest.fail("it waits for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
