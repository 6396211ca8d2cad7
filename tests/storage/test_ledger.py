"""Batches of encoded frames, each in the log exactly once, whoever dies over it and however often it comes again."""

from __future__ import annotations

import itertools
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Journal, LogBusy, LogClosed, NotALog, Queue, StorageFailed, kernel
from penstock.formats import journal
from penstock.inspect import FormatName, find, format_of
from penstock.spark.options import WriteOptions
from penstock.spark.target import Layout, Target, opened
from penstock.storage import bulk, files, retention
from penstock.storage.ledger import Ledger
from penstock.storage.log import Log
from tests.queue.dying import Countdown, Zygote, die, open_zygote

FORMATS: tuple[FormatName, ...] = ("queue", "channel", "journal", "topic")
SETTINGS = {"fileSize": 16 << 10, "segmentBytes": 4096}
FIRST = [b"before %d" % i for i in range(50)]
SECOND = [b"then %d" % i + bytes(i) for i in range(200)]  # more than the first file has room for


def part(format: FormatName, payloads: list[bytes], times: list[int] | None = None) -> bulk.Part:
    frames = kernel.encode_many(format_of(format).SPEC, payloads)
    return bulk.Part(frames, struct.pack(f"={len(times)}q", *times) if times is not None else None)


def target(path: Path, format: FormatName) -> Target:
    options = WriteOptions(path=str(path), format=format, topic=None, partitions=None, staging=None, settings=SETTINGS)
    return Target(options, Layout(format, 2), "orders" if format == "topic" else "", 1 if format == "topic" else 0)


def append(path: Path, format: FormatName, number: int, *payloads: list[bytes], times: Any = None) -> bool:
    with opened(target(path, format)) as log:
        parts = [part(format, some, given) for some, given in zip(payloads, times or [None] * 9, strict=False)]
        return log.append("writer", number, parts)


def there(path: Path, format: FormatName) -> list[tuple[bytes, int]]:
    """(payload, time) of every record, but for a journal's own."""
    (found,) = [p for p in find(path, format if format != "topic" else None) if p.partition == (format == "topic")]
    out: list[tuple[bytes, int]] = []
    with found.open() as view:
        for segment in view.segments():
            seg = segment.read()
            points = [*seg.scan(seg.start, segment.end, verify=True, every=1).points, segment.end]
            for i, (at, end) in enumerate(itertools.pairwise(points)):
                if format != "journal" or journal.read_head(bytes(seg.data[at:end]))[0] != journal.CHECKPOINT:
                    (payload,) = bulk._payloads(seg.spec, memoryview(seg.data)[at:end])
                    out.append((bytes(payload), seg.times.us(i)))
    return out


