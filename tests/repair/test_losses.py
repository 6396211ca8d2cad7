"""What is listed as lost is stepped over by everything that reads, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Channel, CorruptRecord, Journal, NotALog, Queue, Topics
from penstock.inspect import find
from penstock.repair import apply
from penstock.storage.damage import Place
from penstock.storage.losses import Listed, LossList
from penstock.storage.report import Recovery
from penstock.storage.walking import next_readable, place_over, walk
from penstock.verify import verify
from tests.queue.crash import Image
from tests.repair import logs
from tests.repair.test_verify import flip

COUNT = logs.COUNT
LISTED = {34, 40, 41}  # two damages, in the second segment
WAS = dict(enumerate(logs.SENT))
LEFT = {i: payload for i, payload in WAS.items() if i not in LISTED}


def break_record(path: Path, sequence: int) -> None:
    """Change the last byte of a record's payload, or checksum."""
    segment = next(s for s in logs.segments(path) if s.base <= sequence < s.next)
    seg = segment.read()
    if not seg.paths.data.exists():
        assert seg.paths.packed is not None
        flip(seg.paths.packed, seg.paths.packed.stat().st_size // 2)  # a stream is lost from there on
        return
    flip(seg.paths.data, seg.scan(seg.start, segment.end, sequence - segment.base + 1, verify=False).position - 1)


def repaired(kind: str, path: Path) -> Path:
    logs.lay(kind, path)
    for sequence in LISTED:
        break_record(path, sequence)
    assert apply(path).left == ()
    return path


def lost(losses: list[tuple[int, int, str]]) -> set[int]:
    return {i for first, last, _ in losses for i in range(first, last + 1)}


def test_the_list_names_segment_range_reason_and_time(path: Path) -> None:
    repaired("queue", path)
    with find(path)[0].open() as view:
        listed = view.losses()
    assert [(one.first, one.last) for one in listed] == [(34, 34), (40, 40), (41, 41)]
    assert {one.segment for one in listed} == {logs.segments(path)[1].name}
    assert {one.reason for one in listed} == {"its checksum does not match"}
    assert all(one.us > 1_700_000_000_000_000 and one.position < one.end for one in listed)
    report = verify(path)
    assert (report.records, report.lost, report.findings) == (logs.COUNT - 3, 3, ())


def test_a_batch_over_listed_losses_ends_before_new_damage(path: Path) -> None:
    """What lies before the damage is given first, though some of it is listed as lost, and that is noted once."""
    repaired("queue", path)
    break_record(path, 45)
    with Queue(path) as q:
        t = q.tailer()
        assert [m.sequence for m in t.read_batch(1000)] == [i for i in LEFT if i < 45]
        assert lost(t.losses) == LISTED
        assert len(t.losses) == len(LISTED)
        with pytest.raises(CorruptRecord, match="sequence 45"):
            t.read_batch(1000)


def test_an_index_entry_between_damages_tells_what_lies_there(path: Path) -> None:
    """It leads nowhere, as a length behind it is broken; but the lengths from the entry before lead to it."""
    with Queue(path, index_interval=4) as q:
        q.append_batch([b"%d" % i * 5 for i in range(18)])
        assert q._log is not None
        end = q._log.active().end
    seg = logs.segments(path)[0].read()
    at = seg.scan(seg.start, end, verify=False, every=1).points
    data = seg.paths.data
    for i in (1, 3):
        flip(data, at[i] + 4)  # its payload
    flip(data, at[6], 7)  # its length
    whole = [i for i in range(18) if i not in (1, 3, 6)]
    with Queue(path) as q:
        forward, backward = q.tailer(on_corrupt="skip"), q.tailer(direction="backward", on_corrupt="skip")
        assert [m.sequence for m in forward] == whole
        assert [m.sequence for m in backward] == whole[::-1]
        assert lost(forward.losses) == lost(backward.losses) == {1, 3, 6}


def test_a_queues_tailers(path: Path) -> None:
    repaired("queue", path)
    with Queue(path) as q:
        tailer = q.tailer()
        assert {m.sequence: m.payload for m in tailer} == LEFT
        assert lost(tailer.losses) == LISTED
        backward = q.tailer(direction="backward")
        assert [(m.sequence, m.payload) for m in backward] == sorted(LEFT.items(), reverse=True)
        assert lost(backward.losses) == LISTED
        batched, got = q.tailer(), []
        while some := batched.read_batch(7):
            got += [(m.sequence, m.payload) for m in some]
        assert got == sorted(LEFT.items())
        for sequence in range(30, 45):
            tailer.seek(sequence)
            message = tailer.read()
            assert message is not None
            assert message.sequence == next(i for i in range(sequence, 60) if i not in LISTED)
        skipping = q.tailer(on_corrupt="skip")
        assert {m.sequence: m.payload for m in skipping} == LEFT
        assert lost(skipping.losses) == LISTED


def test_arrow(path: Path) -> None:
    pytest.importorskip("pyarrow")
    repaired("queue", path)
    with Queue(path) as q:
        tailer, rows = q.tailer(), []
        while (batch := tailer.read_arrow(1000)).num_rows:
            rows += zip(batch.column("sequence").to_pylist(), batch.column("payload").to_pylist(), strict=True)
        assert dict(rows) == LEFT
        assert lost(tailer.losses) == LISTED


def test_damage_that_is_not_listed_raises(path: Path) -> None:
    repaired("queue", path)
    break_record(path, 36)
    with Queue(path) as q:
        tailer = q.tailer()
        with pytest.raises(CorruptRecord) as raised:
            list(tailer)
        assert raised.value.sequence == 36
        assert lost(tailer.losses) == {34}
        backward = q.tailer(direction="backward")
        with pytest.raises(CorruptRecord) as raised:
            list(backward)
        assert raised.value.sequence == 36
    assert [(f.first, f.last) for f in verify(path).findings] == [(36, 36)]


def test_a_list_that_was_made_when_another_segment_had_the_records(path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 34)
    segment = logs.segments(path)[1]
    seg, end = segment.read(), Place(segment.end, segment.next)
    bad = Place(seg.scan(seg.start, segment.end).position, 34)
    after = next_readable(seg, bad, end)
    assert after.sequence == 35
    for first, last, wanted in ((34, 34, after), (30, 40, after), (35, 40, None), (0, 33, None)):
        other = Listed("another", first, last, 0, 0, "", 0)
        assert place_over([other], seg, bad, end) == wanted
        further = bad.position + 77
        assert place_over([other._replace(segment=segment.name, end=further)], seg, bad, end) == (
            Place(further, last + 1) if wanted else None
        )


def test_a_walk_goes_as_far_as_the_list_says(path: Path) -> None:
    """Or the index that repair has made anew could have it come to another end the next time."""
    logs.lay("queue", path)
    break_record(path, 34)
    segment = logs.segments(path)[1]
    seg, end = segment.read(), Place(segment.end, segment.next)
    upto = seg.scan(seg.start, segment.end, 6, verify=False).position
    listed = [Listed(segment.name, 34, 37, seg.start, upto, "", 0)]
    ((_, plain, _),) = walk(seg, end, logs.INTERVAL, Recovery()).losses
    ((_, told, reached),) = walk(seg, end, logs.INTERVAL, Recovery(), listed=listed).losses
    assert (plain[:2], told[:2], reached) == ((34, 34), (34, 37), upto)


def list_more(path: Path) -> tuple[int, list[int]]:
    """Break a record, and list it with the next two, up to one that the index knows. Where the last of these lies, and the
    records around them."""
    segment = logs.segments(path)[1]
    bad = segment.base + 1
    break_record(path, bad)
    seg = segment.read()
    places = seg.scan(seg.start, segment.end, verify=False, every=1).points
    LossList(path).add([Listed(segment.name, bad, bad + 2, places[1], places[4], "", 0)])
    return places[3] + (segment.begin or 0), [bad - 1, bad + 3]


def test_whoever_goes_into_what_is_listed_comes_out_where_the_list_says(path: Path) -> None:
    """Whatever of it could still be read: each way to read gives the same."""
    logs.lay("queue", path)
    _, (before, after) = list_more(path)
    with Queue(path) as q:
        for sequence in range(before + 1, after + 1):
            message = q.tailer(at=sequence).read()
            assert message is not None
            assert message.sequence == after
        backward = q.tailer(at=after, direction="backward")
        assert [m.sequence for m in backward][:2] == [after, before]


def test_and_so_does_a_receiver(path: Path) -> None:
    logs.lay("channel", path)
    place, (_, after) = list_more(path)
    with Channel[bytes](path, segment_bytes=1800) as c:
        rx = c.rx()
        rx.seek(place - 64)  # an offset leaves out the header
        assert rx.recv() == logs.SENT[after]


def test_an_offset_between_two_broken_lengths_is_found_by_the_list(path: Path) -> None:
    """Without it what lies between them has no number that can be proved, and a receiver there would begin at the first."""
    logs.lay("channel", path)
    segment = logs.segments(path)[1]
    seg = segment.read()
    seg.paths.index.unlink()
    places = seg.scan(seg.start, segment.end, verify=False, every=1).points
    for broken in (2, 9):
        flip(seg.paths.data, places[broken], 6)
        flip(seg.paths.data, places[broken], 3)
        bad = segment.base + broken
        LossList(path).add([Listed(segment.name, bad, bad, places[broken], places[broken + 1], "", 0)])
    with Channel[bytes](path, segment_bytes=1800) as c:
        rx = c.rx()
        rx.seek((segment.begin or 0) + places[5] - seg.start)
        assert rx.recv_many(5) == [logs.SENT[segment.base + i] for i in (5, 6, 7, 8, 10)]


def test_a_list_that_cannot_be_read_hides_nothing(path: Path) -> None:
    repaired("queue", path)
    flip(path / "losses", 20)
    with Queue(path) as q, pytest.raises(NotALog, match="penstock repair"):
        list(q.tailer())
    assert [f.kind for f in verify(path).findings] == ["losses"]
    assert apply(path).left == ()
    assert logs.read("queue", path).lost == LISTED


@pytest.mark.parametrize("kind", ["channel", "zstd"])
@pytest.mark.parametrize("ack", [False, True])
def test_a_channels_receivers_pass_it(path: Path, kind: str, ack: bool) -> None:
    """Also what they have done is one range afterwards: nothing is kept for what will never come."""
    repaired(kind, path)
    left = logs.read(kind, path).records
    assert left.keys() <= LEFT.keys()
    with Channel[bytes](path, segment_bytes=1800) as c:
        rx = c.rx("holds", ack=ack)
        got = []
        while (message := rx.try_recv()) is not None:
            got.append(message)
            if ack:
                rx.ack()
        assert got == list(left.values())
        assert rx.offset == c._places.end
        assert c._open_log().cursors.ranges("holds") == []
    with Channel[bytes](path) as c:
        assert c.rx("holds").try_recv() is None


def test_a_topics_tailers_and_groups(path: Path) -> None:
    repaired("topic", path)
    with Topics(path, segment_bytes=1800) as opened:
        t = opened.topic("t")
        with t.tailer(partitions=[1]) as tailer:
            assert {m.offset: m.payload for m in tailer} == LEFT
            assert lost(tailer.losses[1]) == LISTED  # type: ignore[arg-type]
        assert [m.offset for m in t.read(1, 33, 20)][:2] == [33, 35]
        with t.group("group") as member:
            got = {}
            while some := member.poll_many(50, timeout_s=0):
                got.update({m.offset: m.payload for m in some})
            member.commit()
            assert got == LEFT
            assert lost(member.losses[1]) == LISTED  # type: ignore[arg-type]
        assert t.stats()[1].lag["group"] == 0


def test_a_journals_walk_takes_the_list_along(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.small(monkeypatch)
    repaired("journal", path)
    was = logs.payloads("journal")
    for _ in range(2):  # the second one finds it in the directory that the first one moved it to
        found = logs.read("journal", path)
        assert found.records == {i: payload for i, payload in was.items() if i not in LISTED}
        assert found.lost == LISTED
    assert (path / "recovery" / "0" / "losses").exists()
    assert not (path / "losses").exists()
    assert verify(path).findings == ()
    with Journal(path) as j:
        assert len(list(j.recovered())) == len(was) - len(LISTED & was.keys())


@pytest.mark.parametrize("columns", [["offset"], ["offset", "value"]])
def test_a_task_of_spark(path: Path, columns: list[str]) -> None:
    """What a task does, done here: no Spark is needed for that."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from penstock.spark.plan import Piece
    from penstock.spark.scan import read_piece

    repaired("queue", path)
    schema = pa.schema([pa.field("offset", pa.int64()), pa.field("value", pa.binary())][: len(columns)])

    def offsets() -> list[int]:
        pieces = [Piece(segment, segment.base, segment.next) for segment in logs.segments(path)]
        batches = [batch for piece in pieces for batch in read_piece(piece, schema)]
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    assert offsets() == list(LEFT)
    break_record(path, 36)
    with pytest.raises(CorruptRecord):
        offsets()


def test_a_task_of_spark_where_a_file_is_gone(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from penstock.spark.plan import Piece
    from penstock.spark.scan import read_piece

    logs.lay("topic", path)
    gone = logs.segments(path)[1]
    gone.paths().data.unlink()
    piece = Piece(gone, gone.base, gone.next)
    schema = pa.schema([pa.field("offset", pa.int64())])
    with pytest.raises(CorruptRecord):
        list(read_piece(piece, schema))
    assert apply(path).left == ()
    again = logs.segments(path)[1]
    assert list(read_piece(Piece(again, again.base, again.next), schema)) == []


def test_backward_tries_at_new_damage_tell_no_loss_twice(path: Path) -> None:
    """40 and 41 are listed; 42, beside them, is not."""
    repaired("queue", path)
    break_record(path, 42)
    with Queue(path) as q:
        backward = q.tailer(direction="backward", at=43)
        assert backward.read() is not None
        for _ in range(3):
            with pytest.raises(CorruptRecord, match="sequence 42"):
                backward.read()
        assert backward.losses == []


def test_backward_over_damage_that_retention_removes(path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 41)  # 40, before it, is located already
    with Queue(path) as q:
        backward = q.tailer(direction="backward", at=43)
        assert [m.sequence for m in backward.read_batch(2)] == [43, 42]
        log = q._open_log()
        log.seal_finished()
        for info in sorted(log.finished().values(), key=lambda one: one.id):
            if info.sealed and info.base <= 41:
                log.retire(info)
        assert q.first_sequence > 41
        assert backward.read() is None
        assert backward.read() is None
        backward.to_end()
        assert [m.sequence for m in backward][-1] == q.first_sequence


def without_page(kind: str, path: Path, *lost: int) -> None:
    """A log whose last file has listed losses, copied without its control page."""
    logs.lay(kind, path)
    for sequence in lost:
        break_record(path, sequence)
    assert apply(path).left == ()
    for page in path.rglob(".lock"):
        page.unlink()


@pytest.mark.parametrize("kind", ["queue", "channel", "topic"])
def test_a_listed_loss_with_records_behind_it_does_not_end_a_log_that_has_lost_its_control_page(
    kind: str, path: Path
) -> None:
    """Also with several in a row, each of which is listed by itself."""
    lost = (COUNT - 8, COUNT - 6, COUNT - 5)
    without_page(kind, path, *lost)
    wanted = {i: payload for i, payload in WAS.items() if i not in lost}
    assert logs.read(kind, path).records == wanted
    reopened(kind, path)
    assert logs.read(kind, path).records == wanted
    assert not list(path.rglob("*.torn"))


def reopened(kind: str, path: Path, *payloads: bytes) -> int:
    """What the first of the new ones has got for a number."""
    if kind == "queue":
        with Queue(path, file_size=8192) as q:
            return [q.next_sequence, *(q.append(payload) for payload in payloads)][0]
    if kind == "topic":
        with Topics(path, segment_bytes=1800, linger_s=0) as topics:
            t = topics.topic("t")
            return [t.ends()[1], *(t.publish(payload, partition=1).wait() for payload in payloads)][0]  # type: ignore[return-value]
    with Channel[bytes](path) as c:
        assert c._log is not None
        return c._log.next_sequence


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_is_listed_of_records_that_a_power_cut_took_says_nothing_of_those_that_get_their_numbers(
    kind: str, path: Path
) -> None:
    """Others have other lengths, and damage to them is new."""
    lost = COUNT - 8
    without_page(kind, path, lost)
    last = logs.segments(path)[-1]
    (listed,) = last.losses
    with last.paths().data.open("r+b") as data:
        size = data.seek(0, 2)
        data.truncate(listed.end)
        data.truncate(size if kind == "queue" else listed.end)
    new = [b"new %d" % i * (3 + i) for i in range(8)]
    assert reopened(kind, path, *new) == lost
    wanted = {i: payload for i, payload in WAS.items() if i < lost} | {lost + i: p for i, p in enumerate(new)}
    assert logs.read(kind, path).records == wanted
    break_record(path, lost)
    with pytest.raises(CorruptRecord):
        logs.read(kind, path)
    report = verify(path)
    assert [(found.first, found.last) for found in report.findings] == [(lost, lost)]
    assert apply(path).left == ()
    del wanted[lost]
    assert logs.read(kind, path).records == wanted


def test_a_log_that_ends_within_a_listed_loss_keeps_what_is_listed_before(tmp_path: Path) -> None:
    own = LossList(tmp_path)
    own.add(
        [Listed("a", 1, 2, 10, 20, "why", 7), Listed("b", 5, 8, 30, 60, "why", 7), Listed("b", 9, 9, 60, 70, "why", 7)]
    )
    own.cut(Place(40, 7), "b")
    assert own.all() == (Listed("a", 1, 2, 10, 20, "why", 7), Listed("b", 5, 6, 30, 40, "why", 7))
    before = own.path.stat().st_ino
    own.cut(Place(40, 7), "b")
    assert own.path.stat().st_ino == before  # nothing was written for nothing
    own.path.write_text("{")
    own.cut(Place(0, 0), "b")
    assert own.path.read_text() == "{"


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_batch_that_a_power_cut_tore_is_cut_from_behind_what_is_listed(kind: str, path: Path, tmp_path: Path) -> None:
    """Nothing leads through what is lost to the batch's beginning."""
    logs.lay(kind, path)
    last, lost = logs.segments(path)[-1], COUNT - 8
    seg = last.read()
    at = seg.scan(seg.start, last.end, lost - seg.base, verify=False).position
    flip(seg.paths.data, at + (1 if kind == "queue" else 2))  # its length
    assert apply(path).left == ()
    listed = {i for one in logs.segments(path)[-1].losses for i in range(one.first, one.last + 1)}
    assert lost in listed
    batch = [b"batch %d" % i for i in range(5)]
    if kind == "queue":
        with Queue(path, file_size=8192) as q:
            q.append_batch(batch)
            image, end = Image.take(path), logs.segments(path)[-1].end
    else:
        with Topics(path, segment_bytes=1800, linger_s=0) as topics:
            page = {n: data for n, data in Image.take(path).items() if n.endswith(".lock")}
            topics.topic("t").publish_many(batch, partition=1).wait()
            image, end = Image({**Image.take(path), **page}), logs.segments(path)[-1].end
    name = seg.paths.data.relative_to(path).as_posix()
    torn = image[name][: end - 3].ljust(len(image[name]) if kind == "queue" else 0, b"\0")
    laid = image.changed(name, torn).lay(tmp_path / "cut", "new")
    wanted = {i: payload for i, payload in WAS.items() if i not in listed}
    assert reopened(kind, laid, b"more") == COUNT
    assert logs.read(kind, laid).records == wanted | {COUNT: b"more"}
    assert verify(laid).findings == ()


@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_an_empty_record_behind_a_listed_loss_is_one_too(kind: str, path: Path) -> None:
    """Where zeros may be what was never written, its companion or the offset proves it."""
    sent = [b"%04d" % i * 10 for i in range(12)]
    sent[6] = b""
    if kind == "topic":
        with Topics(path, linger_s=0) as topics:
            for payload in sent:
                topics.topic("t", 2).publish(payload, partition=1).wait()
    else:
        with Channel[bytes](path, crash_consistent=True) as c:
            c.rx("holds").close()
            for payload in sent:
                c.tx().send(payload)
    (seg,) = logs.segments(path)
    data = seg.paths().data
    flip(data, data.read_bytes().index(sent[5]))
    assert apply(path).left == ()
    for page in path.rglob(".lock"):
        page.unlink()
    assert reopened(kind, path) == 12
    assert not list(path.rglob("*.torn"))
