"""A short campaign of hostile files, and what is known to have come of some. tests/fuzz/campaign.py does as many as one likes."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock import Channel, CorruptSettings, NotALog, PenstockError, Queue, Topics
from penstock.inspect import find
from penstock.inspect.facts import look
from penstock.inspect.rows import Rows
from penstock.options import MAX_SEQUENCE
from penstock.repair import apply
from penstock.storage import checked, companion
from penstock.storage.beside import companion_for, index_for
from penstock.storage.damage import Place
from penstock.storage.ledger import Ledger
from penstock.storage.losses import FILE, LossList
from penstock.storage.offsets import Offsets
from penstock.storage.walking import next_readable
from penstock.verify import verify
from tests.fuzz import corpus
from tests.fuzz.campaign import WORK, campaign
from tests.fuzz.corpus import laid
from tests.queue.crash import NATIVE
from tests.repair import logs
from tests.topic_crash import wreck

CASES = 100 if NATIVE else 35
SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))


def test_hostile_files_are_refused_or_cost_records_and_nothing_else() -> None:
    result = campaign(CASES, SEED)
    assert not result.failures, result.failures[0]
    assert result.cases == CASES
    reached = {outcome.partition(": ")[0] for outcome in result.outcomes if outcome.endswith(": fine")}
    assert reached == set(WORK), "every kind of work got through at least once"
    errors = {outcome.partition(": ")[2] for outcome in result.outcomes} - {"fine"}
    assert errors, "and something was refused"
    assert {row.use for row in result.rows} == {"queue", "channel", "journal", "topic"}
    assert sum(row.records for row in result.rows) > CASES


def test_the_files_of_a_group_are_among_them() -> None:
    sorts = {corpus.sort_of(name) for name in corpus.image("topic")}
    assert {"claim-N", "member-N-N", "turn"} <= sorts


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_failure_comes_with_the_command_that_tries_its_case_alone(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third case does what none may."""
    third = {"raises": "raise ValueError('planted')", "dies": "import os; os.abort()"}[how]
    plant = f"""
import random, sys
from tests.fuzz import campaign, corpus
real = corpus.hostile
def hostile(kind, dice):
    if dice.random() == random.Random("7 2").random():
        campaign.WORK = {{"read": lambda kind, path: exec({third!r})}}
    return real(kind, dice)
corpus.hostile = hostile
sys.argv[0] = "campaign"
sys.exit(campaign.main())
"""
    python = sys.executable

    def planted(command: list[str], **options: object) -> subprocess.Popen[str]:
        at = command.index("tests.fuzz.campaign")
        return subprocess.Popen([python, "-c", plant, *command[at + 1 :]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("tests.fuzz.campaign.subprocess", SimpleNamespace(Popen=planted))
    result = campaign(5, seed=7)
    assert len(result.failures) == 1
    assert result.failures[0].startswith("case 2 ")
    assert [row.failures for row in result.rows] == [0, 0, 1]
    command = shlex.split(result.failures[0].rpartition("again with: ")[2])
    assert command[-6:] == ["-m", "tests.fuzz.campaign", "--seed", "7", "--case", "2"]
    again = campaign(1, seed=7, first=2)
    assert again.failures[0].splitlines()[0] == result.failures[0].splitlines()[0]


def test_every_sort_of_file_is_changed_and_sealed() -> None:
    """Else the fuzz would not reach what it is for."""
    told: dict[str, set[str]] = {}
    for number in range(4000):
        kind = corpus.KINDS[number % len(corpus.KINDS)]
        for one in corpus.hostile(kind, random.Random(number))[1].split("; "):
            name, what = one.split(": ")
            told.setdefault(corpus.sort_of(name), set()).add(what)
    wanted = {
        "manifest",
        "cursor",
        "ledger",
        "losses",
        "metadata.json",
        ".lock",
        "offset",
        "N-N.data",
        "N-N.index",
        "N-N.time",
    }
    wanted |= {"segment.N", "segment.N.z", "N.journal", "N.journal.time", "partition_N_segment_N.log"}
    assert wanted <= told.keys()
    for sort in wanted:
        assert any(what.endswith("sealed") for what in told[sort]), sort


def test_sealed_again_a_file_is_as_it_was() -> None:
    for kind in corpus.KINDS:
        for name, data in corpus.image(kind).items():
            assert corpus.seal(name, data) == data, name


# ---- each that was found ----


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"5",
        b'{"version": 1}',
        b'{"version": 1, "losses": [5]}',
        b'{"version": 1, "losses": {"a": 1}}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=["list", "number", "none", "no loss", "wrong", "deep", "no text"],
)
def test_a_loss_list_with_a_right_checksum_and_no_sense(path: Path, text: bytes) -> None:
    laid("queue", path, losses=text + b"\n00000000\n")
    with pytest.raises(NotALog, match=r"losses: does not say what it should.*penstock repair"):
        LossList(path).all()
    assert any(finding.kind == "losses" for finding in verify(path).findings)


@pytest.mark.parametrize(
    "change",
    [("first", -1), ("first", "3"), ("last", 2), ("end", 50), ("position", 1 << 64), ("segment", None)],
    ids=str,
)
def test_a_loss_that_cannot_be(path: Path, change: tuple[str, object]) -> None:
    laid("queue", path)
    one = {"segment": "x", "first": 3, "last": 4, "position": 100, "end": 200, "reason": "r", "us": 1}
    checked.store(path / FILE, {"version": 1, "losses": [{**one, change[0]: change[1]}]})
    with pytest.raises(NotALog, match="does not say what it should"):
        LossList(path).all()


def test_a_loss_list_does_not_lead_back(path: Path) -> None:
    """It would be read for ever."""
    laid("channel", path)
    with Rows(find(path), on_corrupt="skip") as rows:
        whole = [row.offset for row in rows.now()]
    starts = [64]
    for payload in logs.SENT[:4]:
        starts.append(starts[-1] + 8 + len(payload))
    data = bytearray((path / "segment.0").read_bytes())
    data[starts[4] + 9] ^= 1
    (path / "segment.0").write_bytes(data)
    listed = {"segment": "segment.0", "first": 3, "last": 4, "position": 64, "end": starts[3], "reason": "r", "us": 1}
    checked.store(path / FILE, {"version": 1, "losses": [listed]})
    with Rows(find(path), on_corrupt="skip") as rows:
        assert [row.offset for row in rows.now()] == [n for n in whole if n != 4]


@pytest.mark.parametrize(
    "text", [b"[]", b'{"done": 5, "intent": null}', b'{"done": {"w": "x"}, "intent": null}', b'{"done": {}}']
)
def test_a_ledger_with_a_right_checksum_and_no_sense(path: Path, text: bytes) -> None:
    laid("queue", path, ledger=text + b"\n00000000\n")
    with Queue(path) as q, pytest.raises(NotALog, match="ledger: does not say what it should"):
        Ledger(q._open_log()).highest("w")
    assert any(finding.kind == "ledger" for finding in verify(path).findings)


def opened_topic(path: Path) -> None:
    with Topics(path) as topics:
        topics.topic("t")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("queue", "file_size"),
        ("queue", "index_interval"),
        ("channel", "index_interval"),
        ("topic", "partitions"),
        ("topic", "index_interval"),
    ],
)
def test_settings_that_lack_one(path: Path, kind: str, name: str) -> None:
    top = laid(kind, path) / ("t" if kind == "topic" else ".")
    text = (top / "metadata.json").read_text()
    (top / "metadata.json").write_text(text.replace(f'"{name}"', '"another"'))
    openers: dict[str, Callable[[], object]] = {
        "queue": lambda: Queue(path).close(),
        "channel": lambda: Channel[bytes](path).close(),
        "topic": lambda: opened_topic(path),
    }
    with pytest.raises(CorruptSettings, match=rf"metadata\.json: {name} is missing; restore it"):
        openers[kind]()
    apply(path)
    openers[kind]()