def payloads(path: Path, format: FormatName) -> list[bytes]:
    return [payload for payload, _ in there(path, format)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_that_comes_while_the_log_is_closed_is_refused(tmp_path: Path, format: FormatName) -> None:
    """It would be written behind the mark that says how far the log was closed clean."""
    path = tmp_path / "log"
    append(path, format, 0, FIRST)
    with opened(target(path, format)) as log:
        log._ledger._log._closing = True
        with pytest.raises(LogClosed, match="is being closed"):
            log.append("writer", 1, [part(format, SECOND)])
    assert payloads(path, format) == FIRST
    assert append(path, format, 1, SECOND)
    assert payloads(path, format) == FIRST + SECOND


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_that_comes_again_is_left_out(tmp_path: Path, format: FormatName) -> None:
    path = tmp_path / "log"
    assert append(path, format, 0, FIRST[:20], FIRST[20:])
    assert not append(path, format, 0, FIRST)
    assert append(path, format, 1, SECOND)
    assert not append(path, format, 1, SECOND)
    assert not append(path, format, 0, FIRST)
    assert payloads(path, format) == FIRST + SECOND
    with opened(target(path, format)) as log:
        assert log._ledger.highest("writer") == 1
        assert log.append("another", 0, [part(format, [b"x"])])
        log.forget("writer")
        assert log._ledger.highest("writer") is None
    assert payloads(path, format) == [*FIRST, *SECOND, b"x"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_batch_counts(tmp_path: Path, format: FormatName) -> None:
    path = tmp_path / "log"
    assert append(path, format, 0, FIRST)
    assert append(path, format, 1)
    assert append(path, format, 2, [])
    assert not append(path, format, 2, FIRST)
    assert payloads(path, format) == FIRST


@pytest.mark.parametrize("format", FORMATS)
def test_times_of_their_own(tmp_path: Path, format: FormatName) -> None:
    """None runs backwards or ahead of the clock, whatever was given."""
    path = tmp_path / "log"
    before = files.now_us()
    assert append(path, format, 0, [b"a", b"b", b"c"], [b"d", b"e"], times=[[1000, 3000, 2000], [4000, 1 << 62]])
    assert append(path, format, 1, [b"f", b"g"], times=[[0, 5000]])
    got = there(path, format)
    assert [payload for payload, _ in got] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    times = [us for _, us in got]
    assert before <= times[4] <= files.now_us()
    assert times[:4] == [1000, 3000, 3000, 4000]
    if format == "journal":  # every open of it is a log of its own
        assert times[5:] == [5000, 5000]
    else:
        assert times[5:] == [times[4]] * 2


@pytest.mark.parametrize("format", FORMATS)
def test_a_record_without_a_time_has_that_of_the_one_before(tmp_path: Path, format: FormatName) -> None:
    """The first ones have the next that is known, or that of the append. None has none: its sign says whether the batch goes on."""
    path = tmp_path / "log"
    assert append(path, format, 0, [b"a", b"b", b"c"], [b"d"], times=[[0, 3000, 0], [-5]])
    assert [us for _, us in there(path, format)] == [3000] * 4
    before = files.now_us()
    assert append(tmp_path / "none", format, 0, [b"a", b"b"], times=[[0, 0]])
    assert all(before <= us <= files.now_us() for _, us in there(tmp_path / "none", format))


def test_the_index_leads_to_every_part_of_a_batch(tmp_path: Path) -> None:
    """Wherever parts begin between two of its entries, and also those that have none."""
    path = tmp_path / "log"
    with Queue(path, index_interval=16, file_size=SETTINGS["fileSize"]) as queue:
        queue.append_batch([b"x"] * 7)
    sizes = [5, 40, 1, 33, 3, 16], [16, 1], [48]
    for number, some in enumerate(sizes):
        assert append(path, "queue", number, *([b"r" * (1 + i)] * n for i, n in enumerate(some)))
    (found,) = find(path)
    with found.open() as view:
        (segment,) = view.segments()
        seg = segment.read()
        points = seg.scan(seg.start, segment.end, verify=True, every=16).points
        assert [seg.index.entry(i) for i in range(seg.index.count)] == [(16 * i, at) for i, at in enumerate(points)]


@pytest.mark.parametrize("format", FORMATS)
def test_frames_are_spent_as_they_are_written_and_not_looked_at_again(
    tmp_path: Path, format: FormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_STEP_BYTES", 64)
    spent = 0

    def spending(payloads: list[bytes]) -> bulk.Part:
        frames = bytearray(kernel.encode_many(format_of(format).SPEC, payloads))

        def wipe(start: int, length: int) -> None:
            nonlocal spent
            spent += length
            frames[start : start + length] = b"\xff" * length

        return bulk.Part(frames, None, wipe)

    path = tmp_path / "log"
    for number in range(3):
        with opened(target(path, format)) as log:
            assert log.append("writer", number, [spending(FIRST[:7]), spending(FIRST[7:])])
    assert [payload for payload, _ in there(path, format)] == FIRST * 3
    whole = 3 * len(kernel.encode_many(format_of(format).SPEC, FIRST))
    assert spent == whole - (3 * 4 if format in ("queue", "channel") else 0), "all but the heads that commit a batch"


def test_no_whole_frames(tmp_path: Path) -> None:
    with opened(target(tmp_path / "log", "queue")) as log:
        whole = bytes(part("queue", FIRST).frames)
        with pytest.raises(ValueError, match="no whole frame"):
            log.append("writer", 0, [bulk.Part(whole[:-1])])
        assert log.append("writer", 0, [bulk.Part(whole)])


def test_a_damaged_ledger_is_told(tmp_path: Path) -> None:
    append(tmp_path, "queue", 0, FIRST)
    raw = (tmp_path / "ledger").read_bytes()
    (tmp_path / "ledger").write_bytes(raw.replace(b'"writer": 0', b'"writer": 7'))
    with pytest.raises(NotALog, match="ledger: fails its checksum"):
        append(tmp_path, "queue", 1, FIRST)


def test_other_writers_may_append_meanwhile(tmp_path: Path) -> None:
    with Queue(tmp_path) as q:
        for i in range(20):
            q.append(b"other %d" % i)
            append_here(q, i)
        assert [m.payload for m in q.tailer()] == [p for i in range(20) for p in (b"other %d" % i, b"one", b"two")]


def append_here(q: Queue, number: int) -> None:
    from penstock.storage.ledger import Ledger

    assert Ledger(q._open_log()).append("writer", number, [part("queue", [b"one", b"two"])])


@pytest.mark.parametrize("same", [False, True])
def test_what_another_wrote_at_its_place_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """The process died after the note of where the batch was to lie; then somebody else appended there, perhaps the same."""
    path = tmp_path / "log"
    append(path, "queue", 0, FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "_append_mapped", _died_before(bulk._append_mapped))
        with pytest.raises(RuntimeError, match="died"):
            append(path, "queue", 1, SECOND)
    with Queue(path) as q:
        q.append_batch(SECOND if same else [b"other"] * 300)
    expected = FIRST + (SECOND if same else [b"other"] * 300)
    assert append(path, "queue", 1, SECOND), "it is not there yet"
    assert payloads(path, "queue") == expected + SECOND


def _died_before(real: Callable[..., Any]) -> Callable[..., Any]:
    def append_mapped(log: Log, control: Any, frames: Any, on_place: bulk.OnPlace) -> bulk.Batch:
        def noted(batch: bulk.Batch) -> None:
            on_place(batch)
            raise RuntimeError("died")

        return real(log, control, frames, noted)  # type: ignore[no-any-return]

    return append_mapped


# ---- death at any call ----


def die_at(path: str, format: FormatName, at: int) -> None:
    """Append a batch, and die at the so-many-th call that changes a file; say so if it got through."""
    countdown = Countdown(at)
    countdown.lay()
    countdown.begin()
    append(Path(path), format, 1, SECOND[:100], SECOND[100:])
    (Path(path).parent / "through").write_text(str(countdown.calls))
    die()


@pytest.fixture(scope="module")
def dies() -> Iterator[Zygote]:
    with open_zygote(die_at) as made:
        yield made


@pytest.mark.parametrize("format", FORMATS)
def test_a_death_at_any_call_leaves_the_batch_there_once_or_not_at_all(
    tmp_path: Path, dies: Zygote, format: FormatName
) -> None:
    came_again = {True: 0, False: 0}
    for at in itertools.count(1, 5 if format in ("queue", "channel") else 8):
        path = tmp_path / str(at) / "log"
        assert append(path, format, 0, FIRST)
        assert dies(path, format, at) == -signal.SIGKILL
        assert payloads(path, format) in (FIRST, FIRST + SECOND), "whole, or not there"
        came_again[append(path, format, 1, SECOND)] += 1
        assert payloads(path, format) == FIRST + SECOND
        assert append(path, format, 2, [b"on"])
        assert payloads(path, format) == [*FIRST, *SECOND, b"on"]
        if (path.parent / "through").exists():
            break
    assert all(came_again.values()), "some died before it was there, some after"


def cut_short(path: Path, format: FormatName, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """A batch whose writer dies when it has stored the ledger so often: 1 is before the first byte, 2 after the last."""
    with dying(monkeypatch, after=after):
        append(path, format, 1, SECOND)


def intend(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """The same in a log that is open."""
    with dying(monkeypatch, after=after):
        ledger.append("writer", 1, [part("journal", SECOND)])


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, *, after: int) -> Iterator[None]:
    stored = 0
    real = Ledger._store

    def store(self: Ledger, state: Any) -> None:
        nonlocal stored
        stored += 1
        if stored == 2:
            raise SystemExit
        real(self, state)
        if after == 1:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_store", store)
        with pytest.raises(SystemExit):
            yield


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("format", ["queue", "topic"])
def test_what_tells_of_a_batch_that_was_cut_short_is_not_removed_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: FormatName, after: int
) -> None:
    """Others append where the batch was to lie, and retention removes what they wrote: then nothing would tell any more."""
    path = tmp_path / "log"
    assert append(path, format, 0, FIRST)
    cut_short(path, format, monkeypatch, after=after)
    with opened(target(path, format)) as others:
        log = others._ledger._log
        for _ in range(40):
            bulk.append(log, [part(format, [b"theirs" * 100] * 6)], lambda batch: None)
            log.sync()
        assert retention.drop(log, log.next_sequence)
        assert log.first_sequence > len(FIRST) + len(SECOND)
    assert append(path, format, 1, SECOND) == (after == 1)
    assert (payloads(path, format)[-len(SECOND) :] == SECOND) == (after == 1)


@pytest.mark.filterwarnings("ignore::penstock.RecoveryUnfinished")
@pytest.mark.parametrize("by", ["walk", "check"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_journal_does_not_remove_what_tells_of_a_batch_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, by: str
) -> None:
    """Its records go when the walk has come to its end; those of this session when their group is retired."""
    path = tmp_path / "log"
    assert append(path, "journal", 0, FIRST)
    if by == "walk":
        cut_short(path, "journal", monkeypatch, after=after)
        with Journal(path) as others:
            others.append_many([b"theirs"] * 300).result()
    with Journal(path) as others:
        assert len(list(others.recovered())) >= len(FIRST)
        if by == "check":
            ledger = Ledger(others._open_log())
            intend(ledger, monkeypatch, after=after)
            others.append_many([b"theirs"] * 300).result()
            others._open_log().roll_now()
            others.append(b"theirs")
            others.checkpoint().result()
            others.check().result()
    with find(path)[0].open() as view:
        assert view.first > len(FIRST) + len(SECOND)
    assert append(path, "journal", 1, SECOND) == (after == 1)
    assert (payloads(path, "journal")[-len(SECOND) :] == SECOND) == (after == 1)


def test_nothing_is_removed_while_somebody_asks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "queue", 0, FIRST)
    with opened(target(path, "queue")) as log:
        for number in range(1, 4):
            log.append("writer", number, [part("queue", SECOND)])
        with log._ledger._locked(), pytest.raises(LogBusy, match="a batch is just committed"):
            retention.drop(log._ledger._log, 1 << 40)
        assert retention.drop(log._ledger._log, 1 << 40)


def test_a_batch_that_was_removed_was_there_though_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    append(path, "queue", 0, FIRST)
    with opened(target(path, "queue")) as log:
        log._ledger._log.roll_now()
        monkeypatch.setattr(Ledger, "settle", lambda self: True)  # by other means than ours
        retention.drop(log._ledger._log, 1 << 40)
        found = bulk.spans(log._ledger._log)
        assert [(span.base, span.next) for span in found] == [(len(FIRST), len(FIRST))]
        assert bulk.holds(found, bulk.Batch(0, len(FIRST), 1, "", ""))
        assert not bulk.holds(found, bulk.Batch(len(FIRST), 1, 1, "", ""))


def test_a_ledger_is_never_larger_than_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that would make it so is refused, and nothing of it appended: every later one would be refused, too, for its damage."""
    monkeypatch.setattr("penstock.storage.checked._MOST_BYTES", 1500)
    with Queue(tmp_path / "q", file_size=65536) as q:
        ledger = Ledger(q._open_log())
        for i in range(100):
            try:
                ledger.append(f"writer {i}", 0, [part("queue", [b"%d" % i])])
            except StorageFailed as error:
                assert "it would have" in str(error)
                break
        assert 10 < i < 99
        assert q.next_sequence == i
        assert not ledger.append("writer 0", 0, [part("queue", [b"again"])])
        assert ledger.highest(f"writer {i}") is None
        ledger.forget("writer 0")
        ledger.forget("writer 1")
        assert ledger.append(f"writer {i}", 0, [part("queue", [b"%d" % i])])
