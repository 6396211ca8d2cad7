"""`repair`: who may be there, what is kept, where readers are set back to, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from penstock import Channel, LogBusy, Queue, Topics, repair
from penstock.inspect import Part
from penstock.inspect.facts import look
from penstock.repair import apply, plan
from penstock.storage import checked
from penstock.verify import verify
from tests.repair import logs
from tests.repair.test_damage import tree
from tests.repair.test_losses import break_record
from tests.repair.test_verify import flip

HOLD = "import sys; from penstock import Queue; q = Queue(sys.argv[1]); print('open', flush=True); sys.stdin.read(); q.close()"


def test_a_plan_changes_nothing(path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 50)
    before = tree(path)
    planned = plan(path)
    assert [str(step) for step in planned.steps] == [
        f"{logs.segments(path)[1].paths().data}: lists these as lost, so that readers step over them"
    ]
    assert planned.beyond == ()
    assert tree(path) == before


def test_it_is_refused_while_another_process_has_the_log_open(path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 50)
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdin
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LogBusy, match=f"process {other.pid} has this queue open"):
            apply(path)
        assert not (path / "losses").exists()
        assert plan(path).steps  # which only looks
        other.stdin.close()
    assert apply(path).left == ()
    assert (path / "losses").exists()


@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_nor_while_this_one_has(path: Path, kind: str) -> None:
    logs.lay(kind, path)
    break_record(path, 50)
    opened = Channel[bytes](path) if kind == "channel" else Topics(path)
    with opened:
        if isinstance(opened, Topics):
            opened.topic("t").ends()
        with pytest.raises(LogBusy, match="this process" if kind == "channel" else str(os.getpid())):
            apply(path)
    assert apply(path).left == ()


def test_copies_are_numbered_and_never_overwritten(path: Path) -> None:
    logs.lay("queue", path)
    index = logs.segments(path)[0].paths().index
    contents = []
    for number in range(3):
        flip(index, 256 + 8 + number)
        contents.append(index.read_bytes())
        assert apply(path).copies == (str(index) + (".broken" if not number else f".broken.{number + 1}"),)
    kept = [index.with_name(index.name + suffix) for suffix in (".broken", ".broken.2", ".broken.3")]
    assert [file.read_bytes() for file in kept] == contents


def test_what_was_appended_after_the_look_is_looked_at_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an index would be made of what the log was before."""
    logs.lay("queue", path)
    index = logs.segments(path)[-1].paths().index
    flip(index, 256 + 8)
    real, appended = repair._alone, []

    def alone(part: Part) -> AbstractContextManager[None]:
        if not appended:
            with Queue(path) as q:
                appended.extend(q.append_batch([b"more"] * 2 * logs.INTERVAL))
        return real(part)

    monkeypatch.setattr(repair, "_alone", alone)
    assert apply(path).copies == (f"{index}.broken",)
    assert verify(path, deep=True).findings == ()


def test_a_reader_whose_place_is_lost_is_set_back_to_the_earliest_record(path: Path) -> None:
    logs.lay("queue", path)
    flip(path / "cursors" / "reader", 17)
    (finding,) = verify(path).findings
    assert (finding.kind, finding.repair) == ("cursor", "sets the reader back to the earliest record")
    assert apply(path).copies == (str(path / "cursors.reader.broken"),)
    with Queue(path) as q:
        assert q.cursors() == {"reader": 0}


@pytest.mark.parametrize("ours", ["cursors/reader", "offset"])
def test_a_receiver_whose_place_is_lost_is_set_back_and_others_are_not(path: Path, ours: str) -> None:
    logs.lay("channel", path)
    with Channel[bytes](path, segment_bytes=1800) as c:
        other = c.rx("other")
        assert other.recv_many(50) == logs.SENT[:50]
    if ours == "offset":
        (path / ours).unlink()
    else:
        flip(path / ours, 17)
    assert apply(path).left == ()
    with Channel[bytes](path, segment_bytes=1800) as c:
        assert c.rx("reader").recv() == logs.SENT[0]
        assert c.rx("other").recv() == logs.SENT[0 if ours == "offset" else 50]


def test_a_receivers_place_survives_damage_to_one_of_its_copies(path: Path) -> None:
    logs.lay("channel", path)
    with Channel[bytes](path, read_only=True) as c:
        slot = c._slots()["reader"]
    flip(path / "offset", 4096 + slot * 8 + 6)
    assert [f.kind for f in verify(path).findings] == ["offset"]
    assert apply(path).left == ()
    with Channel[bytes](path, segment_bytes=1800) as c:
        assert c.rx("reader").recv() == logs.SENT[logs.READER]


def test_a_ledger_is_left_alone(path: Path) -> None:
    logs.lay("queue", path)
    checked.store(path / "ledger", {"done": {"query": 7}, "intent": None})
    assert verify(path).findings == ()
    flip(path / "ledger", 12)
    before = tree(path)
    told = apply(path)
    assert (told.steps, [f.kind for f in told.left]) == ((), ["ledger"])
    assert tree(path) == before