@pytest.mark.parametrize("value", [None, '"x"', "1e400", "5000"])
def test_settings_that_are_changed_while_a_topic_is_open(path: Path, value: str | None) -> None:
    with Topics(path, linger_s=0) as topics:
        t = topics.topic("t", 2)
        with t.group("g") as member:
            at = path / "t" / "metadata.json"
            text = at.read_text()
            at.write_text(text.replace('"partitions": 2', '"other": 2' if value is None else f'"partitions": {value}'))
            with pytest.raises(CorruptSettings, match="partitions"):
                t._partitions_now()
            with pytest.raises(CorruptSettings, match="partitions"):
                t.add_partitions(3)
            assert t.partitions == 2
            at.unlink()  # its settings are those it was opened with
            assert t._partitions_now() == 2
            at.write_text(text)
            member.poll_many(1, 0)


@pytest.mark.parametrize("value", ["1e400", "[]", "null", "99999999999999999999999", "-1", '"x"', "true"])
@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_settings_that_cannot_be(path: Path, kind: str, value: str) -> None:
    top = laid(kind, path) / ("t" if kind == "topic" else ".")
    name = "partitions" if kind == "topic" else "index_interval"
    text = (top / "metadata.json").read_text()
    (top / "metadata.json").write_text(re.sub(rf'("{name}": )\d+', rf"\g<1>{value}", text))
    look(path, processes=False)  # whoever only looks goes on with what there is
    with Rows(find(path), on_corrupt="skip") as rows:
        assert len(list(rows.now())) == logs.COUNT
    if value != "true":
        with pytest.raises(NotALog, match=r"metadata\.json"):
            Channel(path) if kind == "channel" else Topics(path).topic("t")


