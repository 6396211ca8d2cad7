"""Any byte of any file of a log is damaged, cut off or gone: verify finds it, or it does not matter; repair puts it right."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from penstock import Channel, Journal, Queue, Topics
from penstock.repair import apply, plan
from penstock.verify import Finding, verify
from tests.channel.conftest import drain
from tests.queue.crash import NATIVE, open_yard
from tests.repair import logs
from tests.topic_crash.wreck import EVERY

EACH = 3 if EVERY or NATIVE else 1  # bytes to be changed of each
NO_RECORDS = (
    "manifest",
    "metadata.json",
    "offset",
    ".lock",
    "cursors/",
    ".index",
    ".time",
    ".writer",
    ".grow",
    ".append",
)
MORE = b"more than there was"


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def holds_records(name: str) -> bool:
    return not any(part in name for part in NO_RECORDS)


def lost_by(findings: tuple[Finding, ...]) -> set[int]:
    return {i for f in findings if f.kind == "record" for i in range(f.first, f.last + 1)}


def append(kind: str, path: Path) -> None:
    """Go on with a log that was repaired, as its program would."""
    if kind == "queue":
        with Queue(path) as q:
            assert q.append(MORE) == logs.COUNT
    elif kind == "topic":
        with Topics(path, segment_bytes=1800, linger_s=0) as t:
            published = t.topic("t").publish(MORE, partition=1)
            published.wait()
            assert published.offset == logs.COUNT
    elif kind == "journal":
        with pytest.warns(match="were not walked"), Journal(path) as j:
            j.append(MORE).result()
    else:
        with Channel[bytes](path, segment_bytes=1800) as c:
            c.tx().send(MORE)


def judge(kind: str, path: Path, name: str, *, copy: Path) -> None:
    """What must hold of a log with one damage, whatever it is."""
    was = logs.payloads(kind)
    findings = verify(path, deep=True).findings
    lost = lost_by(findings)
    if not holds_records(name):
        assert not lost, findings
    if not findings:
        assert plan(path).steps == ()
        assert logs.read(kind, path) == (was, [])
        return
    if any("later version" in finding.repair for finding in findings):
        assert apply(path).copies == ()  # it is left alone
        return
    told = apply(path)
    assert (told.failed, told.left) == ((), ())
    assert told.steps
    assert verify(path, deep=True).findings == ()
    once = tree(path)
    assert plan(path).steps == ()
    assert apply(path).steps == ()
    assert tree(path) == once
    shutil.copytree(path, copy)  # a journal is changed by being read
    found = logs.read(kind, copy)
    assert found.records == {i: payload for i, payload in was.items() if i not in lost}
    assert found.lost == lost
    append(kind, path)
    assert verify(path).findings == ()


def damages(kind: str) -> list[tuple[str, int]]:
    """A file, and a byte of it to be changed; or -1: it is cut short; -2: it is gone. Some of each sort of file; of every file
    if every one is to be tried."""
    chance, image = random.Random(kind), logs.closed(kind)
    sorts: dict[str, list[str]] = {}
    for name in sorted(image):
        sorts.setdefault(name if EVERY else re.sub("[0-9]+", "", name.replace("segment", "")), []).append(name)
    out = []
    for names in sorts.values():
        for at in [*range(EACH), -1, -2]:
            name = chance.choice(names)
            used = [i for i, byte in enumerate(image[name]) if byte]  # most of a preallocated file is nothing
            if at < 0 or used:
                out.append((name, at if at < 0 else chance.choice(used)))
    return out


def hurt(path: Path, name: str, at: int) -> None:
    file = path / name
    data, chance = bytearray(file.read_bytes()), random.Random(f"{name} {at}")
    if at == -2:
        file.unlink()
    elif at == -1:
        file.write_bytes(data[: chance.randrange(len(data))] if data else b"")
    else:
        data[at] ^= chance.randrange(1, 256)
        file.write_bytes(data)


@pytest.mark.parametrize("kind", logs.KINDS)
def test_any_file(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.small(monkeypatch)
    with open_yard() as yard:
        for number, (name, at) in enumerate(damages(kind)):
            path = logs.lay(kind, yard.new() / "log", "same" if number % 2 else "new")
            hurt(path, name, at)
            try:
                judge(kind, path, name, copy=path.with_name("copy"))
            except BaseException as error:
                error.add_note(f"{name}, byte {at}")
                raise


@pytest.mark.parametrize("kind", ["topic", "channel"])
def test_zeros_that_read_as_empty_records_take_none_from_the_next_segment(kind: str, path: Path) -> None:
    """Without checksums nothing tells them from records, and there are more of them than there were."""
    logs.lay(kind, path)
    first = logs.segments(path)[0]
    for companion in path.rglob("*.time"):
        companion.unlink()
    seg = first.read()
    places = [seg.scan(seg.start, first.end, n, verify=False).position for n in range(2, first.next)]
    start = places[0]
    end = next(at for at in places[1:] if (at - start) % 8 == 0)  # whole frames of none
    with seg.paths.data.open("r+b") as data:
        data.seek(start)
        data.write(bytes(end - start))
    if kind == "topic":
        with Topics(path, read_only=True) as topics, topics.topic("t").tailer(partitions=[1]) as tailer:
            got = [m.payload for m in tailer]
    else:
        with Channel[bytes](path, read_only=True) as c:
            rx, got = c.rx(), []
            while (message := rx.try_recv()) is not None:
                got.append(message)
    assert got.count(b"") > places.index(end)
    assert got[-(logs.COUNT - first.next) :] == logs.SENT[first.next :]


@pytest.mark.parametrize("each", [1, 50])
def test_zeros_that_read_as_empty_records_take_nothing_from_a_receiver_beside_its_sender(path: Path, each: int) -> None:
    """It knows where a segment ends when it comes there, and perhaps is far behind then."""
    sent = [b"%08d" % i * 7 for i in range(400)]
    with Channel[bytes](path, segment_bytes=16384) as c:
        c.rx("reader").close()
        c.tx().send_many(sent[:200])
    with (path / "segment.0").open("r+b") as data:
        data.seek(64 + 64 * 100)
        data.write(bytes(2 * 64))  # two records, which read as sixteen
    got: list[bytes] = []
    with Channel[bytes](path, segment_bytes=16384) as c:
        tx, rx = c.tx(), c.rx("reader")
        for i, message in enumerate(sent[200:]):
            tx.send(message)
            if i % each == 0:
                got += drain(rx)
        got += drain(rx)
        assert c._open_log().active().segment > 0
        assert rx.offset == c.stats().write_offset
    assert [message for message in got if message] == sent[:100] + sent[102:]
