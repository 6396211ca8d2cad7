"""`verify`: nothing is found in whole logs, and everything where it is in damaged ones."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import Channel, Journal, Queue, Topics
from penstock.errors import LogNotFound
from penstock.inspect import find
from penstock.storage import packing, soundness
from penstock.testing.state import Boot
from penstock.verify import Finding, check, look, report, verify
from tests.repair import logs
from tests.support import until


def found(path: Path) -> tuple[Finding, ...]:
    return verify(path, deep=True).findings


def flip(file: Path, position: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


@pytest.mark.parametrize("boot", ["same", "new"])
@pytest.mark.parametrize("kind", logs.KINDS)
def test_a_whole_log(path: Path, kind: str, boot: Boot) -> None:
    logs.lay(kind, path, boot)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    told = verify(path, deep=True)
    assert told.findings == ()
    assert told.records == (len(logs.frame_sizes(kind)) if kind == "journal" else logs.COUNT)
    assert (told.unproven, told.lost, told.damaged) == (0, 0, False)
    assert told.segments > 3
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before  # nothing is changed
    assert json.loads(json.dumps(told.to_dict()))["records"] == told.records


@pytest.mark.parametrize("kind", ["queue", "channel", "journal", "topic"])
def test_every_damaged_record_is_named(path: Path, kind: str) -> None:
    logs.lay(kind, path)
    for segment in logs.segments(path):
        seg = segment.read()
        at = seg.scan(seg.start, segment.end, 2).position
        payload = at + seg.spec.overhead - (0 if seg.spec.sum_first else seg.spec.sum_bytes)
        flip(seg.paths.data, payload)
        here = [f for f in verify(path).findings if f.file == str(seg.paths.data)]
        assert [(f.position, f.first, f.last, f.kind) for f in here] == [
            (at, segment.base + 2, segment.base + 2, "record")
        ]
        assert "lists these as lost" in here[0].repair
    assert verify(path).damaged


def test_progress_comes_to_its_end(path: Path) -> None:
    logs.lay("queue", path)
    told: list[tuple[int, int]] = []
    verify(path, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] <= told[-1][1]
    assert len(told) > 3


def test_a_checksum_that_is_damaged_is_told_from_a_record_that_is(path: Path) -> None:
    logs.lay("topic", path)
    times = path / "t" / "partition_1_segment_1.log.time"
    flip(times, 64 + 16 * 3 + 8)
    (finding,) = found(path)
    segment = logs.segments(path)[2]
    assert (finding.kind, finding.file, finding.first) == ("companion", str(times), logs.segments(path)[1].base + 3)
    assert finding.last < segment.base


def test_another_implementations_directory_lacks_nothing(path: Path) -> None:
    for name, data in logs.closed("channel").items():
        if name.startswith("segment.") and not name.endswith((".time", ".index")):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)
    assert verify(path).findings == ()


def test_a_reader_of_a_partition_that_was_never_opened(path: Path) -> None:
    """Its place is kept there, before anything else is."""
    with Topics(path) as topics:
        topics.topic("t", partitions=3).publish(b"a", partition=1).wait()
    for part in find(path):
        part.move_cursor("bars", part.look(lambda view: view.end))
    assert (path / "t" / ".partition_0" / "cursors").is_dir()
    assert found(path) == ()
    (part, _, _) = find(path)
    part.move_cursor("bars", 7)
    (finding,) = found(path)
    assert (finding.kind, finding.what) == ("cursor", "it stands at 7, and the log ends at 0")
    for name in (".lock", "manifest"):
        (path / "t" / ".partition_1" / name).unlink()
    assert {Path(finding.file).name for finding in found(path)} >= {".lock", "manifest"}, "records are there"


def test_a_segment_that_retention_removes_meanwhile_is_no_finding(path: Path) -> None:
    logs.lay("queue", path)
    found = look(path)
    with Queue(path) as q:
        q.forget("reader")
        log = q._open_log()
        log.seal_finished()
        assert log.retire(min(log.finished().values(), key=lambda info: info.id))
    checked = [check(segment) for segment in found[0].segments]
    assert [f.kind for one in checked for f in one.findings][:1] == ["record"]
    assert report(path, found, checked).findings == ()


def test_a_compressed_segment_that_is_removed_while_it_is_looked_at_is_no_finding(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Channel[bytes](path, segment_bytes=1000, compression="zstd") as c:
        for i in range(50):
            c.tx().send(b"%050d" % i)
        until(lambda: (path / "segment.1.z").exists(), "it is compressed")
        log, real = c._open_log(), packing.header_for

        def late(*arguments: Any) -> bytes:
            monkeypatch.setattr(packing, "header_for", real)
            assert log.retire(log.finished()[0])
            return real(*arguments)

        monkeypatch.setattr(packing, "header_for", late)
        assert verify(path, deep=True).findings == ()
    assert not (path / "segment.0.z").exists()


def test_a_segment_that_was_the_last_one_and_is_compressed_since_is_no_finding(path: Path) -> None:
    with Channel[bytes](path, segment_bytes=1000, compression="zstd") as c:
        c.tx().send(b"first")
        seen = look(path)
        for i in range(50):
            c.tx().send(b"%050d" % i)
        until(lambda: (path / "segment.0.z").exists(), "it is compressed")
        assert report(path, seen, [check(segment) for segment in seen[0].segments]).findings == ()


def test_what_is_half_written_at_one_look_is_looked_at_again() -> None:
    """What a writer stores in more than one step is whole at one of many looks; damage is there at all of them."""
    seen = iter([(512, "a mark fails its checksum"), None])
    assert soundness._settled(lambda: next(seen)) is None
    assert soundness._settled(lambda: "damage") == "damage"


def test_a_log_that_is_just_being_made_is_looked_at_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.lay("queue", path)
    page = path / ".lock"
    whole = page.read_bytes()
    page.unlink()
    assert [finding.kind for finding in found(path)] == ["control"]  # a real one is at every look
    waited = []

    def meanwhile(seconds: float) -> None:
        waited.append(seconds)
        page.write_bytes(whole)

    monkeypatch.setattr(time, "sleep", meanwhile)
    assert found(path) == ()
    assert len(waited) == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        verify(tmp_path / "nothing")
    with pytest.raises(LogNotFound):
        verify(tmp_path)


@pytest.mark.parametrize("kind", ["queue", "channel", "topic", "journal"])
def test_beside_a_live_writer_nothing_is_found(path: Path, kind: str) -> None:
    """Segments roll, are sealed and compressed meanwhile; a journal is opened again and again."""
    stop, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        if kind == "queue":
            with Queue(path, file_size=65536, index_interval=8) as q:
                while not stop.is_set():
                    written = q.append(b"%050d" % written) + 1
        elif kind == "channel":
            with Channel[bytes](path, segment_bytes=50_000, compression="zstd") as c:
                rx = c.rx("reader")
                while not stop.is_set():
                    c.tx().send(b"%050d" % written)
                    written += 1
                    if written % 3 == 0:
                        rx.recv()
        elif kind == "journal":
            while not stop.is_set():
                with Journal(path) as j:
                    for _ in j.recovered():
                        pass
                    j.append_many([b"%050d" % written] * 250).result()
                    written += 250
        else:
            with Topics(path, segment_bytes=50_000, linger_s=0) as t:
                while not stop.is_set():
                    t.topic("t", 1).publish_many([b"%050d" % written] * 250).wait()
                    written += 250

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: written > 2000, "records")
        for _ in range(15):
            before = written
            assert verify(path, deep=True).findings == ()
            until(lambda before=before: written > before + 500, "more records")  # type: ignore[misc]
    finally:
        stop.set()
        writer.join()
    assert verify(path, deep=True).findings == ()


@pytest.mark.parametrize("size", [0, 4096])
@pytest.mark.parametrize("holds", [(), (".data", ".time", ".index"), (".data", ".time", ".index", "")])
def test_a_log_whose_maker_died_over_it_is_whole(path: Path, size: int, holds: tuple[str, ...]) -> None:
    with Queue(path):
        pass
    for file in path.rglob("*"):
        if file.is_file() and file.name not in ("metadata.json", ".lock") and file.suffix not in holds:
            file.unlink()
    (path / ".lock").write_bytes(bytes(size))
    assert found(path) == ()
    (path / ".lock").write_bytes(b"x" * 4096)
    assert "control" in [finding.kind for finding in found(path)]
    with Queue(path) as q:
        assert q.append(b"it is made now") == 0
    assert found(path) == ()
    (path / ".lock").write_bytes(bytes(size))
    assert [finding.kind for finding in found(path)] == ["control"]