def test_a_slot_that_cannot_be_takes_no_room(path: Path) -> None:
    laid("channel", path)
    with Channel[bytes](path) as c:
        assert c._log is not None
        c._log.cursors.store("reader", 1 << 40)
        size = (path / "offset").stat().st_size
        with pytest.raises(NotALog, match=r"cursors/reader: slot 1099511627776"):
            c.rx("reader")
    assert (path / "offset").stat().st_size == size
    offsets = Offsets(path / "offset")
    with pytest.raises(NotALog):
        offsets.reach(1 << 20, path)
    offsets.close()


@pytest.mark.parametrize(
    ("field", "value"), [(16, 1 << 62), (24, 1 << 50), (32, 1 << 50), (16, (1 << 64) - 1)], ids=str
)
def test_a_manifest_with_right_checksums_and_numbers_that_cannot_be(path: Path, field: int, value: int) -> None:
    """base, records and end of an edit: it counts as damaged, and the manifest is made anew from the files."""
    data = bytearray(corpus.image("queue")["manifest"])
    data[64 + field : 64 + field + 8] = value.to_bytes(8, "little")
    laid("queue", path, manifest=bytes(data))
    with Queue(path) as q:
        assert "manifest" in " ".join(q.recovery.rebuilt)
        assert [m.payload for m in q.tailer()] == logs.SENT