def test_a_log_whose_records_are_gone_is_not_made_anew(path: Path) -> None:
    logs.lay("queue", path)
    for file in [*path.rglob("*.data"), path / ".lock", path / "manifest"]:
        file.unlink()
    report = verify(path)
    assert report.damaged
    assert "log" in {f.kind for f in report.findings}
    assert plan(path).steps == ()
    before = tree(path)
    told = apply(path)
    assert (told.steps, told.left) == ((), report.findings)
    assert tree(path) == before


def test_a_torn_tail_is_cut_and_kept(path: Path) -> None:
    image = logs.closed("queue")
    name = image.data
    logs.lay("queue", path, "new")
    (path / ".lock").write_bytes(bytes(4096))  # as after a power cut at which it was open
    end = logs.segments(path)[-1].end
    data = bytearray((path / name).read_bytes())
    data[end : end + 9] = b"\x05\0\0\0hello"
    (path / name).write_bytes(data)
    assert "tail" in {f.kind for f in verify(path).findings}
    told = apply(path)
    assert told.left == ()
    assert told.torn == (f"{path / name}: byte {end}: 9 bytes of a torn tail, copied to {Path(name).name}.torn",)
    assert (path / f"{name}.torn").read_bytes() == b"\x05\0\0\0hello"
    assert logs.read("queue", path) == (dict(enumerate(logs.SENT)), [])


def test_what_a_killed_repair_was_writing_is_swept_at_the_next_open(path: Path) -> None:
    logs.lay("queue", path)
    (path / "losses.123-456.tmp").write_bytes(b"half a l")
    with Queue(path):
        pass
    assert not list(path.glob("*.tmp"))


def test_a_segment_that_is_gone_with_the_manifest_is_listed_by_what_the_others_say(path: Path) -> None:
    logs.lay("queue", path)
    gone = logs.segments(path)[1]
    gone.paths().data.unlink()
    (path / "manifest").write_bytes(b"no manifest")
    assert apply(path).left == ()
    found, lost = logs.read("queue", path), set(range(gone.base, gone.next))
    assert found.records == {i: payload for i, payload in enumerate(logs.SENT) if i not in lost}
    assert found.lost == lost
    assert verify(path, deep=True).findings == ()


@pytest.mark.parametrize("name", ["segment_1.log", "segment_1.log.time"])
def test_a_companion_is_made_of_a_file_that_is_cut_short(path: Path, name: str) -> None:
    """What is not known of records that are gone stays so; what is left is held to it from now on."""
    logs.lay("topic", path)
    data = path / "t" / "partition_1_segment_1.log"
    data.write_bytes(data.read_bytes()[:700])
    flip(data.with_name(f"{data.name}.time"), 3)
    if name.endswith(".time"):
        data.with_name(f"{data.name}.time").unlink()
    told = apply(path)
    assert (told.left, told.failed) == ((), ())
    found = logs.read("topic", path)
    assert {**found.records, **{i: logs.SENT[i] for i in found.lost}} == dict(enumerate(logs.SENT))


def test_many_logs_at_once(tmp_path: Path) -> None:
    for kind in ("queue", "channel"):
        logs.lay(kind, tmp_path / "all" / kind)
        break_record(tmp_path / "all" / kind, 50)
    told = apply(tmp_path / "all")
    assert {step.finding.topic for step in told.steps} == {"queue", "channel"}
    assert verify(tmp_path / "all", deep=True).findings == ()


@pytest.mark.parametrize("kind", logs.KINDS)
def test_what_is_listed_as_lost_is_no_damage_any_more(kind: str, path: Path) -> None:
    """Also to those who look into a copy that nobody has closed, where the records are gone through."""
    logs.lay_open(kind, path)
    last = next(one for one in logs.segments(path) if one.active and one.next > one.base)
    for sequence in (34, last.base):
        break_record(path, sequence)
    assert any("are lost" in problem for facts in look(path) for problem in facts.problems)
    told = apply(path)
    assert (told.left, told.failed) == ((), ())
    for facts in look(path):
        assert facts.problems == ()
    if kind == "queue":
        for read_only in (True, False, False):
            with Queue(path, read_only=read_only, verify_on_startup=True) as q:
                assert q.recovery.damage == []
        break_record(path, 50)
        with Queue(path, read_only=True, verify_on_startup=True) as q:
            (said,) = q.recovery.damage
            assert "sequences 50 to 50 are lost" in said


def test_a_list_that_cannot_be_read_keeps_nobody_from_the_log(path: Path) -> None:
    logs.lay("queue", path)
    break_record(path, 34)
    apply(path)
    (path / "losses").write_text("{")
    with Queue(path, read_only=True, verify_on_startup=True) as q:
        assert any("sequences 34 to 34 are lost" in said for said in q.recovery.damage)