_TIMES = [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # the last is -1


@pytest.mark.parametrize("field", [40, 48], ids=["first", "last"])
@pytest.mark.parametrize("value", _TIMES, ids=str)
@pytest.mark.parametrize("kind", ["queue", "zstd"])
def test_a_manifest_with_times_that_cannot_be(path: Path, kind: str, field: int, value: int) -> None:
    """Of each segment; and the last file's companion, which would know better, is gone."""
    image = corpus.Image(corpus.image(kind))
    data = bytearray(image["manifest"])
    for at in range(64, len(data), 64):
        data[at + field : at + field + 8] = value.to_bytes(8, "little")
    image["manifest"] = corpus.seal("manifest", bytes(data))
    del image[max(name for name in image if name.endswith(".time"))]
    goes_on(wreck.lay(image, path, "new"), kind)


@pytest.mark.parametrize("value", _TIMES[:-1], ids=str)
@pytest.mark.parametrize("gone", [False, True], ids=["listed", "not listed"])
@pytest.mark.parametrize("kind", ["queue", "zstd"])
def test_companions_with_times_that_cannot_be(path: Path, kind: str, gone: bool, value: int) -> None:
    """Of all records; and what is listed is made anew of them."""
    image = corpus.Image(corpus.image(kind))
    for name in [name for name in image if name.endswith(".time")]:
        words = (len(image[name]) - companion.HEADER_BYTES) // companion.ENTRY_BYTES
        image[name] = image[name][: companion.HEADER_BYTES] + value.to_bytes(8, "little") * words
    if gone:
        del image["manifest"]
    goes_on(wreck.lay(image, path, "new"), kind)
    assert {f.kind for f in verify(path, deep=True).findings} == {"companion"}
    apply(path)
    assert verify(path, deep=True).findings == ()


def goes_on(path: Path, kind: str) -> None:
    """Nothing is lost of a log, which takes records whose times are of now."""
    with Queue(path) if kind == "queue" else Channel[bytes](path, segment_bytes=1800, compression=kind) as log:
        log.append(b"more") if isinstance(log, Queue) else log.tx().send(b"more")
        assert log._log is not None
        assert log._log.control.last_us < time.time() * 1e6 + 86_400e6
    with Rows(find(path), on_corrupt="skip") as rows:
        payloads = [bytes(row.payload) for row in rows.now()]
    assert payloads == [*logs.SENT, b"more"]


def test_a_data_file_that_says_it_begins_beyond_all_numbers(path: Path) -> None:
    image = corpus.image("queue")
    name = next(name for name in image if name.endswith("0001.data"))
    data = bytearray(image[name])
    data[16:24] = (1 << 63).to_bytes(8, "little")
    laid("queue", path, **{name.rsplit("/", 1)[-1]: bytes(data)})
    with Queue(path, read_only=True) as q:
        assert [m.payload for m in q.tailer()] == logs.SENT, "its companion says which they are"
    assert [f.kind for f in verify(path).findings] == ["header"]


def edited(kind: str, field: int, value: int) -> bytes:
    """A manifest whose first edit, the one of the oldest segment, says something else, with a right checksum."""
    data = bytearray(corpus.image(kind)["manifest"])
    data[64 + field : 64 + field + 8] = value.to_bytes(8, "little")
    return bytes(data)


def test_a_file_cut_short_is_read_to_its_end(path: Path) -> None:
    """The ledger's intent speaks of records that were in it."""
    laid("queue", path)
    first = min(path.rglob("*.data"))
    first.write_bytes(first.read_bytes()[:4200])
    with Queue(path) as q:
        assert Ledger(q._open_log()).highest("w") == 3


@pytest.mark.parametrize("base", [1 << 40, (1 << 62) - 1, 1 << 63])
def test_a_companion_that_says_its_segment_begins_beyond_its_end(path: Path, base: int) -> None:
    data = bytearray(corpus.image("channel")["segment.3.time"])
    data[16:24] = base.to_bytes(8, "little")
    laid("channel", path, **{"segment.3.time": bytes(data)})
    assert verify(path).findings
    with suppress(PenstockError), Rows(find(path), on_corrupt="skip") as rows:
        list(rows.now())
    apply(path)


def test_a_compressed_segment_that_another_is_said_to_have_is_kept(path: Path) -> None:
    """The manifest lists the records of segment 0 as segment 77's."""
    laid("gzip", path, manifest=edited("gzip", 8, 77))
    before = (path / "segment.0.z").read_bytes()
    with suppress(PenstockError):
        Channel[bytes](path).close()
    kept = [p for p in path.iterdir() if p.name.startswith("segment.0.z") and p.read_bytes() == before]
    assert kept, "under another name, if not its own"


def test_a_reader_beyond_the_end_that_is_listed_is_not_looked_for_for_ever(path: Path) -> None:
    laid("snappy", path, manifest=edited("snappy", 32, 33 * 4 + 8))
    with suppress(PenstockError), Channel[bytes](path) as c:
        c.rx("reader").recv_many(5, 0)
    with suppress(PenstockError), Channel[bytes](path) as c:
        c.rx().seek(1000)


def test_no_companion_or_index_is_made_for_records_that_a_file_cannot_have_had(path: Path) -> None:
    laid("queue", path)
    segment = logs.segments(path)[0]
    seg, end = segment.read(), Place(segment.end, segment.base + (1 << 40))
    for make in (lambda: companion_for(seg, end, now_us=1), lambda: index_for(seg, end, 1)):
        with pytest.raises(PenstockError, match="1099511627776 records are listed, and its 8192 bytes"):
            make()


def test_a_companion_for_a_file_that_ends_within_a_record(path: Path) -> None:
    laid("journal", path)
    file = path / "2.journal"
    file.write_bytes(file.read_bytes()[:-7])
    (path / "2.journal.time").unlink()
    segment = next(s for s in logs.segments(path) if s.name == "2.journal")
    with pytest.raises(PenstockError, match="records can be told apart"):
        companion_for(segment.read(), Place(segment.end + 7, segment.next + 1), now_us=1)


# Of the last edit, that of segment 2: what it lists, as (place in the edit, value) each.
@pytest.mark.parametrize(
    "changes",
    [((8, 3),), ((32, 140),), ((24, 0), (32, 4)), ((24, 1), (32, 60))],
    ids=["another segment", "an end too soon", "no room for its header", "an end in its header"],
)
def test_a_compressed_segment_of_which_the_manifest_lies(path: Path, changes: tuple[tuple[int, int], ...]) -> None:
    """It is opened, or refused, and neither looks for ever for what is not there; no record is removed."""
    data = bytearray(corpus.image("snappy")["manifest"])
    for field, value in changes:
        data[64 * 4 + field : 64 * 4 + field + 8] = value.to_bytes(8, "little")
    laid("snappy", path, manifest=bytes(data))
    before = (path / "segment.2.z").read_bytes()
    verify(path, deep=True)
    with suppress(PenstockError), Channel[bytes](path) as c:
        c.rx("reader").recv_many(5, 0)
    kept = [p for p in path.iterdir() if p.name.startswith("segment.2.z") and p.read_bytes() == before]
    assert kept, "under another name, if not its own"


def test_a_companion_does_not_count_beyond_all_numbers() -> None:
    assert companion.base_of(companion.pack_header(MAX_SEQUENCE - 1)) == MAX_SEQUENCE - 1
    assert companion.base_of(companion.pack_header(MAX_SEQUENCE)) is None


@pytest.mark.parametrize("kind", ["queue", "channel", "topic"])
def test_what_is_lost_behind_the_last_byte_ends_there(path: Path, kind: str) -> None:
    laid(kind, path)
    segment = logs.segments(path)[-1]
    seg, end = segment.read(), Place(len(segment.read().data), segment.next + 1)
    assert next_readable(seg, Place(end.position, segment.next), end) == end
